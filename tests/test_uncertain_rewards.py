"""Rewards that say how sure they are: mean, variance, risk-adjusted value, and abstention."""

import json
import math
from fractions import Fraction

import pyarrow.parquet
import pytest
import torch
from cli_tools import build_checkpoint, egrm
from completion_engine import CompletionEngine
from engine_fixtures import talkative_generator
from tiny import tiny_generator, tiny_tokenizer
from transformers import pipeline

from transformers_egrm import EGRMRewardModel, RewardJudge
from transformers_egrm.modeling.errors_egrm import ConfigError, UnsupportedModelError
from transformers_egrm.modeling.judge_long_egrm import share_of
from transformers_egrm.modeling.judge_values_egrm import Candidate, Status
from transformers_egrm.modeling.verdict_worth_egrm import worth_of


RECORDS = [{"id": number, "prompt": f"What is {number} + 3?", "response": "5" * (number + 1)} for number in range(8)]
CERTAINTY = ("support", "reward_mean", "reward_variance", "reward_risk_adjusted")


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return EGRMRewardModel.from_components(
        talkative_generator({"7": 6.0, "3": 5.0, "\n": 6.0, "": 6.0}), tokenizer=tiny_tokenizer(),
        max_chain_tokens=10, num_chains=3,
    ).eval()  # fmt: skip


# -- the numbers --------------------------------------------------------------------------------------------------------


def test_mean_variance_and_risk_adjusted_value_are_those_worked_out_by_hand():
    shares, rewards = (Fraction(1, 4), Fraction(1, 8), Fraction(5, 8)), (0, 4, 10)
    mean = sum(share * reward for share, reward in zip(shares, rewards, strict=True))
    variance = sum(share * (reward - mean) ** 2 for share, reward in zip(shares, rewards, strict=True))
    assert (mean, variance) == (Fraction(27, 4), Fraction(303, 16))
    worth = worth_of(torch.tensor([[float(share) for share in shares]], dtype=torch.float64), rewards, -2.0)
    assert (worth.mean.item(), worth.variance.item()) == (float(mean), float(variance))
    by_hand = -2 * math.log(0.25 + 0.125 * math.exp(-2) + 0.625 * math.exp(-5))
    assert worth.risk_adjusted.item() == pytest.approx(by_hand, rel=1e-14)
    seeking = worth_of(torch.tensor([[0.25, 0.125, 0.625]], dtype=torch.float64), rewards, 2.0)
    assert seeking.risk_adjusted.item() == pytest.approx(
        2 * math.log(0.25 + 0.125 * math.exp(2) + 0.625 * math.exp(5)), rel=1e-14
    )


