"""Members of a group judged for what a trainer makes of them: advantages, not rewards.

A trainer with groups subtracts the group's mean and mostly divides by its spread. A member whose reward cannot move these
numbers need not be thought about, however much its probes disagree.
"""

import math
from collections.abc import Sequence

from transformers_egrm.modeling.errors_egrm import need


EPSILON = 1e-4
"""What TRL adds to a group's standard deviation."""


def advantages(rewards: Sequence[float | None], *, by_spread: bool = True) -> list[float]:
    """Advantages of one group, as GRPO computes them.

    Args:
        rewards: G rewards; None is left out and gets 0.
        by_spread: Whether they are divided by the group's standard deviation (n - 1).

    Returns:
        G numbers.
    """
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return [0.0] * len(rewards)
    mean = sum(known) / len(known)
    spread = 1.0
    if by_spread:
        squares = sum((reward - mean) ** 2 for reward in known)
        spread = EPSILON + (math.sqrt(squares / (len(known) - 1)) if len(known) > 1 else 0.0)
    return [0.0 if reward is None else (reward - mean) / spread for reward in rewards]


def worth_thinking(means: Sequence[float], variances: Sequence[float], bound: float) -> list[bool]:
    """Which members of a group could change its advantages by more than a bound.

    To first order, a reward that moves by d moves its own advantage by (1 - 1/G) d / s and those of the others by less, with
    s the group's spread. The d to expect is the standard deviation of the member's reward under its probes' distribution.
    The s to expect holds both: how far the means lie apart, and how uncertain they are.

    Args:
        means: G mean rewards under the probes' distributions.
        variances: G variances, in squared units of the reward; 0 for a member that is known.
        bound: Change of an advantage that does not matter, in units of advantages, at least 0.

    Returns:
        G flags.
    """
    need(math.isfinite(bound) and bound >= 0, "bound", bound, "a number >= 0")
    size = len(means)
    if size < 2:
        return [False] * size  # alone, its advantage is 0 whatever it gets
    middle = sum(means) / size
    spread = math.sqrt((sum((mean - middle) ** 2 for mean in means) + sum(variances) * (1 - 1 / size)) / (size - 1))
    return [(1 - 1 / size) * math.sqrt(variance) > bound * (spread + EPSILON) for variance in variances]


__all__ = ["EPSILON", "advantages", "worth_thinking"]
