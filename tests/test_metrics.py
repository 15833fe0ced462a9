"""The figures: by hand where they can be, by their definition elsewhere; and the same ones as modules of `evaluate`."""

import doctest
import math
import re
import sys
from collections import Counter
from pathlib import Path
from statistics import NormalDist

import evaluate
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import transformers_egrm.evaluation
from transformers_egrm.evaluation import MODULES, metrics, module_path
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError, MissingExtraError
from transformers_egrm.modeling.verdict_consensus_egrm import Route, choose_route, count_votes, vote


SHARES = st.floats(0, 1).map(lambda share: round(share, 3))  # coarse, so that equals occur
ROWS = st.lists(st.tuples(SHARES, st.booleans()), min_size=1, max_size=30)


def columns(rows):
    return tuple(map(list, zip(*rows, strict=True)))


def bounds(estimate: metrics.Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def shuffled(data, rows):
    return data.draw(st.permutations(rows))


# -- consensus and routing ----------------------------------------------------------------------------------------------


def test_consensus_is_the_share_of_the_most_frequent_verdict_among_all_probes():
    votes = metrics.consensus([["7", "7", "7", "8", None], ["B", "A"], [None, None]])
    assert votes.verdicts == ("7", "A", None)
    assert votes.agreement == pytest.approx([0.6, 0.5, 0.0])
    assert metrics.takes_short(votes.agreement, 0.6).tolist() == [True, False, False]
    assert metrics.takes_short(votes.agreement, 0.0).tolist() == [
        True,
        True,
        False,
    ]  # nobody voted: nothing to believe


@given(
    st.lists(st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=1, max_size=6), min_size=1, max_size=6), st.data()
)
def test_consensus_is_the_models_own_and_ignores_the_order_of_probes(probes, data):
    votes = metrics.consensus(probes)
    for item, agreement, verdict in zip(probes, votes.agreement, votes.verdicts, strict=True):
        counts = Counter(each for each in item if each is not None)
        assert agreement == pytest.approx(max(counts.values(), default=0) / len(item))
        assert verdict == min(counts, key=lambda each: (-counts[each], each), default=None)
    assert metrics.consensus([shuffled(data, item) for item in probes]).verdicts == votes.verdicts
    width = max(map(len, probes))
    if all(len(item) == width for item in probes):
        ids = torch.tensor([[each or 0 for each in item] for item in probes])
        parsed = torch.tensor([[each is not None for each in item] for item in probes])
        rows = torch.arange(len(probes))
        winners, share = vote(count_votes(ids, parsed, rows, len(rows), 4), torch.full_like(rows, width))
        assert votes.agreement.tolist() == share.tolist()
        assert [v for v in votes.verdicts if v is not None] == winners[share > 0].tolist()
        assert metrics.takes_short(votes.agreement, 0.8).tolist() == (choose_route(share, 0.8) == Route.SHORT).tolist()


def test_what_cannot_be_voted_on_is_refused():
    with pytest.raises(InputError, match="at least one probe"):
        metrics.consensus([["7"], []])
    with pytest.raises(InputError, match="of one kind"):
        metrics.consensus([["7", 7]])
    assert metrics.consensus([]).verdicts == ()


def test_routing_by_hand():
    found = metrics.routing(
        correct=[True, False, True, True, False],
        short_correct=[True, False, False, True, False],
        took_short=[True, True, False, False, False],
        agreement=[1.0, 0.8, 0.4, 0.6, 0.2],
    )
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.short_share == pytest.approx(2 / 5)
    assert found.short_precision == pytest.approx(1 / 2)
    # Right paths: short and right (1st), long and wrong in short (3rd, 5th). The 4th thought for nothing.
    assert found.routing_accuracy == pytest.approx(3 / 5)
    assert found.auroc == pytest.approx(5 / 6)  # of six pairs only (0.6 right, 0.8 wrong) is in the wrong order