def test_the_risk_adjusted_value_runs_from_the_worst_through_the_mean_to_the_best():
    probs = torch.tensor([[0.2, 0.0, 0.3, 0.5]], dtype=torch.float64)
    rewards = (1.0, 0.0, 7.0, 9.0)  # the lowest reward is impossible here, and so is no worst case

    def value(beta: float) -> float:
        return worth_of(probs, rewards, beta).risk_adjusted.item()

    mean = 0.2 + 2.1 + 4.5
    assert value(-1e-6) == pytest.approx(1.0, abs=1e-4)
    assert value(1e-6) == pytest.approx(9.0, abs=1e-4)
    for beta in (1e6, 1e12, 1e300):
        assert value(beta) == pytest.approx(mean, abs=1e-5)
        assert value(-beta) == pytest.approx(mean, abs=1e-5)
    averse = [value(-(10.0**power)) for power in range(-6, 7)]
    seeking = [value(10.0**power) for power in range(6, -7, -1)]
    assert averse + seeking == sorted(averse + seeking)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_both_forms_agree_where_one_takes_over_from_the_other(sign):
    probs = torch.rand(6, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probs /= probs.sum(-1, keepdim=True)
    below, above = (worth_of(probs, range(11), sign * (10 + step)).risk_adjusted for step in (-1e-9, 1e-9))
    torch.testing.assert_close(below, above, rtol=1e-8, atol=1e-8)


def test_an_unknown_distribution_has_no_worth():
    worth = worth_of(torch.tensor([[math.nan, math.nan], [0.5, 0.5]], dtype=torch.float64), (0.0, 1.0), -1.0)
    assert [value.isnan().tolist() for value in (worth.mean, worth.variance, worth.risk_adjusted)] == [
        [True, False]
    ] * 3


def test_the_confidence_of_the_long_path_is_a_share_of_the_chains_alone():
    said = [Candidate("3", 3, 0, False), *(Candidate("", verdict, 0, True) for verdict in (3, 5, None, 3))]
    assert share_of(said[1], said) == 0.5
    assert share_of(said[2], said) == 0.25
    assert share_of(Candidate("7", 7, 0, False), said) == 0.0


# -- in judgements ------------------------------------------------------------------------------------------------------


def test_every_result_has_them_where_the_distribution_is_known_whichever_path_it_took(model):
    output = model.judge(model.processor(RECORDS), consensus="exact", consensus_threshold=0.785, risk_beta=-3.0)
    assert set(output.routes.tolist()) == {0, 1}
    probs, rewards = output.verdict_probs.double(), torch.arange(11.0, dtype=torch.float64)
    mean = probs @ rewards
    torch.testing.assert_close(output.reward_mean, mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.reward_variance, probs @ rewards**2 - mean**2, atol=1e-4, rtol=0)
    by_hand = -3.0 * torch.log((probs * torch.exp(-rewards / 3)).sum(-1))
    torch.testing.assert_close(output.reward_risk_adjusted, by_hand, atol=1e-4, rtol=0)


def test_results_without_a_distribution_say_so(model):
    results = RewardJudge(model, path="short")(RECORDS)
    assert {(result.reward_mean, result.reward_variance, result.reward_risk_adjusted) for result in results} == {
        (None,) * 3
    }
    assert [result.support for result in results] == [result.consensus or None for result in results]
    (beyond,) = RewardJudge(model, space={"kind": "listwise", "num_candidates": 3}, consensus="exact", path="short")(
        [{"prompt": "Which?", "responses": ["1", "2", "3"]}]
    )
    assert beyond.status == "ok"
    assert beyond.reward_mean is None  # the mean of positions says nothing


@pytest.mark.parametrize("reward", ["expected", "risk_adjusted"])
@pytest.mark.parametrize("consensus", ["exact", "sampled"])
def test_the_reward_is_what_was_asked_for_on_the_short_path_and_the_verdicts_on_the_long_one(model, reward, consensus):
    tau = 0.785 if consensus == "exact" else 0.6
    asked = {"consensus": consensus, "consensus_threshold": tau, "reward": reward, "risk_beta": 2.5}
    results = RewardJudge(model, **asked)(RECORDS)
    assert {result.route for result in results} == {"short", "long"}
    name = {"expected": "reward_mean", "risk_adjusted": "reward_risk_adjusted"}[reward]
    for result in results:
        want = float(result.verdict) if result.route == "long" else getattr(result, name)
        assert result.reward == pytest.approx(want, abs=1e-5)
    plain = RewardJudge(model, **asked | {"reward": "verdict"})(RECORDS)
    assert [result.verdict for result in results] == [result.verdict for result in plain]


# -- abstention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "floor"),
    [
        ({"path": "short"}, 0.3),
        ({"path": "short", "strict": True}, 0.6),
        ({"path": "short", "consensus": "exact"}, 0.785),
        ({"path": "long"}, 0.5),
        ({"consensus_threshold": 0.4}, 0.6),
        ({"consensus_threshold": 0.785, "consensus": "exact", "reward": "expected"}, 0.4),
    ],
    ids=str,
)
def test_what_is_less_sure_than_asked_has_no_reward_and_all_else_is_as_it_was(model, options, floor):
    sure = RewardJudge(model, **options, early_stop=False)(RECORDS)
    results = RewardJudge(model, **options, abstain_below=floor)(RECORDS)
    for own, before in zip(results, sure, strict=True):
        if before.status != "ok" or before.support >= floor - 1e-9:
            assert (own.status, own.reward, own.verdict) == (before.status, before.reward, before.verdict)
        else:
            assert (own.status, own.reward, own.verdict) == ("abstained", None, None)
            assert own.support == before.support
            assert "abstain_below" in own.error
    assert {"ok", "abstained"} <= {result.status for result in results}


@pytest.mark.parametrize("path", ["auto", "short"])
@pytest.mark.parametrize("reuse_probes", [True, False])
def test_stopping_probes_early_changes_no_abstention(model, path, reuse_probes):
    options = {
        "path": path, "consensus_threshold": 0.6, "abstain_below": 0.8, "reuse_probes": reuse_probes,
        "probe_vocabulary": "verdict", "temperatures": (1.0,) * 5,
    }  # fmt: skip
    space = {"kind": "pointwise", "high": 30}  # 7 ends at once, 3 may go on
    records = [record | {"id": 100 * i + record["id"]} for i in range(3) for record in RECORDS]
    stopped, read = (RewardJudge(model, space=space, **options, early_stop=early)(records) for early in (True, False))
    assert [(own.status, own.reward, own.route) for own in stopped] == [
        (own.status, own.reward, own.route) for own in read
    ]
    assert {own.status for own in stopped if own.route == "short"} == {"ok", "abstained"}
    assert sum(own.tokens for own in stopped) < sum(own.tokens for own in read)


