"""What speculation is asked for and what it gives: plan, rows, texts, and how many tokens a pass brought."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from torch import Tensor

from .draft_stops_egrm import Reader
from .draft_verification_egrm import default_method, rule_of
from .errors_egrm import ConfigError


@dataclass(frozen=True)
class SpeculationPlan:
    """How much is drafted, and how it is verified."""

    method: str | None = None
    """A key of `METHODS`. None stands for `default_method` of that many drafts, which is filled in."""
    num_drafts: int = 4
    """S."""
    draft_length: int = 8
    """L."""

    def __post_init__(self) -> None:
        if self.num_drafts < 1:
            raise ConfigError(f"At least one draft is needed, got num_drafts={self.num_drafts}.", "Try 4.")
        if self.draft_length < 1:
            raise ConfigError(
                f"A draft has at least one token, got draft_length={self.draft_length}.",
                "Try 8, or leave the draft model out for plain decoding.",
            )
        rule_of(self.method, self.num_drafts)  # what is unknown, or takes one draft only, is refused
        if self.method is None:
            object.__setattr__(self, "method", default_method(self.num_drafts))


@dataclass(frozen=True)
class SpeculationStatistics:
    """What speculation achieved, summed over rows. The prompt's own pass and the token it gives are not counted."""

    tokens: int = 0
    """Tokens written; those after an end or a budget are left out."""
    rounds: int = 0
    """Passes of the target in which a row took part, summed over rows."""
    target_calls: int = 0
    """Passes of the target over a batch of rows."""
    draft_calls: int = 0
    """Passes of the draft model over a batch of rows."""
    kept: tuple[int, ...] = ()
    """How many rounds wrote at least i + 1 drafted tokens, for i in 0..L - 1."""
    draft_seconds: float = 0.0
    """Time spent drafting; on an accelerator without waiting for it."""
    target_seconds: float = 0.0
    """The same for the target's passes."""
    verify_seconds: float = 0.0
    """The same for verification."""

    @property
    def block_efficiency(self) -> float:
        """Tokens per pass of the target and row, NaN before the first."""
        return self.tokens / self.rounds if self.rounds else float("nan")

    @property
    def acceptance(self) -> list[float]:
        """Share of rounds that wrote at least i + 1 drafted tokens."""
        return [count / self.rounds for count in self.kept] if self.rounds else []

    def __add__(self, other: "SpeculationStatistics") -> "SpeculationStatistics":
        """The sum of both."""
        size = max(len(self.kept), len(other.kept))
        kept = [sum(k[i] for k in (self.kept, other.kept) if i < len(k)) for i in range(size)]
        names = [entry.name for entry in fields(self) if entry.name != "kept"]
        return SpeculationStatistics(**{n: getattr(self, n) + getattr(other, n) for n in names}, kept=tuple(kept))


@dataclass(frozen=True)
class Rows:
    """R texts to be written after their prompts."""

    contexts: Tensor
    """[R, T] int64, the prompts."""
    valid: Tensor
    """[R, T] bool, False on padding."""
    item_ids: Tensor
    """[R] int64."""
    branch_ids: Tensor
    """[R] int64, distinct among the rows of one item."""
    seed: int
    end_ids: Sequence[int]
    max_tokens: int
    deadlines: Sequence[float] | None = None
    """Per row: `time.monotonic()` at which it stops."""
    reader: Reader | None = None
    """Who is told every token, and may end a text."""


@dataclass(frozen=True)
class Told:
    """What the host learns of a round, in one transfer. One entry for each row that still writes."""

    accepted: list[int]
    """Drafted tokens that were kept."""
    counts: list[int]
    """Tokens that are written."""
    ended: list[bool]
    sound: list[bool]
    tokens: list[list[int]]
    """L + 1 each, of which the first `accepted` + 1 count."""

    @property
    def next_tokens(self) -> list[int]:
        """The target's own token of each row."""
        return [tokens[count] for tokens, count in zip(self.tokens, self.accepted, strict=True)]


@dataclass
class Written:
    """What was written. Fields as in `BranchSampler`."""

    tokens: Tensor
    """[R, max_tokens] int64, 0 after a row's end."""
    lengths: Tensor
    """[R] int64, the end token included."""
    ended: Tensor
    """[R] bool, rows that ended by themselves."""
    late: Tensor
    """[R] bool, rows that their deadline stopped."""
    broken: Tensor
    """[R] bool, rows that met logits without a largest finite one."""
    log_probs: Tensor
    """[R] float32, sum of the tokens' log-probabilities at temperature 1; NaN where not asked for."""
    states: Tensor | None
    """[R, H] float32, hidden states pooled over each row's tokens, where asked for."""
    rounds: Tensor
    """[R] int64, passes of the target in which the row took part, without the prompt's own."""
    kept: Tensor
    """[R, L] int64, how many of these passes wrote at least i + 1 drafted tokens."""
    statistics: SpeculationStatistics = field(default_factory=SpeculationStatistics)


__all__ = ["Rows", "SpeculationPlan", "SpeculationStatistics", "Told", "Written"]
