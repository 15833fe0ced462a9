"""The report of a calibration, in Markdown."""

from typing import Any

from transformers_egrm.calibration.certificate import BREAKS, Source, covers, group_lines
from transformers_egrm.calibration.fitting import Calibration
from transformers_egrm.calibration.thresholds import Choice


def outcome(choice: Choice) -> str:
    """What was found, in a sentence or two.

    Args:
        choice: The threshold of an aim.
    """
    aim, tau = choice.aim, choice.threshold
    if choice.promised:
        return (
            f"Promise: {aim.sentence(choice.delta)}. Threshold {tau:g}; {choice.short_share:.1%} of the tested answers take "
            f"the short path."
        )
    if not aim.promises:
        return (
            f"Asked for: {aim.sentence(choice.delta)}. Found: threshold {tau:g}, at which {choice.short_share:.1%} of these "
            f"answers take the short path."
        )
    needed = "" if choice.labels_needed is None else f" About {choice.labels_needed:,} labelled questions would do."
    return (
        f"Nothing can be promised, and everything takes the long path. The labels do not show that "
        f"{aim.sentence(choice.delta)}. Reason: {choice.reason}.{needed}"
    )


def render(found: Calibration, *, judge: str, source: Source, right: str, picture: str | None = None) -> str:
    """The report.

    Args:
        found: What the labels allow.
        judge: What the judge is called.
        source: Where the labels come from.
        right: In words, what counts as right.
        picture: The reliability diagram's file, relative to the report.
    """
    data, choice = found.data, found.choice
    lines = [
        f"# Calibration of {judge}", "", f"**{outcome(choice)}**", "",
        f"{data.num_questions:,} questions with {len(data):,} answers of {source.name} (data `{source.digest}`). A verdict is "
        f"right where {right}. Short verdicts are right in {_share(data, data.short_right)}, those of the long path in "
        f"{_share(data, data.long_right)}; questions count alike.", "",
        *(f"- Note: {text}" for text in found.warnings), *([""] if found.warnings else []),
    ]  # fmt: skip
    if found.by_chance is not None:
        lines += [
            f"Probes that draw their verdicts without looking would agree this much in {found.by_chance:.1%} of cases.",
            "",
        ]
    if choice.steps:
        lines += ["## What was tested", "", *_steps(choice), ""]
    if choice.promised:
        lines += ["## What the promise covers", "", *(f"- {text}" for text in covers(data, source.name)), "",
                  "## What breaks it", "", *(f"- {text}" for text in BREAKS), ""]  # fmt: skip
    if found.groups:
        lines += ["## By group", "", "Their promises hold together, with the whole delta shared between them.", "",
                  *group_lines(found.groups), ""]  # fmt: skip
    lines += ["## Reliability", "", "On questions that fitted nothing.", "", *_figures(found.figures), ""]
    lines += [f"![Reliability diagram]({picture})", ""] if picture else []
    return "\n".join(lines)


def _steps(choice: Choice) -> list[str]:
    rows = [
        f"| {step.threshold:g} | {step.short_share:.1%} | {'none' if step.observed is None else format(step.observed, '.4f')} "
        f"| {step.p_value:.2g} |"
        for step in choice.steps
    ]
    told = f"On {choice.tested_questions:,} questions that chose nothing, in this order, until one failed (p > {choice.delta:g})."
    return [told, "", f"| threshold | short share | {choice.aim.kind} | p |", "|---|---|---|---|", *rows]


def _figures(rows: list[dict[str, Any]]) -> list[str]:
    shown = [
        f"| {row['signal']} | {row['method']} | {row['items']:,} | {row['ece']:.4f} | {row['ece_debiased']:.4f} | "
        f"{row['brier']:.4f} | {'none' if row['auroc'] is None else format(row['auroc'], '.4f')} |"
        for row in rows
    ]
    head = ["| signal | calibrated | items | ECE | ECE, debiased | Brier | AUROC |", "|---|---|---|---|---|---|---|"]
    return [*head, *shown]


def _share(data: Any, right: Any) -> str:
    return f"{float(data.per_question(right).mean()):.1%}"


__all__ = ["outcome", "render"]
