"""Items of one batch may differ in number of probes, path and threshold: each is judged as it would be alone."""

from dataclasses import replace

import pytest
import torch
from engine_fixtures import talkative_generator
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, JudgeOptions
from transformers_egrm.modeling import judge_packing_egrm
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_plan_egrm import JudgePlan
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler


RECORDS = [{"id": number, "prompt": f"What is {number} + 3?", "response": "5" * (number + 1)} for number in range(6)]
OWN = [
    {"num_probes": 5},
    {"num_probes": 3},
    {"path": "long"},
    {"num_probes": 1, "path": "short"},
    {"num_probes": 4, "consensus_threshold": 0.2},
    {"consensus_threshold": 1.0},
]
FIELDS = ("rewards", "verdicts", "statuses", "routes", "consensus", "consensus_is_bound", "new_tokens", "flops")


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return EGRMRewardModel.from_components(
        talkative_generator({"7": 6.0, "3": 5.0, "\n": 6.0, "": 6.0}), tokenizer=tiny_tokenizer(),
        max_chain_tokens=10, num_chains=2,
    ).eval()  # fmt: skip


def plan_of(model: EGRMRewardModel, own: list[dict], **shared) -> JudgePlan:
    return JudgePlan.of([model.config.judge_options(None, **shared, **options) for options in own], range(len(own)))


@pytest.mark.parametrize(
    "shared",
    [
        {},
        {"early_stop": False},
        {"probe_vocabulary": "verdict"},
        {"consensus": "exact"},
        {"decoder": "expand"},
        {"reuse_probes": False},
    ],
    ids=str,
)
def test_every_row_of_a_mixed_batch_is_as_alone(model, shared):
    together = model.judge(model.processor(RECORDS), plan=plan_of(model, OWN, **shared), **shared)
    assert set(together["routes"].tolist()) == {0, 1}
    for item, (record, own) in enumerate(zip(RECORDS, OWN, strict=True)):
        alone = model.judge(model.processor(record), **shared, **own)
        for name in FIELDS:
            ours, theirs = together[name][item : item + 1].double(), alone[name].double()
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-9, equal_nan=True, msg=f"{name} of {item}")
        rows = together["prompt_item_index"] == item
        if alone.get("probe_parsed") is not None:
            drawn = alone["probe_parsed"].shape[1]
            assert torch.equal(together["probe_parsed"][rows][:, :drawn], alone["probe_parsed"])
            assert not bool(together["probe_parsed"][rows][:, drawn:].any())  # filled up with what was not drawn


def test_a_pair_in_both_orders_joins_with_fewer_probes_too(model):
    space = {"kind": "pairwise"}
    records = [{"id": n, "prompt": "Which?", "response_a": "5" * (n + 1), "response_b": "7"} for n in range(3)]
    own = [{"num_probes": 2}, {"num_probes": 5}, {"path": "long"}]
    shared = {"consensus": "sampled"}
    inputs = model.processor(records, space=space)
    together = model.judge(inputs, plan=plan_of(model, own, **shared), **shared)
    for item, (record, options) in enumerate(zip(records, own, strict=True)):
        alone = model.judge(model.processor(record, space=space), **shared, **options)
        for name in FIELDS:
            ours, theirs = together[name][item : item + 1].double(), alone[name].double()
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-9, equal_nan=True, msg=name)


def test_a_scheduler_joins_records_with_plans_of_their_own_in_one_batch(model, monkeypatch):
    monkeypatch.setattr(judge_packing_egrm, "PASS_TOKENS", {})
    scheduler = Scheduler(model, batch_size=len(RECORDS))
    sizes = []
    probe = EGRMRewardModel.probe

    def watch(self, inputs, **options):
        sizes.append(inputs.num_items)
        return probe(self, inputs, **options)

    monkeypatch.setattr(EGRMRewardModel, "probe", watch)
    for record, own in zip(RECORDS, OWN, strict=True):
        scheduler.submit(record, options=own)
    together = scheduler.drain()
    assert sizes == [len(RECORDS)]
    for result, record, own in zip(together, RECORDS, OWN, strict=True):
        alone = Scheduler(model, batch_size=1, **own)
        alone.submit(record)
        assert [result] == alone.drain()


def test_a_plan_that_does_not_fit_is_refused(model):
    inputs = model.processor(RECORDS[:2])
    with pytest.raises(ConfigError, match="one decision per item"):
        model.judge(inputs, plan=plan_of(model, OWN[:1]))
    with pytest.raises(ConfigError, match="one decision per item"):
        model.judge(inputs, plan=replace(plan_of(model, OWN[:1] * 2), num_probes=(6, 1)))
    with pytest.raises(ConfigError, match="each path one of"):
        replace(plan_of(model, OWN[:1]), paths=("fast",))


def test_fewer_probes_are_the_first_rungs_of_the_ladder(model):
    inputs = model.processor(RECORDS)
    ladder = JudgeOptions().temperatures
    asked = model.judge(inputs, num_probes=2, early_stop=False)
    shorter = model.judge(inputs, temperatures=ladder[:2], early_stop=False)
    assert torch.equal(asked.probe_verdicts, shorter.probe_verdicts)
    assert torch.equal(asked.consensus, shorter.consensus)
    assert tiny_generator().config.vocab_size == model.generator.config.vocab_size
