"""The certificate: what was found, what it covers and what breaks it, as data that travels with the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from transformers_egrm.calibration.records import Labelled
from transformers_egrm.calibration.thresholds import Choice
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_certificate_egrm import bind


BREAKS = (
    "the weights, their number format or the generator's adapter change",
    "another verdict space, rubric, prompt, ladder, kind of consensus or threshold is used, or a record brings a rubric of "
    "its own",
    "questions or answers come from another source than the labelled ones: a promise says nothing about data that drift",
    "the threshold is chosen anew on the same labels",
)
"""What ends every promise; the first two are noticed when the checkpoint judges, but for a rubric of pairs, lists and open
answers, which stands among the judged text."""
TESTS = {
    "exact": "fixed sequence of exact binomial tests on one answer of each question",
    "betting": "fixed sequence of betting tests on every answer",
}
"""How the threshold was tested."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where labelled data come from."""

    name: str
    digest: str
    """Of everything that was read, see `provenance.questions_digest`."""


def certify(model: Any, choice: Choice, data: Labelled, source: Source, options: dict[str, Any] | None = None) -> None:
    """Set a checkpoint's threshold, and store what was promised of it.

    Without a promise the checkpoint has no certificate; its threshold is then the estimate's, or never short.

    Args:
        model: The judge; its configuration changes.
        choice: What was found.
        data: What it was found on.
        source: Where the labels come from.
        options: Judging options that the items were judged with where they are not the checkpoint's; they become its own.

    Raises:
        ConfigError: An option belongs to a call and cannot become the checkpoint's.
    """
    model.config.set_judging(**(options or {}) | {"consensus_threshold": choice.threshold})
    model.config.certificate = certificate_of(model, choice, data, source) if choice.promised else None


def certificate_of(model: Any, choice: Choice, data: Labelled, source: Source) -> dict[str, Any]:
    """A certificate as plain data; its keys are `judge_certificate_egrm.KEYS`.

    Args:
        model: The judge, with the threshold and the options that are certified as its own.
        choice: With a promise.
        data: What it was found on.
        source: Where the labels come from.

    Raises:
        ConfigError: Nothing was promised.
    """
    if not choice.promised:
        raise ConfigError(f"There is nothing to certify: {choice.reason or 'the aim is an estimate'}.")
    aim = choice.aim
    sentence = aim.sentence(choice.delta)
    return {
        "promise": sentence[0].upper() + sentence[1:],
        "aim": aim.kind,
        "level": aim.level,
        "delta": choice.delta,
        "threshold": choice.threshold,
        "questions": choice.questions,
        "tested_questions": choice.tested_questions,
        "items": choice.items,
        "test": TESTS[choice.test],
        "p_value": choice.p_value,
        "short_share": choice.short_share,
        "observed": choice.observed,
        "data": source.digest,
        "date": datetime.now(UTC).date().isoformat(),
        "covers": covers(data, source.name),
        "breaks": list(BREAKS),
    } | bind(model, model.config.judge_options(), chains=aim.kind != "risk")


def covers(data: Labelled, source: str) -> list[str]:
    """What a promise covers, a sentence each.

    Args:
        data: The labelled items.
        source: What they are called.
    """
    domains = sorted({item.domain for item in data.items})
    shown = ", ".join(domains[:8]) + (f" and {len(domains) - 8} more" if len(domains) > 8 else "")
    return [
        f"questions drawn as those of {source} were ({shown}), each with its answers; every question counts alike",
        "the share over all of them together, not any one answer or any part of them",
    ]


def group_lines(choices: Sequence[Choice]) -> list[str]:
    """Thresholds by group as a table in Markdown.

    Args:
        choices: One for each group.
    """
    rows = [
        f"| {one.group} | {one.threshold:g} | {one.short_share:.1%} | {'yes' if one.promised else f'no: {one.reason}'} |"
        for one in choices
    ]
    return ["| group | threshold | short share, of all | promised |", "|---|---|---|---|", *rows]


__all__ = ["BREAKS", "Source", "certificate_of", "certify", "covers", "group_lines"]
