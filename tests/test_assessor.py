"""The assessor: it decides before the probes, is saved with its judge, and without one nothing changes."""

import json
from dataclasses import replace

import pytest
import torch
from engine_fixtures import talkative_generator
from fresh import run_fresh
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm import EGRMRewardModel
from transformers_egrm.modeling.engine_flops_egrm import CostModel
from transformers_egrm.modeling.engine_shared_egrm import SharedStart
from transformers_egrm.modeling.errors_egrm import ConfigError, UnsupportedModelError
from transformers_egrm.modeling.judge_assessor_egrm import FEATURES, AssessorSettings, EGRMAssessor, text_features
from transformers_egrm.modeling.judge_certificate_egrm import task_digest
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler


RECORDS = [{"id": number, "prompt": f"What is {number} + 3?", "response": "5" * (number + 1)} for number in range(6)]
NOTHING = {"think_below": 0.0, "direct_above": 2.0, "direct_floor": 0.0}


def plain_model(generator=None) -> EGRMRewardModel:
    generator = generator or talkative_generator({"7": 6.0, "3": 5.0, "\n": 6.0, "": 6.0})
    return EGRMRewardModel.from_components(generator, tokenizer=tiny_tokenizer(), max_chain_tokens=10, num_chains=2)


def with_assessor(model: EGRMRewardModel, kind: str = "state", **thresholds) -> EGRMRewardModel:
    torch.manual_seed(0)
    settings = AssessorSettings(
        kind=kind, num_verdicts=model.task.space.num_verdicts, task=task_digest(model.task), width=8, num_buckets=64,
        num_layers=2, **(NOTHING | thresholds),
    )  # fmt: skip
    model.attach_assessor(EGRMAssessor(settings, model.generator.config.hidden_size))
    return model


def decide(model: EGRMRewardModel, **thresholds) -> None:
    """Other thresholds for the same weights."""
    model.assessor.settings = replace(model.assessor.settings, **(NOTHING | thresholds))


@pytest.fixture(scope="module", params=["state", "encoder"])
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(kind) -> EGRMRewardModel:
    return with_assessor(plain_model(), kind)


def equal(first, second) -> bool:
    return all(
        torch.equal(torch.nan_to_num(value), torch.nan_to_num(second[name]))
        for name, value in first.items()
        if isinstance(value, torch.Tensor)
    )


def test_an_assessor_that_never_decides_changes_nothing_and_costs_nothing(model):
    decide(model)
    assert equal(model.judge(model.processor(RECORDS)), plain_model().judge(model.processor(RECORDS)))


def test_what_it_is_unsure_of_thinks_at_once(model):
    decide(model, think_below=1.0)
    inputs = model.processor(RECORDS)
    thought = model.judge(inputs, explain=True)
    assert thought["routes"].tolist() == [1] * 6
    assert bool(thought["consensus"].isnan().all())
    assert [account.stage for account in thought.accounts] == ["chains"] * 6
    assert all(account.probes == () for account in thought.accounts)
    long = model.judge(inputs, path="long")
    for name in ("rewards", "verdicts", "statuses", "new_tokens"):
        torch.testing.assert_close(thought[name], long[name], equal_nan=True)
    assert thought["flops"].gt(long["flops"]).all()  # the opinion is counted


def test_a_forced_path_stays(model):
    decide(model, think_below=1.0)
    assert equal(
        model.judge(model.processor(RECORDS), path="short"),
        plain_model().judge(model.processor(RECORDS), path="short"),
    )


def test_it_can_be_left_out_of_a_call(model):
    decide(model, think_below=1.0)
    assert equal(model.judge(model.processor(RECORDS), assess=False), plain_model().judge(model.processor(RECORDS)))


def test_of_another_rubric_or_space_and_of_open_answers_it_says_nothing(model):
    decide(model, think_below=1.0)
    for asked in ({"space": {"kind": "binary"}}, {"rubric": "Be kind."}, {"space": {"kind": "free"}}):
        inputs = model.processor(RECORDS, **asked)
        assert equal(model.judge(inputs), plain_model().judge(inputs))


@pytest.mark.parametrize("consensus", ["sampled", "exact"])
def test_a_row_of_a_batch_is_as_alone(model, consensus):
    sure = [float(row) for row in opinions(model)]
    cut = sum(sorted(sure)[2:4]) / 2
    decide(model, think_below=cut)
    together = model.judge(model.processor(RECORDS), consensus=consensus)
    assert [bool(c) for c in together["consensus"].isnan()] == [value < cut for value in sure]
    for item, record in enumerate(RECORDS):
        alone = model.judge(model.processor(record), consensus=consensus)
        for name in ("rewards", "routes", "consensus", "flops", "new_tokens"):
            ours, theirs = together[name][item : item + 1].double(), alone[name].double()
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-9, equal_nan=True)