def test_figures_that_do_not_exist_are_none():
    found = metrics.routing([True, True], [True, True], [False, False], [0.2, 0.4])
    assert found.short_precision is None
    assert found.auroc is None
    assert (found.short_share, found.routing_accuracy) == (0.0, 0.0)


@given(st.lists(st.tuples(st.booleans(), SHARES, st.booleans()), min_size=1, max_size=20), st.data())
def test_routing_ignores_order_and_is_perfect_where_every_path_is_right(rows, data):
    def of(rows):
        short_correct, agreement, long_correct = columns(rows)
        took_short = short_correct  # the right path of each
        correct = [s or longer for s, longer in zip(short_correct, long_correct, strict=True)]
        return metrics.routing(correct, short_correct, took_short, agreement)

    found, again = of(rows), of(shuffled(data, rows))
    assert found.routing_accuracy == 1
    assert found.short_precision in (None, 1)
    assert (again.accuracy, again.auroc) == (pytest.approx(found.accuracy), pytest.approx(found.auroc))


@given(st.lists(st.tuples(st.booleans(), SHARES), min_size=1, max_size=20))
def test_no_path_is_right_where_every_item_takes_the_wrong_one(rows):
    short_correct, agreement = columns(rows)
    took_short = [not right for right in short_correct]
    found = metrics.routing([False] * len(rows), short_correct, took_short, agreement)
    assert found.routing_accuracy == 0
    assert found.short_precision in (None, 0)


def test_a_short_verdict_that_is_not_final_on_the_short_path_is_refused():
    with pytest.raises(InputError, match="differ there"):
        metrics.routing([True], [False], [True], [1.0])
    with pytest.raises(InputError, match="one value per item"):
        metrics.routing([True], [True, False], [True], [1.0])
    with pytest.raises(InputError, match="one value per item"):
        metrics.routing([], [], [], [])
    with pytest.raises(InputError, match="True and False"):
        metrics.routing([2], [1], [0], [1.0])
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        metrics.routing([1], [1], [0], [1.5])


@given(ROWS)
def test_auroc_counts_pairs(rows):
    scores, outcomes = columns(rows)
    right = [score for score, outcome in rows if outcome]
    wrong = [score for score, outcome in rows if not outcome]
    won = sum((a > b) + (a == b) / 2 for a in right for b in wrong)
    found = metrics.auroc(scores, outcomes)
    assert found == (pytest.approx(won / (len(right) * len(wrong))) if right and wrong else None)


def test_auroc_needs_finite_scores():
    with pytest.raises(InputError, match="finite"):
        metrics.auroc([0.5, math.nan], [True, False])


# -- text ---------------------------------------------------------------------------------------------------------------


def test_self_bleu_is_one_for_repetition_and_zero_for_nothing_in_common():
    assert metrics.self_bleu(["a b c d e"] * 3) == 1.0
    assert metrics.self_bleu(["7"] * 5) == 1.0
    assert metrics.self_bleu(["a b c d", "e f g h"]) == 0.0
    assert metrics.self_bleu(["", ""]) == 0.0
    with pytest.raises(InputError, match="two or more"):
        metrics.self_bleu(["alone"])


def test_self_bleu_of_unigrams_is_their_clipped_precision():
    # Four words each, three of them shared, equal lengths: no brevity penalty.
    assert metrics.self_bleu(["a b c d", "a b c e"], max_order=1) == pytest.approx(3 / 4)
    # Each of the single characters finds itself among the others, but for the last one.
    assert metrics.self_bleu(["7", "7", "8"], tokenize="char") == pytest.approx(2 / 3)


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=6).map(" ".join), min_size=2, max_size=4), st.data()
)
def test_self_bleu_is_a_share_and_ignores_the_order_of_texts(texts, data):
    found = metrics.self_bleu(texts)
    assert 0 <= found <= 1
    assert metrics.self_bleu(shuffled(data, texts)) == pytest.approx(found)


