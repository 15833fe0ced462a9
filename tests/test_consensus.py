"""Vote, route and early decision, each against its definition over all ways the probes can end."""

import itertools

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from transformers_egrm.modeling.verdict_consensus_egrm import (
    Route,
    choose_route,
    count_votes,
    exact_consensus,
    first_argmax,
    is_decided,
    sampled_consensus,
    vote,
)


TAUS = st.one_of(st.sampled_from([0.0, 0.2, 0.4, 0.5, 0.6, 0.75, 0.8, 1.0]), st.floats(0, 1))


def counts_of(verdicts: list[int | None], num_verdicts: int) -> torch.Tensor:
    return torch.tensor([[verdicts.count(verdict) for verdict in range(num_verdicts)]])


def vote_by_hand(verdicts: list[int | None]) -> tuple[int, float]:
    """The most frequent verdict that somebody gave, the lowest among equals."""
    given = sorted({verdict for verdict in verdicts if verdict is not None})
    if not given:
        return 0, 0.0
    best = min(given, key=lambda verdict: (-verdicts.count(verdict), verdict))
    return best, verdicts.count(best) / len(verdicts)


def route_by_hand(agreement: float, tau: float) -> Route:
    return Route.SHORT if agreement > 0 and agreement >= tau - 1e-6 else Route.LONG


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=12), TAUS)
def test_a_vote_follows_its_definition(verdicts, tau):
    total = torch.tensor([len(verdicts)])
    best, agreement = vote_by_hand(verdicts)
    ours = sampled_consensus(counts_of(verdicts, 6), torch.tensor([0]), total, tau)
    assert float(ours.agreement) == pytest.approx(agreement)
    assert int(ours.routes) == route_by_hand(agreement, tau)
    assert not bool(ours.is_bound)
    if agreement:
        assert int(ours.verdicts) == best


@pytest.mark.parametrize(
    ("verdicts", "agreement", "route"),
    [
        ([7, 7, 7, 7, 3], 0.8, Route.SHORT),  # four of five reach 0.8 whatever float32 makes of it
        ([7, 7, 7, 3, 3], 0.6, Route.LONG),
        ([7, 7, 7, 7, None], 0.8, Route.SHORT),  # an unparsed probe counts in M ...
        ([7, 7, 7, None, None], 0.6, Route.LONG),  # ... and never as agreement
        ([None] * 5, 0.0, Route.LONG),
        ([7] * 5, 1.0, Route.SHORT),
    ],
)
def test_five_probes_at_the_papers_threshold(verdicts, agreement, route):
    ours = sampled_consensus(counts_of(verdicts, 11), torch.tensor([0]), torch.tensor([5]), 0.8)
    assert float(ours.agreement) == pytest.approx(agreement)
    assert int(ours.routes) == route


@pytest.mark.parametrize("total", [3, 5, 6, 7, 9, 10, 12, 15, 20, 30, 99])
def test_a_share_equal_to_tau_takes_the_short_path(total):
    for votes in range(1, total + 1):
        counts = torch.tensor([[votes, 0]])
        _, share = vote(counts, torch.tensor([total]))
        assert int(choose_route(share, votes / total)) == Route.SHORT
        assert int(choose_route(share, votes / total + 1 / (2 * total))) == Route.LONG


def test_tau_zero_is_short_wherever_anybody_voted_and_tau_one_needs_everybody():
    counts, total = torch.tensor([[1, 0], [0, 0], [4, 1], [5, 0]]), torch.tensor([5, 5, 5, 5])
    _, agreement = vote(counts, total)
    assert choose_route(agreement, 0.0).tolist() == [Route.SHORT, Route.LONG, Route.SHORT, Route.SHORT]
    assert choose_route(agreement, 1.0).tolist() == [Route.LONG, Route.LONG, Route.LONG, Route.SHORT]


def test_ties_go_to_the_lowest_verdict():
    assert int(vote(torch.tensor([[0, 2, 1, 2]]), torch.tensor([5]))[0]) == 1
    assert int(exact_consensus(torch.tensor([[0.1, 0.45, 0.45]]), 0.8).verdicts) == 1
    assert first_argmax(torch.tensor([[3, 3, 1], [0, 2, 2], [1, 1, 1]])).tolist() == [0, 1, 0]


