"""A judging task: a verdict space with the token ids that make a generator judge in it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors_egrm import ConfigError, need, need_flag
from .verdict_space_egrm import VerdictSpace


LAYOUTS = ("conversation", "embedded")


@dataclass(frozen=True)
class JudgeTask:
    """A verdict space with the token ids that make a generator judge in it."""

    space: VerdictSpace
    """Which verdicts there are."""
    layout: str
    """`conversation`: the judged conversation, then the judge's turn. `embedded`: one user turn that holds it all."""
    judge_turn_ids: tuple[int, ...]
    """What follows a tokenised conversation: the judge's turn with its rubric, up to the mode; empty if embedded."""
    short_suffix_ids: tuple[int, ...]
    """Short mode: its instruction, the end of the turn, thinking switched off, the answer cue."""
    long_suffix_ids: tuple[int, ...]
    """Long mode: its instruction, the end of the turn, the start of the assistant's."""
    verdict_token_ids: tuple[tuple[int, ...], ...]
    """Per verdict, how the tokenizer continues the short suffix with its label; empty for `free`, and where a
    callable reads verdicts."""
    probe_stop_ids: tuple[int, ...]
    """Tokens that end a probe: end of text or turn, and whitespace with a line break."""
    chain_stop_ids: tuple[int, ...]
    """Tokens that end a chain: end of text or turn."""
    thinking_opened: bool = False
    """Whether the long suffix ends inside a `<think>` block that the template opened."""
    thought_marks: tuple[tuple[str, str], ...] = ()
    """What opens and what closes a thought in the template, where `strip_thinking` does not know it by its words."""
    turn_marker: str | None = None
    """Text that starts another turn where turns have no end token (plain template); a chain is read up to it."""

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(f"A judge prompt's layout is one of {', '.join(LAYOUTS)}, got {self.layout!r}.")
        listed = self.space.num_verdicts if self.space.listed else 0
        if len(self.verdict_token_ids) != listed or not all(self.verdict_token_ids):
            raise ConfigError(
                f"Each of the {listed} verdicts needs at least one token, got {self.verdict_token_ids!r}.",
                "Build tasks with `EGRMProcessor.task`.",
            )

    def parse(self, text: str, reasoning: bool = False, complete: bool = True) -> int | None:
        """`VerdictSpace.parse` of what the generator wrote after this task's short or long suffix."""
        return self.space.parse(*self._own_turn(text, reasoning, complete))

    def parse_free(self, text: str, reasoning: bool = False, complete: bool = True) -> str | None:
        """`VerdictSpace.parse_free` of what the generator wrote after this task's short or long suffix."""
        return self.space.parse_free(*self._own_turn(text, reasoning, complete))

    def _own_turn(self, text: str, reasoning: bool, complete: bool) -> tuple[str, bool, bool]:
        if self.turn_marker is not None:
            text, marker, _ = text.partition(self.turn_marker)
            complete = complete or bool(marker)  # what another turn follows has ended
        for opening, closing in self.thought_marks:
            text = text.replace(opening, "<think>").replace(closing, "</think>")
        return f"<think>{text}" if reasoning and self.thinking_opened else text, reasoning, complete

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["space"] = self.space.to_dict()
        for name in ("verdict_token_ids", "thought_marks"):
            values[name] = [list(item) for item in values[name]]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "JudgeTask":
        """The task that `to_dict` wrote.

        Raises:
            ConfigError: A key is missing or unknown, or a value out of range.
        """
        names = {field.name for field in fields(cls)}
        missing = sorted(names - set(values) - {"thinking_opened", "thought_marks", "turn_marker"})
        unknown = sorted(set(values) - names)
        if missing or unknown:
            raise ConfigError(
                f"A judging task has the keys {', '.join(sorted(names))}; missing {missing}, unknown {unknown}.",
                "Write what `JudgeTask.to_dict` does.",
            )
        plain: dict[str, Any] = dict(values)
        need(isinstance(plain["space"], Mapping) and "kind" in plain["space"], "space", plain["space"],
             "a mapping with a `kind`, as `VerdictSpace.to_dict` writes it")  # fmt: skip
        plain["space"] = VerdictSpace.from_dict(plain["space"])
        for name in _ID_FIELDS:
            plain[name] = _ids(name, plain[name])
        verdicts = plain["verdict_token_ids"]
        need(isinstance(verdicts, list | tuple), "verdict_token_ids", verdicts, "a list of token ids for each verdict")
        plain["verdict_token_ids"] = tuple(_ids("verdict_token_ids", ids) for ids in verdicts)
        need_flag("thinking_opened", plain.get("thinking_opened", False))
        marker = plain.get("turn_marker")
        need(marker is None or isinstance(marker, str), "turn_marker", marker, "text, or None")
        marks = plain.get("thought_marks", ())
        need(isinstance(marks, list | tuple), "thought_marks", marks, "pairs of texts")
        plain["thought_marks"] = tuple(tuple(mark) for mark in marks)
        return cls(**plain)

    def check_ids(self, vocab_size: float) -> None:
        """Refuse ids that a generator does not know.

        Args:
            vocab_size: Rows of its embedding, infinite where that is not known.

        Raises:
            ConfigError: One is larger.
        """
        parts = {name: getattr(self, name) for name in _ID_FIELDS}
        parts["verdict_token_ids"] = tuple(token for ids in self.verdict_token_ids for token in ids)
        for name, ids in parts.items():
            if ids and max(ids) >= vocab_size:
                raise ConfigError(
                    f"`{name}` of the task has the token id {max(ids)}, and the generator's vocabulary ends at "
                    f"{vocab_size - 1}.",
                    "Assign the processor to `model.processor` and save the checkpoint again.",
                )

    def differences(self, other: "JudgeTask") -> dict[str, tuple[Any, Any]]:
        """Fields in which two tasks differ, with both values.

        Args:
            other: The second value of each.
        """
        names = (field.name for field in fields(self))
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        # Version 0.1 stored no marks of thoughts: then the processor's count.
        return {n: pair for n, pair in pairs.items() if pair[0] != pair[1] and (n != "thought_marks" or all(pair))}


_ID_FIELDS = ("judge_turn_ids", "short_suffix_ids", "long_suffix_ids", "probe_stop_ids", "chain_stop_ids")


def _ids(name: str, values: object) -> tuple[int, ...]:
    listed = isinstance(values, list | tuple)
    whole = listed and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)
    need(whole, name, values, "a list of token ids")
    return tuple(values)  # pyright: ignore[reportArgumentType] (a list or tuple, see above)


__all__ = ["JudgeTask"]
