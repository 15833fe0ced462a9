"""Thresholds with a promise: p-values that hold, tests that stop in time, data that are refused, calibrators."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from transformers_egrm.calibration.aims import AIMS, Aim, parse_aim
from transformers_egrm.calibration.calibrators import METHODS, apply, fit, fit_all
from transformers_egrm.calibration.certificate import Source
from transformers_egrm.calibration.fitting import calibrate
from transformers_egrm.calibration.records import CalibrationItem, Labelled, check, item_of, row_of
from transformers_egrm.calibration.reliability import chance_agreement, figures
from transformers_egrm.calibration.report import outcome, render
from transformers_egrm.calibration.risk import (
    betting_p,
    binomial_p,
    expected_betting_p,
    expected_binomial_p,
    hoeffding_bentkus_p,
    labels_needed,
)
from transformers_egrm.calibration.thresholds import CHOOSING_SHARE, choose, choose_by_group, grid_of
from transformers_egrm.evaluation.metrics import calibration_error, debiased_calibration_error, takes_short
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError, InputError
from transformers_egrm.modeling.judge_options_egrm import NEVER_SHORT, JudgeOptions
from transformers_egrm.modeling.verdict_calibration_egrm import check_tables, confidence, read_table


OPTIONS = JudgeOptions().resolved("pointwise", scorer=False, draft=False)
RISK = Aim("risk", 0.05)


def item(number: int, consensus: float, short: bool, long: bool = True, **settings) -> CalibrationItem:
    name = settings.pop("question", f"q{number}")
    return CalibrationItem(**{
        "id": f"i{number}", "question_id": name, "text_digest": name, "verdict": "7", "short_right": short, "long_right": long,
        "consensus": consensus, "short_flops": 1.0, "long_flops": 5.0,
    } | settings)  # fmt: skip


def world(count: int, seed: int, per_question: int = 1) -> Labelled:
    """Items whose short verdict is right with the probability that consensus says; 0.2 to 1 in nine steps."""
    random = np.random.default_rng(seed)
    items = []
    for number in range(count):
        for place in range(per_question):
            consensus = round(0.2 + 0.1 * int(random.integers(9)), 6)
            right = bool(random.random() < consensus)
            items.append(item(number, consensus, right, bool(random.random() < 0.95), question=f"q{number}",
                              id=f"q{number}/{place}"))  # fmt: skip
    return Labelled(items)


# -- p-values -----------------------------------------------------------------------------------------------------------


def never_too_often_small(outcomes: list[tuple[float, float]]) -> None:
    """Of (probability, p-value) pairs under the null hypothesis: P(p <= u) <= u at every u that occurs."""
    assert math.isclose(sum(chance for chance, _ in outcomes), 1, abs_tol=1e-9)
    for _, bound in outcomes:
        assert sum(chance for chance, p in outcomes if p <= bound) <= bound + 1e-12


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_the_binomial_p_value_holds_for_every_number_of_failures(rate: float):
    never_too_often_small([(float(binom.pmf(k, 40, rate)), binomial_p(k, 40, rate)) for k in range(41)])
    assert binomial_p(0, 59, 0.05) == pytest.approx(0.95**59)
    assert [binomial_p(k, 40, rate) for k in range(41)] == sorted(binomial_p(k, 40, rate) for k in range(41))
    with pytest.raises(InputError, match="between 0 and the 3 trials, got 4"):
        binomial_p(4, 3, 0.1)


def all_sequences(values: list[float], chances: list[float], length: int):
    for drawn in product(range(len(values)), repeat=length):
        yield math.prod(chances[i] for i in drawn), np.array([values[i] for i in drawn])


@pytest.mark.parametrize(("values", "chances"), [([0.0, 1.0], [0.7, 0.3]), ([0.0, 0.5, 1.0], [0.55, 0.3, 0.15])])
def test_hoeffding_and_bentkus_hold_for_every_sequence_of_losses(values, chances):
    bound = sum(v * c for v, c in zip(values, chances, strict=True))
    found = [(chance, hoeffding_bentkus_p(losses, bound)) for chance, losses in all_sequences(values, chances, 6)]
    never_too_often_small(found)
    assert min(p for _, p in found) < 0.5, "it can speak at all"


@pytest.mark.parametrize("known", [None, np.array([-0.05] * 30 + [0.95])])
@pytest.mark.parametrize("values", [[-0.05, 0.0, 0.95], [-0.5, 0.1, 0.95]])
def test_bets_hold_for_every_sequence_of_losses(values, known):
    # Chances that make the mean exactly 0: the hardest case of the null hypothesis.
    low, middle, high = values
    rest = 0.4
    chance_high = (-low * (1 - rest) - middle * rest) / (high - low)
    found = [
        (chance, betting_p(losses, 0.95, known))
        for chance, losses in all_sequences(values, [1 - rest - chance_high, rest, chance_high], 6)
    ]
    never_too_often_small(found)
    assert min(p for _, p in found) < 1, "it can speak at all"


def test_a_bet_is_set_before_its_loss_and_pays_by_hand():
    # One known loss of full size: squares 1, weight 1. The first stake is sqrt(2 log 20 / (2 * 1)), capped at 0.9.
    losses = np.array([-0.5, -0.5])
    first = 1 + 0.9 * 0.5
    assert betting_p(losses[:1], 1.0) == pytest.approx(1 / first)
    assert betting_p(losses, 1.0) == pytest.approx(1 / first**2)
    assert betting_p(np.array([0.5, 0.5]), 1.0) == 1.0, "who only loses has no evidence"
    # The best wealth on the way counts, and what comes later cannot change an earlier bet.
    assert betting_p(np.array([-0.5, -0.5, 1.0]), 1.0) >= betting_p(losses, 1.0)
    with pytest.raises(InputError, match="Losses must lie in"):
        betting_p(np.array([2.0]), 1.0)
    with pytest.raises(InputError, match="finite"):
        betting_p(np.array([math.nan]), 1.0)


def test_fewer_failures_are_stronger_evidence_for_every_test():
    for test in (lambda x: hoeffding_bentkus_p(x, 0.2), lambda x: betting_p(x - 0.2, 0.8)):
        values = [test(np.array([1.0] * k + [0.0] * (60 - k))) for k in range(13)]
        assert values == sorted(values)
        assert values[0] < 0.01 < 0.3 < values[-1]


def test_what_is_foreseen_is_what_comes():
    assert expected_binomial_p(3, 40, 0.2) == pytest.approx(binomial_p(3, 40, 0.2))
    assert expected_binomial_p(3.5, 40, 0.2) == pytest.approx(
        (binomial_p(3, 40, 0.2) + binomial_p(4, 40, 0.2)) / 2, rel=0.2
    )
    losses = np.array([-0.05] * 19 + [0.2])
    assert expected_betting_p(losses, 0.95, 400) < expected_betting_p(losses, 0.95, 100) < 1
    assert expected_betting_p(-losses, 0.95, 400) == 1.0, "who is expected to lose does not bet"


def test_how_many_labels_would_do():
    assert labels_needed(0.05, 0.05, 0.0) == 59
    assert labels_needed(0.05, 0.05, 0.0, 0.5) == 2 * 59
    assert labels_needed(0.05, 0.05, 0.05) is None
    found = labels_needed(0.05, 0.05, 0.03)
    assert found is not None
    assert binomial_p(round(0.03 * found), found, 0.05) < 0.05


# -- thresholds ---------------------------------------------------------------------------------------------------------


def test_the_laxest_threshold_that_passes_is_chosen_and_the_next_one_failed():
    data = world(3000, 0)
    found = choose(data, Aim("risk", 0.1), 0.05)
    assert found.promised
    assert found.test == "exact"
    *passed, failed = found.steps
    assert all(step.p_value <= 0.05 for step in passed)
    assert failed.p_value > 0.05
    assert found.threshold == passed[-1].threshold
    assert found.p_value == passed[-1].p_value
    # Right as often as consensus says: at 0.8 and above the short path errs in (0.2 + 0.1 + 0) / 3 of cases, at 0.9 in 0.05.
    assert found.threshold == pytest.approx(0.9)
    assert choose(data, Aim("risk", 0.1), 0.05) == found, "the seed decides"


def test_a_walk_begins_at_the_strictest_threshold_that_is_expected_to_pass():
    # A third of the answers are surer than all others, and right. At 0.8 two more of a hundred are wrong: more are short
    # there, so its expected p-value is the smaller one, and yet it may fail where 0.9 passes.
    levels = [(0.9, 0), (0.8, 50), (0.4, 2)]
    items = [item(n, levels[n % 3][0], levels[n % 3][1] == 0 or n // 3 % levels[n % 3][1] > 0) for n in range(3000)]
    found = choose(Labelled(items), Aim("risk", 0.05), 0.05)
    assert [step.threshold for step in found.steps] == [0.9, 0.8, 0.4]


def test_p_values_of_a_walk_are_those_of_the_tested_part():
    data = world(400, 3)
    found = choose(data, RISK, 0.05, grid=(1.0, 0.9, 0.5))
    chosen, tested = data.split(CHOOSING_SHARE, 0)
    assert {one.id for one in chosen.items}.isdisjoint(one.id for one in tested.items)
    assert len(chosen) + len(tested) == 400
    for step in found.steps:
        short = takes_short(tested.consensus, step.threshold)
        wrong = int((short & ~tested.short_right).sum())
        assert step.p_value == pytest.approx(float(binom.cdf(wrong, int(short.sum()), 0.05)))


@pytest.mark.parametrize("per_question", [1, 3])
def test_a_promise_is_broken_no_more_often_than_delta(per_question: int):
    aim, broken, promised = Aim("risk", 0.12), 0, 0
    # At tau the short path errs in the mean of what consensus leaves open.
    truth = {round(tau, 6): float(np.mean([1 - c for c in np.arange(0.2, 1.01, 0.1) if c >= tau - 1e-6]))
             for tau in np.arange(0.2, 1.01, 0.1)}  # fmt: skip
    for seed in range(100):
        found = choose(world(400, seed, per_question), aim, 0.2, seed=seed)
        promised += found.promised
        broken += found.promised and truth[found.threshold] > aim.level
    assert promised > 80
    # At most 0.2 of 100, and 1.64 standard deviations.
    assert broken <= 26


def test_answers_to_one_question_count_as_one():
    clones = [item(n, 1.0, True, question=f"q{n % 60}", id=f"i{n}") for n in range(600)]
    wrong = [item(n, 0.2, False) for n in range(600, 640)]
    found = choose(Labelled(clones + wrong), RISK, 0.05)
    assert not found.promised, "600 right answers to 60 questions are not 600 questions"
    alone = choose(Labelled([item(n, 1.0, True) for n in range(600)] + wrong), RISK, 0.05)
    assert alone.promised


def test_what_cannot_be_promised_says_why_and_how_many_labels_would_do():
    few = choose(world(60, 0), RISK, 0.05, grid=(1.0,))
    assert (few.promised, few.threshold) == (False, NEVER_SHORT)
    assert "60 questions are too few: at threshold 1 the tested ones show" in str(few.reason)
    assert few.labels_needed is not None
    more = choose(world(4 * few.labels_needed, 1), RISK, 0.05, grid=(1.0,))
    assert more.promised
    bad = choose(Labelled([item(n, 1.0, n % 3 > 0) for n in range(300)] + [item(300, 0.5, True)]), RISK, 0.05)
    assert not bad.promised
    assert bad.labels_needed is None
    assert "not below 0.05" in str(bad.reason)
    assert not takes_short(np.array([1.0]), bad.threshold).any()


def test_harm_and_distance_are_of_all_answers():
    # Short verdicts err in a tenth, where half of the long ones err too.
    items = [item(n, 0.9 if n % 10 else 1.0, n % 10 > 0, n % 20 > 0) for n in range(2000)]
    data, everything = Labelled(items), np.ones(2000, dtype=bool)
    assert RISK.observed(data, everything) == pytest.approx(0.1)
    assert Aim("harm", 0.2).observed(data, everything) == pytest.approx(0.05)
    assert Aim("within", 0.2).observed(data, everything) == pytest.approx(0.05)
    assert choose(data, Aim("harm", 0.07)).promised
    assert choose(data, Aim("within", 0.07)).test == "betting"
    assert choose(data, Aim("within", 0.07)).promised
    assert not choose(data, Aim("harm", 0.03), grid=(0.9,)).promised
    assert not choose(data, Aim("within", 0.03), grid=(0.9,)).promised


def test_costs_and_shares_are_estimates_without_a_promise():
    data = Labelled([item(n, (n % 10 + 1) / 10, n % 2 > 0) for n in range(1000)])
    half = choose(data, Aim("share", 0.5))
    assert (half.threshold, half.short_share, half.promised) == (0.6, 0.5, False)
    cheap = choose(data, Aim("cost", 3.0))  # 1 short, 5 long: half of each
    assert (cheap.threshold, cheap.observed, cheap.promised) == (0.6, 3.0, False)
    assert choose(data, Aim("cost", 9.0)).threshold == NEVER_SHORT
    with pytest.raises(ConfigError, match="the least is 1"):
        choose(data, Aim("cost", 0.5))


def test_groups_share_delta_and_hand_on_what_they_no_longer_need():
    items = [item(n, 0.9, True, domain="easy") for n in range(900)]
    items += [item(n, 0.9, n % 4 > 0, domain="hard") for n in range(900, 1800)]
    # Of 190 tested or so, none wrong: enough at 0.05 alone (0.95^59), and at half of it.
    items += [item(n, 0.9, True, domain="small") for n in range(1800, 1880)]
    data = Labelled(items)
    found = choose_by_group(data, [one.domain for one in data.items], RISK, 0.05)
    assert {name: choice.promised for name, choice in found.items()} == {"easy": True, "hard": False, "small": False}
    # "easy" passed to the end of its sequence: the other two share what it had, 0.025 each instead of 0.0167.
    assert found["small"].labels_needed is not None
    alone = choose_by_group(data, ["all"] * len(data), RISK, 0.05)
    assert alone["all"].steps == choose(data, RISK, 0.05).steps


def test_thresholds_are_the_values_of_consensus_or_equal_steps_of_them():
    assert grid_of(np.array([0.2, 1.0, 0.6, 0.6, 0.0])) == (1.0, 0.6, 0.2)
    many = grid_of(np.random.default_rng(0).random(5000))
    assert len(many) == 50
    assert list(many) == sorted(many, reverse=True)


@pytest.mark.parametrize("text", ["risk", "risk=0", "risk=1", "risk=x", "hope=0.1", "cost=-1", "risk=nan", "cost=inf"])
def test_an_aim_out_of_range_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"aim|level"):
        parse_aim(text)


def test_every_aim_is_read_and_says_what_it_is():
    for kind in AIMS:
        aim = parse_aim(f"{kind}=0.25")
        assert (aim.kind, aim.level) == (kind, 0.25)
        assert ("confidence 95 %" in aim.sentence(0.05)) == aim.promises
    with pytest.raises(ConfigError, match="delta"):
        choose(world(100, 0), RISK, 0.0)


# -- data that carry no threshold -----------------------------------------------------------------------------------------


def test_too_few_questions_are_refused():
    with pytest.raises(DataError, match="50 questions or more, got 10 with 20 items"):
        check(Labelled([item(n, 0.5, n % 2 > 0, question=f"q{n % 10}") for n in range(20)]))
    with pytest.raises(InputError, match="got none"):
        Labelled([])


def test_one_class_is_refused():
    with pytest.raises(DataError, match="All 100 short verdicts are right"):
        check(Labelled([item(n, n / 100, True) for n in range(100)]))
    with pytest.raises(DataError, match="Not one of 100 short verdicts is right"):
        check(Labelled([item(n, n / 100, False) for n in range(100)]))


def test_consensus_that_tells_nothing_apart_is_refused():
    with pytest.raises(DataError, match="Every item has a consensus of 1"):
        check(Labelled([item(n, 1.0, n % 2 > 0) for n in range(100)]))


@pytest.mark.parametrize(
    "wrong", [{"consensus": math.nan}, {"consensus": 1.5}, {"long_flops": math.inf}, {"probs": (math.nan,)}]
)
def test_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(InputError, match="finite numbers"):
        item(**{"number": 0, "consensus": 0.5, "short": True} | wrong)


def test_equal_questions_under_several_ids_are_refused():
    items = [item(n, n / 100, n % 2 > 0) for n in range(100)]
    with pytest.raises(DataError, match="1 questions stand under several question ids, such as 'q3', 'q7'"):
        check(Labelled([replace(one, text_digest="q3") if one.id == "i7" else one for one in items]))
    with pytest.raises(DataError, match="id of its own"):
        check(Labelled([replace(one, id="i3") if one.id == "i7" else one for one in items]))


def test_repeated_questions_and_saturated_consensus_are_told():
    items = [item(n, 1.0 if n % 3 else 0.5, n % 5 > 0, question=f"q{n % 80}", id=f"i{n}") for n in range(200)]
    told = check(Labelled([replace(items[0], verdict=None), *items[1:]]))
    assert [text.split(" ")[0] for text in told] == ["200", "66%", "1"]
    assert "80 different questions" in told[0]
    assert check(Labelled([item(n, n / 100, n % 2 > 0) for n in range(100)])) == []


def test_items_survive_as_plain_data():
    one = item(0, 0.5, True, probs=(0.25, 0.75), score=0.5)
    assert item_of(row_of(one)) == one
    with pytest.raises(DataError, match="no judged item"):
        item_of({"id": "1"})


def test_a_question_drawn_twice_counts_twice():
    data = Labelled([item(n, 0.1 * n, True, question=f"q{n // 2}") for n in range(6)])
    drawn = data.of([2, 0, 2])
    assert [one.id for one in drawn.items] == ["i4", "i5", "i0", "i1", "i4", "i5"]
    assert drawn.owner.tolist() == [0, 0, 1, 1, 2, 2]
    assert drawn.num_questions == 3
    thin = drawn.thinned(0)
    assert thin.one_each
    assert len(thin) == 3
    assert data.per_question(np.array([1, 0, 1, 1, 0, 0])).tolist() == [0.5, 1.0, 0.0]


# -- calibrators ----------------------------------------------------------------------------------------------------------


def coins(count: int = 20000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Values in [0, 1], and outcomes that come with the square of the value's odds."""
    random = np.random.default_rng(seed)
    values = random.random(count)
    odds = (values / (1 - values)) ** 2
    return values, random.random(count) < odds / (1 + odds)


