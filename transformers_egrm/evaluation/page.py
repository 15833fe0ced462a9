"""Runs as one HTML page that needs nothing else: the tables, charts, and every item with how it was judged.

The page carries its data as JSON and draws itself: `page.html` is its frame, `page.css` its looks, `page.js` what it does.
It loads no file and reaches no network. Its content policy forbids both, and any style or script but these two, which it
names by their digests. Texts from the data become text nodes, never markup. `#run=0&filter=wrong,long&item=ID` in its
address opens it at an item.

An item's `details` are shown as they are, but for three names: `probes`, a list of `{"name", "distribution": {verdict:
share}}`, drawn as bars; `candidates`, a list of `{"verdict", "score", "text", "kind", "chosen"}`; and `rationale`, a text.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers_egrm.data.records import read_records
from transformers_egrm.evaluation.accounts import details_of
from transformers_egrm.evaluation.report import beaten_by, read_run
from transformers_egrm.modeling.errors_egrm import DataError


_FOLDER = Path(__file__).parent
_TEXTS, _NUMBERS, _OTHERS = (
    ("verdict", "status", "route", "error"),
    ("reward", "consensus", "tokens"),
    ("truncated", "account"),
)


def render(runs: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]) -> str:
    """The page of some runs.

    Args:
        runs: Results and items of each, as `report.read_run` or `read_scores` give them.
    """
    data = [
        {
            **results,
            "beaten": beaten_by(results).replace("**", "") if results["rivals"] else "",
            "items": [{**item, **outcome_of(item)} for item in items],
        }
        for results, items in runs
    ]
    style, script = ((_FOLDER / name).read_text("utf-8") for name in ("page.css", "page.js"))
    parts = {
        "TITLE": "Judges on benchmarks" if any(results["headline"] for results, _ in runs) else "Why these rewards",
        "STYLE": style,
        "STYLE_HASH": _policy_hash(style),
        "SCRIPT": script,
        "SCRIPT_HASH": _policy_hash(script),
        # ASCII alone, and no tag: whatever a text holds, it cannot end the element that carries it.
        "DATA": json.dumps(_finite(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    # One pass over the frame: a text that looks like a place in it stays a text.
    frame = (_FOLDER / "page.html").read_text("utf-8")
    return re.sub(r"\{\{([A-Z_]+)\}\}", lambda place: parts[place[1]], frame)


def _policy_hash(text: str) -> str:
    # As a content policy names an element that may be used: the page may use no other.
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _finite(value: Any) -> Any:
    # JSON as browsers read it has no NaN, which Python's writes.
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_any(place: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run's folder, or a file of results that `egrm score` or `egrm compare` wrote.

    Raises:
        DataError: It is neither.
    """
    return read_run(place) if Path(place).is_dir() else read_scores(place)


