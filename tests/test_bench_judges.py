"""Anything judges: functions in every form, scalar reward models, EGRM checkpoints; a failure never becomes a number."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_tools import figures, judged, pairs, write
from completion_engine import CompletionEngine, serve
from engine_fixtures import talkative_generator
from tiny import CHAT_TEMPLATE, tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

from transformers_egrm.evaluation.asking import Ask
from transformers_egrm.evaluation.figures import summary
from transformers_egrm.evaluation.judges import Judge, callable_judge, load_callable
from transformers_egrm.evaluation.model_judges import DecisionJudge
from transformers_egrm.evaluation.rivals import First
from transformers_egrm.evaluation.runner import run_rivals
from transformers_egrm.modeling.errors_egrm import ConfigError


needs_decisions = pytest.mark.skipif(
    find_spec("transformers.decision") is None, reason='pipeline("decision") needs Transformers 5.23'
)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write(tmp_path / "own.jsonl", pairs(12))


# -- judges -------------------------------------------------------------------------------------------------------------


def test_any_function_plugs_in_with_three_lines(own: Path):
    def worth(prompt: str, response: str) -> float:
        return len(response)

    run = judged(own, callable_judge(worth))
    assert figures("own", run.judged)["headline", "", ""] == 8 / 12


@pytest.mark.parametrize(
    "function",
    [
        lambda prompt, response: len(response),
        lambda prompts, responses: [len(response) for response in responses],
        lambda prompt, response_a, response_b: "A" if len(response_a) > len(response_b) else "B",
        lambda prompt, response_a, response_b: float(len(response_a) > len(response_b)),
        lambda prompts, first, second: [1.0 if len(a) > len(b) else 0.0 for a, b in zip(first, second, strict=True)],
    ],
    ids=["scores", "lists", "letters", "probabilities", "lists of pairs"],
)
def test_every_form_of_a_function_says_the_same(own: Path, function: Any):
    assert figures("own", judged(own, callable_judge(function)).judged)["headline", "", ""] == 8 / 12


def test_a_function_is_loaded_from_a_file(tmp_path: Path, own: Path):
    (tmp_path / "mine.py").write_text("def worth(prompt, response):\n    return len(response)\n")
    judge = load_callable(f"{tmp_path / 'mine.py'}:worth")
    assert figures("own", judged(own, judge).judged)["headline", "", ""] == 8 / 12
    with pytest.raises(ConfigError, match="nothing"):
        load_callable(f"{tmp_path / 'mine.py'}:nothing")


def test_what_a_function_cannot_say_is_a_failed_verdict_and_never_a_number(own: Path):
    def shy(prompt: str, response: str) -> Any:
        if prompt == "question 0":
            raise RuntimeError("no idea")
        return float("nan") if prompt == "question 1" else len(response)

    run = judged(own, callable_judge(shy))
    found = summary(run.judged, run.cells, 0, 20)
    assert found["outcomes"] == {"right": 6, "wrong": 2, "tie": 0, "failed": 4}
    assert found["statuses"] == {"error": 4, "no_verdict": 4, "ok": 16}
    assert run.judged[0].judgements[0].error == "RuntimeError: no idea"
    # Failed pairs are in the denominator: 6 of 12, not 8 of 12 and not 6 of 8.
    assert figures("own", run.judged)["headline", "", ""] == 6 / 12


def test_a_judge_that_never_gives_a_verdict_is_refused_with_what_it_said(own: Path):
    def broken(prompt: str, response: str) -> float:
        raise KeyError("weights")

    with pytest.raises(ConfigError, match=r"not one of 24 asks.*weights"):
        judged(own, callable_judge(broken))


def test_a_judge_of_pairs_is_refused_where_scores_are_needed(tmp_path: Path):
    path = write(tmp_path / "own.jsonl", [{"prompt": "q", "response": "a", "label": 1}])
    with pytest.raises(ConfigError, match="needs a score of each answer, but this judge compares two"):
        judged(path, First())


@pytest.fixture(scope="module")
def scalar_folder(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("scalar")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_labels=1,
        max_position_embeddings=96, bos_token_id=0, eos_token_id=4, pad_token_id=2, initializer_range=0.5,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    assert tokenizer.chat_template == CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def test_a_scalar_reward_model_judges_from_a_folder_alike_in_every_batch_size(scalar_folder: Path, own: Path):
    from transformers_egrm.evaluation.model_judges import load_scalar

    runs = [judged(own, load_scalar(str(scalar_folder), batch_size=size)) for size in (1, 5)]
    rewards = [[judgement.reward for one in run.judged for judgement in one.judgements] for run in runs]
    np.testing.assert_allclose(rewards[0], rewards[1], atol=1e-5)
    assert len(set(rewards[0])) > 2


def test_a_scalar_reward_model_reads_the_whole_conversation_as_its_template_writes_it(scalar_folder: Path):
    from transformers_egrm.evaluation.model_judges import load_scalar

    judge = load_scalar(str(scalar_folder))
    ask = Ask(id="1", question_id="1", prompt="hi", shown=(0,), responses=("ho",))
    (judgement,) = judge.judge([ask])
    tokenizer = tiny_tokenizer()
    text = "<bos><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n"
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    assert ids[0].tolist().count(0) == 1  # one BOS
    with torch.inference_mode():
        expected = LlamaForSequenceClassification.from_pretrained(scalar_folder)(ids).logits.item()
    assert judgement.reward == pytest.approx(expected, abs=1e-6)


def test_a_scalar_reward_model_never_cuts_in_silence(scalar_folder: Path):
    from transformers_egrm.evaluation.model_judges import load_scalar

    ask = Ask(id="1", question_id="1", prompt="hi", shown=(0,), responses=("x " * 200,))
    (whole,) = load_scalar(str(scalar_folder)).judge([ask])
    assert (whole.reward, whole.status) == (None, "too_long")
    (cut,) = load_scalar(str(scalar_folder), truncate=True).judge([ask])
    assert cut.truncated
    assert cut.reward is not None


# -- EGRM checkpoints ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel

    return EGRMRewardModel.from_components(tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer())


def egrm(model: Any, kind: str | None = None, batch_size: int = 4, **more: Any) -> Judge:
    from transformers_egrm.evaluation.model_judges import EGRMJudge
    from transformers_egrm.judge import RewardJudge

    options = {"max_chain_tokens": 4, "num_chains": 2, "seed": 3, "probe_vocabulary": "verdict"}
    return EGRMJudge(RewardJudge(model, batch_size=batch_size, **options, **more), kind and {"kind": kind})


@pytest.mark.parametrize("kind", ["pointwise", "pairwise", "listwise"])
def test_an_egrm_checkpoint_gives_the_same_items_in_every_batch_size(model: Any, own: Path, kind: str):
    runs = [judged(own, egrm(model, kind, size)) for size in (1, 5)]
    rows = [[judgement for one in run.judged for judgement in one.judgements] for run in runs]
    for name in ("status", "verdict", "route", "tokens"):
        assert [getattr(row, name) for row in rows[0]] == [getattr(row, name) for row in rows[1]]
    rewards = [[np.nan if row.reward is None else row.reward for row in part] for part in rows]
    np.testing.assert_allclose(rewards[0], rewards[1], atol=1e-5)


def test_a_judge_that_abstains_is_counted_apart_and_never_right(model: Any, own: Path):
    run = judged(own, egrm(model, "pointwise", abstain_below=0.5, path="short"))
    found = summary(run.judged, run.cells, 0, 5)
    judgements = [judgement for one in run.judged for judgement in one.judgements]
    assert found["statuses"]["abstained"] == sum(judgement.status == "abstained" for judgement in judgements) > 0
    assert all(judgement.reward is None for judgement in judgements if judgement.status == "abstained")


def test_a_pairwise_checkpoint_is_asked_once_and_a_listwise_one_in_both_orders(model: Any, own: Path):
    pairwise, listwise = judged(own, egrm(model, "pairwise")), judged(own, egrm(model, "listwise"))
    assert {len(one.asks) for one in pairwise.judged} == {1}
    assert {len(one.asks) for one in listwise.judged} == {2}
    assert all(one.asks[0].shown == one.asks[1].shown[::-1] for one in listwise.judged)
    assert summary(listwise.judged, listwise.cells, 0, 5)["position_flips"]["n"] > 0


def test_a_checkpoint_says_what_it_is_and_what_its_prompts_are(model: Any):
    first, second = egrm(model, "pointwise").describe(), egrm(model, "pairwise").describe()
    assert first["space"]["kind"] == "pointwise"
    assert first["options"]["seed"] == 3
    assert first["prompt_digest"] != second["prompt_digest"]


def decision_row(model: Any, own: Path, kind: str) -> dict[str, Any]:
    judge = egrm(model, kind)
    (row,) = run_rivals(judged(own, judge), [judge.decision_rival()])  # pyright: ignore[reportAttributeAccessIssue]
    assert row["name"] == "decision"
    return row


@needs_decisions
def test_the_same_generator_decides_without_thought_and_follows_the_order_it_is_shown(model: Any, own: Path):
    row = decision_row(model, own, "pairwise")
    assert row["ahead"]["value"] is not None
    record = pairs(2)[1]
    asks = [
        Ask(id="1", question_id="1", prompt=record["prompt"], shown=shown, responses=texts)
        for shown, texts in (
            ((0, 1), (record["chosen"], record["rejected"])),
            ((1, 0), (record["rejected"], record["chosen"])),
        )
    ]
    rewards = [said.reward for said in DecisionJudge(model.generator, model.processor.tokenizer, "pairs").judge(asks)]
    assert all(reward is not None and 0 < reward < 1 for reward in rewards)
    assert rewards[0] != rewards[1]


@needs_decisions
def test_a_generator_that_cannot_be_asked_for_a_decision_is_listed_with_the_reason_and_not_with_zero(
    model: Any, own: Path
):
    row = decision_row(model, own, "pointwise")  # the tokenizer has no single token for Yes
    assert "headline" not in row
    assert "not distinct single tokens" in row["reason"]


def test_a_checkpoint_on_an_engine_that_only_continues_text_is_a_judge_like_any(tmp_path: Path):
    from transformers_egrm.evaluation.model_judges import EGRMJudge
    from transformers_egrm.judge import RewardJudge
    from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel

    # Whether a verdict is written at all is drawn, so both routes and failures occur.
    model = EGRMRewardModel.from_components(
        talkative_generator({"7": 8.0, "\n": 8.0, "": 8.0}), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(),
        consensus_threshold=0.6, max_chain_tokens=8, selection="vote",
    )  # fmt: skip
    own = write(tmp_path / "own.jsonl", pairs(5))
    local = EGRMJudge(RewardJudge(model, batch_size=4))
    described = local.describe()
    model.engine = CompletionEngine(serve(model.generator), model.backbone.cost)
    runs = [judged(own, EGRMJudge(RewardJudge(model, batch_size=size))) for size in (4, 7)]
    said = [[judgement for one in run.judged for judgement in one.judgements] for run in runs]
    assert said[0] == said[1]
    assert any(judgement.reward is not None for judgement in said[0])
    assert {judgement.route for judgement in said[0]} == {"short", "long"}
    assert runs[0].judge == described | {"engine": "CompletionEngine"}


def test_a_checkpoint_that_explains_itself_leaves_probes_candidates_and_operations_with_every_item(
    model: Any, own: Path
):
    run = judged(own, egrm(model, "pointwise", explain=True))
    judgements = [judgement for one in run.judged for judgement in one.judgements]
    assert all((judgement.flops or 0) > 0 for judgement in judgements)
    assert summary(run.judged, run.cells, 0, 5)["cost"]["flops"] == pytest.approx(sum(one.flops for one in judgements))
    for judgement in judgements:
        shares = [sum(probe["distribution"].values()) for probe in judgement.details["probes"]]
        assert shares == pytest.approx([1.0] * len(shares))
        if judgement.route == "long":
            assert sum(candidate["chosen"] for candidate in judgement.details["candidates"]) == (
                judgement.status == "ok"
            )


def test_a_pairwise_checkpoint_tells_what_each_order_said_alone(model: Any, own: Path):
    run = judged(own, egrm(model, "pairwise", explain=True, consensus="sampled"))
    said = [one.judgements[0].order_rewards for one in run.judged]
    assert {len(orders) for orders in said} == {2}
    flips = summary(run.judged, run.cells, 0, 5)["position_flips"]
    told = [orders for orders in said if None not in orders]
    assert flips["n"] == len(told) > 0
    assert flips["value"] == pytest.approx(sum(first != second for first, second in told) / len(told))


def test_each_orders_vote_is_its_probes_most_frequent_verdict():
    from transformers_egrm.evaluation.accounts import order_rewards

    votes = [(0, "A"), (0, "A"), (0, "B"), (1, "B"), (1, None), (2, None)]
    account = {"probes": [{"prompt": prompt, "verdict": verdict} for prompt, verdict in votes]}
    assert order_rewards(account) == (1.0, 0.0, None)
    assert order_rewards({"probes": []}) == ()


def test_a_judge_without_a_way_to_judge_is_refused_before_anything_is_read():
    class Idle(Judge):
        pass

    with pytest.raises(TypeError, match=r"abstract method '?judge"):
        Idle()  # pyright: ignore[reportAbstractUsage]
