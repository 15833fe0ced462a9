"""Two runs over the same questions: which one is better, and is it more than chance?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.figures import plain
from transformers_egrm.evaluation.intervals import Figure, Item, Sample, mcnemar
from transformers_egrm.evaluation.report import lines, percent
from transformers_egrm.evaluation.scoring import Score
from transformers_egrm.modeling.errors_egrm import DataError


Saved = tuple[dict[str, Any], list[dict[str, Any]]]
"""Results and items, as `report.read_run` gives them."""


def difference(first: Saved, second: Saved) -> dict[str, Any]:
    """Every figure of two runs side by side, with a paired bootstrap interval of the difference.

    Args:
        first: One run.
        second: Another one of the same benchmark. Only questions that both judged are compared.

    Raises:
        DataError: The benchmarks differ, or no question is common.
    """
    names = [results["benchmark"]["name"] for results, _ in (first, second)]
    if names[0] != names[1]:
        raise DataError(f"Two runs of one benchmark are needed, got {names[0]} and {names[1]}.")
    other = {item["id"]: item for item in second[1]}
    common = [item for item in first[1] if item["id"] in other]
    if not common:
        raise DataError("Two runs need questions in common, these have none.", "Run both on the same data.")
    changed = [item["id"] for item in common if _texts(item) != _texts(other[item["id"]])]
    if changed:
        raise DataError(
            f"Question {changed[0]!r} differs between the runs ({len(changed)} do).", "Run both on the same data."
        )
    pairs = [common, [other[item["id"]] for item in common]]
    settings = first[0]["settings"]
    scores = [
        load_benchmark(names[0]).score(Sample(_items(items), settings["resamples"], settings["seed"]))
        for items in pairs
    ]
    right = [np.array([item["cells"].get("right", np.nan) for item in items]) for items in pairs]
    only = [int(((right[i] == 1) & (right[1 - i] < 1)).sum()) for i in range(2)]
    return {
        "judges": _names(first[0]["judge"], second[0]["judge"]),
        "benchmark": names[0],
        "questions": {"common": len(common), "first": len(first[1]), "second": len(second[1])},
        "headline": {"name": scores[0].headline} | _both(scores[0].value, scores[1].value),
        "tables": _tables(scores),
        "mcnemar": {"only_first": only[0], "only_second": only[1], "p": mcnemar(*only)},
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The comparison as Markdown."""
    first, second = found["judges"]
    questions, test, headline = found["questions"], found["mcnemar"], found["headline"]
    parts = [
        f"# {first} against {second} on {found['benchmark']}",
        f"**{headline['name']}: {_points(headline['difference'])}** ({second} minus {first}). {verdict(found)}",
        f"{questions['common']} questions in common, of {questions['first']} and {questions['second']}.",
        lines(
            ["questions that only one got wholly right", "count"],
            [[first, test["only_first"]], [second, test["only_second"]]],
        ),
        f"McNemar's exact test of equal judges: p = {test['p']:.3g}. It takes questions as independent; the intervals "
        "below draw questions about one prompt together.",
    ]
    for table in found["tables"]:
        rows = [
            [
                row["label"],
                row["n"],
                column,
                percent(value["first"]),
                percent(value["second"]),
                _points(value["difference"]),
            ]
            for row in table["rows"]
            for column, value in zip(table["columns"], row["values"], strict=True)
        ]
        parts.append(f"## {table['title']}\n\n" + lines(["", "n", "", first, second, "difference, points"], rows))
    return "\n\n".join(parts) + "\n"


def verdict(found: Mapping[str, Any]) -> str:
    """One sentence: which judge is better, or that these questions cannot tell; a bootstrap of few is too narrow."""
    gap = found["headline"]["difference"]
    if gap["low"] is None or gap["low"] <= 0 <= gap["high"]:
        return "These questions cannot tell which one is better."
    ahead = found["judges"][1 if gap["value"] > 0 else 0]
    if found["mcnemar"]["p"] >= 0.05:
        return f"{ahead} is ahead, and the interval excludes 0, but the exact test does not confirm it: ask more questions."
    return f"{ahead} is better, by more than chance at 95 %."


def _names(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The judges' names; of one judge in two ways, what tells them apart stands beside its name."""
    if first["name"] != second["name"]:
        return [first["name"], second["name"]]
    plain = [name for name in first if first[name] != second.get(name) and isinstance(first[name], str | int | float)]
    # A digest changes with whatever is behind it and says nothing of its own.
    differ = [name for name in plain if not name.endswith("digest")] or plain
    ways = [", ".join(f"{name} {judge.get(name)}" for name in differ) for judge in (first, second)]
    if ways[0] == ways[1]:
        ways = ["first", "second"]
    return [f"{first['name']} ({way})" for way in ways]


def _tables(scores: Sequence[Score]) -> list[dict[str, Any]]:
    others = {(table.title, row.label): (table.columns, row) for table in scores[1].tables for row in table.rows}
    found = []
    for table in scores[0].tables:
        rows = []
        for row in table.rows:
            columns, match = others.get((table.title, row.label), ((), None))
            if match is not None and columns == table.columns:
                values = [_both(*figures) for figures in zip(row.figures, match.figures, strict=True)]
                rows.append({"label": row.label, "n": row.n, "values": values})
        if rows:
            found.append({"title": table.title, "columns": list(table.columns), "rows": rows})
    return found


def _both(first: Figure, second: Figure) -> dict[str, Any]:
    return {"first": plain(first), "second": plain(second), "difference": plain(second - first)}


def _items(items: Sequence[Mapping[str, Any]]) -> list[Item]:
    return [
        Item(id=item["id"], cluster=item["question_id"], subset=item["subset"], cells=item["cells"]) for item in items
    ]


def _texts(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return item["prompt"], item["responses"], item["truths"]


def _points(estimate: Mapping[str, Any]) -> str:
    text = percent(estimate)
    return f"+{text}" if (estimate["value"] or 0) > 0 else text


__all__ = ["Saved", "difference", "markdown", "verdict"]
