"""What a run did, counted row by row: the table at its end and the JSON file of `--summary`."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table


_BINS = 10
_BAR_CHARS = 24
# Free answers are as many as the records; memory must not grow with them.
_VERDICT_KINDS = 64
# A few records may agree by accident; a warning about a collapse needs more.
_COLLAPSE_RECORDS = 20


@dataclass
class Tally:
    """Running counts of one run; its size does not depend on the number of rows."""

    judge: str = "The judge"
    """What judged, by name."""
    route_is_chosen: bool = True
    """Whether consensus decides the route; False where one path was asked for."""
    records: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    consensus_bins: list[int] = field(default_factory=lambda: [0] * _BINS)
    """Judgements with a consensus in (i / 10, (i + 1) / 10]; the first bin holds 0 too."""
    reward_sum: float = 0.0
    tokens: int = 0
    draft_rounds: int = 0
    draft_tokens: int = 0
    draft_kept: Counter[int] = field(default_factory=Counter)
    """Place in a draft -> passes that wrote its token."""
    truncated: int = 0
    unfamiliar: int = 0
    """Judgements of text from another world than the judge's."""
    stages: Counter[str] = field(default_factory=Counter)
    """Judgements by what answered them."""
    audits: Counter[str] = field(default_factory=Counter)
    """Audited judgements: `agree`, `disagree`, or `no_verdict` where the audit ended without one."""
    padded_share: float | None = None
    """Share of padding in the prompt tokens that this run ran, without those of a run it goes on from; None: unknown."""

    def add(self, judgements: Iterator[Mapping[str, Any]]) -> None:
        """Count one record.

        Args:
            judgements: Its judgements as rows of `JudgeResult.to_dict`: one, or one per candidate of a ranking.
        """
        self.records += 1
        for row in judgements:
            self.statuses[row["status"]] += 1
            self.tokens += row["tokens"]
            self.draft_rounds += row.get("draft_rounds", 0)
            self.draft_tokens += row.get("draft_tokens", 0)
            self.draft_kept.update(dict(enumerate(row.get("draft_kept", ()))))
            self.truncated += bool(row["truncated"])
            self.unfamiliar += bool(row.get("unfamiliar"))
            if row.get("stage") is not None:  # rows of an earlier version do not say it
                self.stages[row["stage"]] += 1
            if row.get("audited"):
                said = row["audit_verdict"]
                self.audits["no_verdict" if said is None else "agree" if said == row["verdict"] else "disagree"] += 1
            # One that ran out of time took no route to its end: its share would ask for another tau.
            if row["route"] is not None and row["status"] != "timeout":
                self.routes[row["route"]] += 1
            if row["consensus"] is not None:
                # float32 shares such as 0.6000000238 belong to the bin they close.
                above = math.ceil(row["consensus"] * _BINS - 1e-3) - 1
                self.consensus_bins[min(max(above, 0), _BINS - 1)] += 1
            if row["status"] == "ok":
                verdict = str(row["verdict"])
                known = verdict in self.verdicts or len(self.verdicts) < _VERDICT_KINDS
                self.verdicts[verdict if known else "(others)"] += 1
                self.reward_sum += row["reward"] or 0.0

    @property
    def judgements(self) -> int:
        """Judgements asked for: records, or candidates of a ranking."""
        return sum(self.statuses.values())

    @property
    def short_share(self) -> float | None:
        """Share of the routed judgements that took the short path; None if none was routed."""
        routed = sum(self.routes.values())
        return self.routes["short"] / routed if routed else None

    def warnings(self) -> list[str]:
        """What looks wrong with the run as a whole."""
        ok, routed = self.statuses["ok"], sum(self.routes.values())
        told = self.route_is_chosen and routed >= _COLLAPSE_RECORDS  # fewer may agree by accident
        one_verdict = ok >= _COLLAPSE_RECORDS and len(self.verdicts) == 1
        verdict = next(iter(self.verdicts), None)
        found = []
        if told and self.short_share == 0:
            found.append("0 % of the judgements took the short path: every one paid for chains. "
                         "Lower --tau, or check that the short verdicts parse.")  # fmt: skip
        if told and self.short_share == 1 and one_verdict:
            found.append(f"{self.judge} has collapsed: all {ok} judgements took the short path with the verdict "
                         f"{verdict!r}. Its consensus says nothing, and neither do its rewards: train it, or use "
                         "another one.")  # fmt: skip
        elif told and self.short_share == 1:
            found.append("100 % of the judgements took the short path: no chain was ever asked for. "
                         "Raise --tau, or check that the probes do not agree for lack of temperature.")  # fmt: skip
        elif one_verdict:
            found.append(f"All {ok} verdicts are {verdict!r}: such a judge tells nothing.")
        if self.unfamiliar:
            found.append(f"{self.unfamiliar} of {self.judgements} texts are unlike anything that {self.judge} was trained on "
                         "(`unfamiliar` of the output): its rewards for them mean nothing, however sure they look. Judge "
                         "them with a model that was trained on text of their kind.")  # fmt: skip
        if late := self.statuses["timeout"]:
            found.append(f"{late} of {self.judgements} judgements ran out of time: raise --timeout and pass "
                         "--retry-failed.")  # fmt: skip
        if self.judgements and not ok:
            found.append("No record has a reward: see `status` and `error` of the output.")
        return found

    def to_dict(self, seconds: float) -> dict[str, Any]:
        """The summary as plain data."""
        ok = self.statuses["ok"]
        return {
            "records": self.records,
            "judgements": self.judgements,
            "statuses": dict(sorted(self.statuses.items())),
            "routes": dict(sorted(self.routes.items())),
            "short_share": self.short_share,
            "verdicts": dict(self.verdicts.most_common()),
            "consensus_histogram": [
                {"above": low / _BINS, "up_to": high / _BINS, "count": count}
                for (low, high), count in zip(pairwise(range(_BINS + 1)), self.consensus_bins, strict=True)
            ],
            "mean_reward": self.reward_sum / ok if ok else None,
            "tokens": self.tokens,
            "padded_share": None if self.padded_share is None else round(self.padded_share, 4),
            "block_efficiency": self.draft_tokens / self.draft_rounds if self.draft_rounds else None,
            "acceptance_by_position": [
                round(self.draft_kept[place] / self.draft_rounds, 4) for place in sorted(self.draft_kept)
            ],
            "truncated": self.truncated,
            "unfamiliar": self.unfamiliar,
            "stages": dict(sorted(self.stages.items())),
            "audits": dict(sorted(self.audits.items())),
            "seconds": round(seconds, 3),
            "records_per_s": round(self.records / seconds, 3) if seconds > 0 else None,
            "warnings": self.warnings(),
        }


