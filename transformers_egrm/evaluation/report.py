"""A run's results as files: one JSON with where everything comes from, a line for each question, and Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers_egrm.data import files
from transformers_egrm.data.writers import cannot_write, write_rows
from transformers_egrm.evaluation.figures import plain, summary
from transformers_egrm.evaluation.judges import Judge
from transformers_egrm.evaluation.provenance import environment
from transformers_egrm.evaluation.runner import ITEMS, Run, item_rows, run_rivals
from transformers_egrm.evaluation.scoring import Table
from transformers_egrm.modeling.errors_egrm import DataError


FORMAT = 1
RESULTS, REPORT = "results.json", "report.md"


def results_of(run: Run, rivals: Iterable[Judge] = (), command: str | None = None) -> dict[str, Any]:
    """Everything that a run found, as plain data; shares are in [0, 1].

    Args:
        run: The run.
        rivals: Judges to compare with.
        command: The command that made it.
    """
    score = run.benchmark.score(run.sample())
    figures = summary(run.judged, run.cells, run.settings.seed, run.settings.resamples)
    figures["cost"] |= {"seconds": run.seconds, "seconds_per_question": run.seconds / len(run.judged)}
    return {
        "egrm_bench": FORMAT,
        "benchmark": {
            "name": run.benchmark.name,
            "title": run.benchmark.title,
            "source": run.benchmark.source,
            "rule": run.benchmark.rule,
        },
        "judge": run.judge,
        "headline": {"name": score.headline} | plain(score.value),
        "notes": [*score.notes, *_notes(run, figures)],
        "tables": [_table(table) for table in score.tables],
        "figures": figures,
        "rivals": run_rivals(run, rivals),
        "data": run.data,
        "settings": asdict(run.settings),
        "provenance": environment() | {"command": command},
    }


def write_run(run: Run, results: Mapping[str, Any], folder: str | Path) -> None:
    """Write `items.jsonl`, `results.json` and `report.md`.

    Raises:
        DataError: The folder cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(lambda: item_rows(run), str(folder / ITEMS), {})
    write_text(folder / RESULTS, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / REPORT, markdown(results))


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole; half of a surrogate pair leaves as an escape.

    Raises:
        DataError: It cannot be written.
    """
    try:
        files.write_text(path, text.encode("utf-8", "backslashreplace").decode())
    except OSError as error:
        raise cannot_write(path, error) from error


def read_run(folder: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The results and the items of a finished run.

    Raises:
        DataError: The folder holds none.
    """
    folder = Path(folder)
    try:
        results = json.loads((folder / RESULTS).read_text("utf-8"))
        with (folder / ITEMS).open("rb") as stream:  # a text may hold line ends that only `splitlines` knows
            items = [json.loads(line) for line in stream]
    except (OSError, ValueError) as error:
        raise DataError(f"A run is a folder with {RESULTS} and {ITEMS}, but {folder}: {error}.",
                        "Make one with `egrm bench NAME ... -o FOLDER`.") from error  # fmt: skip
    version = results.get("egrm_bench") if isinstance(results, dict) else None
    if version != FORMAT or not all(isinstance(item, dict) for item in items):
        raise DataError(f"{folder / RESULTS} must be results of format {FORMAT}, got {version!r}.")
    return results, items


# -- Markdown -----------------------------------------------------------------------------------------------------------


