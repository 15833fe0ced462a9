"""Groups compared by pairs or lists: who meets whom, what it comes to by hand, and that the judge's own verdicts are in it."""

import math
import pickle
from dataclasses import replace
from itertools import combinations
from random import Random

import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, RewardJudge, VerdictSpace
from transformers_egrm.integrations.compared_groups import compare_group
from transformers_egrm.integrations.comparisons import (
    Comparisons,
    bradley_terry,
    chances,
    plan_lists,
    plan_pairs,
    win_shares,
)
from transformers_egrm.integrations.trl import EGRMReward
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError


ANSWERS = ["42", "5", "A tie", "think step by step", "2 + 3 = 5"]
QUESTION = "What is 2 + 3?"


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    generator = tiny_generator(max_position_embeddings=4096)
    return EGRMRewardModel.from_components(
        generator, tokenizer=tiny_tokenizer(), probe_vocabulary="verdict", max_chain_tokens=4, num_chains=1
    )


# -- who meets whom -----------------------------------------------------------------------------------------------------


def connected(count: int, pairs: list[tuple[int, int]]) -> bool:
    reached = {0}
    for _ in range(count):
        reached |= {end for pair in pairs if reached & set(pair) for end in pair}
    return len(reached) == count


@pytest.mark.parametrize("count", range(2, 10))
def test_pairs_are_even_and_different_and_soon_connect_everybody(count):
    every = count * (count - 1) // 2
    for budget in range(1, every + 3):
        pairs = plan_pairs(count, budget, Random(budget))
        assert len(pairs) == min(budget, every) == len({frozenset(pair) for pair in pairs})
        met = [sum(member in pair for pair in pairs) for member in range(count)]
        assert max(met) - min(met) <= 1 + count % 2, "an odd number has breaks"
        first = [sum(member == pair[0] for pair in pairs) for member in range(count)]
        assert max(abs(2 * own - own_met) for own, own_met in zip(first, met, strict=True)) <= 3
        assert connected(count, pairs) == (len(pairs) >= count - 1)


def test_lists_are_even_and_never_hold_a_member_twice():
    for count, size, lists in ((8, 4, 5), (5, 3, 7), (3, 3, 2)):
        planned = plan_lists(count, size, lists, Random(0))
        assert [len(set(members)) for members in planned] == [size] * lists
        seen = [sum(member in members for members in planned) for member in range(count)]
        assert max(seen) - min(seen) <= 1
    assert plan_lists(1, 1, 4, Random(0)) == []


def test_a_budget_counts_judgements_and_a_seed_decides_who_meets_whom():
    assert len(Comparisons(budget=7).plan(8)) == 3, "both orders of a pair are two judgements"
    assert len(Comparisons(budget=7, orders="one").plan(8)) == 7
    assert len(Comparisons().plan(5)) == 10
    assert len(Comparisons(by="lists", list_size=4).plan(8)) == 4
    assert Comparisons(by="lists").plan(3)[0] in {(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)}
    plans = [Comparisons(budget=8, seed=seed).plan(8, key) for seed, key in ((0, "a"), (0, "a"), (1, "a"), (0, "b"))]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]
    assert plans[0] != plans[3]


# -- what it comes to ---------------------------------------------------------------------------------------------------


def test_win_shares_of_three_by_hand():
    # 0 beats 1 twice and ties with 2; 1 beats 2; nobody met 3.
    outcomes = [(0, 1, 1.0), (1, 0, 0.0), (2, 0, 0.5), (1, 2, 1.0)]
    assert win_shares(4, outcomes) == [pytest.approx(2.5 / 3), pytest.approx(1 / 3), pytest.approx(0.5 / 2), None]
    assert win_shares(2, []) == [None, None]


@pytest.mark.parametrize(("won", "lost"), [(3, 1), (5, 5), (7, 2)])
def test_two_strengths_are_the_log_of_the_odds(won, lost):
    outcomes = [(0, 1, 1.0)] * won + [(0, 1, 0.0)] * lost
    first, second = bradley_terry(2, outcomes, spread=1e3)
    assert first is not None
    assert second is not None
    assert first == pytest.approx(-second, abs=1e-4)
    assert first - second == pytest.approx(math.log(won / lost), abs=1e-3)
    # With a prior of 1 the slope of the log-likelihood at s, -s is balanced by s.
    own = brentq(lambda s: won - (won + lost) / (1 + math.exp(-2 * s)) - s, -9, 9)
    assert bradley_terry(2, outcomes, spread=1.0) == [pytest.approx(own, abs=1e-4), pytest.approx(-own, abs=1e-4)]