# -- calibration --------------------------------------------------------------------------------------------------------


def test_calibration_by_hand():
    probabilities, outcomes = [0.1, 0.15, 0.9, 0.95, 1.0], [False, True, True, True, False]
    # (0.1, 0.2] holds 0.15; (0, 0.1] holds 0.1; (0.8, 0.9] holds 0.9; (0.9, 1] holds 0.95 and 1.0.
    by_hand = (0.1 + 0.85 + 0.1 + 2 * abs(0.975 - 0.5)) / 5
    assert metrics.calibration_error(probabilities, outcomes) == pytest.approx(by_hand)
    # Two bins of equal mass: the fifth, in the middle, belongs to the upper one.
    by_hand = (2 * abs(0.125 - 0.5) + 3 * abs(0.95 - 2 / 3)) / 5
    assert metrics.calibration_error(probabilities, outcomes, 2, "equal_mass") == pytest.approx(by_hand)
    assert metrics.brier([0.8, 0.4], [True, False]) == pytest.approx((0.04 + 0.16) / 2)
    assert metrics.brier([0.8, 0.6], [True, True]) == pytest.approx((0.04 + 0.16) / 2)  # one kind of outcome only


def test_a_float32_share_belongs_to_the_bin_it_closes():
    shares = np.array([0.2, 0.4, 0.6, 0.8, 1.0], dtype=np.float32)
    bins = metrics.reliability(shares, [True] * 5, num_bins=5)
    assert [found.count for found in bins] == [1, 1, 1, 1, 1]


@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(1, 3)), min_size=1, max_size=8),
    st.sampled_from(metrics.BINNINGS),
)
def test_a_calibrated_judge_has_no_calibration_error(groups, binning):
    # Ten items with probability k / 10, of which k are right.
    probabilities = [k / 10 for k, times in groups for _ in range(10 * times)]
    outcomes = [number < k for k, times in groups for _ in range(times) for number in range(10)]
    assert metrics.calibration_error(probabilities, outcomes, 10, binning) == pytest.approx(0, abs=1e-12)


@given(ROWS, st.integers(1, 12), st.sampled_from(metrics.BINNINGS), st.data())
def test_calibration_errors_are_shares_whatever_the_order(rows, num_bins, binning, data):
    probabilities, outcomes = columns(rows)
    error = metrics.calibration_error(probabilities, outcomes, num_bins, binning)
    assert 0 <= error <= 1
    again = metrics.calibration_error(*columns(shuffled(data, rows)), num_bins, binning)
    assert again == pytest.approx(error)
    bins = metrics.reliability(probabilities, outcomes, num_bins, binning)
    assert sum(found.count for found in bins) == len(rows)
    assert len(bins) <= num_bins
    # One bin sees the means alone.
    gap = abs(np.mean(probabilities) - np.mean(outcomes))
    assert metrics.calibration_error(probabilities, outcomes, 1, binning) == pytest.approx(gap)


@given(ROWS)
def test_certain_judges_are_perfect_or_as_wrong_as_can_be(rows):
    _, outcomes = columns(rows)
    for certain, worst in ((outcomes, 0), ([not outcome for outcome in outcomes], 1)):
        probabilities = [float(each) for each in certain]
        assert metrics.brier(probabilities, outcomes) == worst
        assert metrics.calibration_error(probabilities, outcomes) == worst


@given(ROWS)
def test_brier_is_the_mean_square(rows):
    probabilities, outcomes = columns(rows)
    by_hand = sum((p - y) ** 2 for p, y in rows) / len(rows)
    assert metrics.brier(probabilities, outcomes) == pytest.approx(by_hand)


def test_bins_of_equal_mass_hold_equally_many():
    probabilities = np.linspace(0, 1, 40)
    bins = metrics.reliability(probabilities, probabilities > 0.5, 4, "equal_mass")
    assert [found.count for found in bins] == [10] * 4


