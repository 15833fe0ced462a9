"""The cost model against what judgements report and do, and the algebra of its targets."""

import doctest
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_fixtures import (
    LONG_SUFFIX,
    SHORT_SUFFIX,
    TinyJudge,
    some_prompts,
    talkative_generator,
    tiny_inputs,
    tiny_task,
)
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm.evaluation.cost import (
    PathCosts,
    Speed,
    Work,
    Workload,
    counted_work,
    fit_speed,
    flops_of,
    seconds_of,
    workload_of,
)
from transformers_egrm.modeling.engine_flops_egrm import CostModel, cost_model
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


LENGTHS = Workload(
    prompt_tokens=20,
    short_suffix_tokens=len(SHORT_SUFFIX),
    long_suffix_tokens=len(LONG_SUFFIX),
    num_probes=5,
    verdict_tokens=3,
    num_chains=4,
    chain_tokens=12,
)
# Nothing ends before its budget.
ENDLESS = {"": -1e4, "\n": -1e4}
BUDGETS = {"max_probe_tokens": 3, "max_chain_tokens": 12, "early_stop": False, "num_chains": 4}
RECORDS = [
    {"prompt": f"What is {number} + 3? Think step by step.", "response": f"The answer is {number + 3}." * (1 + number % 2)}
    for number in range(6)
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return EGRMRewardModel.from_components(
        tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), max_chain_tokens=24,
        probe_vocabulary="verdict", scorer_trained=True,
    )  # fmt: skip


# -- operations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [20, 60])
def test_operations_are_those_a_judgement_reports(prompt):
    judge = TinyJudge(talkative_generator(ENDLESS))
    inputs = tiny_inputs(tiny_task(), some_prompts([prompt]))
    short = judge.judge(inputs, path="short", **BUDGETS)
    long = judge.judge(inputs, consensus_threshold=1.0, **BUDGETS)
    always = judge.judge(inputs, path="long", **BUDGETS)
    assert long.routes.tolist() == [1]
    costs = flops_of(replace(LENGTHS, prompt_tokens=prompt), judge.backbone.cost)
    assert float(short.flops[0]) == pytest.approx(costs.short, rel=1e-12)
    assert float(long.flops[0]) == pytest.approx(costs.expected(0.0), rel=1e-12)
    assert float(always.flops[0]) == pytest.approx(costs.always, rel=1e-12)
    assert float(short.flops[0] / long.flops[0]) == pytest.approx(costs.short_to_long, rel=1e-12)


def test_mean_lengths_predict_a_batch_of_a_real_model_to_two_percent(model):
    inputs = model.processor(RECORDS)
    options = model.config.judge_options(early_stop=False)
    assert options.selection == "scorer"
    short = model.judge(inputs, path="short", early_stop=False)
    always = model.judge(inputs, path="long", selection="vote")
    with counted_work(model) as counter:
        long = model.judge(inputs, consensus_threshold=1.0, early_stop=False)
    work, thinks = counter.work(), long.routes == 1
    assert int(thinks.sum()) >= 3
    assert work.candidates == int(long.chain_scores.isfinite().sum())
    lengths = {
        "prompt_tokens": float(inputs.attention_mask.sum(-1).float().mean()),
        "verdict_tokens": float(short.new_tokens.float().mean()) / 5,
        "chain_tokens": float(always.new_tokens.float().mean()) / 4,
        "candidates": work.candidates / int(thinks.sum()),
        "scorer_tokens": work.scorer_tokens / work.candidates,
    }
    costs = flops_of(workload_of(model, options, **lengths), model.backbone.cost, cost_model(model.scorer.encoder))
    assert float(short.flops.mean()) == pytest.approx(costs.short, rel=0.02)
    assert float(always.flops.mean()) == pytest.approx(costs.always, rel=0.02)
    assert float(long.flops[thinks].mean()) == pytest.approx(costs.expected(0.0), rel=0.02)
    share = float((~thinks).float().mean())
    assert float(long.flops.mean() / always.flops.mean()) == pytest.approx(costs.ratio(share), rel=0.04)


def test_a_scorer_of_states_costs_one_product_per_candidate():
    generator = cost_model(tiny_generator())
    plain, scored = flops_of(LENGTHS, generator), flops_of(replace(LENGTHS, candidates=9), generator)
    assert scored.chains - plain.chains == 9 * 2 * 32
    assert scored.always == plain.always  # the baseline votes