def test_strengths_are_the_likeliest_ones_and_ties_are_half_wins():
    outcomes = [(0, 1, 1.0), (1, 2, 0.5), (2, 0, 0.25), (0, 1, 0.0), (3, 0, 1.0)]

    def loss(s: np.ndarray) -> float:
        told = sum(w * np.logaddexp(0, s[j] - s[i]) + (1 - w) * np.logaddexp(0, s[i] - s[j]) for i, j, w in outcomes)
        return float(told + (s**2).sum() / (2 * 1.5**2))

    slowly = minimize(loss, np.zeros(4), tol=1e-10).x
    assert bradley_terry(4, outcomes, spread=1.5) == pytest.approx(slowly.tolist(), abs=1e-4)
    tied = bradley_terry(2, [(0, 1, 0.5)])
    assert tied == pytest.approx([0.0, 0.0], abs=1e-6)


def test_who_always_wins_stays_finite_and_who_met_nobody_has_no_strength():
    strengths = bradley_terry(4, [(0, 1, 1.0)] * 50 + [(1, 2, 1.0)] * 50)
    assert strengths[3] is None
    known = [own for own in strengths if own is not None]
    assert known == sorted(known, reverse=True)
    assert max(map(abs, known)) < 10
    assert bradley_terry(2, []) == [None, None]
    # Two pairs that nothing connects are compared through the average.
    assert bradley_terry(4, [(0, 1, 1.0), (2, 3, 1.0)]) == pytest.approx(bradley_terry(2, [(0, 1, 1.0)]) * 2, abs=1e-4)


def test_chances_by_hand():
    assert chances([math.log(3), 0.0, None]) == [pytest.approx(0.75), pytest.approx(0.25), None]
    told = chances([1.0, 0.0, -1.0])
    assert told[1] == pytest.approx(0.5)
    assert told[0] == pytest.approx((1 / (1 + math.exp(-1)) + 1 / (1 + math.exp(-2))) / 2)


# -- a judge's groups ---------------------------------------------------------------------------------------------------


def test_outcomes_of_pairs_are_what_the_judge_says_of_each_pair(model):
    group = compare_group(model, QUESTION, ANSWERS, Comparisons(reward="wins"), path="short")
    judge = RewardJudge(model, path="short")
    assert {frozenset(outcome[:2]) for outcome in group.outcomes} == set(map(frozenset, combinations(range(5), 2)))
    for first, second, share in group.outcomes:
        assert share == judge.compare(QUESTION, ANSWERS[first], ANSWERS[second]).reward
    assert list(group.rewards) == win_shares(5, group.outcomes)
    assert len(set(group.rewards)) > 1, "rewards that are all alike prove nothing"
    assert (group.judgements, group.failed) == (20, 0)
    strengths = compare_group(model, QUESTION, ANSWERS, path="short").rewards
    assert list(strengths) == chances(bradley_terry(5, group.outcomes))


def test_one_order_asks_half_and_says_what_that_order_says(model):
    how = Comparisons(orders="one", budget=6, reward="wins")
    group = compare_group(model, QUESTION, ANSWERS, how, path="short", consensus="exact", reward="expected")
    assert group.judgements == len(group.outcomes) == 6
    both = RewardJudge(model, path="short", consensus="exact", reward="expected")
    swapped = compare_group(
        model,
        QUESTION,
        ANSWERS,
        replace(how, orders="both", budget=12),
        path="short",
        consensus="exact",
        reward="expected",
    )
    assert [outcome[:2] for outcome in swapped.outcomes] == [outcome[:2] for outcome in group.outcomes]
    assert [outcome[2] for outcome in swapped.outcomes] != [outcome[2] for outcome in group.outcomes]
    first, second, share = swapped.outcomes[0]
    assert share == pytest.approx(both.compare(QUESTION, ANSWERS[first], ANSWERS[second]).reward, abs=1e-6)


def test_a_list_is_shown_both_ways_and_its_best_beats_the_others(model):
    how = Comparisons(by="lists", list_size=3, budget=4)
    group = compare_group(model, QUESTION, ANSWERS, how, path="short")
    judge = RewardJudge(model, path="short", space=VerdictSpace.listwise(3))
    expected = []
    for members in how.plan(5, repr((QUESTION, {}))):
        for shown in (members, members[::-1]):
            (result,) = judge([{"prompt": QUESTION, "responses": [ANSWERS[member] for member in shown]}])
            best = shown[int(result.reward or 0)]
            expected += [(best, other, 1.0) for other in shown if other != best]
    assert list(group.outcomes) == expected
    assert group.judgements == 4


def test_equal_answers_share_a_reward_and_are_asked_about_once(model):
    group = compare_group(model, QUESTION, ["42", "5", "42", "5", "42"], path="short")
    assert group.judgements == 2
    assert group.rewards[0] == group.rewards[2] == group.rewards[4] == pytest.approx(1 - (group.rewards[1] or 0.0))
    assert group.members[0] is group.members[2]
    assert compare_group(model, QUESTION, ["42"] * 3).rewards == (0.5,) * 3
    alone = compare_group(model, QUESTION, ["42"])
    assert alone.rewards == (None,)
    assert compare_group(model, QUESTION, []).rewards == ()


