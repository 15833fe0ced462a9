"""A policy becomes truly better through the judge, and does not where the judge's rewards say nothing."""

import sys
from pathlib import Path

import pytest


sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from grpo_with_egrm import JUDGING, REWARDS, run  # pyright: ignore[reportMissingImports]

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


def test_every_way_to_judge_in_the_example_is_one_of_the_judges_options():
    for options in (JUDGING, *REWARDS.values()):
        JudgeOptions().with_overrides(**options)
