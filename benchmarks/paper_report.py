"""Results of `paper_tables.py` as JSON, Markdown and plots; `python benchmarks/paper_report.py FOLDER` renders them anew."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers_egrm.extras import import_extra


_KINDS = {
    "percent": lambda value: f"{100 * value:.1f}",
    "ratio": lambda value: f"{value:.3f}",
    "number": lambda value: f"{value:.1f}",
    "count": lambda value: f"{value:,}",
    "ms": lambda value: f"{1000 * value:.2f}",
    "mflop": lambda value: f"{value / 1e6:.1f}",
    "text": str,
}


def write_report(results: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write `results.json`, `tables.md` and a plot of each table.

    Args:
        results: One per checkpoint, the first with all tables.
        folder: Made if absent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (folder / "tables.md").write_text(to_markdown(results), encoding="utf-8")
    for letter, table in results[0]["tables"].items():
        plot(letter, table, folder / f"table_{letter}.png")


def to_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """All tables, with their notes and what they were measured on."""
    parts = []
    for number, result in enumerate(results):
        told = result["circumstances"]
        parts.append(
            f"# {told['checkpoint']}\n\n{result['num_items']:,} items of {result['num_questions']:,} questions, weights "
            f"{told['weights_sha256'][:12]}, {told['device']}, {told['threads']} threads, torch {told['torch']}, "
            f"transformers {told['transformers']}. In brackets: 95 % intervals.\n"
        )
        if number and not result["tables"]:
            parts.append("No table was asked for.\n")
        for table in result["tables"].values():
            parts.append(_table(table))
            if cost := table.get("cost"):
                parts.append(_table(cost))
                parts.append(_needed(cost))
    return "\n".join(parts)


def _table(table: Mapping[str, Any]) -> str:
    columns = table["columns"]
    lines = [
        f"## {table['title']}\n",
        "| " + " | ".join(column["name"] + (" %" * (column["kind"] == "percent")) for column in columns) + " |",
        "|" + " --- |" * len(columns),
        *(
            "| " + " | ".join(_cell(row[column["key"]], column["kind"]) for column in columns) + " |"
            for row in table["rows"]
        ),
        f"\n{table['note']}\n",
    ]
    return "\n".join(lines)


def _cell(value: Any, kind: str) -> str:
    show = _KINDS[kind]
    if isinstance(value, Mapping):  # an estimate
        if value["value"] is None:
            return "-"
        if value["low"] is None:
            return show(value["value"])
        return f"{show(value['value'])} ({show(value['low'])} to {show(value['high'])})"
    return "-" if value is None else show(value)


def _needed(cost: Mapping[str, Any]) -> str:
    parts = [
        f"{need['cost']} at {need['ratio']:.0%}: "
        + ("no share suffices" if need["short_share"] is None else f"{need['short_share']:.0%}")
        for need in cost["short_share_needed"]
    ]
    error = cost["speed"]["largest_error"]
    return (
        f"Short share measured: {cost['short_share']:.1%}. Short share that the model says is needed for "
        f"{'; '.join(parts)}. The constants of the seconds leave errors of up to {error:.0%} on the runs they were fitted "
        "to.\n"
    )


# -- plots --------------------------------------------------------------------------------------------------------------------


def plot(letter: str, table: Mapping[str, Any], path: Path) -> None:
    """One figure per table.

    Args:
        letter: Of the table.
        table: As `paper_tables.measure` returns it.
        path: Of the image.
    """
    # A figure of its own instead of pyplot: nothing global, no window system.
    figure = import_extra("matplotlib.figure", "eval").Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    _PLOTS[letter](axes, table["rows"], table)
    axes.set_title(table["title"], fontsize=10)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _error_bars(axes: Any, xs: Sequence[Any], estimates: Sequence[Mapping[str, Any]], **style: Any) -> None:
    """Points with their intervals; figures that do not exist are left out."""
    found = [(x, each) for x, each in zip(xs, estimates, strict=True) if each["value"] is not None]
    if not found:
        return
    values = [each["value"] for _, each in found]
    ends = [(each["low"], each["high"]) if each["low"] is not None else (each["value"],) * 2 for _, each in found]
    # A skewed bootstrap may leave the figure itself outside its interval.
    below = [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)]
    above = [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)]
    axes.errorbar([x for x, _ in found], values, yerr=[below, above], capsize=3, marker="o", **style)


def _labelled(axes: Any, rows: Sequence[Mapping[str, Any]], name: str, x: str, y: str) -> None:
    for row in rows:
        if row[x]["value"] is not None and row[y]["value"] is not None:
            _error_bars(axes, [row[x]["value"]], [row[y]], linestyle="none", label=str(row[name]))
    axes.legend(fontsize=8)


def _plot_ablations(axes: Any, rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    _labelled(axes, rows, "method", "flops_ratio", "accuracy")
    axes.set(xlabel="FLOPs relative to the baseline", ylabel="accuracy")


def _plot_counts(axes: Any, rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    counts = [row["num_probes"] for row in rows]
    _error_bars(axes, counts, [row["routing_accuracy"] for row in rows], label="routing accuracy")
    _error_bars(axes, counts, [row["short_share"] for row in rows], label="short share")
    axes.set(xlabel="probes (M)", ylabel="share")
    axes.legend(fontsize=8)


def _plot_spreads(axes: Any, rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    for row in rows:
        bins = row["reliability"]
        xs, ys = [found["confidence"] for found in bins], [found["frequency"] for found in bins]
        axes.plot(xs, ys, marker="o", label=row["variant"])
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    axes.set(xlabel="consensus", ylabel="share of right short verdicts")
    axes.legend(fontsize=8)


def _plot_repetition(axes: Any, rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    axes.scatter(*zip(*table["points"], strict=True), alpha=0.4, s=12)
    axes.set(xlabel="consensus of short verdicts", ylabel="self-BLEU of chains")


def _plot_short_path(axes: Any, rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    names = [row["group"] for row in rows]
    _error_bars(axes, names, [row["short_precision"] for row in rows], linestyle="none", label="short precision")
    _error_bars(axes, names, [row["short_share"] for row in rows], linestyle="none", label="short share")
    axes.tick_params(axis="x", labelrotation=60, labelsize=7)
    axes.legend(fontsize=8)


def _plot_lengths(axes: Any, rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    lengths = [row["prompt_tokens"] for row in rows]
    _error_bars(axes, lengths, [row["seconds_ratio"] for row in rows], label="seconds")
    axes.plot(lengths, [row["flops_ratio"] for row in rows], marker="s", label="FLOPs")
    axes.set(xlabel="prompt tokens", ylabel="relative to one verdict")
    axes.legend(fontsize=8)


def _plot_thresholds(axes: Any, rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    named = [dict(row, name="baseline" if row["threshold"] is None else f"tau {row['threshold']:.2f}") for row in rows]
    _labelled(axes, named, "name", "flops_ratio", "accuracy")
    front = sorted((r["flops_ratio"]["value"], r["accuracy"]["value"]) for r in rows if r["on_front"])
    axes.plot(*zip(*front, strict=True), color="grey", linestyle=":")
    axes.set(xlabel="FLOPs relative to the baseline", ylabel="accuracy")


def _plot_exactness(axes: Any, rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    figures = ("accuracy", "routing_accuracy", "short_share", "short_precision", "auroc", "ece")
    for row in rows:
        _error_bars(axes, figures, [row[key] for key in figures], linestyle="none", label=row["consensus"])
    axes.tick_params(axis="x", labelrotation=30, labelsize=8)
    axes.legend(fontsize=8)


_PLOTS = {
    "a": _plot_ablations,
    "b": _plot_counts,
    "c": _plot_spreads,
    "d": _plot_repetition,
    "e": _plot_short_path,
    "f": _plot_lengths,
    "g": _plot_thresholds,
    "h": _plot_exactness,
}


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_report(json.loads((target / "results.json").read_text(encoding="utf-8")), target)