def test_each_item_has_a_threshold_of_its_own():
    counts, total = torch.tensor([[4, 1], [4, 1]]), torch.tensor([5, 5])
    tau = torch.tensor([0.8, 0.81], dtype=torch.float64)
    assert sampled_consensus(counts, torch.tensor([0, 0]), total, tau).routes.tolist() == [Route.SHORT, Route.LONG]
    probs = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
    assert exact_consensus(probs, tau).routes.tolist() == [Route.SHORT, Route.LONG]
    running, stop_long = torch.tensor([0, 0]), torch.tensor([True, False])
    assert is_decided(counts, running, total, tau, stop_long).tolist() == [True, False]


def test_votes_of_both_orders_are_added_up():
    verdicts = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 1]])
    counted = torch.tensor([[True, True, True], [True, False, True], [True, True, True]])
    row_item = torch.tensor([0, 0, 1])
    assert count_votes(verdicts, counted, row_item, 2, 2).tolist() == [[3, 2], [0, 3]]


def test_an_item_without_a_distribution_agrees_on_nothing():
    ours = exact_consensus(torch.tensor([[torch.nan, torch.nan], [0.9, 0.1]]), 0.0)
    assert ours.agreement.tolist() == [0.0, pytest.approx(0.9)]
    assert ours.routes.tolist() == [Route.LONG, Route.SHORT]


@given(
    st.integers(2, 4),
    st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=5),
    st.integers(0, 3),
    TAUS,
)
def test_what_is_decided_cannot_change_however_the_rest_ends(num_verdicts, finished, running, tau):
    finished = [None if verdict is None else verdict % num_verdicts for verdict in finished]
    assume(finished or running)
    total = len(finished) + running
    counts = counts_of(finished, num_verdicts)
    tensors = counts, torch.tensor([running]), torch.tensor([total]), tau
    bound = sampled_consensus(*tensors)
    ends = [
        vote_by_hand([*finished, *rest]) for rest in itertools.product([None, *range(num_verdicts)], repeat=running)
    ]
    routes = [route_by_hand(agreement, tau) for _, agreement in ends]
    if bool(is_decided(*tensors, stop_long=False)):
        assert set(routes) == {Route.SHORT} == {Route(int(bound.routes))}
        assert {verdict for verdict, _ in ends} == {int(bound.verdicts)}
        assert all(float(bound.agreement) <= agreement + 1e-6 for _, agreement in ends)
    elif bool(is_decided(*tensors, stop_long=True)):
        assert set(routes) == {Route.LONG} == {Route(int(bound.routes))}
        assert all(float(bound.agreement) >= agreement - 1e-6 for _, agreement in ends)
    elif running == 0:
        # Everybody is done and nothing is decided: that can only be a long path, or a tie on the short one.
        assert routes[0] == Route.LONG or sorted(counts[0].tolist())[-1] == sorted(counts[0].tolist())[-2]


@pytest.mark.parametrize(
    ("finished", "running", "stop_long", "decided"),
    [
        ([7, 7, 7, 7], 1, False, True),  # four equal probes of five fix the short path
        ([7, 7, 7], 2, False, False),
        ([7, 7, 3, 3], 1, False, False),  # two dissenters fix the long one ...
        ([7, 7, 3, 3], 1, True, True),  # ... which is a reason to stop only if probes are no candidates
        ([7, 3], 3, True, False),  # 7 could still reach four of five
        ([7, None, None], 2, True, True),
        ([], 5, True, False),
    ],
)
def test_five_probes_are_decided_as_early_as_they_can_be(finished, running, stop_long, decided):
    counts, tensors = counts_of(finished, 11), (torch.tensor([running]), torch.tensor([5]))
    assert bool(is_decided(counts, *tensors, 0.8, stop_long)) == decided


def test_an_early_stop_reports_a_bound():
    counts = torch.tensor([[4, 0], [1, 1]])
    ours = sampled_consensus(counts, torch.tensor([1, 3]), torch.tensor([5, 5]), 0.9)
    assert ours.is_bound.tolist() == [True, True]
    assert ours.agreement.tolist() == [1.0, pytest.approx(0.8)]  # both long: at most 5 and at most 4 of 5
    short = sampled_consensus(counts[:1], torch.tensor([1]), torch.tensor([5]), 0.8)
    assert float(short.agreement) == pytest.approx(0.8)  # short: at least 4 of 5


@given(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=5), st.integers(1, 2), TAUS)
def test_a_bound_holds(finished, running, tau):
    total = len(finished) + running
    ours = sampled_consensus(counts_of(finished, 5), torch.tensor([running]), torch.tensor([total]), tau)
    if int(ours.routes) == Route.LONG:
        for rest in itertools.product([None, *range(5)], repeat=running):
            assert vote_by_hand([*finished, *rest])[1] <= float(ours.agreement) + 1e-6
