"""A judging task: a verdict space with the token ids that make a generator judge in it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors_egrm import ConfigError
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
    """Per verdict, how the tokenizer continues the short suffix with its label; empty for `free`."""
    probe_stop_ids: tuple[int, ...]
    """Tokens that end a probe: end of text or turn, and whitespace with a line break."""
    chain_stop_ids: tuple[int, ...]
    """Tokens that end a chain: end of text or turn."""
    thinking_opened: bool = False
    """Whether the long suffix ends inside a `<think>` block that the template opened."""
    turn_marker: str | None = None
    """Text that starts another turn where turns have no end token (plain template); a chain is read up to it."""

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(f"A judge prompt's layout is one of {', '.join(LAYOUTS)}, got {self.layout!r}.")
        if len(self.verdict_token_ids) != self.space.num_verdicts or not all(self.verdict_token_ids):
            raise ConfigError(
                f"Each of the {self.space.num_verdicts} verdicts needs at least one token, "
                f"got {self.verdict_token_ids!r}.",
                "Build tasks with `EGRMProcessor.task`.",
            )

    def parse(self, text: str, reasoning: bool = False) -> int | None:
        """`VerdictSpace.parse` of what the generator wrote after this task's short or long suffix."""
        return self.space.parse(self._own_turn(text, reasoning), reasoning)

    def parse_free(self, text: str, reasoning: bool = False) -> str | None:
        """`VerdictSpace.parse_free` of what the generator wrote after this task's short or long suffix."""
        return self.space.parse_free(self._own_turn(text, reasoning), reasoning)

    def _own_turn(self, text: str, reasoning: bool) -> str:
        if self.turn_marker is not None:
            text = text.partition(self.turn_marker)[0]
        return f"<think>{text}" if reasoning and self.thinking_opened else text

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["space"] = self.space.to_dict()
        values["verdict_token_ids"] = [list(ids) for ids in self.verdict_token_ids]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "JudgeTask":
        """The task that `to_dict` wrote.

        Raises:
            ConfigError: A key is missing or unknown, or a value out of range.
        """
        names = {field.name for field in fields(cls)}
        missing = sorted(names - set(values) - {"thinking_opened", "turn_marker"})
        unknown = sorted(set(values) - names)
        if missing or unknown:
            raise ConfigError(
                f"A judging task has the keys {', '.join(sorted(names))}; missing {missing}, unknown {unknown}.",
                "Write what `JudgeTask.to_dict` does.",
            )
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list | tuple) else value for name, value in values.items()
        }
        plain["space"] = VerdictSpace.from_dict(values["space"])
        plain["verdict_token_ids"] = tuple(tuple(ids) for ids in values["verdict_token_ids"])
        return cls(**plain)


__all__ = ["JudgeTask"]