@pytest.mark.parametrize("method", METHODS)
def test_calibrators_find_the_curve_that_made_the_data(method: str):
    table = fit(method, *coins())
    values = np.linspace(0.05, 0.95, 19)
    odds = (values / (1 - values)) ** 2
    assert apply(table, values) == pytest.approx(odds / (1 + odds), abs=0.05 if method == "isotonic" else 0.02)
    assert table["y"] == sorted(table["y"])
    check_tables({"consensus": table})
    assert [read_table(table, value) for value in values] == pytest.approx(apply(table, values).tolist())
    for beyond in (0.0, 1.0):
        assert read_table(table, beyond) == pytest.approx(float(apply(table, [beyond])[0]))


def test_a_calibrator_needs_both_kinds_and_a_known_method():
    with pytest.raises(DataError, match="all 3 are of one kind"):
        fit("platt", [0.1, 0.2, 0.3], [True] * 3)
    with pytest.raises(ConfigError, match="isotonic, platt, temperature"):
        fit("magic", [0.1], [True])


def test_the_signals_of_a_judge_are_calibrated_on_other_questions():
    values, right = coins(600)
    items = [item(n, float(v), bool(r), score=float(v), probs=(float(v), 1 - float(v)))
             for n, (v, r) in enumerate(zip(values, right, strict=True))]  # fmt: skip
    items = [replace(one, long_right=one.short_right) for one in items]
    tables = fit_all(Labelled(items[:300]))
    rows = figures(Labelled(items[300:]), tables)
    assert {row["signal"] for row in rows} == {"consensus", "distribution", "scorer"}
    raw, mended = (next(row for row in rows if row["signal"] == "scorer" and (row["method"] == "as it is") == plain)
                   for plain in (True, False))  # fmt: skip
    assert mended["ece"] < raw["ece"]
    assert mended["brier"] < raw["brier"]
    one_kind = Labelled([item(n, 0.01 * n, True) for n in range(60)])
    assert fit_all(one_kind) == {}


