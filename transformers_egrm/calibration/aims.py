"""What may be asked of a threshold, each as a loss whose mean has to stay below zero."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.calibration.records import Labelled
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
        share = f"{100 * self.level:.3g} %"
        words = {
            "risk": f"of the answers that take the short path, at most {share} are wrong",
            "harm": f"at most {share} of all answers take the short path and are wrong where chains are right",
            "within": f"accuracy is at most {100 * self.level:.3g} points below that of always thinking",
            "cost": f"an answer costs about {self.level:.4g} operations",
            "share": f"about {share} of the answers take the short path",
        }
        sure = f", with confidence {100 * (1 - delta):.4g} %" if self.promises else " (an estimate, no promise)"
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

    def failures(self, data: Labelled) -> NDArray[np.float64]:
        """[N] what an exact test at rate `level` counts of an item, once it takes the short path.

        Args:
            data: Labelled items.
        """
        wrong = ~data.short_right
        return (wrong & data.long_right if self.kind == "harm" else wrong).astype(float)

    def counts(self, data: Labelled, short: Flags, failures: NDArray[np.float64]) -> tuple[float, float]:
        """Failures and trials of an exact test: whole numbers where every question has one item.

        Args:
            data: Labelled items.
            short: [N] which of them take the short path.
            failures: [N] see `failures`, or what is expected of them.
        """
        trials = np.ones(len(data)) if self.kind == "harm" else short
        return float(data.per_question(short * failures).sum()), float(data.per_question(trials).sum())

    @property
    def tests(self) -> tuple[str, ...]:
        """Tests that it can be put to: `exact` counts failures of one item of each question, `betting` uses every item."""
        return ("betting",) if self.kind == "within" else ("exact", "betting")

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
