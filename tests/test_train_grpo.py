"""Rewards of extended GRPO by hand values, and its samples: drawn by the engine from the judge's own prompts."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm.data.synthetic import examples
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.components import judge_options, make_judge, make_processor
from transformers_egrm.training.config import GRPOStageConfig, TrainConfig, read_config
from transformers_egrm.training.grpo import Grading, key_of, pooled_states, read_key, run_grpo
from transformers_egrm.training.items import ItemEncoder
from transformers_egrm.training.rewards import (
    Read,
    format_reward,
    pairwise_rewards,
    read_completion,
    token_reward,
    verdict_reward,
)
from transformers_egrm.training.routing import RoutedExample, write_audit
from transformers_egrm.training.run import Run, quiet
from transformers_egrm.training.sft import Workshop, run_sft


ROOT = Path(__file__).resolve().parent.parent


# -- by hand ------------------------------------------------------------------------------------------------------------


def test_the_pairwise_reward_by_hand():
    # One right chain among wrong ones: S(r+) - S(r-) + beta, over its two pairs; the wrong ones from their side.
    rewards = pairwise_rewards([0.9, 0.4, 0.1], [1.0, 0.0, 0.0], bonus=0.5)
    assert rewards == pytest.approx([((0.9 - 0.4 + 0.5) + (0.9 - 0.1 + 0.5)) / 2, 0.4 - 0.9, 0.1 - 0.9])
    # beta only where the answer is the truth; a scorer that prefers the wrong chain lowers the right one's reward.
    assert pairwise_rewards([0.2, 0.6], [1.0, 0.0], bonus=0.0) == pytest.approx([-0.4, 0.4])
    assert pairwise_rewards([0.2, 0.6], [1.0, 0.0], bonus=0.5) == pytest.approx([0.1, 0.4])
    # Graded: the better of two wrong answers has no bonus.
    assert pairwise_rewards([0.7, 0.3], [0.8, 0.2], bonus=0.5) == pytest.approx([0.4, -0.4])
    # No pairs, no reward.
    assert pairwise_rewards([0.9, 0.1], [1.0, 1.0], bonus=0.5) == [0.0, 0.0]
    assert pairwise_rewards([0.9, 0.1], [0.0, 0.0], bonus=0.5) == [0.0, 0.0]


def test_the_standard_rewards_by_hand():
    assert verdict_reward(Read(7, True, 3), 7, 11, "exact") == 1.0
    assert verdict_reward(Read(6, True, 3), 7, 11, "exact") == 0.0
    assert verdict_reward(Read(6, True, 3), 7, 11, "graded") == pytest.approx(0.9)
    assert verdict_reward(Read(None, True, 3), 7, 11, "graded") == 0.0
    assert [format_reward(Read(*row)) for row in ((7, True, 3), (7, False, 3), (None, True, 3))] == [1.0, 0.0, 0.0]
    assert [token_reward(Read(7, True, n), 40) for n in (0, 10, 40, 90)] == [0.0, -0.25, -1.0, -1.0]


def encoder() -> ItemEncoder:
    config = TrainConfig()
    return ItemEncoder(make_processor(tiny_generator(), tiny_tokenizer(), config.judge))


def test_completions_are_read_as_the_judge_reads_them():
    task, tokenizer = encoder().task, tiny_tokenizer()

    def read(text: str, *, is_short: bool) -> Read:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return read_completion(task, text, ids, is_short=is_short)

    chain = read("1 + 1 = 2.\nVerdict: 7<|im_end|>", is_short=False)
    assert (chain.verdict, chain.ended) == (7, True)
    assert read("7<|im_end|>", is_short=True).verdict == 7
    assert read("7\n", is_short=True).ended, "a line break ends a short verdict"
    cut = read("1 + 1 = 2.\nVerdict: 1", is_short=False)
    assert (cut.verdict, cut.ended) == (None, False), "it may have been 10"
    assert read("no idea<|im_end|>", is_short=False).verdict is None


# -- samples and scores -------------------------------------------------------------------------------------------------


def grading(kind: str | None, **settings: Any) -> Grading:
    config = read_config({
        "judge": {"rubric": "Judge.", "options": {"max_chain_tokens": 12, "max_probe_tokens": 4}},
        "grpo": {"num_generations": 4, "batch_size": 16, **settings},
    })  # fmt: skip
    generator = tiny_generator()
    tokenizer = tiny_scorer_tokenizer() if kind == "encoder" else None
    processor = make_processor(generator, tiny_tokenizer(), config.judge, tokenizer)
    encoded = ItemEncoder(processor)
    scorer = None
    if kind is not None:
        extra = {"scorer": tiny_scorer()} if kind == "encoder" else {"scorer_kind": kind}
        scorer = make_judge(generator, processor, config.judge, **extra)
    shop: Any = SimpleNamespace(
        run=SimpleNamespace(config=config, is_done=lambda stage: False), encoder=encoded, judge_options=judge_options(generator, config.judge),
        train_items=encoded.encode_all(islice(examples("train", mix={1: 1.0}), 10)),
    )  # fmt: skip
    return Grading(shop, scorer)


def trainer_at(step: int, seed: int = 0) -> Any:
    return SimpleNamespace(
        model=tiny_generator(seed=seed), accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        state=SimpleNamespace(global_step=step),
    )  # fmt: skip


def test_chains_are_asked_for_where_the_probes_of_the_last_round_disagreed(tmp_path: Path):
    grades = grading(None)
    routed = [
        RoutedExample(index, "q", "sums", 1, 10, 10, consensus, consensus == 1.0, True)
        for index, consensus in ((1, 1.0), (3, 0.6), (6, 0.4), (8, 1.0))
    ]
    write_audit(tmp_path, routed, {})
    grades.run.is_done = lambda stage: stage == "route-1"
    grades.run.stage_folder = lambda stage: tmp_path
    asked = [read_key(key) for key in grades.dataset(GRPOStageConfig(steps=4, batch_size=32))["prompt"]]
    assert {index for index, is_short in asked if not is_short} == {3, 6}
    assert {index for index, is_short in asked if is_short} == {1, 3, 6, 8}


def test_samples_continue_the_judges_own_prompts():
    grades = grading(None)
    keys = [key_of(3, False)] * 4 + [key_of(3, True)] * 4 + [key_of(5, False)] * 4
    out = grades.roll_out(keys, trainer_at(7))
    task = grades.task
    for key, prompt, completion in zip(keys, out["prompt_ids"], out["completion_ids"], strict=True):
        index, is_short = read_key(key)
        suffix = task.short_suffix_ids if is_short else task.long_suffix_ids
        assert prompt == [*grades.items[index].prompt_ids, *suffix]
        assert 1 <= len(completion) <= (4 if is_short else 12)
        stops = {*task.chain_stop_ids, *(task.probe_stop_ids if is_short else ())}
        assert not stops & set(completion[:-1]), "nothing is written behind the end"
    assert len({tuple(c) for c in out["completion_ids"][:4]}) > 1
    assert out["logprobs"] is None
    assert grades.roll_out(keys, trainer_at(7)) == out
    assert grades.roll_out(keys, trainer_at(8)) != out


def test_a_prompt_that_is_drawn_twice_is_answered_twice():
    grades = grading(None)
    keys = [key_of(1, False)] * 4 + [key_of(2, False)] * 4 + [key_of(1, False)] * 4
    completions = grades.roll_out(keys, trainer_at(0))["completion_ids"]
    assert len(completions) == 12
    assert completions[:4] != completions[8:]


def test_samples_follow_the_policys_distribution():
    """The first token of many branches, against the probabilities that the trainer's own forward gives."""
    grades = grading(None)
    trainer, key = trainer_at(0), key_of(0, True)
    drawn = [c[0] for step in range(8) for c in grades.roll_out([key] * 500, trainer_at(step))["completion_ids"]]
    logits = trainer.model(input_ids=torch.tensor([grades.prompt_ids(key)])).logits[0, -1]
    expected = logits.softmax(-1)
    seen = torch.bincount(torch.tensor(drawn), minlength=len(expected)) / len(drawn)
    top = expected.topk(10).indices
    deviation = (expected[top] * (1 - expected[top]) / len(drawn)).sqrt()
    assert ((seen[top] - expected[top]).abs() < 4.5 * deviation).all()


