"""The certificate: it travels with the checkpoint, stands in the card, and says when it does not apply."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_tools import build_checkpoint, egrm, read_jsonl, write_jsonl
from fresh import run_fresh
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm.calibration.aims import Aim
from transformers_egrm.calibration.certificate import Source, certificate_of, certify
from transformers_egrm.calibration.judging import BOTH_PATHS, item_from, right_rule
from transformers_egrm.calibration.records import CalibrationItem, Labelled
from transformers_egrm.calibration.thresholds import choose
from transformers_egrm.evaluation.asking import Question, plan
from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.judge import RewardJudge
from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError
from transformers_egrm.modeling.judge_certificate_egrm import KEYS, fingerprint
from transformers_egrm.modeling.judge_options_egrm import NEVER_SHORT
from transformers_egrm.modeling.judge_plan_egrm import JudgePlan
from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.judge_values_egrm import Account, Candidate
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


RECORD = {"prompt": "What is 2 + 3?", "response": "5"}
SOURCE = Source("labels.jsonl", "0123456789abcdef")


def labelled() -> Labelled:
    return Labelled([
        CalibrationItem(
            id=f"i{n}", question_id=f"q{n}", text_digest=f"q{n}", verdict="7", short_right=n % 40 > 0 or n % 2 > 0,
            long_right=True, consensus=0.9 if n % 2 else 0.6, short_flops=1.0, long_flops=5.0,
        )
        for n in range(600)
    ])  # fmt: skip


def tiny_judge() -> EGRMRewardModel:
    torch.manual_seed(0)
    return EGRMRewardModel.from_components(
        tiny_generator(), tokenizer=tiny_tokenizer(), probe_vocabulary="verdict", max_probe_tokens=2, max_chain_tokens=4,
    )  # fmt: skip


def certified(aim: str = "risk") -> EGRMRewardModel:
    model, data = tiny_judge(), labelled()
    certify(model, choose(data, Aim(aim, 0.1)), data, SOURCE)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("certified")
    model = certified()
    model.config.calibration = {"consensus": {"method": "isotonic", "x": [0.0, 1.0], "y": [0.25, 0.75]}}
    model.save_pretrained(folder)
    return folder


def spoken(model: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.judge(model.processor(RECORD), **options)
    return [str(one.message) for one in caught if "certificate" in str(one.message)]


def test_a_certificate_sets_the_threshold_and_says_what_it_holds_for():
    model = certified()
    certificate = model.config.certificate
    assert set(certificate) == set(KEYS)
    assert certificate["threshold"] == model.config.judge_options().consensus_threshold
    assert certificate["promise"].startswith("Of the answers that take the short path, at most 10 % are wrong")
    assert (certificate["questions"], certificate["items"], certificate["data"]) == (600, 600, SOURCE.digest)
    assert certificate["weights"] == fingerprint(model)
    assert json.loads(json.dumps(certificate)) == certificate


def test_without_a_certificate_a_checkpoint_is_what_it_was(tmp_path: Path):
    model = tiny_judge()
    model.save_pretrained(tmp_path / "before")
    # An estimate sets a threshold and promises nothing; the same threshold set by hand makes the same file.
    data = labelled()
    found = choose(data, Aim("share", 0.5))
    certify(model, found, data, SOURCE)
    model.save_pretrained(tmp_path / "estimated")
    plain = tiny_judge()
    plain.config.set_judging(consensus_threshold=found.threshold)
    plain.save_pretrained(tmp_path / "by_hand")
    before, estimated, by_hand = (
        (tmp_path / name / "config.json").read_bytes() for name in ("before", "estimated", "by_hand")
    )
    assert estimated == by_hand
    assert not {"certificate", "calibration"} & json.loads(before).keys()
    assert "Promise" not in (tmp_path / "before" / "README.md").read_text("utf-8")


def test_the_certificate_is_saved_and_stands_in_the_card(saved: Path):
    again = EGRMRewardModel.from_pretrained(saved)
    assert again.config.certificate == certified().config.certificate
    assert again.certificate_for() == again.config.certificate
    assert spoken(again) == []
    card = (saved / "README.md").read_text("utf-8")
    assert f"**{again.config.certificate['promise']}.**" in card
    assert all(f"- {text}" in card for key in ("covers", "breaks") for text in again.config.certificate[key])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_probes": 3}, "num_probes is 3, certified 5"),
        ({"temperatures": [0.5] * 5}, "temperatures is"),
        ({"consensus": "exact"}, "consensus is exact, certified sampled"),
        ({"consensus_threshold": 0.5}, "consensus_threshold is 0.5"),
        ({"path": "short"}, "the threshold decides nothing"),
        ({"abstain_below": 0.95}, "abstain_below is 0.95, above the threshold"),
    ],
)
def test_other_options_are_told_once_and_the_certificate_does_not_apply(options: dict[str, Any], named: str):
    model = certified()
    assert model.certificate_for(**options) is None
    (warning,) = spoken(model, **options)
    assert named in warning
    assert "does not hold here" in warning
    assert spoken(model, **options) == [], "once"
    assert model.certificate_for() is not None, "it still covers the checkpoint's own options"


def test_what_decides_no_route_is_not_bound():
    model = certified()
    for options in ({"seed": 3}, {"early_stop": False}, {"num_chains": 2}, {"path": "long", "num_probes": 2}):
        assert model.certificate_for(**options) is not None, options
        assert spoken(model, **options) == []
    # A promise about chains is bound to them too.
    assert certified("harm").certificate_for(num_chains=2) is None


def test_another_threshold_of_a_single_record_is_told():
    model = certified()
    inputs, own = model.processor([RECORD, RECORD]), model.config.judge_options()
    plan = JudgePlan.of([own, own.with_overrides(consensus_threshold=0.3)], [0, 1])
    with pytest.warns(UserWarning, match=r"consensus_threshold is 0\.3"):
        model.judge(inputs, plan=plan)


def test_another_rubric_or_space_is_told():
    model = certified()
    task = model.processor.task(None, "Judge the spelling alone.")
    assert model.certificate_for(task) is None
    with pytest.warns(UserWarning, match="verdict space, rubric or prompt"):
        RewardJudge(model, space={"kind": "binary"})([RECORD])


def test_other_weights_are_told(saved: Path):
    model = EGRMRewardModel.from_pretrained(saved)
    with torch.no_grad():
        model.generator.get_input_embeddings().weight.mul_(1.001)
    assert model.certificate_for() is None
    (warning,) = spoken(model)
    assert "the weights are not those that were certified" in warning
    halved = EGRMRewardModel.from_pretrained(saved, dtype=torch.bfloat16)
    assert halved.certificate_for() is None, "another number format is another judge"


@pytest.mark.parametrize("change", [{"level": "x"}, {"more": 1}, {"questions": 0}, {"covers": "all"}])
def test_a_malformed_certificate_is_refused(change: dict[str, Any]):
    model = certified()
    with pytest.raises(ConfigError, match=r"certificate.*egrm calibrate"):
        EGRMConfig(generator_config=model.generator.config, certificate=(model.config.certificate or {}) | change)


def test_nothing_promised_is_nothing_certified():
    data = labelled()
    found = choose(data, Aim("risk", 0.001))
    with pytest.raises(ConfigError, match="nothing to certify"):
        certificate_of(tiny_judge(), found, data, SOURCE)
    model = tiny_judge()
    certify(model, found, data, SOURCE)
    assert model.config.certificate is None
    assert model.config.judge_options().consensus_threshold == NEVER_SHORT
    output = model.judge(model.processor([RECORD] * 2), consensus="exact")
    assert output["routes"].tolist() == [1, 1], "everything takes the long path"


LOAD = """
from transformers import AutoConfig, AutoModel
import warnings
config = AutoConfig.from_pretrained(given["folder"], trust_remote_code=True)
model = AutoModel.from_pretrained(given["folder"], trust_remote_code=True)
record = {"prompt": "What is 2 + 3?", "response": "5"}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model.judge(model.processor(record))
    own = [str(one.message) for one in caught if "certificate" in str(one.message)]
    model.judge(model.processor(record), num_probes=2)
    other = [str(one.message) for one in caught if "certificate" in str(one.message)]
