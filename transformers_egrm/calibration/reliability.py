"""Whether a judge's own signals mean what they say: figures, a diagram, and what agreement is worth by chance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from transformers_egrm.calibration.calibrators import apply, signals
from transformers_egrm.calibration.records import Labelled
from transformers_egrm.evaluation.metrics import (
    auroc,
    brier,
    calibration_error,
    debiased_calibration_error,
    reliability,
)
from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import ConfigError


def figures(data: Labelled, tables: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Calibration of each signal as it is and by its table, on items that fitted nothing.

    Args:
        data: Labelled items.
        tables: Of `calibrators.fit_all`, fitted on other questions.

    Returns:
        A row of plain data for each: `signal`, `method`, `items`, `ece`, `ece_debiased`, `brier`, `auroc`, `bins`.
    """
    rows = []
    for name, (values, right, known) in signals(data).items():
        if not known.any():
            continue
        kinds = {"as it is": values[known]}
        if name in tables:
            kinds[tables[name]["method"]] = apply(tables[name], values[known])
        for method, said in kinds.items():
            rows.append({
                "signal": name, "method": method, "items": int(known.sum()),
                "ece": calibration_error(said, right[known]),
                "ece_debiased": debiased_calibration_error(said, right[known]),
                "brier": brier(said, right[known]), "auroc": auroc(said, right[known]),
                "bins": [asdict(one) for one in reliability(said, right[known])],
            })  # fmt: skip
    return rows


def chance_agreement(probabilities: Sequence[float], num_probes: int, threshold: float) -> float:
    """How often probes that know nothing agree as much as tau asks: counts of M draws, exactly.

    Args:
        probabilities: [C] of each verdict, the same at every draw; they sum to 1.
        num_probes: M.
        threshold: tau, in [0, 1].

    Returns:
        The probability that the most frequent verdict has a share of tau or more.

    Raises:
        ConfigError: There is no probe, or the probabilities do not sum to 1.
    """
    if num_probes < 1 or not math.isclose(sum(probabilities), 1, abs_tol=1e-6):
        raise ConfigError(
            f"Agreement needs a probe and probabilities that sum to 1, got {num_probes} and {probabilities}."
        )
    needed = max(1, math.ceil(threshold * num_probes - 1e-6))
    # M! times the coefficient of t^M in the product of each verdict's terms with fewer than `needed` draws.
    below = np.ones(1)
    for share in probabilities:
        terms = [share**count / math.factorial(count) for count in range(min(needed, num_probes + 1))]
        below = np.convolve(below, terms)[: num_probes + 1]
    rest = below[num_probes] * math.factorial(num_probes) if len(below) > num_probes else 0.0
    return float(1 - rest)


def draw(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """A reliability diagram of all rows.

    Args:
        rows: Of `figures`.
        path: The picture, .png or .svg.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure: Any = import_extra("matplotlib.figure", "eval").Figure(figsize=(5, 5), layout="constrained")
    axes = figure.add_subplot()
    for row in rows:
        total = sum(one["count"] for one in row["bins"])
        points = [[one["confidence"] for one in row["bins"]], [one["frequency"] for one in row["bins"]]]
        (line,) = axes.plot(*points, label=f"{row['signal']}, {row['method']}")
        axes.scatter(*points, s=[400 * one["count"] / total for one in row["bins"]], color=line.get_color(), alpha=0.5)
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="equal")
    axes.set_xlabel("what the judge says (dot: share of the items)")
    axes.set_ylabel("share whose verdict is right")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


__all__ = ["chance_agreement", "draw", "figures"]