@pytest.mark.parametrize(
    "tables",
    [
        {"mood": {"method": "platt", "x": [0.0], "y": [0.0]}}, {"consensus": {"x": [0.0], "y": [0.0]}},
        {"consensus": {"method": "platt", "x": [1.0, 0.0], "y": [0.0, 1.0]}}, [1],
        {"consensus": {"method": "platt", "x": [0.0, 1.0], "y": [0.0]}},
        {"consensus": {"method": "platt", "x": [0.0, math.nan], "y": [0.0, 1.0]}},
    ],
)  # fmt: skip
def test_malformed_tables_are_refused(tables):
    with pytest.raises(ConfigError, match="egrm calibrate"):
        check_tables(tables)


def test_confidence_is_read_from_the_signal_of_the_path():
    def line(y: float) -> dict:
        return {"method": "isotonic", "x": [0.0, 1.0], "y": [0.0, y]}

    tables = {"consensus": line(0.5), "scorer": line(0.25)}
    assert confidence(tables, 0.8, None, 0.4, short=True) == pytest.approx(0.4)
    assert confidence(tables, 0.8, None, 0.4, short=False) == pytest.approx(0.1)
    assert confidence(tables | {"distribution": line(1.0)}, 0.8, [0.3, 0.7], None, short=True) == pytest.approx(0.7)
    assert confidence(tables, 0.8, [math.nan, 0.7], None, short=True) == pytest.approx(0.4)
    assert confidence(tables, 0.8, None, None, short=False) is None
    assert confidence(None, 0.8, None, 0.4, short=True) is None