def test_a_trainer_gets_nan_or_its_own_number_for_an_abstention(model, monkeypatch):
    tokens = model.processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5"}], return_tensors="pt",
        return_dict=True,
    )["input_ids"]  # fmt: skip
    asked = {"path": "short", "consensus": "exact", "abstain_below": 1.0}
    output = model(tokens, **asked)
    assert output.statuses.tolist() == [int(Status.ABSTAINED)]
    assert output.logits.isnan().all()
    monkeypatch.setattr(model.config, "no_verdict_reward", -1.0)
    assert model(tokens, **asked).logits.tolist() == [[-1.0]]


# -- doors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "said"), [
    ({"risk_beta": 0}, "`risk_beta` must be a finite number"), ({"risk_beta": math.inf}, "reward='expected'"),
    ({"risk_beta": "1"}, "`risk_beta`"), ({"risk_beta": 1e-9}, "at least 1e-06"),
    ({"abstain_below": 0.0}, "`abstain_below` must be a share above 0"), ({"abstain_below": 1.5}, "at most 1"),
    ({"abstain_below": math.nan}, "`abstain_below`"), ({"abstain_below": True}, "`abstain_below`"),
    ({"reward": "mean"}, "one of verdict, expected, risk_adjusted"),
], ids=str)  # fmt: skip
def test_a_wrong_setting_is_refused_with_what_it_should_be(model, options, said):
    with pytest.raises(ConfigError, match=said):
        RewardJudge(model, **options)


@pytest.mark.parametrize("reward", ["expected", "risk_adjusted"])
@pytest.mark.parametrize(("space", "record", "said"), [
    ({"kind": "free"}, {"prompt": "What is 2 + 3?", "reference": "5"}, "cannot be listed"),
    ({"kind": "listwise", "num_candidates": 2}, {"prompt": "Which?", "responses": ["1", "2"]}, "positions"),
])  # fmt: skip
def test_a_space_without_a_distribution_of_rewards_is_refused_before_anything_runs(model, reward, space, record, said):
    with pytest.raises(ConfigError, match=said):
        RewardJudge(model, space=space, reward=reward)([record])


def test_an_engine_that_cannot_read_the_distribution_is_refused_before_anything_runs():
    own = EGRMRewardModel.from_components(tiny_generator(), tokenizer=tiny_tokenizer(), consensus="sampled")
    asked: list[object] = []
    own.engine = CompletionEngine(asked.append, own.backbone.cost)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedModelError, match="log-probabilities of named tokens"):
        own.judge(own.processor(RECORDS[0]), reward="risk_adjusted")
    assert not asked


def test_a_checkpoint_keeps_how_it_treats_risk_and_an_older_one_treats_it_as_before(model):
    assert model.config.judging["risk_beta"] == -1.0
    older = {name: value for name, value in model.config.judging.items() if name not in ("risk_beta", "abstain_below")}
    restored = type(model.config).from_dict(model.config.to_dict() | {"judging": older}).judge_options()
    assert (restored.reward, restored.abstain_below) == ("verdict", None)


def test_pipeline_and_command_line_have_the_same_columns(model, tmp_path):
    asked = {"path": "short", "consensus": "exact", "reward": "risk_adjusted", "risk_beta": -2.0, "abstain_below": 0.2}
    (row,) = pipeline("reward-scoring", model=model)([RECORDS[0]], **asked)
    (result,) = RewardJudge(model, **asked)([RECORDS[0]])
    assert {name: row[name] for name in CERTAINTY} == {name: getattr(result, name) for name in CERTAINTY}

    judge, source = build_checkpoint(tmp_path), tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    words = (
        "--path",
        "short",
        "--consensus",
        "exact",
        "--reward",
        "risk_adjusted",
        "--risk-beta",
        "-2",
        "--device",
        "cpu",
    )
    for output in ("rows.jsonl", "rows.parquet"):
        assert egrm("score", judge, source, "-o", tmp_path / output, *words, "--abstain-below", "0.308") == 0
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {line["status"] for line in lines} == {"ok", "abstained"}
    assert all(
        line["reward"] == pytest.approx(line["reward_risk_adjusted"]) for line in lines if line["status"] == "ok"
    )
    assert all(line["reward_mean"] > line["reward_risk_adjusted"] for line in lines)
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    for name in CERTAINTY:
        assert str(table.schema.field(name).type) == "double"
        assert table[name].to_pylist() == [line[name] for line in lines]
