"""Training data: prompts are the judge's own, labels stay out of them, masks and weights are on the right tokens."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chat_templates import CONTROLS, tokenizer_with
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm.data.synthetic import examples
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.training.components import judge_items, make_judge, make_processor, start_generator
from transformers_egrm.training.config import Schedule, TrainConfig, load_config, read_config, to_dict
from transformers_egrm.training.curriculum import Curriculum, plan
from transformers_egrm.training.items import ItemEncoder
from transformers_egrm.training.routing import RoutedExample, route_examples, summarise
from transformers_egrm.training.run import Run, check_trackers, last_checkpoint
from transformers_egrm.training.sft import micro_batches
from transformers_egrm.training.trainer import (
    JudgeCollator,
    JudgeSFTTrainer,
    completion_logits,
    to_dataset,
    training_arguments,
)
from transformers_egrm.training.world import draw_examples


EXAMPLE = SimpleNamespace(
    question_id="q1", domain="sums", difficulty=1, style="concise", kind="right", prompt="What is 1 + 1?",
    response="2", verdict=10, chain="1 + 1 = 2. It is 2, said 2: right.",
)  # fmt: skip
TEMPLATES = ("plain", *CONTROLS)


def encoder_with(template: str = "chatml", digits: bool = True) -> ItemEncoder:
    return ItemEncoder(EGRMProcessor(tokenizer_with(template, digits), rubric="Judge the answer."))


# -- prompts and masks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("digits", [True, False])
def test_training_prompts_are_the_processors_token_for_token(template: str, digits: bool):
    encoder = encoder_with(template, digits)
    task = encoder.task
    for example in islice(examples("train", seed=3), 5):
        judged = encoder.processor(example.record()).input_ids[0].tolist()
        item = encoder.encode(example)
        for is_short, suffix in ((True, task.short_suffix_ids), (False, task.long_suffix_ids)):
            sequence = encoder.sequence(item, is_short=is_short)
            start = sequence.completion_mask.index(1)
            assert sequence.input_ids[:start] == [*judged, *suffix]
            assert sequence.completion_mask == [0] * start + [1] * (len(sequence.input_ids) - start)
            assert len(sequence.input_ids) == encoder.length(item, is_short=is_short)


def test_the_engine_runs_the_very_prompts_that_were_trained_on():
    generator, tokenizer = tiny_generator(), tiny_tokenizer()
    processor = EGRMProcessor(tokenizer, rubric="Judge the answer.")
    model, encoder = make_judge(generator, processor, TrainConfig().judge), ItemEncoder(processor)
    item = encoder.encode(EXAMPLE)
    seen: list[list[int]] = []
    hook = generator.get_input_embeddings().register_forward_hook(
        lambda m, args, out: seen.append(args[0].tolist()[0])
    )
    judge_items(model, [item], 4, path="short")
    judge_items(model, [item], 4, path="long", max_chain_tokens=1, num_chains=1)
    hook.remove()
    trained = encoder.sequence(item, is_short=True)
    assert trained.input_ids[: trained.completion_mask.index(1)] in seen
    trained = encoder.sequence(item, is_short=False)
    body = seen.index(list(item.prompt_ids))
    assert seen[body] + seen[body + 1] == trained.input_ids[: trained.completion_mask.index(1)]


def test_nothing_but_question_and_response_reaches_the_judge_prompt():
    encoder = encoder_with()
    secret = SimpleNamespace(**{**vars(EXAMPLE), "question_id": "zebra", "domain": "zebra", "difficulty": 9, "style": "zebra",
                                "kind": "zebra", "verdict": 3, "chain": "zebra zebra"})  # fmt: skip
    plain, poisoned = encoder.encode(EXAMPLE), encoder.encode(secret)
    assert poisoned.prompt_ids == plain.prompt_ids
    decode = encoder.processor.tokenizer.decode
    for is_short in (True, False):
        sequence = encoder.sequence(poisoned, is_short=is_short)
        start = sequence.completion_mask.index(1)
        assert "zebra" not in decode(sequence.input_ids[:start])
        assert ("zebra" in decode(sequence.input_ids[start:])) is not is_short


def test_masks_by_hand_on_a_chain_and_on_a_short_verdict():
    encoder = encoder_with("chatml")
    tokenizer, item = encoder.processor.tokenizer, encoder.encode(EXAMPLE)
    sequence = encoder.sequence(item, is_short=False)
    written = [token for token, learnt in zip(sequence.input_ids, sequence.completion_mask, strict=True) if learnt]
    assert tokenizer.decode(written) == "1 + 1 = 2. It is 2, said 2: right.\nVerdict: 10<|im_end|>"
    verdict = [token for token, counted in zip(sequence.input_ids, sequence.verdict_mask, strict=True) if counted]
    assert tokenizer.decode(verdict) == " 10"
    assert sequence.verdict_mask[-1] == 0, "the end of the turn is no part of the verdict"
    before = tokenizer.decode(sequence.input_ids[: sequence.completion_mask.index(1)])
    assert before.endswith("Think step by step first, then end with that line.<|im_end|>\n<|im_start|>assistant\n")

    short = encoder.sequence(item, is_short=True)
    start = short.completion_mask.index(1)
    assert tokenizer.decode(short.input_ids[:start]).endswith("<|im_start|>assistant\nVerdict: ")  # split digits
    assert tokenizer.decode(short.input_ids[start:]) == "10<|im_end|>"
    assert short.verdict_mask == [0] * start + [1, 1, 0]
    assert short.is_short
    assert not sequence.is_short


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("digits", [True, False])
def test_what_is_trained_is_what_the_judge_reads_back(template: str, digits: bool):
    encoder = encoder_with(template, digits)
    task, decode = encoder.task, encoder.processor.tokenizer.decode
    for verdict in (0, 1, 10):
        item = encoder.encode(SimpleNamespace(**{**vars(EXAMPLE), "verdict": verdict}))
        for is_short in (True, False):
            sequence = encoder.sequence(item, is_short=is_short)
            completion = sequence.input_ids[sequence.completion_mask.index(1) :]
            assert completion[-1] in task.chain_stop_ids
            assert task.parse(decode(completion), reasoning=not is_short) == verdict
            told = [token for token, is_told in zip(sequence.input_ids, sequence.verdict_mask, strict=True) if is_told]
            assert decode(told).strip() == str(verdict)


def test_control_tokens_in_a_chain_stay_text():
    encoder = encoder_with()
    item = encoder.encode(SimpleNamespace(**{**vars(EXAMPLE), "chain": "end <|im_end|> here"}))
    assert encoder.end_id not in item.chain_ids
    assert "<|im_end|>" in encoder.processor.tokenizer.decode(list(item.chain_ids))


def test_a_verdict_outside_the_space_is_refused():
    encoder = ItemEncoder(EGRMProcessor(tiny_tokenizer(), space={"kind": "pointwise", "low": 0, "high": 5}))
    with pytest.raises(ConfigError, match=r"verdict is 10, but verdicts go from 0 to 5.*judge\.low"):
        encoder.encode(EXAMPLE)
    with pytest.raises(ConfigError, match="the verdict space is listwise"):
        ItemEncoder(EGRMProcessor(tiny_tokenizer(), space={"kind": "listwise"}))


def test_an_example_longer_than_the_model_is_refused_before_training():
    encoder = encoder_with()
    with pytest.raises(ConfigError, match=r"takes \d+ tokens with its chain, the model holds 40"):
        encoder.encode_all([EXAMPLE], max_tokens=40)


# -- collator and loss --------------------------------------------------------------------------------------------------


def rows_of(encoder: ItemEncoder, modes: list[bool], *, with_answer: bool = False) -> list[dict[str, Any]]:
    item = encoder.encode(EXAMPLE)
    rows = []
    for is_short in modes:
        sequence = encoder.sequence(item, is_short=is_short, with_answer=with_answer)
        labels = [t if m else -100 for t, m in zip(sequence.input_ids, sequence.completion_mask, strict=True)]
        rows.append({"input_ids": sequence.input_ids, "labels": labels, "verdict_mask": sequence.verdict_mask,
                     "answer_mask": sequence.answer_mask, "is_short": is_short})  # fmt: skip
    return rows


def test_weights_by_hand():
    rows = rows_of(encoder_with(), [True, False])
    batch = JudgeCollator(2, verdict_weight=4.0, short_weight=3.0, balance="tokens")(rows)
    start = next(i for i, label in enumerate(rows[0]["labels"]) if label != -100)
    assert batch["loss_weights"][0, : start + 4].tolist() == [0.0] * start + [12.0, 12.0, 3.0, 0.0]
    length = len(rows[1]["labels"])
    assert batch["loss_weights"][1, length - 5 : length].tolist() == [1.0, 4.0, 4.0, 4.0, 1.0], "space, 1, 0, end"
    balanced = JudgeCollator(2, verdict_weight=4.0, short_weight=3.0, balance="items")(rows)["loss_weights"]
    assert balanced.sum(-1).tolist() == pytest.approx([3.0, 1.0])
    assert balanced[0, start].item() == pytest.approx(3.0 * 4 / 9)
    assert (batch["input_ids"][0, len(rows[0]["input_ids"]) :] == 2).all()
    assert (batch["labels"][0, len(rows[0]["input_ids"]) :] == -100).all()


def test_a_template_that_opens_a_thought_before_an_answer_teaches_no_answers():
    encoder = encoder_with("r1")
    assert not any(encoder.sequence(encoder.encode(EXAMPLE), is_short=True, with_answer=True).answer_mask)


@pytest.mark.parametrize("template", [template for template in TEMPLATES if template != "r1"])
def test_a_response_with_full_marks_is_learnt_where_asked_and_no_other(template: str):
    encoder = encoder_with(template)
    item, decode = encoder.encode(EXAMPLE), encoder.processor.tokenizer.decode
    for is_short in (True, False):
        plain = encoder.sequence(item, is_short=is_short)
        sequence = encoder.sequence(item, is_short=is_short, with_answer=True)
        assert sequence.input_ids == plain.input_ids
        assert sequence.verdict_mask == plain.verdict_mask
        learnt = [t for t, counted in zip(sequence.input_ids, sequence.answer_mask, strict=True) if counted]
        assert decode(learnt, skip_special_tokens=True).split()[-1] == EXAMPLE.response  # Qwen's empty thought before
        assert [
            a + b for a, b in zip(plain.completion_mask, sequence.answer_mask, strict=True)
        ] == sequence.completion_mask
        assert not any(plain.answer_mask)
    worse = encoder.encode(SimpleNamespace(**{**vars(EXAMPLE), "verdict": 7}))
    assert not any(encoder.sequence(worse, is_short=True, with_answer=True).answer_mask)


def test_an_answers_weight_by_hand():
    rows = rows_of(encoder_with(), [True], with_answer=True)
    batch = JudgeCollator(2, verdict_weight=4.0, answer_weight=0.5, short_weight=1.0, balance="tokens")(rows)
    weights = batch["loss_weights"][0].tolist()
    answer = [place for place, counted in enumerate(rows[0]["answer_mask"]) if counted]
    assert [weights[place] for place in answer] == [0.5] * len(answer)
    assert len(answer) >= 2, "the response and the end of its turn"
    assert sum(weights) == 0.5 * len(answer) + 9


def make_trainer(folder: Path, balance: str, encoder: ItemEncoder, generator: Any, **settings: Any) -> JudgeSFTTrainer:
    item = encoder.encode(EXAMPLE)
    sequences = [encoder.sequence(item, is_short=is_short) for is_short in (True, False, True, False)]
    arguments = training_arguments(
        str(folder), per_device_train_batch_size=2, report_to=[], bf16=False, disable_tqdm=True, **settings
    )
    return JudgeSFTTrainer(
        model=generator, args=arguments, train_dataset=to_dataset(sequences),
        data_collator=JudgeCollator(2, verdict_weight=4.0, short_weight=0.5, balance=balance),
        processing_class=encoder.processor.tokenizer,
    )  # fmt: skip


@pytest.mark.parametrize("balance", ["items", "tokens"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_loss_is_the_weighted_mean_by_hand(tmp_path: Path, balance: str, family: str):
    encoder, generator = encoder_with(), tiny_generator(family)
    trainer = make_trainer(tmp_path, balance, encoder, generator)
    assert trainer.train_dataset.column_names == ["input_ids", "verdict_mask", "answer_mask", "is_short", "labels"]
    rows = [trainer.train_dataset[index] for index in range(2)]
    assert [row["labels"] for row in rows] == [row["labels"] for row in rows_of(encoder, [True, False])], "TRL's masks"
    batch = trainer.data_collator(rows)
    tokens = sum(label != -100 for row in rows for label in row["labels"])
    loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=torch.tensor(tokens))

    total = 0.0
    for row, weights in zip(rows, batch["loss_weights"].tolist(), strict=True):
        logits = generator(input_ids=torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
        for place, label in enumerate(row["labels"][1:]):
            if label != -100:
                total -= weights[place + 1] * logits[place, label].item()
    assert loss.item() == pytest.approx(total / (2 if balance == "items" else tokens), rel=1e-4)


def test_gradients_do_not_depend_on_how_a_step_is_cut(tmp_path: Path):
    gradients = []
    for micro, accumulation in ((4, 1), (2, 2), (1, 4)):
        generator = tiny_generator()
        trainer = make_trainer(tmp_path, "items", encoder_with(), generator, max_steps=1, learning_rate=0.0,
                               gradient_accumulation_steps=accumulation, max_grad_norm=0.0)  # fmt: skip
        trainer.args.per_device_train_batch_size = trainer._train_batch_size = micro
        trainer.create_optimizer()
        kept: dict[str, torch.Tensor] = {}
        step = trainer.optimizer.step

        def keep(*args: Any, generator: Any = generator, kept: dict = kept, step: Any = step, **kwargs: Any) -> Any:
            kept.update({name: p.grad.clone() for name, p in generator.named_parameters()})
            return step(*args, **kwargs)

        trainer.optimizer.step = keep
        trainer.train()
        gradients.append(kept)
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, atol=1e-5, rtol=1e-4)


def test_padding_on_the_right_changes_no_logit():
    generator = tiny_generator()
    ids = torch.tensor([[7, 8, 9, 10]])
    padded = torch.tensor([[7, 8, 9, 10, 2, 2], [11, 12, 13, 14, 15, 16]])
    alone = completion_logits(generator, generator, ids, torch.tensor([[False, False, True, True]]))
    places = torch.tensor([[False, False, True, True, False, False], [False] * 6])
    torch.testing.assert_close(completion_logits(generator, generator, padded, places), alone, atol=1e-5, rtol=1e-5)


def test_a_step_is_shared_evenly_or_not_at_all():
    assert micro_batches(128, None, 2) == (64, 1)
    assert micro_batches(128, 16, 2) == (16, 4)
    assert micro_batches(128, 128, 2) == (64, 1)
    with pytest.raises(ConfigError, match="cannot be shared evenly by 3 processes"):
        micro_batches(128, None, 3)


# -- curriculum ---------------------------------------------------------------------------------------------------------


def make_plan(steps: int = 40, batch: int = 10, **settings: Any) -> list[tuple[int, bool]]:
    everything = range(60)
    curriculum = Curriculum(
        **{"short_set": everything, "long_set": everything, "is_easy": [i < 20 for i in everything], **settings}
    )
    return plan(curriculum, steps, batch, lambda pick: (pick[0] * 37) % 50 + 10 * (not pick[1]), sort_steps=4, seed=1)


def test_every_example_comes_once_before_any_comes_again():
    order = make_plan(steps=12, short_share=Schedule(((0.0, 0.5),)))
    assert len(order) == 120
    assert set(Counter(order).values()) == {1}
    assert make_plan(steps=12, short_share=Schedule(((0.0, 0.5),))) == order


def test_shares_follow_their_schedules():
    order = make_plan(
        steps=40, short_share=Schedule(((0.0, 1.0), (1.0, 0.0))), short_easy_share=Schedule(((0.0, 0.9),)),
        long_easy_share=Schedule(((0.0, 0.0), (1.0, 1.0))),
    )  # fmt: skip
    first, last = order[:40], order[-40:]
    assert sum(is_short for _, is_short in first) > 35
    assert sum(is_short for _, is_short in last) < 5
    short = [index for index, is_short in order if is_short]
    assert sum(index < 20 for index in short) / len(short) == pytest.approx(0.9, abs=0.02)
    long = [index for index, is_short in order if not is_short]
    assert sum(index < 20 for index in long[:30]) < 10
    assert sum(index < 20 for index in long[-30:]) > 25


def test_a_split_sets_the_share_of_modes_and_an_empty_set_is_never_drawn():
    order = make_plan(short_set=range(10), long_set=range(10, 40))
    assert sum(is_short for _, is_short in order) / len(order) == pytest.approx(0.25, abs=0.01)
    assert all((index < 10) is is_short for index, is_short in order)
    assert not any(is_short for _, is_short in make_plan(short_set=(), short_share=Schedule(((0.0, 0.5),))))
    with pytest.raises(ConfigError, match="at least one example"):
        make_plan(short_set=(), long_set=())


def test_batches_hold_similar_lengths_in_no_order_of_lengths():
    order = make_plan(steps=40, short_share=Schedule(((0.0, 0.5),)))
    lengths = [(index * 37) % 50 + 10 * (not is_short) for index, is_short in order]
    spreads = [max(lengths[i : i + 10]) - min(lengths[i : i + 10]) for i in range(0, len(lengths), 10)]
    assert sum(spreads) / len(spreads) < 25, "of lengths that spread over 60"
    first = [sum(lengths[i : i + 10]) for i in range(0, 40, 10)]
    assert any(first != sorted(first) for first in
               ([sum(lengths[g + i : g + i + 10]) for i in range(0, 40, 10)] for g in range(0, 400, 40)))  # fmt: skip
    assert first


# -- routing ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def routing_bench() -> tuple[Any, list[Any], list[Any]]:
    generator, tokenizer = tiny_generator(), tiny_tokenizer()
    config = read_config(
        {"judge": {"rubric": "Judge.", "options": {"max_chain_tokens": 8, "probe_vocabulary": "verdict"}}}
    )
    processor = make_processor(generator, tokenizer, config.judge)
    drawn = list(islice(examples("train", mix={1: 1.0}), 24))
    return make_judge(generator, processor, config.judge), drawn, ItemEncoder(processor).encode_all(drawn)


@pytest.mark.parametrize(("keep_both", "require_correct"), [(0.0, True), (0.0, False), (1.0, True), (0.5, True)])
def test_consensus_decides_the_sets(routing_bench: tuple, keep_both: float, require_correct: bool):
    model, drawn, items = routing_bench
    config = read_config({"routing": {"keep_both": keep_both, "require_correct": require_correct, "threshold": 0.4}})
    routed = route_examples(model, drawn, items, config.routing, seed=5)
    assert [row.index for row in routed] == list(range(24))
    for row, item in zip(routed, items, strict=True):
        trusted = row.consensus >= 0.4 - 1e-6 and (row.verdict == item.verdict or not require_correct)
        assert row.truth == item.verdict
        assert (row.in_short_set or keep_both > 0) if trusted else True
        if keep_both == 0:
            assert (row.in_short_set, row.in_long_set) == (trusted, not trusted)
        if keep_both == 1:
            assert (row.in_short_set, row.in_long_set) == (True, True)
    both = sum(row.in_short_set and row.in_long_set for row in routed)
    assert both == 0 if keep_both == 0 else both > 0


def test_routing_does_not_depend_on_the_batch(routing_bench: tuple):
    model, drawn, items = routing_bench
    whole = route_examples(model, drawn, items, read_config({"routing": {"batch_size": 24}}).routing, seed=5)
    parts = route_examples(model, drawn, items, read_config({"routing": {"batch_size": 5}}).routing, seed=5)
    assert whole == parts
    few = route_examples(model, drawn, items, read_config({"routing": {"examples": 7}}).routing, seed=5)
    assert [row.index for row in few] == list(range(7))


def test_the_summary_by_hand():
    def row(index: int, consensus: float, right: bool, difficulty: int = 1) -> RoutedExample:
        return RoutedExample(index, f"q{index}", "sums", difficulty, 3, 3 if right else 4, consensus, consensus >= 0.8,
                             consensus < 0.8)  # fmt: skip

    summary = summarise([row(0, 1.0, True), row(1, 0.8, False), row(2, 0.6, True, 2), row(3, 0.2, False, 2)], 0.8)
    assert (summary["short_set"], summary["long_set"], summary["both_sets"]) == (2, 2, 0)
    assert (summary["accuracy"], summary["short_share"], summary["short_precision"]) == (0.5, 0.5, 0.5)
    assert summary["by_difficulty"]["2"] == {
        "examples": 2,
        "accuracy": 0.5,
        "short_share": 0.0,
        "short_precision": None,
    }
    assert [(filled["count"], filled["frequency"]) for filled in summary["consensus"]] == [
        (1, 0.0),
        (1, 1.0),
        (1, 0.0),
        (1, 1.0),
    ]
    assert summary["auroc"] == 0.75
    assert json.loads(json.dumps(summary)) == summary


# -- configuration ------------------------------------------------------------------------------------------------------


def test_a_configuration_survives_its_own_plain_form():
    config = read_config({"sft": {"short_share": [[0, 1], [1, 0.5]], "lora": {"rank": 4}, "learning_rate": "2e-3"}})
    assert config.sft.short_share.at(0.5) == pytest.approx(0.75)
    assert config.sft.learning_rate == 0.002
    assert read_config(json.loads(json.dumps(to_dict(config)))) == config
    assert read_config({}) == TrainConfig()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stf": {}}, r"Unknown key stf\. Known here: seed"),
        ({"sft": {"stpes": 3}}, r"Unknown key sft\.stpes\. Known here: bootstrap_steps"),
        ({"sft": {"lora": {"r": 4}}}, r"Unknown key sft\.lora\.r\."),
        ({"sft": 3}, "`sft` must be a section of keys, got 3"),
        ([1], r"The configuration must be a section of keys, got \[1\]"),
        ({"seed": "x"}, "`seed` must be a value of type int, got 'x'"),
        ({"seed": True}, "`seed` must be a value of type int, got True"),
        ({"sft": {"batch_size": 1.5}}, r"`sft\.batch_size` must be a value of type int, got 1\.5"),
        ({"sft": {"batch_size": 0}}, r"`sft\.batch_size` must be at least 1, got 0"),
        ({"sft": {"micro_batch_size": 5}}, r"`sft\.micro_batch_size` must be a divisor of batch_size \(128\), got 5"),
        ({"sft": {"save_steps": 30}}, r"`sft\.save_steps` must be a multiple of logging_steps \(20\)"),
        ({"sft": {"learning_rate": 0}}, r"`sft\.learning_rate` must be above 0"),
        ({"sft": {"precision": "fp8"}}, r"`sft\.precision` must be float32 or bfloat16, got 'fp8'"),
        ({"sft": {"balance": "words"}}, r"`sft\.balance` must be items or tokens"),
        ({"sft": {"short_share": 2}}, r"`sft\.short_share` takes progress and shares in \[0, 1\], got 2"),
        ({"sft": {"short_share": [[0.5, 1], [0.2, 1]]}}, "in ascending progress"),
        ({"sft": {"short_share": "half"}}, r"must be a share or a list of \[progress, share\] pairs, got 'half'"),
        ({"sft": {"short_share": []}}, "must be a share or a list"),
        ({"routing": {"keep_both": 1.5}}, r"`routing\.keep_both` must be a share in \[0, 1\], got 1\.5"),
        ({"data": {"files": {"dev": "x"}}}, "train, calibration and test"),
        ({"generator": {"hidden_size": 10}}, r"a multiple of num_attention_heads \(4\)"),
        ({"evaluation": {"split": "train"}}, "calibration or test"),
        ({"report_to": [3]}, "`report_to` must be a value of type list of str"),
        ({"report_to": "tensorboard"}, "`report_to` must be a value of type list"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(values: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        read_config(values)


def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path):
    (tmp_path / "bad.yaml").write_text("sft: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml must be a readable YAML file: while parsing"):
        load_config(tmp_path / "bad.yaml")
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_config(tmp_path / "empty.yaml") == TrainConfig()


@pytest.mark.parametrize("name", ["egrm_mini", "smoke"])
def test_the_examples_are_read(name: str):
    load_config(Path(__file__).parent.parent / "examples" / "train" / f"{name}.yaml")


def test_a_run_starts_from_any_causal_lm(tmp_path: Path):
    tiny_generator().save_pretrained(tmp_path / "lm")
    tiny_tokenizer().save_pretrained(tmp_path / "lm")
    generator, tokenizer = start_generator(read_config({"generator": {"path": str(tmp_path / "lm")}}))
    assert generator.get_input_embeddings().weight.equal(tiny_generator().get_input_embeddings().weight)
    assert tokenizer.get_vocab() == tiny_tokenizer().get_vocab()
    with pytest.raises(ConfigError, match=r"`generator\.path` must hold a causal LM or an E-GRM checkpoint, got"):
        start_generator(read_config({"generator": {"path": str(tmp_path)}}))


def test_a_small_model_from_scratch_is_as_small_as_promised():
    config = read_config({"data": {"options": {"mix": {1: 1.0}}}, "generator": {"tokenizer_examples": 200}})
    generator, tokenizer = start_generator(config)
    assert generator.num_parameters() < 1_500_000
    assert generator.config.tie_word_embeddings
    assert len(tokenizer("Verdict: 7", add_special_tokens=False)["input_ids"]) <= 4, "its own words are tokens"


# -- data ---------------------------------------------------------------------------------------------------------------


def test_examples_come_from_files_too(tmp_path: Path):
    row = {"question_id": "q", "prompt": "2 + 2?", "response": "4", "verdict": 10, "chain": "2 + 2 = 4."}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n\n" + json.dumps({**row, "difficulty": 3}) + "\n")
    data = read_config({"data": {"files": {"train": str(tmp_path / "train.jsonl")}}}).data
    drawn = draw_examples(data, "train", 10, 0)
    assert [(example.verdict, example.difficulty) for example in drawn] == [(10, 1), (10, 3)]
    with pytest.raises(ConfigError, match="must name a file for calibration"):
        draw_examples(data, "calibration", 1, 0)
    for line, problem in (
        ('{"prompt": 1}', "missing"),
        ("[", "Line 1"),
        (json.dumps({**row, "verdict": "10"}), "`verdict`"),
    ):
        (tmp_path / "train.jsonl").write_text(line)
        with pytest.raises(ConfigError, match=problem):
            draw_examples(data, "train", 1, 0)


def test_a_world_is_a_module_with_examples():
    with pytest.raises(ConfigError, match=r"`data\.world` must be a module that can be imported, got 'no\.such'"):
        draw_examples(read_config({"data": {"world": "no.such"}}).data, "train", 1, 0)
    with pytest.raises(ConfigError, match="must have a function `examples`, but json has none"):
        draw_examples(read_config({"data": {"world": "json"}}).data, "train", 1, 0)


# -- run folder ---------------------------------------------------------------------------------------------------------


def test_another_configuration_is_refused_and_named(tmp_path: Path):
    Run(tmp_path / "run", read_config({"seed": 1})).finish("start", {})
    Run(tmp_path / "run", read_config({"seed": 1, "report_to": ["tensorboard"]}))
    with pytest.raises(ConfigError, match=r"it differs in seed \(1, now 2\), sft\.rounds \(1, now 3\).*--restart"):
        Run(tmp_path / "run", read_config({"seed": 2, "sft": {"rounds": 3}}))
    run = Run(tmp_path / "run", read_config({"seed": 1}))
    run.finish("a", {"x": 1})
    assert Run(tmp_path / "run", read_config({"seed": 2}), restart=True).result("a") is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="other files in it"):
        Run(tmp_path / "other", TrainConfig(), restart=True)
    assert (tmp_path / "other" / "thesis.txt").exists()


def test_a_models_folder_is_no_run_to_restart(tmp_path: Path):
    tiny_generator().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="other files in it"):
        Run(tmp_path, TrainConfig(), restart=True)
    assert (tmp_path / "model.safetensors").exists()


def test_trackers_are_checked_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformers_egrm.training.run.get_available_reporting_integrations", lambda: ["trackio"])
    check_trackers(["trackio"])
    with pytest.raises(ConfigError, match="names tensorboard, whose package is not installed"):
        check_trackers(["trackio", "tensorboard"])
    with pytest.raises(ConfigError, match="got 'notebook'"):
        check_trackers(["notebook"])


def test_metrics_forget_what_will_come_again(tmp_path: Path):
    run = Run(tmp_path, TrainConfig())
    for stage, step in (("a", 1), ("a", 5), ("b", 9), ("a", 9)):
        run.log(stage, step, {"loss": float("nan") if step == 1 else 1.0})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"stage": "a", "st')  # a kill cut it
    run.forget("a", 5)
    assert [(row["stage"], row["step"], row["loss"]) for row in run.metrics()] == [
        ("a", 1, None),
        ("a", 5, 1.0),
        ("b", 9, 1.0),
    ]
    assert [row["step"] for row in run.metrics("b")] == [9]


def test_only_complete_checkpoints_count(tmp_path: Path):
    assert last_checkpoint(tmp_path) is None
    for name, whole in (("checkpoint-9", True), ("checkpoint-10", True), ("checkpoint-20", False)):
        (tmp_path / name).mkdir()
        if whole:
            (tmp_path / name / "trainer_state.json").write_text("{}")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