def test_who_has_no_verdict_has_no_reward(model, monkeypatch):
    probe = model.probe

    def crash(inputs, **options):
        if any("think step" in text for text in model.decode_tokens(inputs.input_ids.tolist())):
            raise RuntimeError("out of memory")
        return probe(inputs, **options)

    monkeypatch.setattr(model, "probe", crash)
    group = compare_group(model, QUESTION, ANSWERS, path="short")
    assert group.failed == 4
    assert [place for place, reward in enumerate(group.rewards) if reward is None] == [3]
    assert "comparisons: 4; the first: RuntimeError: out of memory" in (group.members[3].error or "")
    # Two pairs of five members: one of them meets nobody.
    few = compare_group(model, QUESTION, ANSWERS[:3] + ANSWERS[4:] + ["correct"], Comparisons(budget=4), path="short")
    assert few.rewards.count(None) == 1
    assert "none of them was asked for" in str([member.error for member in few.members])


# -- as a trainer's reward ----------------------------------------------------------------------------------------------


def test_a_trainers_groups_are_compared_wherever_they_stand(model, caplog):
    prompts = [QUESTION, "Is it so?"] * 4
    completions = ["42", "yes", "5", "no", "A tie", "", "5", "correct"]
    how = Comparisons(budget=4)
    metrics: dict[str, float] = {}
    reward = EGRMReward(model, compare=how, scale=2.0, path="short")
    told = reward(prompts, completions, log_metric=metrics.__setitem__)
    assert told[5] is None
    assert "1 of 8 completions have no reward: 1 x error: The completion is empty." in caplog.text
    ours = compare_group(model, QUESTION, completions[::2], how, path="short")
    theirs = compare_group(model, "Is it so?", ["yes", "no", "correct"], how, path="short")
    assert told[::2] == [2 * own for own in ours.rewards if own is not None]
    assert [told[1], told[3], told[7]] == [None if own is None else 2 * own for own in theirs.rewards]
    spent = sum(member.tokens for group in (ours, theirs) for member in {id(m): m for m in group.members}.values())
    assert metrics["egrm/tokens"] == spent / 8
    assert metrics["egrm/short_share"] == 1.0
    assert reward.bounds == (0.0, 2.0)
    silenced = EGRMReward(model, compare=how, empty_reward=-1.0, path="short")
    assert silenced(prompts, completions)[5] == -1.0


def test_fields_of_a_row_reach_its_comparisons(model):
    options = {"path": "short", "consensus": "exact", "reward": "expected"}
    reward = EGRMReward(model, compare=Comparisons(), columns={"rubric": "how"}, **options)
    told = reward([QUESTION] * 4, ["42", "5"] * 2, how=["Be kind."] * 2 + ["Be strict, and look at each digit."] * 2)
    for rubric, own in (("Be kind.", told[:2]), ("Be strict, and look at each digit.", told[2:])):
        expected = compare_group(model, QUESTION, ["42", "5"], rubric=rubric, **options).rewards
        assert own == pytest.approx(list(expected), abs=1e-5)
    assert told[0] != pytest.approx(told[2], abs=1e-4)


def test_a_comparing_reward_can_be_pickled():
    reward = EGRMReward("egrm-mini", compare=Comparisons(by="lists", budget=8))
    assert pickle.loads(pickle.dumps(reward)).compare == Comparisons(by="lists", budget=8)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"by": "triples"}, "`by` must be one of pairs, lists"),
        ({"reward": "elo"}, "`reward` must be one of strength, wins"),
        ({"budget": 1}, "`budget` must be None, or at least 2"),
        ({"orders": "ab"}, "`orders` must be one of both, one"),
        ({"list_size": 1}, "`list_size` must be an integer >= 2"),
        ({"spread": 0.0}, "`spread` must be a number above 0"),
    ],
)
def test_wrong_comparisons_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Comparisons(**settings)


def test_what_does_not_go_together_is_refused(model):
    for settings, said in (
        ({"least_change": 0.1}, "`least_change` must be None with `compare`"),
        ({"audit_share": 0.1}, "`audit_share` must be None with `compare`"),
        ({"compare": "pairs"}, "`compare` must be a Comparisons"),
    ):
        with pytest.raises(ConfigError, match=said):
            EGRMReward("no such folder", **{"compare": Comparisons(), **settings})
    with pytest.raises(ConfigError, match="`space` must be pairwise"):
        EGRMReward(model, compare=Comparisons(), space=VerdictSpace.binary())
    with pytest.raises(ConfigError, match="`space` must be None where lists are compared"):
        EGRMReward(model, compare=Comparisons(by="lists"), space=VerdictSpace.listwise(3))
    with pytest.raises(InputError, match="Put one answer in a list"):
        compare_group(model, QUESTION, "42")
