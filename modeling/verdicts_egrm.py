"""Verdict spaces: which answers a verdict may take, how text becomes one, and what reward it carries."""

from dataclasses import dataclass
from typing import Any

from .errors_egrm import ConfigError


KINDS = ("pointwise", "pairwise", "binary", "listwise", "free")


@dataclass(frozen=True)
class VerdictSpace:
    """The set of answers a verdict may take. A verdict is an id, the index of its label."""

    kind: str = "pointwise"
    low: int = 0
    high: int = 10
    allow_tie: bool = False
    num_candidates: int = 2

    # contract (see CONTRACT.md): labels, rewards, ordinal, enumerable, swap(verdict_id), parse(text), parse_text(text), to_dict, from_dict
    @property
    def labels(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class JudgeTask:
    """A verdict space with the token ids that make a generator judge in it."""

    space: VerdictSpace
