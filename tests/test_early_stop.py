"""Stopping early never changes a route or a reward; it only costs fewer tokens, and says where consensus is a bound."""

from functools import cache

import pytest
import torch
from engine_fixtures import TinyJudge, some_prompts, talkative_generator, tiny_inputs, tiny_task
from hypothesis import given, settings
from hypothesis import strategies as st

from transformers_egrm.modeling.verdict_consensus_egrm import Route
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


DIGITS = {"7": 8.0, "8": 6.0, "\n": 7.0, "": 4.0}
LETTERS = {"A": 7.0, "B": 6.5, "\n": 7.0, "": 4.0}


@cache
def talkative(letters: bool) -> TinyJudge:
    return TinyJudge(talkative_generator(LETTERS if letters else DIGITS))


@cache
def case(kind: str):
    """A judge, prompts and options for one kind of verdict; probes of one item end at different steps in all of them."""
    options = {"max_probe_tokens": 6, "max_chain_tokens": 4, "num_chains": 2}
    if kind == "pairwise":
        inputs = tiny_inputs(tiny_task(VerdictSpace.pairwise()), some_prompts([9, 8, 12, 13, 5, 5]), orders=2)
        return talkative(True), inputs, options
    if kind == "free":
        task = tiny_task(VerdictSpace.free())
        inputs = tiny_inputs(task, some_prompts([9, 12, 5]))
        return talkative(True), inputs, options
    if kind == "constrained":
        # Verdicts of one to four tokens, by the trie.
        sequences = tuple((*range(40, 40 + score % 4), 60 + score) for score in range(11))
        inputs = tiny_inputs(tiny_task(verdict_token_ids=sequences), some_prompts([9, 12, 5]))
        return talkative(False), inputs, {**options, "probe_vocabulary": "verdict"}
    inputs = tiny_inputs(tiny_task(VerdictSpace.pointwise(0, 1000)), some_prompts([9, 12, 5]))
    return talkative(False), inputs, options


KINDS = ("full", "constrained", "pairwise", "free")
TEMPERATURES = st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]), min_size=1, max_size=6).map(tuple)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    temperatures=TEMPERATURES,
    tau=st.sampled_from([0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0]),
    reuse=st.booleans(),
    selection=st.sampled_from(["vote", "scorer", "likelihood"]),
    decoder=st.sampled_from(["star", "star", "expand"]),
)
def test_early_stop_changes_no_route_and_no_reward(kind, seed, temperatures, tau, reuse, selection, decoder):
    judge, inputs, options = case(kind)
    options = options | {
        "seed": seed, "temperatures": temperatures, "consensus_threshold": tau, "reuse_probes": reuse,
        "selection": selection, "decoder": decoder,
    }  # fmt: skip
    full = judge.judge(inputs, early_stop=False, return_texts=True, **options)
    early = judge.judge(inputs, early_stop=True, return_texts=True, **options)
    assert early.routes.tolist() == full.routes.tolist()
    assert early.statuses.tolist() == full.statuses.tolist()
    assert early.verdict_texts == full.verdict_texts
    assert early.rationales == full.rationales
    torch.testing.assert_close(early.rewards, full.rewards, atol=0, rtol=0, equal_nan=True)
    assert bool((early.new_tokens <= full.new_tokens).all())
    assert not bool(full.consensus_is_bound.any())
    for item in range(inputs.num_items):
        bound, exact = float(early.consensus[item]), float(full.consensus[item])
        if not early.consensus_is_bound[item]:
            assert bound == exact
        elif early.routes[item] == Route.SHORT:
            assert bound <= exact + 1e-6
        else:
            assert bound >= exact - 1e-6
            assert not reuse  # where probes are candidates, the long path reads them all


@pytest.mark.parametrize("kind", KINDS)
def test_early_stop_saves_tokens(kind):
    judge, inputs, options = case(kind)
    spent = {}
    for early in (False, True):
        outputs = [
            judge.probe(inputs, early_stop=early, seed=seed, reuse_probes=False, **options).output for seed in range(8)
        ]
        spent[early] = sum(int(output.new_tokens.sum()) for output in outputs)
        assert any(bool(output.consensus_is_bound.any()) for output in outputs) == early
    assert spent[True] < spent[False]


def test_the_fifth_probe_is_not_waited_for_when_four_agree():
    # Four greedy probes say the same; the fifth, hot one would have gone on alone.
    judge, inputs, options = case("full")
    options = options | {"temperatures": (0.0, 0.0, 0.0, 0.0, 3.0), "top_ps": (0.95,) * 4 + (1.0,), "seed": 1}
    full = judge.probe(inputs, early_stop=False, **options).output
    early = judge.probe(inputs, early_stop=True, **options).output
    longer = full.new_tokens > early.new_tokens
    assert bool(longer.any())
    assert early.routes[longer].tolist() == [Route.SHORT] * int(longer.sum())
    assert early.consensus[longer].tolist() == pytest.approx([0.8] * int(longer.sum()))
    assert early.consensus_is_bound.tolist() == longer.tolist()


def test_ties_between_free_answers_fall_to_the_first_probe_not_to_the_fastest():
    judge, inputs, options = case("free")
    ties = 0
    for seed in range(15):
        own = options | {"seed": seed, "temperatures": (0.9,) * 4, "consensus_threshold": 0.5}
        full, early = (judge.probe(inputs, early_stop=stop, **own).output for stop in (False, True))
        assert early.verdict_texts == full.verdict_texts
        ties += sum(
            float(full.consensus[item]) == 0.5 and len(set(full.probe_verdicts[item].tolist())) == 2
            for item in range(3)
        )
    assert ties > 0