def test_the_debiased_error_takes_off_what_chance_adds():
    random = np.random.default_rng(0)
    plain, debiased = [], []
    for _ in range(60):
        said = random.random(200)
        right = random.random(200) < said
        plain.append(calibration_error(said, right, binning="equal_mass"))
        debiased.append(debiased_calibration_error(said, right))
    assert np.mean(debiased) < 0.7 * np.mean(plain), "the judge is perfectly calibrated"
    # One bin of 4 by hand: says 0.5, a quarter right; spread sqrt(3 / 64).
    gap, spread = 0.25, math.sqrt(0.25 * 0.75 / 4)
    folded = spread * math.sqrt(2 / math.pi) * math.exp(-(gap**2) / (2 * spread**2)) + gap * math.erf(
        gap / spread / math.sqrt(2)
    )
    assert debiased_calibration_error([0.5] * 4, [1, 0, 0, 0], num_bins=1) == pytest.approx(2 * gap - folded)
    assert debiased_calibration_error([0.5] * 4, [0] * 4, num_bins=1) == 0.5


def test_agreement_by_chance_is_counted_exactly():
    assert chance_agreement([0.5, 0.5], 5, 0.8) == pytest.approx(0.375)
    assert chance_agreement([1.0], 5, 1.0) == pytest.approx(1.0)
    assert chance_agreement([0.5, 0.5], 5, 0.0) == pytest.approx(1.0)
    shares = [0.5, 0.3, 0.2]
    by_hand = sum(
        math.prod(shares[i] for i in drawn)
        for drawn in product(range(3), repeat=4)
        if max(drawn.count(i) for i in range(3)) >= 2
    )
    assert chance_agreement(shares, 4, 0.5) == pytest.approx(by_hand)
    with pytest.raises(ConfigError, match="sum to 1"):
        chance_agreement([0.5], 5, 0.8)


