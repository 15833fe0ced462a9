"""From judged items to a threshold, its promise and calibrators: the whole of `egrm calibrate` but judging and writing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers_egrm.calibration.aims import Aim
from transformers_egrm.calibration.calibrators import METHODS, fit_all
from transformers_egrm.calibration.records import CalibrationItem, Labelled, check
from transformers_egrm.calibration.reliability import chance_agreement, figures
from transformers_egrm.calibration.thresholds import CHOOSING_SHARE, Choice, choose, choose_by_group
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_options_egrm import JudgeOptions


GROUPINGS = ("domain", "verdict")


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the labels allow."""

    data: Labelled
    choice: Choice
    """One threshold for all items."""
    groups: tuple[Choice, ...]
    """One for each domain or verdict where that was asked for: their promises hold together, beside the one for all."""
    tables: dict[str, dict[str, Any]]
    """Calibrators by signal, fitted on the questions that chose."""
    figures: list[dict[str, Any]]
    """See `reliability.figures`; on the questions that tested."""
    by_chance: float | None
    """How often probes that know nothing would agree as much as the threshold asks; None for exact consensus."""
    warnings: tuple[str, ...]


def calibrate(
    items: Sequence[CalibrationItem], aim: Aim, options: JudgeOptions, *, delta: float = 0.05, seed: int = 0,
    by: str | None = None, methods: Sequence[str] = METHODS,
) -> Calibration:  # fmt: skip
    """Find a threshold for an aim, and calibrators, from judged items.

    Args:
        items: See `judging.judge_both_paths`.
        aim: What is to hold.
        options: The judge's, resolved: how many probes, and which consensus.
        delta: Chance that the promise is wrong.
        seed: Of the split between choosing and testing.
        by: One of `GROUPINGS`, for a threshold of each; None: one for all.
        methods: Calibrators to choose from; none: no tables.

    Raises:
        DataError: The data cannot carry a threshold; see `records.check`.
        ConfigError: A setting is out of range.
    """
    if by not in (None, *GROUPINGS):
        raise ConfigError(f"Thresholds go by {' or '.join(GROUPINGS)}, got {by!r}.")
    data = Labelled(items)
    warnings = check(data)
    choice = choose(data, aim, delta, seed=seed)
    groups: tuple[Choice, ...] = ()
    if by is not None:
        names = ["none" if (name := getattr(item, by)) is None else name for item in data.items]
        groups = tuple(choose_by_group(data, names, aim, delta, seed=seed).values())
    chosen, tested = data.split(CHOOSING_SHARE, seed)
    tables = fit_all(chosen, methods) if methods else {}
    return Calibration(
        data=data,
        choice=choice,
        groups=groups,
        tables=tables,
        figures=figures(tested, tables),
        by_chance=_by_chance(data, options, choice.threshold),
        warnings=tuple(warnings),
    )


def _by_chance(data: Labelled, options: JudgeOptions, threshold: float) -> float | None:
    # Verdicts as frequent as the judge's own, drawn without looking.
    counts = Counter(item.verdict for item in data.items if item.verdict is not None)
    if options.consensus != "sampled" or threshold > 1:
        return None
    return chance_agreement([count / counts.total() for count in counts.values()], options.num_probes or 1, threshold)


__all__ = ["GROUPINGS", "Calibration", "calibrate"]