def test_a_workload_knows_its_models_suffixes_and_columns(model):
    options = model.config.judge_options()
    lengths = {"prompt_tokens": 10.0, "verdict_tokens": 2.0, "chain_tokens": 20.0}
    found = workload_of(model, options, **lengths)
    task = model.task
    assert (found.short_suffix_tokens, found.long_suffix_tokens) == (
        len(task.short_suffix_ids),
        len(task.long_suffix_ids),
    )
    assert found.probe_columns == len({t for ids in task.verdict_token_ids for t in ids} | set(task.probe_stop_ids))
    assert workload_of(model, options.with_overrides(probe_vocabulary="full"), **lengths).probe_columns is None
    with pytest.raises(ConfigError, match="exact"):
        workload_of(model, options.with_overrides(consensus="exact"), **lengths)


SIZES = CostModel(
    body_weights=1e6, head_weights_per_token_id=128, vocab_size=2000, attention_width=128, windows=(None,) * 4
)
WORKLOADS = st.builds(
    Workload,
    prompt_tokens=st.floats(10, 8000),
    short_suffix_tokens=st.integers(1, 20),
    long_suffix_tokens=st.integers(1, 20),
    num_probes=st.integers(1, 10),
    verdict_tokens=st.floats(1, 8),
    num_chains=st.integers(1, 8),
    chain_tokens=st.floats(2, 500),
)


@given(WORKLOADS, st.floats(0, 1))
def test_the_share_for_a_ratio_gives_that_ratio(workload, share):
    costs = flops_of(workload, SIZES)
    ratio = costs.ratio(share)
    assert costs.short_share_for(ratio) == pytest.approx(share, abs=1e-6)
    assert costs.short_share_for(costs.ratio(1.0) * 0.99) is None  # probes alone cost more
    assert costs.short_share_for(costs.ratio(0.0) * 1.01) == 0.0


@given(WORKLOADS)
def test_more_work_costs_more(workload):
    costs = flops_of(workload, SIZES)
    more_probes = flops_of(replace(workload, num_probes=workload.num_probes + 1), SIZES)
    more_chains = flops_of(replace(workload, num_chains=workload.num_chains + 1), SIZES)
    assert more_probes.short >= costs.short
    assert (more_probes.chains, more_probes.always) == (costs.chains, costs.always)
    assert more_chains.chains > costs.chains
    assert more_chains.short_to_long < costs.short_to_long
    assert costs.ratio(0.2) > costs.ratio(0.8)


def test_shares_outside_the_unit_interval_are_refused():
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        PathCosts(1.0, 1.0, 2.0).expected(1.5)


# -- seconds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
def test_passes_and_tokens_are_those_the_formula_counts(batch):
    # Constants of one passes, or one token, turn seconds into counts.
    judge = TinyJudge(talkative_generator(ENDLESS))
    inputs = tiny_inputs(tiny_task(), some_prompts([20] * batch))
    for path in ("short", "long"):
        judge.judge(inputs, path=path, **BUDGETS)  # the trials, which are not counted
    found = {}
    for path, options in (
        ("short", {"path": "short"}),
        ("long", {"consensus_threshold": 1.0}),
        ("always", {"path": "long"}),
    ):
        with counted_work(judge) as counter:
            output = judge.judge(inputs, **options, **BUDGETS)
        assert output.routes.tolist() == [path != "short"] * batch
        found[path] = counter.work()
    for name in ("passes", "prompt_tokens", "new_tokens"):
        constant = {"passes": "pass_s", "prompt_tokens": "prompt_token_s", "new_tokens": "new_token_s"}[name]
        zeros = {"pass_s": 0.0, "prompt_token_s": 0.0, "new_token_s": 0.0, "candidate_s": 0.0, "largest_error": 0.0}
        costs = seconds_of(LENGTHS, Speed(**(zeros | {constant: 1.0})), batch)
        by_formula = (costs.short, costs.expected(0.0), costs.always)
        counted = tuple(getattr(found[path], name) for path in ("short", "long", "always"))
        assert counted == pytest.approx(tuple(batch * cost for cost in by_formula)), name


def some_work(random, number):
    return Work(
        passes=int(random.integers(1, 60)),
        prompt_tokens=int(random.integers(50, 5000)),
        new_tokens=int(random.integers(10, 9000)),
        candidates=int(random.integers(0, 200)) if number % 2 else 0,
    )


def test_constants_are_found_again_from_the_seconds_they_make():
    random = np.random.default_rng(0)
    true = Speed(pass_s=3e-3, prompt_token_s=2e-5, new_token_s=4e-5, candidate_s=1e-4, largest_error=0.0)
    works = [some_work(random, number) for number in range(12)]
    found = fit_speed(works, [true.seconds(work) for work in works])
    for name in ("pass_s", "prompt_token_s", "new_token_s", "candidate_s"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6)
    assert found.largest_error < 1e-9


