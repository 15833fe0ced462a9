"""A policy becomes truly better through the judge, and not through shuffled rewards; where it finds a flaw, the audit tells."""

import sys
from pathlib import Path

import pytest


sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import reward_hacking  # pyright: ignore[reportMissingImports]
from grpo_with_egrm import REWARDS, run, say, tasks  # pyright: ignore[reportMissingImports]

from transformers_egrm import load_mini
from transformers_egrm.modeling.judge_options_egrm import JudgeOptions
from transformers_egrm.training.run import quiet


# A policy that tries things out also says what is no answer.
pytestmark = pytest.mark.filterwarnings("ignore::transformers_egrm.modeling.errors_egrm.UnfamiliarTextWarning")
NOISE = 3 * (0.25 / 512) ** 0.5
"""Three standard errors of a share of 512 answers, at its largest."""


@pytest.mark.slow
def test_true_reward_rises_with_the_judge_and_not_with_shuffled_rewards():
    quiet(progress=False)
    rises, controls = [], []
    for seed in (0, 1, 2):
        for shuffled, changes in ((False, rises), (True, controls)):
            history = run(seed, shuffled=shuffled, every=30)
            assert 0.3 <= history[0]["true"] <= 0.6
            changes.append(history[-1]["true"] - history[0]["true"])
    assert min(rises) > NOISE
    assert max(controls) < NOISE
    assert min(rises) > max(controls) + NOISE


@pytest.mark.slow
def test_the_alarm_comes_before_a_tenth_of_true_reward_is_lost():
    quiet(progress=False)
    for seed in (0, 1, 2):
        history = reward_hacking.run(seed)
        alarm, fall = reward_hacking.first_alarm(history), reward_hacking.first_fall(history)
        assert fall is not None, "a flaw that costs nothing shows nothing"
        assert alarm is not None
        assert alarm < fall


def test_the_flaw_is_on_the_short_path_alone_and_only_where_it_was_planted():
    judge = load_mini()
    task = next(tasks("flaw", for_training=False))
    wrong = say(task.wrong[0][0])
    texts = [wrong, reward_hacking.FLAW + wrong, reward_hacking.FLAW + wrong]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    asked = [[{"role": "user", "content": task.question}]] * 3
    options = {"audit_share": 1.0, "batch_size": 4}
    plain, fooled, again = reward_hacking.GullibleReward(judge, **options).judge(asked, completions)
    (honest,) = reward_hacking.EGRMReward(judge, **options).judge(asked[:1], completions[:1])
    assert plain == honest
    assert (fooled.verdict, fooled.reward, fooled.consensus, fooled.route) == ("10", 10.0, 1.0, "short")
    assert fooled.audited
    assert fooled.audit_verdict != "10"
    assert fooled is again, "equal answers are one item of the audit"


def test_alarm_and_fall_are_found_in_a_history():
    rows = [
        {"step": step, "true": true, "alarm": float(step >= 2)} for step, true in enumerate((0.4, 0.6, 0.55, 0.53))
    ]
    assert (reward_hacking.first_alarm(rows), reward_hacking.first_fall(rows)) == (2, 3)
    assert (reward_hacking.first_alarm(rows[:2]), reward_hacking.first_fall(rows[:3])) == (None, None)
    assert reward_hacking.grade(next(tasks("grade")), "It is something else.") == 0.0


def test_every_way_to_reward_doubt_is_one_of_the_judges_options():
    for options in REWARDS.values():
        JudgeOptions().with_overrides(**options)
