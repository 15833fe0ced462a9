"""A run's plots: loss, reward, route share, and whether consensus means correctness."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from transformers_egrm.training.run import Run


CURVES = {
    "loss": ("sft-", ("loss",)),
    "verdict_accuracy": ("sft-", ("verdict_accuracy_short", "verdict_accuracy_long")),
    "scorer_loss": ("scorer", ("loss", "pair_accuracy", "pick_accuracy")),
    "reward": ("grpo", ("reward", "rewards/verdict_reward/mean", "rewards/pairwise_reward/mean", "kl")),
    "route_share": ("", ("short_share", "short_precision", "routed_short_share", "routed_short_precision")),
}
"""Plot -> how the stages it shows begin, and the columns of their metrics."""


def draw_plots(run: Run) -> list[Path]:
    """Draw what the metrics hold so far.

    Args:
        run: The run.

    Returns:
        The files written, in the run's folder `plots`.
    """
    matplotlib.use("agg", force=False)
    rows, folder = run.metrics(), run.folder / "plots"
    folder.mkdir(exist_ok=True)
    written = []
    for name, (stages, columns) in CURVES.items():
        own = [row for row in rows if row["stage"].startswith(stages)]
        written += [path] if (path := _curves(own, columns, folder / f"{name}.png")) else []
    splits = {stage: found["consensus"] for stage, found in run.results().items() if stage.startswith("route-")}
    return written + ([_consensus(splits, folder / "consensus.png")] if splits else [])


def _curves(rows: list[dict[str, Any]], columns: tuple[str, ...], path: Path) -> Path | None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.add_subplot()
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    offset, drawn = 0, False
    for stage in stages:
        own = [row for row in rows if row["stage"] == stage]
        for column in columns:
            points = [(offset + row["step"], row[column]) for row in own if row.get(column) is not None]
            if points:
                axes.plot(
                    *zip(*points, strict=True), marker="." if len(points) < 30 else None, label=f"{stage} {column}"
                )
                drawn = True
        offset += max(row["step"] for row in own)
    if not drawn:
        return None
    axes.set_xlabel("optimiser steps")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    return path


def _consensus(splits: dict[str, list[dict[str, Any]]], path: Path) -> Path:
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes: Any = figure.add_subplot()
    for stage, bins in splits.items():
        share = [400 * row["count"] / sum(row["count"] for row in bins) for row in bins]
        points = [[row["confidence"] for row in bins], [row["frequency"] for row in bins]]
        (line,) = axes.plot(*points, label=stage)
        axes.scatter(*points, s=share, color=line.get_color(), alpha=0.5)
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="equal")
    axes.set_xlabel("consensus of the probes (dot: share of the examples)")
    axes.set_ylabel("share whose verdict is right")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    return path


__all__ = ["draw_plots"]