def test_unknown_bins_are_refused():
    with pytest.raises(ConfigError, match="equal_width, equal_mass"):
        metrics.reliability([0.5], [True], binning="quantile")
    with pytest.raises(ConfigError, match="at least 1"):
        metrics.reliability([0.5], [True], num_bins=0)


# -- pairs and relations ------------------------------------------------------------------------------------------------


def test_pairwise_accuracy_by_hand():
    assert metrics.pairwise_accuracy([8, 6, 5, 9], [3, 7, 5, 1]) == pytest.approx(2.5 / 4)
    assert metrics.pairwise_accuracy([math.nan, 2, math.nan], [1, math.nan, math.nan]) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_pairs_read_the_other_way_give_the_other_share(rows):
    chosen, rejected = columns(rows)
    assert metrics.pairwise_accuracy(chosen, rejected) + metrics.pairwise_accuracy(rejected, chosen) == pytest.approx(
        1
    )


def test_rank_correlation_by_hand():
    assert metrics.rank_correlation([1, 2, 3], [10, 20, 1000]) == pytest.approx(1)
    assert metrics.rank_correlation([1, 2, 3], [3, 2, -7]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
    assert metrics.rank_correlation([1, 2, 2, 3], [1, 2, 3, 9]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert metrics.rank_correlation([1, 1], [1, 2]) is None
    assert metrics.rank_correlation([1, 2], [1, 2]) == pytest.approx(1)


@given(rows=st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=30))
def test_rank_correlation_is_pearsons_of_the_mean_ranks(rows):
    ranks = [
        [
            sum(other < value for other in column) + (sum(other == value for other in column) + 1) / 2
            for value in column
        ]
        for column in columns(rows)
    ]
    found = metrics.rank_correlation(*columns(rows))
    if any(len(set(column)) == 1 for column in ranks):
        assert found is None
    else:
        assert found == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-12)


# -- intervals ----------------------------------------------------------------------------------------------------------


def test_wilsons_interval_holds_the_proportions_that_its_score_test_accepts():
    # By definition: |p - share| <= z sqrt(p (1 - p) / n), with equality at both ends.
    for successes, total in ((7, 10), (1, 50), (480, 1000)):
        found = metrics.wilson(successes, total)
        for end in bounds(found):
            assert abs(end - successes / total) == pytest.approx(
                1.959964 * math.sqrt(end * (1 - end) / total), rel=1e-5
            )
    assert metrics.wilson(0, 10).low == 0
    assert metrics.wilson(10, 10).high == 1
    assert metrics.wilson(0, 0) == metrics.Estimate(None, None, None)
    with pytest.raises(InputError, match="10 trials"):
        metrics.wilson(11, 10)