@torch.no_grad()
def opinions(model: EGRMRewardModel) -> torch.Tensor:
    inputs, assessor = model.processor(RECORDS), model.assessor
    if assessor.kind == "encoder":
        ids = [row[: len(row) - own] for row, own in zip(inputs.token_ids(), inputs.turn_tokens, strict=True)]
        return assessor.read_texts(ids, model.decode_tokens(ids)).logits.double().sigmoid()
    return (
        assessor.read_states(model.engine.start(inputs, inputs.task.short_suffix_ids).states).logits.double().sigmoid()
    )


# -- direct answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consensus", ["sampled", "exact"])
def test_its_own_verdict_stands_where_it_is_sure(consensus):
    model = with_assessor(plain_model(), direct_above=0.0)
    answered = model.judge(model.processor(RECORDS), explain=True, consensus=consensus)
    assert answered["direct"].all()
    assert answered["routes"].tolist() == [0] * 6
    assert answered["new_tokens"].tolist() == [0] * 6
    assert bool(answered["consensus"].isnan().all())
    assert [(account.stage, account.probe_verdict) for account in answered.accounts or ()] == [("assessor", None)] * 6
    with torch.no_grad():
        states = model.engine.start(model.processor(RECORDS), model.task.short_suffix_ids).states
        probs = model.assessor.read_states(states).verdict_logits.double().softmax(-1)
    assert torch.equal(answered["verdicts"], probs.argmax(-1))
    torch.testing.assert_close(answered["support"], probs.amax(-1))
    assert torch.equal(answered["rewards"], answered["verdicts"].float())
    sampled = plain_model().judge(model.processor(RECORDS), path="short", consensus="sampled")
    assert answered["flops"].lt(sampled["flops"]).all()


def test_below_the_floor_it_falls_back_to_the_probes():
    model = with_assessor(plain_model(), direct_above=0.0, direct_floor=1.0)
    assert equal_but_for_cost(model.judge(model.processor(RECORDS)), plain_model().judge(model.processor(RECORDS)))


def equal_but_for_cost(first, second) -> bool:
    return equal({name: value for name, value in first.items() if name != "flops"}, second)


def test_results_name_their_stage():
    model = with_assessor(plain_model())
    with torch.no_grad():
        values = sorted(float(value) for value in opinions(model))
    decide(model, direct_above=sum(values[3:5]) / 2, think_below=sum(values[1:3]) / 2)
    scheduler = Scheduler(model, batch_size=6)
    for record in RECORDS:
        scheduler.submit(record)
    stages = [result.stage for result in scheduler.drain()]
    assert stages.count("assessor") == 2
    assert stages.count("chains") >= 2
    assert set(stages) <= {"assessor", "probes", "chains"}


def test_it_reads_a_prompt_whose_start_was_run_before():
    model = with_assessor(plain_model(), direct_above=0.0)
    inputs = model.processor(RECORDS[:1])
    alone, own = model.judge(inputs), model.engine
    model.engine = SharedStart(own, inputs.token_ids()[0][:8])
    continued = model.judge(inputs)
    assert continued["direct"].tolist() == alone["direct"].tolist() == [True]
    assert torch.equal(continued["verdicts"], alone["verdicts"])
    torch.testing.assert_close(continued["support"], alone["support"])


def test_direct_answers_are_audited_like_short_ones():
    model = with_assessor(plain_model(), direct_above=0.0)
    audited = model.judge(model.processor(RECORDS), audit_share=1.0, explain=True)
    assert audited["audited"].all()
    assert [account.stage for account in audited.accounts or ()] == ["assessor"] * 6
    assert torch.equal(audited["verdicts"], model.judge(model.processor(RECORDS))["verdicts"])


def test_a_pair_is_one_item_in_both_orders():
    space, model = {"kind": "pairwise"}, plain_model()
    model.processor = type(model.processor)(model.processor.tokenizer, space=space)
    model = with_assessor(model, direct_above=0.0)
    inputs = model.processor(
        [{"id": n, "prompt": "Which?", "response_a": "5" * (n + 1), "response_b": "7"} for n in range(3)]
    )
    answered = model.judge(inputs)
    with torch.no_grad():
        states = model.engine.start(inputs, model.task.short_suffix_ids).states
        probs = model.assessor.read_states(states).verdict_logits.double().softmax(-1)
    by_hand = [(probs[2 * item] + probs[2 * item + 1][[1, 0]]) / 2 for item in range(3)]
    assert answered["verdicts"].tolist() == [int(own.argmax()) for own in by_hand]