def read_scores(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The rows of `egrm score` or `egrm compare` as items without a truth.

    Args:
        path: The output file; with `--keep prompt --keep response` it holds the texts too.

    Raises:
        DataError: The file cannot be read, or its rows are no results.
    """
    items = []
    for record in read_records(str(path)):
        row = record.values or {}
        if "status" not in row or "reward" not in row:
            raise DataError(f"Record {record.number} of {path} must be a result with `reward` and `status`, it has "
                            f"{', '.join(row) or 'no field'}.", "Name a run's folder, or the output of `egrm score`.")  # fmt: skip
        said = _said(row, f"Record {record.number} of {path}")
        texts = [row[name] for name in ("response", "response_a", "response_b") if isinstance(row.get(name), str)]
        account = said.pop("account", None)
        details = {} if account is None else details_of(account)
        details |= {"rationale": row["rationale"]} if row.get("rationale") else {}
        ask = said | ({} if account is None else {"flops": account["flops"]})
        items.append({
            "id": str(row.get("id") or record.number), "question_id": str(record.number), "subset": "all", "cells": {},
            "prompt": row["prompt"] if isinstance(row.get("prompt"), str | list) else "", "responses": texts, "truths": [],
            "pairs": [], "answer": None,
            "asks": [ask | {"shown": list(range(len(texts)))} | ({"details": details} if details else {})],
        })  # fmt: skip
    if not items:
        raise DataError(f"{path} holds no result.")
    results = {
        "benchmark": {"name": "scores", "title": "Scores", "source": str(path), "rule": ""}, "judge": {"name": Path(path).name},
        "headline": None, "notes": [], "tables": [], "figures": None, "rivals": [], "data": {"questions": len(items)},
        "settings": {}, "provenance": {},
    }  # fmt: skip
    return results, items


def _said(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    """What a result says, without what is absent.

    CSV holds every value as text, Parquet those that are no column's type, such as the account.
    """
    said = {}
    for name in (*_TEXTS, *_NUMBERS, *_OTHERS):
        value = row.get(name)
        if name not in _TEXTS and isinstance(value, str) and value:
            try:
                value = json.loads(value)
            except ValueError:
                raise DataError(f"{place}: `{name}` must be as `egrm score` writes it, got {value[:40]!r}.") from None
        if value not in (None, "") and value is not False:  # a reward of 0 equals False, and is one
            said[name] = value
    wrong = [
        name
        for name in _NUMBERS
        if isinstance(said.get(name, 0), bool) or not isinstance(said.get(name, 0), int | float)
    ]
    if wrong or not isinstance(said.get("account", {}), Mapping):
        name = wrong[0] if wrong else "account"
        raise DataError(f"{place}: `{name}` must be {'a number' if wrong else 'an object'}, got {said[name]!r}.")
    return said


def outcome_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Whether an item as a whole was right, wrong, a tie or failed, and whether the order changed a verdict.

    An item with several comparisons is right where all are, failed where one has no verdict, and else wrong where one
    is. One without a truth has no outcome.
    """
    asks = item["asks"]
    failed = any(ask.get("reward") is None and ask.get("verdict") is None for ask in asks)
    seen: dict[tuple[int, ...], set[float]] = {}
    for ask in asks:
        if len(ask["shown"]) == 2 and ask.get("reward") is not None:
            first = min(ask["shown"])
            seen.setdefault(tuple(sorted(ask["shown"])), set()).add(
                ask["reward"] if ask["shown"][0] == first else 1 - ask["reward"]
            )
    seen |= {
        (number,): set(ask["order_rewards"]) - {None} for number, ask in enumerate(asks) if ask.get("order_rewards")
    }
    flipped = any(len({(reward > 0.5) - (reward < 0.5) for reward in rewards}) > 1 for rewards in seen.values())
    if failed:
        return {"outcome": "failed", "flipped": flipped}
    if "right" not in item["cells"]:
        return {"outcome": None, "flipped": flipped}
    if item["cells"]["right"] == 1:
        return {"outcome": "right", "flipped": flipped}
    return {"outcome": "tie" if _tied(item) else "wrong", "flipped": flipped}


def _tied(item: Mapping[str, Any]) -> bool:
    """Whether nothing was judged the wrong way round, though not all was right."""
    if not item["pairs"]:
        return False
    balance: dict[tuple[int, int], float] = {}
    alone = {ask["shown"][0]: ask["reward"] for ask in item["asks"] if len(ask["shown"]) == 1}
    for better, worse in item["pairs"]:
        if alone:
            balance[better, worse] = alone[better] - alone[worse]
        for ask in item["asks"]:
            if sorted(ask["shown"]) == sorted((better, worse)):
                towards = (ask["reward"] > 0.5) - (ask["reward"] < 0.5)
                towards = towards if ask["shown"][0] == better else -towards
                balance[better, worse] = balance.get((better, worse), 0) + towards
    return all(value >= 0 for value in balance.values())


__all__ = ["outcome_of", "read_any", "read_scores", "render"]