def print_summary(summary: Mapping[str, Any], title: str) -> None:
    """Print a summary as a table, and its warnings, to stderr."""
    console = message_console()
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    judgements, routes = summary["judgements"], summary["routes"]
    table.add_row("records", f"{summary['records']:,}")
    if judgements != summary["records"]:
        table.add_row("judgements", f"{judgements:,}")
    table.add_row("statuses", _shares(summary["statuses"]))
    table.add_row("route", _shares(routes) or "none was routed")
    table.add_row("consensus", _histogram(summary["consensus_histogram"]))
    table.add_row("verdicts", _shares(summary["verdicts"], most=12) or "none")
    if summary["mean_reward"] is not None:
        table.add_row("mean reward", f"{summary['mean_reward']:.4g}")
    table.add_row("new tokens", f"{summary['tokens']:,} ({summary['tokens'] / max(judgements, 1):.1f} per judgement)")
    if summary.get("padded_share") is not None:  # a receipt of an earlier version has none
        table.add_row("padding", f"{100 * summary['padded_share']:.1f} % of the prompt tokens run")
    if summary["block_efficiency"] is not None:
        table.add_row("drafted chains", f"{summary['block_efficiency']:.2f} tokens per pass of the generator")
        shares = ", ".join(f"{100 * share:.0f} %" for share in summary["acceptance_by_position"])
        table.add_row("", f"accepted by position: {shares}")
    if "cache" in summary.get("stages", ()):
        table.add_row("answered by", _shares(summary["stages"]))
    if summary.get("audits"):  # a receipt of an earlier version has none
        table.add_row("audits", _shares(summary["audits"]))
    if summary["truncated"]:
        table.add_row("truncated", f"{summary['truncated']:,}")
    speed = "" if summary["records_per_s"] is None else f" ({summary['records_per_s']:.3g} records/s)"
    table.add_row("seconds", f"{summary['seconds']:.1f}{speed}")
    console.print(table)
    for warning in summary["warnings"]:
        console.print(f"Warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def message_console() -> Console:
    """Where messages go: stderr, so that rows on stdout stay clean."""
    return Console(file=sys.stderr, highlight=False)


def _shares(counts: Mapping[str, int], most: int | None = None) -> str:
    total = sum(counts.values())
    parts = [f"{name} {count:,} ({100 * count / total:.1f} %)" for name, count in list(counts.items())[:most]]
    return ", ".join(parts) + (", ..." if most is not None and len(counts) > most else "")


def _histogram(bins: list[Mapping[str, Any]]) -> str:
    highest = max(found["count"] for found in bins)
    if not highest:
        return "none was read"
    lines = [
        f"{found['above']:.1f} - {found['up_to']:.1f} {'█' * round(_BAR_CHARS * found['count'] / highest):<{_BAR_CHARS}} "
        f"{found['count']:,}"
        for found in bins
    ]
    filled = [index for index, found in enumerate(bins) if found["count"]]
    return "\n".join(lines[filled[0] : filled[-1] + 1])


__all__ = ["Tally", "message_console", "print_summary"]