print(json.dumps({"config": config.certificate, "applies": model.certificate_for() == config.certificate,
                  "elsewhere": model.certificate_for(num_probes=2), "own": own, "other": other}))
"""


def test_the_certificate_loads_by_remote_code_alone(saved: Path, tmp_path: Path):
    seen = run_fresh(LOAD, {"folder": str(saved)}, tmp_path)
    assert seen["config"] == json.loads((saved / "config.json").read_text())["certificate"]
    assert seen["applies"]
    assert seen["elsewhere"] is None
    assert seen["own"] == []
    assert len(seen["other"]) == 1


def test_results_carry_the_calibrated_confidence(saved: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (result,) = RewardJudge(str(saved), path="short")([RECORD])
        (long,) = RewardJudge(str(saved), path="long")([RECORD])
    assert result.consensus is not None
    assert result.confidence == pytest.approx(0.25 + 0.5 * result.consensus)
    assert long.confidence is None, "no scorer, no table of one"
    (plain,) = RewardJudge(tiny_judge())([RECORD])
    assert plain.confidence is None


# -- from labelled questions to items -------------------------------------------------------------------------------------


def question(**settings: Any) -> Question:
    return Question(**{"id": "1", "question_id": "q", "subset": "part", "prompt": "Why?"} | settings)


def test_what_counts_as_right_follows_from_the_labels_and_the_space():
    own, points = load_benchmark("own"), VerdictSpace.pointwise(0, 10)
    graded = question(responses=("a",), truths=(7.0,))
    right, told = right_rule([graded], points, own)
    (ask,) = plan(graded, "responses")
    assert "is the label" in told
    assert (right(graded, ask, "7"), right(graded, ask, "6")) == (True, False)
    sided = question(responses=("a", "b"), truths=(1.0, 0.0))
    right, told = right_rule([sided], points, own)
    good, bad = plan(sided, "responses")
    assert "true side of 5" in told
    assert [right(sided, good, label) for label in ("4", "6")] == [False, True]
    assert [right(sided, bad, label) for label in ("4", "6")] == [True, False]
    with pytest.raises(DataError, match=r"must be a verdict of the judge's space .* got 2\.5"):
        right_rule([question(responses=("a",), truths=(2.5,))], points, own)


@pytest.mark.parametrize(
    ("space", "labels"), [(VerdictSpace.pairwise(), ("A", "B")), (VerdictSpace.listwise(2), ("1", "2"))]
)
def test_a_pair_is_right_where_the_better_answer_is_preferred_in_the_order_shown(space: VerdictSpace, labels):
    pair = question(responses=("good", "bad"), truths=(1.0, 0.0), pairs=((0, 1),))
    right, _ = right_rule([pair], space, load_benchmark("own"))
    for ask in plan(pair, "pairs", orders=2):
        first, second = labels if ask.shown == (0, 1) else labels[::-1]
        assert right(pair, ask, first)
        assert not right(pair, ask, second)


def test_an_answer_of_its_own_is_right_by_the_benchmarks_rule():
    asked = question(answer="12")
    right, _ = right_rule([asked], VerdictSpace.free(), load_benchmark("gsm8k"))
    (ask,) = plan(asked, "answers")
    assert right(asked, ask, "12")
    assert not right(asked, ask, "13")


def test_an_item_has_both_verdicts_and_both_costs():
    asked = question(responses=("a",), truths=(7.0,))
    right, _ = right_rule([asked], VerdictSpace.pointwise(0, 10), load_benchmark("own"))
    (ask,) = plan(asked, "responses")
    labels = tuple(map(str, range(11)))
    account = Account(
        "chains", labels, verdict_probs=((0.0,) * 10 + (1.0,), (0.0,) * 9 + (0.5, 0.5)), probe_verdict=10, probe_flops=2.0,
        candidates=(Candidate("x", 7, 0, True, score=0.5),), chosen=0, flops=9.0,
    )  # fmt: skip
    result = JudgeResult(
        id="1", reward=7.0, verdict="7", consensus=0.75, consensus_is_bound=False, route="long", status="ok", tokens=5,
        truncated=False, truncated_tokens=0, order=("given",), seed=0, account=account,
    )  # fmt: skip
    item = item_from(asked, ask, result, right)
    assert (item.verdict, item.short_right, item.long_right, item.consensus) == ("10", False, True, 0.75)
    assert (item.short_flops, item.long_flops, item.score, item.domain) == (2.0, 9.0, 0.5, "part")
    assert item.probs[9:] == (0.25, 0.75)
    failed = JudgeResult(
        id="1", reward=None, verdict=None, consensus=None, consensus_is_bound=False, route=None, status="too_long", tokens=0,
        truncated=False, truncated_tokens=0, order=(), seed=None,
    )  # fmt: skip
    item = item_from(asked, ask, failed, right)
    assert (item.verdict, item.short_right, item.long_right, item.consensus) == (None, False, False, 0.0)


# -- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("built"))


def rows(count: int, label: Any = None) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {n} + 3?", "response": str(n + 3 + n % 2), "label": n % 2 if label is None else label}
            for n in range(count)]  # fmt: skip


def test_the_command_judges_once_and_writes_what_it_found(checkpoint: Path, tmp_path: Path, capsys):
    data, judged = write_jsonl(tmp_path / "labelled.jsonl", rows(60)), tmp_path / "judged.jsonl"
    words = ("calibrate", checkpoint, data, "--judged", judged, "--batch-size", 16, "--delta", 0.2)
    assert egrm(*words, "--aim", "risk=0.9", "-o", tmp_path / "sure", "--report", tmp_path / "sure.md") == 0
    assert "Promise: of the answers" in capsys.readouterr().err
    items = read_jsonl(judged)
    assert len(items) == 60
    text = (tmp_path / "sure.md").read_text("utf-8")
    assert "![Reliability diagram](sure.reliability.png)" in text
    assert (tmp_path / "sure.reliability.png").stat().st_size > 1000
    sure = EGRMRewardModel.from_pretrained(tmp_path / "sure")
    assert sure.certificate_for() is not None
    assert sure.config.calibration
    # Another aim on the same judgements: nothing can be promised, and everything stays long.
    before = judged.stat().st_mtime_ns
    assert egrm(*words, "--aim", "risk=0.001", "-o", tmp_path / "unsure") == 0
    assert judged.stat().st_mtime_ns == before
    assert "Nothing can be promised, and everything takes the long path" in capsys.readouterr().err
    unsure = EGRMRewardModel.from_pretrained(tmp_path / "unsure")
    assert unsure.config.certificate is None
    assert unsure.config.judge_options().consensus_threshold == NEVER_SHORT


def test_to_abstain_on_chains_only_breaks_no_promise():
    model = certified()
    assert model.certificate_for(abstain_below=model.config.certificate["threshold"]) is not None


def test_a_rubric_of_a_records_own_is_told_wherever_it_stands_in_a_batch():
    first, second = RECORD | {"id": "first"}, RECORD | {"id": "second", "rubric": "Count."}
    with pytest.warns(UserWarning, match="verdict space, rubric or prompt are not those"):
        RewardJudge(certified(), path="auto", num_chains=1)([first, first | {"id": "third"}, second])


def test_a_confidence_belongs_to_the_task_that_was_labelled(saved: Path):
    (own,), (other,), (spoken_of,) = (
        RewardJudge(str(saved), path="short", **asked)([RECORD])
        for asked in ({}, {"verdict_format": "boxed"}, {"rubric": "Count the words."})
    )
    assert own.confidence == pytest.approx(0.25 + 0.5 * own.consensus)
    assert (other.status, other.confidence, spoken_of.status, spoken_of.confidence) == ("ok", None, "ok", None)


def test_a_run_of_a_judge_that_is_never_short_is_not_told_to_lower_tau(checkpoint: Path, tmp_path: Path, capsys):
    records = write_jsonl(tmp_path / "in.jsonl", [RECORD | {"id": str(n)} for n in range(20)])
    model = EGRMRewardModel.from_pretrained(checkpoint)
    model.config.set_judging(consensus_threshold=NEVER_SHORT, num_chains=1)
    model.save_pretrained(tmp_path / "never")
    assert egrm("score", tmp_path / "never", records, "-o", tmp_path / "long.jsonl") == 0
    assert "Lower --tau" not in capsys.readouterr().err
    assert {row["route"] for row in read_jsonl(tmp_path / "long.jsonl")} == {"long"}


def test_both_paths_are_taken_by_every_item(checkpoint: Path):
    model = EGRMRewardModel.from_pretrained(checkpoint)
    model.config.set_judging(abstain_below=1.0)  # which would count right verdicts as wrong ones
    judge = RewardJudge(model, explain=True, **BOTH_PATHS)
    for result in judge([RECORD] * 3):
        assert result.status == "ok"
        assert result.route == "long"
        assert result.account is not None
        assert len(result.account.probes) == 5
        assert all(vote.text is not None for vote in result.account.probes), "every probe is read"


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (rows(60, "good"), "`label` must be true or false, correct or incorrect, or a finite number"),
        (rows(60, 3.5), "A label must be a verdict of the judge's space"),
        (rows(9), "50 questions or more, got 9"),
        (
            [row | {"question_id": f"q{n}", "prompt": "Why?"} for n, row in enumerate(rows(60))],
            "stand under several question ids",
        ),
    ],
)
def test_data_that_carry_no_threshold_are_refused(checkpoint: Path, tmp_path: Path, capsys, records, message: str):
    data = write_jsonl(tmp_path / "labelled.jsonl", records)
    assert egrm("calibrate", checkpoint, data, "--batch-size", 16, "-o", tmp_path / "out") == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_too_few_questions_are_refused_before_anything_is_judged(tmp_path: Path, capsys):
    data, judged = write_jsonl(tmp_path / "labelled.jsonl", rows(9)), tmp_path / "judged.jsonl"
    assert egrm("calibrate", tmp_path / "no-judge-is-loaded", data, "--judged", judged) == 1
    assert "50 questions or more, got 9" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == [data]


def test_only_a_checkpoint_is_calibrated(tmp_path: Path, capsys):
    data = write_jsonl(tmp_path / "labelled.jsonl", rows(60))
    assert egrm("calibrate", "rival:longer", data) == 1
    assert "Only an EGRM checkpoint has a threshold" in " ".join(capsys.readouterr().err.split())
    assert egrm("calibrate", "egrm-mini", data, "--aim", "hope=1") == 1