# -- the checkpoint -------------------------------------------------------------------------------------------------------


def test_it_is_saved_with_its_judge_and_loads_by_remote_code_alone(kind, tmp_path):
    model = with_assessor(plain_model(tiny_generator()), kind, think_below=0.5)
    model.save_pretrained(tmp_path)
    again = EGRMRewardModel.from_pretrained(tmp_path)
    assert again.assessor.settings == model.assessor.settings
    expected = model.judge(model.processor(RECORDS), probe_vocabulary="verdict")
    assert equal(again.judge(model.processor(RECORDS), probe_vocabulary="verdict"), expected)
    script = "\n".join([
        "from transformers import AutoModel",
        "model = AutoModel.from_pretrained(given['folder'], trust_remote_code=True)",
        "output = model.judge(model.processor(given['records']), probe_vocabulary='verdict')",
        "print(json.dumps([output['flops'].tolist(), output['routes'].tolist()]))",
    ])  # fmt: skip
    found = run_fresh(script, {"folder": str(tmp_path), "records": RECORDS}, tmp_path)
    assert found == [expected["flops"].tolist(), expected["routes"].tolist()]


def test_without_one_a_checkpoint_is_what_it_was(tmp_path):
    plain, model = plain_model(), with_assessor(plain_model())
    model.attach_assessor(None)
    plain.save_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "removed")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "removed" / name).read_bytes()
    assert "assessor" not in json.loads((tmp_path / "plain" / "config.json").read_text())


def test_it_stays_in_float32(model):
    half = with_assessor(plain_model(), model.assessor.kind, think_below=1.0).to(torch.bfloat16)
    assert {weight.dtype for weight in half.assessor.parameters()} == {torch.float32}
    assert half.judge(half.processor(RECORDS))["consensus"].isnan().all()


# -- what is refused, and what is counted ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"kind": "oracle"}, "`kind` must be one of state, encoder"),
        ({"think_below": 1.5}, "`think_below` must be a probability"),
        ({"direct_above": 2.0, "direct_floor": 2.0}, "`direct_floor` must be a probability"),
        ({"kind": "encoder", "direct_above": 0.9}, "an encoder has no verdict of its own"),
        ({"kind": "encoder", "width": 30}, "`width` must be a multiple of num_heads"),
        ({"calibration": {"x": [0.0]}}, "`calibration` must be a table"),
        ({"colour": "red"}, "`assessor` must hold num_verdicts, task"),
    ],
    ids=str,
)
def test_settings_that_make_no_assessor_are_refused(setting, expected):
    with pytest.raises(ConfigError, match=expected):
        AssessorSettings.from_dict({"num_verdicts": 11, "task": "0" * 16} | setting)


def test_an_engine_without_states_is_refused_before_anything_runs():
    from completion_engine import CompletionEngine

    model = with_assessor(plain_model(), think_below=0.5)
    model.engine = CompletionEngine(lambda requests: pytest.fail("nothing runs"), CostModel(1.0, 1.0, 1, 1, ()))
    with pytest.raises(UnsupportedModelError, match="an assessor of kind state"):
        model.judge(model.processor(RECORDS))


def test_its_probability_is_read_off_the_table():
    settings = AssessorSettings(
        num_verdicts=2, task="", calibration={"method": "platt", "x": [0.0, 1.0], "y": [0.2, 0.6]}
    )
    assessor = EGRMAssessor(settings, 4)
    assert assessor.calibrated([0.0, 0.5, 1.0]) == pytest.approx([0.2, 0.4, 0.6])


def test_a_state_costs_two_operations_for_each_weight_and_an_encoder_grows_with_its_text():
    head = EGRMAssessor(AssessorSettings(num_verdicts=11, task="", width=8), 32)
    assert head.flops(10) == head.flops(1000) == 2 * sum(weight.numel() for weight in head.parameters())
    encoder = EGRMAssessor(AssessorSettings(kind="encoder", num_verdicts=11, task="", width=8), 32)
    assert encoder.flops(20) > 1.9 * encoder.flops(10)
    assert encoder.flops(1000) == encoder.flops(256)


def test_hand_features_say_what_they_are_called():
    text = "How many (big [red]) apples did Tom buy, maybe 12 or 7?"
    named = dict(zip(FEATURES, text_features(text, 20), strict=False))
    assert named["nesting"] == 2
    assert named["asks_amount"] == 1
    assert named["marks"] == 1
    assert named["ambiguity"] > 0
    assert named["entities"] == pytest.approx(torch.tensor(2.0).log().item())
    assert named["digits"] == pytest.approx(3 / len(text))
