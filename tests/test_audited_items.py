"""A share of short verdicts is judged by chains too: chosen by id and seed, and at no cost to the reward."""

from collections import Counter

import pytest
import torch
from engine_fixtures import talkative_generator
from tiny import tiny_tokenizer

from transformers_egrm import EGRMRewardModel, JudgeOptions, RewardJudge
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_plan_egrm import JudgePlan
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler


RECORDS = [
    {"id": number, "prompt": f"What is {number % 8} + 3?", "response": "5" * (number % 8 + 1)} for number in range(24)
]
OPTIONS = {"consensus_threshold": 0.8, "probe_vocabulary": "verdict", "explain": True}


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return EGRMRewardModel.from_components(
        talkative_generator({"7": 6.0, "3": 5.0, "\n": 6.0, "": 6.0}), tokenizer=tiny_tokenizer(),
        max_chain_tokens=10, num_chains=2,
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def plain(model):
    return RewardJudge(model, **OPTIONS)(RECORDS)


def test_an_audit_changes_no_reward_and_says_what_the_long_path_says(model, plain):
    long = RewardJudge(model, path="long")(RECORDS)
    results = RewardJudge(model, **OPTIONS, audit_share=1.0, return_rationale=True)(RECORDS)
    assert {result.route for result in results} == {"short", "long"}
    for own, before, thought in zip(results, plain, long, strict=True):
        same = ("reward", "verdict", "status", "route", "consensus", "support", "said")
        assert [getattr(own, name) for name in same] == [getattr(before, name) for name in same]
        assert own.audited == (own.route == "short" and own.status == "ok")
        assert own.audit_verdict == (thought.verdict if own.audited else None)
        if own.audited:
            assert own.rationale is None
            assert own.tokens == before.tokens + thought.tokens
            assert (own.account.stage, own.account.chosen) == ("probes", None)
            assert all(candidate.is_chain for candidate in own.account.candidates)
    assert any(own.audit_verdict is not None for own in results)
    assert any(own.audited and own.audit_verdict is None for own in results)  # chains that state nothing


@pytest.mark.parametrize("options", [
    {"consensus": "exact", "consensus_threshold": 0.75}, {"consensus_threshold": 0.4, "strict": True},
    {"consensus_threshold": 0.4, "space": {"kind": "free"}},
], ids=str)  # fmt: skip
def test_it_is_so_for_every_kind_of_consensus(model, options):
    space = options.get("space")
    records = [record | {"reference": "7"} for record in RECORDS[:8]] if space else RECORDS[:8]
    long = RewardJudge(model, path="long", space=space)(records)
    before = RewardJudge(model, **options, explain=True)(records)
    results = RewardJudge(model, **options, explain=True, audit_share=1.0)(records)
    assert [own.reward for own in results] == [own.reward for own in before]
    assert any(own.audited for own in results)
    for own, first, thought in zip(results, before, long, strict=True):
        if own.audited:
            assert own.audit_verdict == thought.verdict
            votes = [own.account.labels[vote.verdict] for vote in own.account.probes if vote.verdict is not None]
            assert votes == [first.account.labels[v.verdict] for v in first.account.probes if v.verdict is not None]


def test_who_is_audited_is_a_matter_of_id_and_seed_alone():
    def chosen_of(ids: torch.Tensor, **options: float) -> torch.Tensor:
        own = JudgeOptions(**options).resolved("pointwise", scorer=False, draft=False)
        return torch.tensor(JudgePlan.of([own] * len(ids), ids.tolist()).audits)

    ids = torch.arange(5_000)
    chosen = chosen_of(ids, audit_share=0.05)
    assert abs(float(chosen.double().mean()) - 0.05) < 4 * (0.05 * 0.95 / 5_000) ** 0.5
    order = torch.randperm(5_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(chosen_of(ids[order], audit_share=0.05), chosen[order])
    other = chosen_of(ids, audit_share=0.05, seed=1)
    assert 2 < int((chosen & other).sum()) < 33  # 12 by chance: another seed, another choice
    wider = chosen_of(ids, audit_share=0.1)
    assert bool((wider | ~chosen).all())  # a larger share audits more, and none less
    assert not bool(chosen_of(ids, audit_share=0.5, path="short").any())  # nothing was routed


def test_batches_and_order_choose_nobody_else(model):
    def audited(records, **settings):
        results = RewardJudge(model, **OPTIONS, audit_share=0.3, **settings)(records)
        return {result.id: result.audit_verdict for result in results if result.audited}

    found = audited(RECORDS)
    assert 0 < len(found) < sum(result.route == "short" for result in RewardJudge(model, **OPTIONS)(RECORDS))
    assert audited(RECORDS[::-1], batch_size=3) == found
    with pytest.raises(ConfigError, match="`audit_share` must be a share"):
        RewardJudge(model, audit_share=5)


def test_only_what_consensus_decided_is_audited(model):
    for path in ("short", "long"):
        assert not any(result.audited for result in RewardJudge(model, path=path, audit_share=1.0)(RECORDS[:4]))


def test_an_audit_that_fails_or_is_late_costs_no_reward(model, plain, monkeypatch):
    def fails(*_args, **_kwargs):
        raise RuntimeError("no memory")

    scheduler = Scheduler(model, **OPTIONS | {"audit_share": 1.0})
    for record in RECORDS:
        scheduler.submit(record)
    with monkeypatch.context() as patch:
        patch.setattr(model, "deliberate", fails)
        results = scheduler.drain()
    assert Counter(own.status for own in results) == {"ok": sum(own.route == "short" for own in plain), "error": sum(
        own.route == "long" for own in plain)}  # fmt: skip
    assert all(own.audited and own.audit_verdict is None for own in results if own.status == "ok")

    stage = model.probe(
        model.processor(RECORDS), **{k: v for k, v in OPTIONS.items() if k != "explain"}, audit_share=1.0
    )
    late = type(stage.waiting)([type(item)(**vars(item) | {"deadline": 0.0}) for item in stage.waiting])
    output = model.deliberate(late, consensus_threshold=0.8, probe_vocabulary="verdict")
    for status, audited, reward in zip(
        output.statuses.tolist(), output.audited.tolist(), output.rewards.tolist(), strict=True
    ):
        assert status == (0 if audited else 3)
        assert (reward == reward) == audited