def test_modes_have_their_share_of_the_prompts():
    grades = grading(None, steps=10, short_share=0.25)
    keys = grades.dataset(grades.run.config.grpo)["prompt"]
    assert len(keys) == 40
    assert sum(read_key(key)[1] for key in keys) == 10


@pytest.mark.parametrize("kind", ["generator_state", "encoder"])
def test_short_verdicts_have_no_pairs_and_chains_are_compared_within_their_group(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    grades = grading(kind)
    keys = [key_of(0, True)] * 4 + [key_of(1, False)] * 4 + [key_of(2, False)] * 4
    completions = grades.roll_out(keys, trainer_at(1))["completion_ids"]
    qualities = [0.0] * 4 + [1.0, 0.0, 0.0, 0.0] + [1.0, 1.0, 0.0, 0.0]
    monkeypatch.setattr(grades, "verdict_reward", lambda *args, **kwargs: qualities)
    rewards = grades.pairwise_reward(prompts=keys, completion_ids=completions)
    assert rewards[:4] == [None] * 4
    scores = grades.score(keys[4:], completions[4:])
    assert rewards[4:8] == pytest.approx(pairwise_rewards(scores[:4], qualities[4:8], 0.5))
    assert rewards[8:] == pytest.approx(pairwise_rewards(scores[4:], qualities[8:], 0.5))


@pytest.mark.parametrize("kind", ["generator_state", "encoder"])
def test_chains_are_scored_as_in_judging(kind: str, monkeypatch: pytest.MonkeyPatch):
    grades = grading(kind)
    model = grades.scorer
    shown: list[tuple[Any, ...]] = []
    inputs = grades.processor.collate([grades.processor.encode(example.record()) for example in
                                       islice(examples("train", mix={1: 1.0}), 1)])  # fmt: skip
    drawn: list[list[int]] = []
    monkeypatch.setattr(
        type(model),
        "score_candidates",
        lambda self, *args: shown.append(args) or (torch.zeros(len(args[1])), [0.0] * len(args[1])),
    )
    decode = type(model).decode_tokens

    def watch(self: Any, token_ids: list[list[int]], *, control: bool = False) -> list[str]:
        if control and len(token_ids) == 6:
            drawn.extend(token_ids)
        return decode(self, token_ids, control=control)

    monkeypatch.setattr(type(model), "decode_tokens", watch)
    monkeypatch.setattr("transformers_egrm.modeling.judge_long_egrm.verdict_of", lambda *args: 3)  # all are candidates
    model.judge(inputs, path="long", selection="scorer", num_chains=6)
    judged = shown.pop()
    grades.score([key_of(0, False)] * 6, drawn)
    scored = shown.pop()
    assert len(drawn) == 6
    if kind == "encoder":
        assert (list(scored[0]), list(scored[1])) == (list(judged[0]), list(judged[1]))
    else:
        torch.testing.assert_close(scored[2], judged[2], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_states_of_completions_ignore_prompts_and_padding(pooling: str):
    generator = tiny_generator()
    prompts, completions = [[7, 8], [7, 8, 9]], [[9, 12], [10, 11, 6]]
    states = pooled_states(generator, prompts, completions, pooling)
    for prompt, own, state in zip(prompts, completions, states, strict=True):
        ids = torch.tensor([[*prompt, *own]])
        alone = generator(input_ids=ids, output_hidden_states=True).hidden_states[-1][0, len(prompt) :]
        torch.testing.assert_close(state, alone[-1] if pooling == "last" else alone.mean(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_generations": 1}, "at least 2: a group is compared"),
        ({"batch_size": 12}, r"`grpo\.batch_size` must be a multiple of num_generations \(8\), got 12"),
        ({"short_share": 1.5}, r"a share in \[0, 1\]"),
        ({"pair_weight": -1}, r"`grpo\.pair_weight` must be at least 0"),
        ({"temperature": 0}, r"`grpo\.temperature` must be above 0"),
        ({"save_steps": 7}, "a multiple of logging_steps"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(values: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        read_config({"grpo": values})


# -- the trainer --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_policy_learns_what_it_is_rewarded_for(tmp_path: Path):
    """Where 10 is always the truth, a policy that says all kinds of verdicts learns to say it, in short mode."""
    values = yaml.safe_load((ROOT / "examples" / "train" / "smoke.yaml").read_text("utf-8"))
    values["grpo"] = {
        "steps": 25, "batch_size": 32, "num_generations": 8, "learning_rate": 5e-3, "short_share": 1.0, "pair_weight": 0.0,
        "kl_weight": 0.0, "format_weight": 0.0, "token_weight": 0.0, "logging_steps": 1, "save_steps": 50,
    }  # fmt: skip
    values["sft"] |= {"rounds": 0, "bootstrap_steps": 200}
    quiet(progress=False)
    shop = Workshop(Run(tmp_path / "run", read_config(values)))
    stage = run_sft(shop)
    always = len(shop.encoder.task.space.labels) - 1
    shop.train_items = [replace(item, verdict=always) for item in shop.train_items]
    run_grpo(shop, stage)
    rewards = [row["rewards/verdict_reward/mean"] for row in shop.run.metrics("grpo") if "reward" in row]
    assert rewards[0] < 0.5
    assert sum(rewards[-5:]) / 5 > 0.85
