"""What may be asked of a threshold, each as a loss whose mean has to stay below zero."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.calibration.records import Labelled
from transformers_egrm.calibration.risk import betting_p, binomial_p
from transformers_egrm.modeling.errors_egrm import ConfigError


Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim with its level; `AIMS` makes them."""

    kind: str
    """Key of `AIMS`."""
    level: float
    """r, h, x, c or the share."""

    @property
    def promises(self) -> bool:
        """Whether it can be promised: a share is chosen and a cost has no bound, so they are estimates."""
        return self.kind in PROMISES

    def sentence(self, delta: float) -> str:
        """What is promised, in words.

        Args:
            delta: One minus the confidence.
        """
        words = {
            "risk": f"of the answers that take the short path, at most {self.level:.3g} are wrong",
            "harm": f"at most {self.level:.3g} of all answers take the short path and are wrong where chains are right",
            "within": f"accuracy is at most {100 * self.level:.3g} points below that of always thinking",
            "cost": f"an answer costs about {self.level:.4g} operations",
            "share": f"about {self.level:.3g} of the answers take the short path",
        }
        sure = f", with confidence {1 - delta:.4g}" if self.promises else " (an estimate, no promise)"
        return words[self.kind] + sure

    def losses(self, data: Labelled, short: Flags) -> NDArray[np.float64]:
        """[Q] losses of questions; the promise is that their mean is below 0.

        Args:
            data: Labelled items.
            short: [N] which of them take the short path.
        """
        wrong = ~data.short_right
        values = {
            "risk": lambda: short * (wrong - self.level),
            "harm": lambda: (short & wrong & data.long_right) - self.level,
            "within": lambda: short * (data.long_right.astype(float) - data.short_right) - self.level,
        }[self.kind]()
        return data.per_question(values)

    @property
    def most(self) -> float:
        """The largest loss that a question can have."""
        return 1.0 - self.level

    def trials(self, data: Labelled, short: Flags) -> tuple[int, int] | None:
        """Failures and trials of an exact test at rate `level`, where every question has one item; else None.

        Args:
            data: Labelled items.
            short: [N] which of them take the short path.
        """
        if not data.one_each or self.kind == "within":
            return None
        failed = short & ~data.short_right
        if self.kind == "harm":
            return int((failed & data.long_right).sum()), len(data)
        return int(failed.sum()), int(short.sum())

    def p_value(self, tested: Labelled, short: Flags, chosen: Labelled, chosen_short: Flags, delta: float) -> float:
        """P-value of H0, that the promise is broken.

        The test is fixed by the shape of the data, not by its labels: exact where every question has one item, else betting.

        Args:
            tested: Items that have decided nothing so far.
            short: [N] which of them take the short path.
            chosen: Items of other questions; the bets are set by them.
            chosen_short: Which of those take the short path.
            delta: Level that the bets aim at.
        """
        counted = self.trials(tested, short)
        if counted is not None:
            failures, trials = counted
            return binomial_p(failures, trials, self.level) if trials else 1.0
        losses = self.losses(tested, short)
        return betting_p(losses, self.most, self.losses(chosen, chosen_short), delta)

    def observed(self, data: Labelled, short: Flags) -> float | None:
        """The figure that the aim bounds, as it is in the data: questions count alike; None where it does not exist.

        Args:
            data: Labelled items.
            short: [N] which of them take the short path.
        """
        wrong, mean = ~data.short_right, lambda values: float(data.per_question(values).mean())
        share = mean(short)
        found: dict[str, Any] = {
            "risk": lambda: mean(short & wrong) / share if share else None,
            "harm": lambda: mean(short & wrong & data.long_right),
            "within": lambda: mean(short * (data.long_right.astype(float) - data.short_right)),
            "cost": lambda: mean(np.where(short, data.short_flops, data.long_flops)),
            "share": lambda: share,
        }
        return found[self.kind]()


PROMISES = ("risk", "harm", "within")
"""Aims with a promise; they are walked from strict to lax."""
AIMS = {
    "risk": "risk=R: of the short path's answers at most the share R is wrong",
    "harm": "harm=H: at most the share H of all answers is short and wrong where chains are right",
    "within": "within=X: at most X points (0.01 is one) below always thinking, at least cost",
    "cost": "cost=C: at most C operations an answer; an estimate, no promise",
    "share": "share=S: about the share S of answers takes the short path; no promise",
}
"""Every aim as the command line says it."""


def parse_aim(text: str) -> Aim:
    """The aim that a text such as `risk=0.05` names.

    Args:
        text: Kind, equals sign, level.

    Raises:
        ConfigError: The kind is unknown, or the level out of range.
    """
    kind, _, level = text.partition("=")
    known = "; ".join(AIMS.values())
    if kind not in AIMS:
        raise ConfigError(f"An aim is one of {', '.join(AIMS)} with its level, got {text!r}.", f"Aims: {known}.")
    try:
        value = float(level)
    except ValueError as error:
        raise ConfigError(f"The level of {kind} must be a number, got {level!r}.", f"Aims: {known}.") from error
    fits = 0 < value < 1 if kind != "cost" else 0 < value < math.inf
    if not fits:
        needed = "operations above 0" if kind == "cost" else "a share between 0 and 1, for example 0.05"
        raise ConfigError(f"The level of {kind} must be {needed}, got {level}.")
    return Aim(kind, value)


__all__ = ["AIMS", "PROMISES", "Aim", "parse_aim"]