def wilson_by_its_formula(successes: int, total: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = successes / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    reach = z * math.sqrt(share * (1 - share) / total + weight / total / 4) / (1 + weight)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def test_wilsons_interval_is_that_of_its_formula():
    for total in (1, 2, 7, 60, 1319, 20_000):
        for successes in {0, 1, total // 3, total // 2, total - 1, total}:
            for confidence in (0.5, 0.9, 0.95, 0.999):
                found = bounds(metrics.wilson(successes, total, confidence))
                assert found == pytest.approx(wilson_by_its_formula(successes, total, confidence), abs=1e-12)
                assert found[0] <= successes / total <= found[1]


def test_wilsons_interval_covers_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    for share in (0.5, 0.9):
        drawn = random.binomial(60, share, size=2000)
        ends = [bounds(metrics.wilson(int(k), 60)) for k in drawn]
        covered = [low <= share <= high for low, high in ends]
        assert 0.93 <= np.mean(covered) <= 0.97


def test_the_medians_interval_is_that_of_the_sign_test():
    # Six values: all on one side of the median with a probability of 2 / 64.
    assert metrics.median([5, 1, 3, 2, 6, 4]) == metrics.Estimate(3.5, 1.0, 6.0)
    assert metrics.median([5, 1, 3, 2, 4]) == metrics.Estimate(3.0, None, None)
    # Twenty: five or fewer heads come with a probability of 0.0207, six or fewer with 0.0577.
    assert metrics.median(range(20)) == metrics.Estimate(9.5, 5.0, 14.0)
    assert metrics.median([1.0], confidence=0.4) == metrics.Estimate(1.0, None, None)
    with pytest.raises(InputError, match="one value per item"):
        metrics.median([])


def median_by_coins(values, confidence: float) -> tuple[float | None, float | None]:
    """The k-th smallest and the k-th largest value, for the largest k whose two tails together are rare enough."""
    ordered, below, outside = sorted(values), 0, 0.0
    while 2 * (outside + math.comb(len(ordered), below) / 2 ** len(ordered)) <= 1 - confidence:
        outside += math.comb(len(ordered), below) / 2 ** len(ordered)
        below += 1
    return (ordered[below - 1], ordered[-below]) if below else (None, None)


@given(
    values=st.lists(st.floats(-10, 10), min_size=1, max_size=80), confidence=st.sampled_from([0.6, 0.9, 0.95, 0.99])
)
def test_the_medians_interval_is_that_of_coins(values, confidence):
    found = metrics.median(values, confidence)
    assert (found.low, found.high) == median_by_coins(values, confidence)


def test_the_medians_interval_covers_at_least_as_often_as_it_says():
    random = np.random.default_rng(0)
    ends = [bounds(metrics.median(sample)) for sample in random.exponential(size=(1000, 15))]
    assert 0.95 <= np.mean([low <= math.log(2) <= high for low, high in ends]) <= 0.99


def test_the_bootstrap_interval_covers_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = []
    for sample in random.normal(1.0, 1.0, size=(200, 60)):
        low, high = bounds(metrics.bootstrap(np.mean, sample, resamples=200))
        covered.append(low <= 1.0 <= high)
    assert 0.90 <= np.mean(covered) <= 0.98


def test_rows_of_one_group_are_drawn_together():
    # Ten questions with twenty equal answers each: there are ten observations, not two hundred.
    values = np.repeat(np.arange(10) % 2, 20)
    groups = np.repeat(np.arange(10), 20).tolist()
    alone, grouped = metrics.bootstrap(np.mean, values), metrics.bootstrap(np.mean, values, groups=groups)
    assert alone.value == grouped.value == 0.5
    (low, high), (wide_low, wide_high) = bounds(alone), bounds(grouped)
    assert wide_high - wide_low > 3 * (high - low)

    def parts(values, groups):
        assert all(np.sum(groups == group) % (group + 1) == 0 for group in range(4))  # whole groups only
        assert (values == groups * 10).all()
        return 0.0

    owner = np.repeat(np.arange(4), np.arange(4) + 1)
    order = np.random.default_rng(0).permutation(len(owner))
    metrics.bootstrap(parts, owner[order] * 10, owner[order], groups=owner[order].tolist(), resamples=50)


def test_the_bootstrap_repeats_itself_and_follows_its_seed():
    values = np.random.default_rng(0).normal(size=50)
    assert metrics.bootstrap(np.mean, values) == metrics.bootstrap(np.mean, values)
    assert metrics.bootstrap(np.mean, values) != metrics.bootstrap(np.mean, values, seed=1)


def test_a_figure_that_seldom_exists_has_no_interval():
    assert metrics.bootstrap(lambda values: None, [1, 2]) == metrics.Estimate(None, None, None)
    once = metrics.bootstrap(metrics.auroc, [0.1] * 30 + [0.9], [False] * 30 + [True], resamples=200)
    assert once.value == 1
    assert once.low == once.high == 1  # most samples hold the only right one
    rare = metrics.bootstrap(
        lambda values: 1.0 if len(set(values.tolist())) == 4 else None, [1, 2, 3, 4], resamples=50
    )
    assert rare == metrics.Estimate(1.0, None, None)
    with pytest.raises(InputError, match="group"):
        metrics.bootstrap(np.mean, [1, 2], groups=[1])


# -- modules of `evaluate` ----------------------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path):
    return lambda name: evaluate.load(module_path(name), cache_dir=str(tmp_path))


def test_every_module_is_listed():
    folder = Path(transformers_egrm.evaluation.__file__).parent / "modules"
    assert sorted(path.parent.name for path in folder.glob("*/*.py")) == list(MODULES)
    assert all((folder / name / f"{name}.py").is_file() for name in MODULES)
    with pytest.raises(ValueError, match="egrm_routing"):
        module_path("rouge")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_loads_offline_and_describes_its_inputs(name, load):
    module = load(name)
    assert module.description.strip()
    assert module.citation.strip().startswith("@")
    for feature in module.features:
        assert f"{feature}:" in module.inputs_description


@pytest.mark.parametrize("name", MODULES)
def test_every_example_of_a_card_gives_what_it_prints(name, tmp_path, monkeypatch):
    card = (Path(module_path(name)) / "README.md").read_text(encoding="utf-8")
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path))
    blocks = re.findall(r"^```python\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, name, None, None)
    assert len(example.examples) >= 5
    result = doctest.DocTestRunner(verbose=False).run(example, out=sys.stderr.write)
    assert (result.failed, result.attempted) == (0, len(example.examples))


@pytest.mark.parametrize("name", MODULES)
def test_a_card_has_the_sections_of_its_library(name):
    card = (Path(module_path(name)) / "README.md").read_text(encoding="utf-8")
    kind = "measurement" if "- measurement" in card.split("---")[1] else "metric"
    title = kind.capitalize()
    sections = [
        f"# {title} Card for ", f"## {title} Description", "## How to Use", "### Inputs", "### Output Values",
        "#### Values from Popular Papers", "### Examples", "## Limitations and Bias", "## Citation", "## Further References",
    ]  # fmt: skip
    places = [card.find(f"\n{section}") for section in sections]
    assert -1 not in places
    assert places == sorted(places)


def test_modules_agree_with_the_functions(load):
    random = np.random.default_rng(0)
    probabilities, outcomes = random.random(50), random.random(50) < 0.6
    found = load("calibration_error").compute(predictions=probabilities, references=outcomes.astype(int), num_bins=7)
    assert found == {
        "ece_equal_width": metrics.calibration_error(probabilities, outcomes, 7),
        "ece_equal_mass": metrics.calibration_error(probabilities, outcomes, 7, "equal_mass"),
        "brier": metrics.brier(probabilities, outcomes),
    }
    texts = [["two and three", "two or three", "five"], ["it is seven", "it is"]]
    assert load("self_bleu").compute(data=texts)["self_bleus"] == [metrics.self_bleu(each) for each in texts]
    with pytest.raises(ValueError, match="'short' or 'long'"):
        load("egrm_routing").compute(
            predictions=["7"], references=["7"], short_predictions=["7"], routes=["fast"], consensus=[1.0]
        )


def test_items_may_be_added_one_batch_at_a_time(load):
    accuracy = load("pairwise_accuracy")
    accuracy.add_batch(chosen=[2.0], rejected=[1.0])
    accuracy.add_batch(chosen=[1.0, 1.0], rejected=[1.0, 2.0])
    assert accuracy.compute() == {"pairwise_accuracy": 0.5}


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(MissingExtraError, match=r"sklearn.*pip install 'transformers-egrm\[eval\]'"):
        metrics.auroc([0.1, 0.9], [False, True])
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingExtraError, match="scipy"):
        metrics.wilson(1, 2)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(MissingExtraError, match="sacrebleu"):
        metrics.self_bleu(["a", "b"])