# -- all of it ------------------------------------------------------------------------------------------------------------


def test_a_report_says_what_was_found_and_what_was_not():
    items = list(world(1200, 0).items)
    found = calibrate(items, Aim("risk", 0.1), OPTIONS, by="domain")
    text = render(found, judge="tiny", source=Source("labels.jsonl", "abc"), right="it is", picture="x.png")
    assert outcome(found.choice) in text
    assert "at most 10 % are wrong, with confidence 95 %" in text
    assert found.by_chance == 1.0, "all verdicts are one"
    assert "| all |" in text
    few = calibrate(items[:80], RISK, OPTIONS, methods=())
    assert outcome(few.choice).startswith(
        "Nothing can be promised, and everything takes the long path. The labels do not show that of the answers that take "
        f"the short path, at most 5 % are wrong, with confidence 95 %. Reason: {few.choice.reason}."
    )
    assert few.tables == {}
    alike = choose(Labelled([item(n, 1.0, True) for n in range(60)]), Aim("share", 0.7), 0.05)
    assert outcome(alike) == (
        "Asked for: about 70 % of the answers take the short path (an estimate, no promise). Found: threshold 1, at which "
        "100.0% of these answers take the short path."
    )
    with pytest.raises(ConfigError, match="domain or verdict"):
        calibrate(items, RISK, OPTIONS, by="mood")


@pytest.mark.parametrize("method", METHODS)
def test_a_judge_that_is_surer_where_it_is_wrong_still_has_a_table_that_loads(method: str):
    values, right = np.array([0.2, 0.3, 0.4, 0.8, 0.9, 1.0]), np.array([True, True, True, True, False, False])
    table = fit(method, values, right)
    check_tables({"consensus": table})
    assert set(table["y"]) == {0.5 if method == "temperature" else round(4 / 6, 6)}