def test_constants_survive_noise_and_are_never_negative():
    random = np.random.default_rng(1)
    true = Speed(pass_s=3e-3, prompt_token_s=0.0, new_token_s=4e-5, candidate_s=0.0, largest_error=0.0)
    works = [some_work(random, number) for number in range(40)]
    noise = random.normal(1.0, 0.05, size=len(works))
    found = fit_speed(works, [true.seconds(work) * factor for work, factor in zip(works, noise, strict=True)])
    assert found.pass_s == pytest.approx(true.pass_s, rel=0.1)
    assert found.new_token_s == pytest.approx(true.new_token_s, rel=0.1)
    assert found.prompt_token_s >= 0
    assert found.candidate_s >= 0
    assert 0.02 < found.largest_error < 0.3


def test_too_few_measurements_are_refused():
    work = Work(passes=1, prompt_tokens=1, new_tokens=1)
    with pytest.raises(InputError, match="four measurements"):
        fit_speed([work] * 3, [1.0] * 3)
    with pytest.raises(InputError, match="above 0 s"):
        fit_speed([work] * 4, [1.0, 0.0, 1.0, 1.0])
    with pytest.raises(ConfigError, match="at least 1"):
        seconds_of(LENGTHS, Speed(pass_s=1, prompt_token_s=1, new_token_s=1, candidate_s=1, largest_error=0), 0)


def test_larger_batches_share_the_steps():
    speed = Speed(pass_s=1.0, prompt_token_s=0.0, new_token_s=0.0, candidate_s=0.5, largest_error=0.0)
    work = replace(LENGTHS, longest_chain_tokens=30, longest_verdict_tokens=2.2, candidates=4)
    costs = seconds_of(work, speed, 10)
    assert costs.short == pytest.approx(3 / 10)
    assert costs.chains == pytest.approx(30 / 10 + 2)
    assert costs.always == pytest.approx(31 / 10)
    padded = replace(speed, prompt_token_s=0.1)
    plain, more = (seconds_of(replace(work, padding_tokens=padding), padded, 10) for padding in (0.0, 5.0))
    assert (more.short - plain.short, more.always - plain.always) == (pytest.approx(0.5), pytest.approx(0.5))
    assert more.chains == plain.chains  # suffixes are of one length
    assert math.isclose(costs.short_to_long, 0.3 / 5.3)


def test_the_documentations_examples_print_what_they_show():
    page = (Path(__file__).parent.parent / "docs" / "cost_model.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "cost_model.md", None, None)
    assert len(example.examples) >= 8
    result = doctest.DocTestRunner(verbose=False).run(example, out=sys.stderr.write)
    assert result.failed == 0


@pytest.mark.parametrize("ratio", [0.66, 0.51, 0.38])
def test_the_documentations_formula_is_the_model_without_attention_and_head(ratio):
    plain = CostModel(body_weights=1e6, head_weights_per_token_id=0, vocab_size=0, attention_width=0, windows=())
    prompt, probes, verdict, chains, chain = 100, 5, 2, 4, 60
    work = Workload(
        prompt_tokens=prompt, short_suffix_tokens=0, long_suffix_tokens=0, num_probes=probes, verdict_tokens=verdict + 1,
        num_chains=chains, chain_tokens=chain + 1,
    )  # fmt: skip
    costs, x, y = flops_of(work, plain), prompt / (chains * chain), probes * verdict / (chains * chain)
    assert costs.short_to_long == pytest.approx((x + y) / (x + y + 1))
    assert costs.ratio(0.58) == pytest.approx((x + y + 1 - 0.58) / (x + 1))
    assert costs.ratio(1.0) == pytest.approx((x + y) / (x + 1))
    share = 1 + y + x - ratio * (1 + x)
    assert costs.short_share_for(ratio) == (pytest.approx(share) if share <= 1 else None)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_generator_state_scorer_is_counted_too(family):
    model = EGRMRewardModel.from_components(
        tiny_generator(family), tokenizer=tiny_tokenizer(), scorer_kind="generator_state", scorer_trained=True,
        probe_vocabulary="verdict", max_chain_tokens=8,
    )  # fmt: skip
    with counted_work(model) as counter:
        output = model.judge(model.processor(RECORDS), consensus_threshold=1.0, early_stop=False)
    assert counter.work().candidates == int(output.chain_scores.isfinite().sum()) > 0
    assert counter.work().scorer_tokens == 0
    counted = counter.work()
    model.judge(model.processor(RECORDS))
    assert counter.work() == counted  # nothing is counted outside the block