def markdown(results: Mapping[str, Any]) -> str:
    """The report as Markdown; shares in percent with their 95 % intervals."""
    benchmark, headline = results["benchmark"], results["headline"]
    parts = [
        f"# {benchmark['title']}: {results['judge']['name']}",
        f"**{headline['name']}: {percent(headline)}**, over {results['data']['questions']} questions.",
        *(f"Note: {note}" for note in results["notes"]),
        *map(_markdown_table, results["tables"]),
        _rivals(results),
        _outcomes(results["figures"]),
        _leanings(results["figures"]),
        _cost(results["figures"]["cost"]),
        _origin(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def percent(estimate: Mapping[str, Any] | None, digits: int = 2) -> str:
    """An estimate in percent with its interval, such as `58.31 [55.10, 61.40]`; `-` where there is none."""
    if not estimate or estimate.get("value") is None:
        return "-"
    value = f"{100 * estimate['value']:.{digits}f}"
    if estimate.get("low") is None:
        return value
    return f"{value} [{100 * estimate['low']:.{digits}f}, {100 * estimate['high']:.{digits}f}]"


def lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    body = ([" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows)
    table = [list(header), ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [
            {"label": row.label, "n": row.n, "values": [plain(figure) for figure in row.figures]} for row in table.rows
        ],
    }


def _markdown_table(table: Mapping[str, Any]) -> str:
    rows = ([row["label"], row["n"], *map(percent, row["values"])] for row in table["rows"])
    return f"## {table['title']}\n\n" + lines(["", "n", *table["columns"]], rows)


def _rivals(results: Mapping[str, Any]) -> str:
    if not results["rivals"]:
        return ""
    rows = []
    for rival in results["rivals"]:
        if "reason" in rival:
            rows.append([rival["name"], "not applicable", rival["reason"]])
        else:
            rows.append([rival["name"], percent(rival["headline"]), percent(rival["ahead"])])
    table = lines(["rival", results["headline"]["name"], "ahead of the judge, points"], rows)
    return f"## Rivals\n\n{beaten_by(results)}\n\n{table}"


def beaten_by(results: Mapping[str, Any]) -> str:
    """A sentence that says which rivals are ahead of the judge, and whether by more than chance."""
    ahead = [rival for rival in results["rivals"] if "ahead" in rival and (rival["ahead"]["value"] or 0) > 0]
    if not ahead:
        return "No rival is ahead of this judge."
    words = [
        f"{rival['name']} ({'surely' if (rival['ahead']['low'] or 0) > 0 else 'within chance'})" for rival in ahead
    ]
    return f"**Beaten by: {', '.join(words)}.** Surely: the interval of the difference lies above 0."


def _outcomes(figures: Mapping[str, Any]) -> str:
    outcomes, statuses = figures["outcomes"], figures["statuses"]
    rows = [
        ["comparisons", figures["comparisons"], ""],
        *([name, count, _share(count, figures["comparisons"])] for name, count in outcomes.items()),
        ["right, of the decided", figures["right_of_decided"]["n"], percent(figures["right_of_decided"])],
        *(
            [f"asks that ended `{name}`", count, _share(count, sum(statuses.values()))]
            for name, count in statuses.items()
        ),
        ["asks with a truncated prompt", figures["truncated"], _share(figures["truncated"], sum(statuses.values()))],
    ]
    text = "Ties and failed verdicts are counted here, and nowhere as half right."
    return f"## What happened\n\n{text}\n\n" + lines(["", "count", "%"], rows)


def _leanings(figures: Mapping[str, Any]) -> str:
    sure, length = figures["sureness"], figures["length"]
    candidates = [
        ("orders that disagree (position)", figures["position_flips"]),
        ("prefers the longer answer", length["prefers_longer"]),
        ("right where the better answer is longer", length["right_where_better_is_longer"]),
        ("right where the worse answer is longer", length["right_where_worse_is_longer"]),
        ("right at equal length (within 10 %)", length["right_at_equal_length"]),
        *((f"right on route {name}", figure) for name, figure in figures["right_by_route"].items()),
        ("AUROC of consensus for right", sure.get("auroc")),
        ("sure, of the wrong", sure.get("false_sure")),
        ("not sure, of the right", sure.get("false_unsure")),
    ]
    rows = [
        [name, figure.get("n", ""), percent(figure)]
        for name, figure in candidates
        if figure and figure.get("value") is not None
    ]
    text = [f"## What it leans on\n\n{lines(['', 'n', '%'], rows)}"] if rows else []
    if routes := figures["routes"]:
        text.append(
            f"Short path: {100 * routes['short_share']:.1f} % of {routes.get('short', 0) + routes.get('long', 0)} asks."
        )
    if verdicts := list(figures["verdicts"].items())[:12]:
        text.append("Verdicts: " + ", ".join(f"{_clip(name)} ({count})" for name, count in verdicts) + ".")
    if figures["rewards"]:
        text.append("Rewards: " + ", ".join(f"{name} {value:.4g}" for name, value in figures["rewards"].items()) + ".")
    return "\n\n".join(text)


def _cost(cost: Mapping[str, Any]) -> str:
    rows = [
        ["asks", cost["asks"], ""],
        ["new tokens", cost["new_tokens"], f"{cost['new_tokens_per_question']:.1f}"],
        *(
            [["operations", f"{cost['flops']:.3g}", f"{cost['flops_per_question']:.3g}"]]
            if cost["flops"] is not None
            else []
        ),
        ["seconds", f"{cost['seconds']:.1f}", f"{cost['seconds_per_question']:.3f}"],
    ]
    return "## Cost\n\n" + lines(["", "all", "per question"], rows)


def _origin(results: Mapping[str, Any]) -> str:
    benchmark, data, provenance = results["benchmark"], results["data"], results["provenance"]
    coverage = [
        [part["part"], part["judged"], part["read"], "-" if part["official"] is None else part["official"]]
        for part in data["coverage"]
    ]
    libraries = ", ".join(f"{name} {version}" for name, version in provenance["libraries"].items())
    judge = {name: value for name, value in results["judge"].items() if value is not None}
    text = [
        "## Where it comes from",
        f"Data: {benchmark['source']}. Digest of the questions: `{data['digest']}`.",
        lines(["part", "judged", "read", "official"], coverage),
        f"Rule: {benchmark['rule']}",
        f"Settings: `{json.dumps(results['settings'])}`. Code: `{provenance['code_digest']}`. {libraries}.",
        "Judge:\n\n```json\n" + json.dumps(judge, indent=2, ensure_ascii=False) + "\n```",
    ]
    if provenance["command"]:
        text.append(f"Command:\n\n```bash\n{provenance['command']}\n```")
    return "\n\n".join(text)


def _notes(run: Run, figures: Mapping[str, Any]) -> list[str]:
    notes = []
    judged, read = len(run.judged), sum(part["read"] for part in run.data["coverage"])
    if judged < read:
        notes.append(f"A sample: {judged} of the {read} questions that were read.")
    other = [
        f"{part['part']} ({part['read']} instead of {part['official']})"
        for part in run.data["coverage"]
        if part["official"] is not None and part["read"] not in (0, part["official"])
    ]
    if other:
        notes.append(f"The number of questions is not the official one: {', '.join(other)}.")
    if figures["truncated"]:
        notes.append(f"{figures['truncated']} prompts were truncated.")
    share = figures["routes"].get("short_share")
    if share in (0, 1) and figures["cost"]["asks"] >= 20:
        notes.append(f"Every ask took the {'short' if share else 'long'} path: the routing decides nothing here.")
    return notes


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.2f}" if total else "-"


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 24 else f"{text[:21]}..."


__all__ = [
    "REPORT",
    "RESULTS",
    "beaten_by",
    "lines",
    "markdown",
    "percent",
    "read_run",
    "results_of",
    "write_run",
    "write_text",
]
