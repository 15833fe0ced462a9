"""The alarm, stability over time, two policies compared, corrections kept, and thresholds under load."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from transformers_egrm.calibration.audit import Audit, DisagreementTest, baseline_of, propose_threshold
from transformers_egrm.calibration.comparison import Comparison, arm_of
from transformers_egrm.calibration.feedback import FeedbackStore, read_feedback
from transformers_egrm.calibration.load import LoadController, LoadLimits, pressure
from transformers_egrm.calibration.stability import windows
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError, InputError
from transformers_egrm.modeling.judge_results_egrm import JudgeResult


SHORT = JudgeResult(
    id=1, reward=7.0, verdict="7", consensus=1.0, consensus_is_bound=False, route="short", status="ok", tokens=5,
    truncated=False, truncated_tokens=0, order=("given",), seed=0, audited=True, audit_verdict="7",
)  # fmt: skip
UNLIKE = replace(SHORT, audit_verdict="3")


# -- the alarm ----------------------------------------------------------------------------------------------------------


def alarms(rates: np.ndarray, baseline: float, runs: int, seed: int, calibration: int = 5_000) -> np.ndarray:
    """[runs] audited items until the alarm; one more than there are where none is raised."""
    random = np.random.default_rng(seed)
    test = DisagreementTest(random.binomial(calibration, baseline, runs), calibration)
    found = np.full(runs, len(rates) + 1)
    for place, rate in enumerate(rates):
        found = np.where(test.update(random.random(runs) < rate) & (found > len(rates)), place + 1, found)
    return found


@pytest.mark.parametrize("baseline", [0.005, 0.01, 0.05, 0.3])
def test_false_alarms_are_as_rare_as_they_should_be(baseline):
    runs, alpha = 1_000, 0.05
    found = (alarms(np.full(250, baseline), baseline, runs, seed=1) <= 250).sum()
    assert found <= runs * alpha + 2.5 * (runs * alpha * (1 - alpha)) ** 0.5


def test_it_is_no_alarm_either_where_the_rate_jumps_about_below_the_baseline_or_outcomes_are_shares():
    random, runs = np.random.default_rng(2), 400
    test = DisagreementTest([400] * runs, 10_000)
    for place in range(500):
        rate = 0.04 if place % 7 else 0.0
        test.update(rate * random.random(runs) * 2)
    assert test.alarmed.sum() == 0


def test_a_slow_decline_is_told_before_ten_points_are_lost():
    rising = 0.01 + 0.2 * np.arange(1, 251) / 250
    found = alarms(rising, 0.01, 1_000, seed=3)
    assert (found <= 125).mean() >= 0.88  # the full measurement is benchmarks/audit_alarm.py
    falls = np.where(np.arange(250) < 120, 0.01, 0.11)
    late = alarms(falls, 0.01, 500, seed=4)
    assert ((late > 120) & (late <= 220)).mean() >= 0.9


def test_wealth_is_what_the_bets_make_of_it_by_hand():
    test = DisagreementTest(19, 1_999, period=5)  # p = 1 %
    assert test.baseline.tolist() == [0.01]
    stake = 0.6 * 0.2 * 1 / 5  # of the slow decline alone: no jump has begun
    test.update(0)
    assert test.wealth[0] == pytest.approx(1 - stake)
    weights = np.array([0.6 * (1 - 0.04), 0.1, 0.1, 0.1, 0.1])
    stake = weights @ [0.2 * 2 / 5, 0.1, 0, 0, 0] / weights.sum()
    before = test.wealth[0]
    test.update(1)
    assert test.wealth[0] == pytest.approx(before * (1 + stake * 99))
    while not test.update(1)[0]:
        pass
    assert test.wealth[0] == pytest.approx(20.0)  # not more: that would have been risked for nothing


def test_a_new_period_begins_with_new_money():
    test = DisagreementTest(0, 99, period=5)
    for _ in range(5):
        test.update(0)
    assert test.wealth[0] < 1
    test.update(0)
    assert test.wealth[0] == pytest.approx(1 - 0.6 * 0.2 / 5)
    assert test.since.tolist() == [1]


@pytest.mark.parametrize(("arguments", "said"), [
    ((5, 5), "whole numbers from 0 to 4"), ((-1, 5), "whole numbers"), ((0.5, 5), "whole numbers"), ((0, 0), "`audited`"),
    ((float("nan"), 5), "whole numbers"),
], ids=str)  # fmt: skip
def test_a_baseline_that_is_none_is_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        DisagreementTest(*arguments)
    with pytest.raises(ConfigError, match="`alpha`"):
        DisagreementTest(0, 5, alpha=1.0)
    with pytest.raises(ConfigError, match="numbers in"):
        DisagreementTest(0, 5).update([2.0])


def test_an_audit_reads_results_and_proposes_a_threshold_that_parts_them():
    calibration = (
        [SHORT] * 98
        + [UNLIKE] * 2
        + [replace(SHORT, audited=False, audit_verdict=None), replace(UNLIKE, audit_verdict=None)]
    )
    assert baseline_of(calibration) == (2, 100)
    audit = Audit(*baseline_of(calibration), threshold=0.8)
    told = None
    for number in range(200):
        unsure = number % 4 == 0
        told = told or audit.add(replace(UNLIKE if unsure else SHORT, consensus=0.85 if unsure else 0.97))
        audit.add(replace(SHORT, audited=False, audit_verdict=None))
    assert told is audit.alarm
    assert told.threshold == 0.97
    assert told.disagreement == pytest.approx(0.25, abs=0.06)
    assert told.audited < 80
    assert "0.97" in str(told)
    assert audit.add(UNLIKE) is None  # it has been told


def test_no_threshold_is_proposed_where_none_would_do():
    assert propose_threshold([(1.0, True)] * 5 + [(1.0, False)] * 15, 0.8, 0.01) is None
    assert propose_threshold([(0.85, True)] * 5 + [(1.0, False)] * 9, 0.8, 0.01) is None  # nine are too few
    assert propose_threshold([(0.85, True)] * 5 + [(1.0, False)] * 10, 0.8, 0.01) == 1.0
    with pytest.raises(ConfigError, match="audit_share=1"):
        baseline_of([replace(SHORT, audited=False)])
    audit = Audit(1, 100, threshold=0.8)
    while audit.add(UNLIKE) is None:
        pass
    assert audit.alarm.threshold is None
    assert "Keep everything long" in str(audit.alarm)


# -- stability ----------------------------------------------------------------------------------------------------------


def test_windows_differ_where_verdicts_or_consensus_do_and_seldom_by_chance():
    random = np.random.default_rng(5)

    def draw(count: int, top: float = 0.7, sevens: float = 0.5) -> list[JudgeResult]:
        consensus = np.where(random.random(count) < top, 1.0, 0.6)
        verdicts = np.where(random.random(count) < sevens, "7", "3")
        return [
            replace(SHORT, consensus=float(c), verdict=str(v), route="short" if c == 1.0 else "long")
            for c, v in zip(consensus, verdicts, strict=True)
        ]

    reference = draw(2_000)
    same = list(windows(reference, draw(40 * 200), 200))
    assert len(same) == 40
    assert sum(window.differs for window in same) <= 12
    assert np.mean([window.verdict_distance for window in same]) == pytest.approx(
        np.mean([window.verdict_noise for window in same]), rel=0.35
    )
    assert all(window.differs for window in windows(reference, draw(400, sevens=0.8), 200))
    (less_sure,) = windows(reference, draw(250, top=0.4), 200)
    assert less_sure.differs
    assert less_sure.consensus_distance == pytest.approx(0.3, abs=0.1)
    assert less_sure.short_share == pytest.approx(0.4, abs=0.1)
    with pytest.raises(ConfigError, match="with a consensus"):
        list(windows([], draw(10), 10))


# -- two policies -------------------------------------------------------------------------------------------------------


def test_an_arm_is_a_matter_of_the_id_and_the_seed():
    arms = [arm_of(number) for number in range(4_000)]
    assert arms == [arm_of(number) for number in range(4_000)]
    assert abs(arms.count("a") - 2_000) < 130
    both = sum(one == arm_of(number, seed=1) for number, one in enumerate(arms))
    assert abs(both - 2_000) < 130
    assert {arm_of(f"q{n}") for n in range(20)} == {"a", "b"}
    with pytest.raises(ConfigError, match="`record_id`"):
        arm_of(None)


def test_the_interval_holds_the_difference_at_all_times_and_ends_in_a_decision():
    random, wrong, widths = np.random.default_rng(6), 0, []
    for _ in range(60):
        comparison = Comparison(alpha=0.1)
        missed, low, high = False, -1.0, 1.0
        for arm, chance in zip(random.random(1_500) < 0.5, random.random(1_500), strict=True):
            comparison.add("b" if arm else "a", float(chance < (0.8 if arm else 0.7)))
            low, high = comparison.interval
            missed |= not low <= 0.1 <= high
        wrong += missed
        widths.append(high - low)
    assert wrong <= 12  # 6 are allowed on average
    assert max(widths) < 0.35
    sure = Comparison()
    for number in range(600):
        sure.add("ab"[number % 2], 0.9 if number % 2 == 0 else 0.5)
    assert sure.better == "a"
    assert Comparison().better is None
    with pytest.raises(ConfigError, match="`outcome`"):
        sure.add("a", 1.5)
    with pytest.raises(ConfigError, match="`arm`"):
        sure.add("c", 1.0)


# -- corrections --------------------------------------------------------------------------------------------------------


def test_corrections_come_back_as_labelled_records(tmp_path):
    store = FeedbackStore(tmp_path / "feedback.db")
    record = {"id": 5, "prompt": "What is 2 + 3?", "response": "It is 6. \u2028\ud800 '; DROP TABLE cases"}
    assert store.add(record, SHORT, "0").kind == "sure_and_wrong"
    assert store.add({"prompt": "p", "response": "r"}, replace(SHORT, route="long"), "0").kind == "correction"
    assert store.add({"prompt": "p", "response": "s"}, SHORT, "7").kind == "correction"
    assert store.counts() == {"correction": 2, "sure_and_wrong": 1}
    assert [case.record for case in store.cases("sure_and_wrong")] == [record]
    store.add(record | {"id": 6}, SHORT, "1")  # told again, with another id and another truth
    assert store.counts() == {"correction": 2, "sure_and_wrong": 1}
    rows = list(read_feedback(tmp_path / "feedback.db"))
    assert sorted(row["label"] for row in rows) == ["0", "1", "7"]
    assert record | {"id": 6, "label": "1"} in rows
    with pytest.raises(ConfigError, match="'prompt' of its own"):
        read_feedback(tmp_path / "feedback.db", label="prompt")


def test_several_may_write_at_once(tmp_path):
    def tell(worker: int) -> None:
        store = FeedbackStore(tmp_path / "feedback.db")
        for number in range(10):
            store.add({"prompt": "p", "response": f"{worker} {number}"}, SHORT, "0")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(tell, range(4)))
    assert FeedbackStore(tmp_path / "feedback.db").counts()["sure_and_wrong"] == 40


def test_what_is_no_correction_and_no_store_is_refused(tmp_path):
    store = FeedbackStore(tmp_path / "feedback.db")
    for record, truth in (([], "7"), ({"prompt": object()}, "7"), ({"prompt": float("nan")}, "7"), ({}, " "), ({}, 7)):
        with pytest.raises(InputError):
            store.add(record, SHORT, truth)
    with pytest.raises(DataError, match="no corrections yet"):
        read_feedback(tmp_path / "feedback.db")
    with pytest.raises(DataError, match="no such file"):
        read_feedback(tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()
    (tmp_path / "text.db").write_text("prompt,response\n" * 100)
    with pytest.raises(DataError, match="must be a feedback store"):
        FeedbackStore(tmp_path / "text.db")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE cases (x)")
    other.commit()
    other.close()
    with pytest.raises(DataError, match="another database"):
        FeedbackStore(tmp_path / "other.db")
    with pytest.raises(ConfigError, match="one of correction"):
        list(store.cases("praise"))


# -- load ---------------------------------------------------------------------------------------------------------------


def test_the_threshold_gives_way_step_by_step_and_comes_back_only_after_calm():
    controller = LoadController((0.99, 0.95, 0.9), LoadLimits(high=1.0, low=0.5, hold_s=2.0))
    assert [controller.update(value, now) for now, value in enumerate((0.0, 0.99, 1.0, 0.7, 1.5, 9.0))] == [
        0.99, 0.99, 0.95, 0.95, 0.9, 0.9
    ]  # fmt: skip
    calm = [(10.0, 0.4), (11.0, 0.6), (12.0, 0.4), (13.9, 0.4), (14.0, 0.4), (15.9, 0.0), (16.0, 0.0), (30.0, 0.0)]
    assert [controller.update(value, now) for now, value in calm] == [0.9, 0.9, 0.9, 0.9, 0.95, 0.95, 0.99, 0.99]
    slow = LoadController((0.99, 0.95, 0.9), LoadLimits(step_s=5.0))
    assert [slow.update(2.0, now) for now in (0.0, 1.0, 4.9, 5.0)] == [0.95, 0.95, 0.95, 0.9]


def test_it_never_leaves_the_thresholds_it_was_given():
    random, controller, now = np.random.default_rng(7), LoadController((1.0, 0.9, 0.8)), 0.0
    for _ in range(2_000):
        now += float(random.exponential(0.2))
        assert controller.update(float(random.exponential(1.0)), now) in (1.0, 0.9, 0.8)
    fixed = LoadController((0.9,))
    assert fixed.update(100.0, 0.0) == 0.9


@pytest.mark.parametrize(("make", "said"), [
    (lambda: LoadController(()), "each below the one before"), (lambda: LoadController((0.8, 0.9)), "below the one before"),
    (lambda: LoadController((0.9, 0.9)), "below the one before"), (lambda: LoadController((1.2,)), "shares in"),
    (lambda: LoadController((0.9,)).update(-1.0, 0.0), "`pressure`"), (lambda: LoadLimits(low=1.0), "below `high`"),
    (lambda: LoadLimits(hold_s=-1.0), "`hold_s`"), (lambda: pressure(1, 0.0, 1.0), "`seconds_each`"),
    (lambda: pressure(True, 1.0, 1.0), "`queue`"), (lambda: LoadLimits(high=float("nan")), "`high`"),
])  # fmt: skip
def test_a_wrong_setting_of_the_controller_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_time_does_not_run_backwards():
    controller = LoadController((0.9, 0.8))
    controller.update(0.0, 5.0)
    with pytest.raises(ConfigError, match="`now_s`"):
        controller.update(0.0, 4.0)
    assert pressure(40, 0.1, 2.0) == 2.0
