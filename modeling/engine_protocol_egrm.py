"""What the stages ask of whoever writes: an `Engine`, and the values that go in and come out.

Short and long path know this file and nothing else of an engine: no cache, no stepper, no sampler. `engine_local_egrm`
runs a model of Transformers in this process. Anything that continues token ids can stand in its place.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from .engine_flops_egrm import CostModel
from .engine_vocabulary_egrm import OpenVocabulary, VerdictTrie
from .errors_egrm import UnsupportedModelError


ABILITIES = {
    "logits": "read log-probabilities of named tokens, as consensus='exact' and every reward but 'verdict' need",
    "log_probs": "tell the log-probability of what was drawn, as selection='likelihood' needs",
    "states": "hand out hidden states, as a scorer of kind generator_state and an assessor of kind state need",
    "restrict": "draw from a few tokens only, as probe_vocabulary='verdict' needs",
    "drafts": "verify drafts, as `drafting` needs",
    "decoders": "choose how branches are run, as `decoder` needs",
    "early_stop": "stop branches before their end (without it nothing changes but the cost)",
}
"""What an engine may be able to do beyond continuing token ids, each at its own temperature and nucleus mass."""


@dataclass(frozen=True)
class Tensors:
    """Mixin of frozen dataclasses: move every tensor field at once."""

    def to(self, device: torch.device | str):
        """A copy with all tensor fields on `device`."""
        moved = {f.name: v.to(device) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class PromptRows(Tensors):
    """R prompts as token ids, left-padded."""

    input_ids: Tensor
    """[R, T] int64."""
    attention_mask: Tensor
    """[R, T] int64, 1 on tokens, 0 on padding."""
    shared_tokens: Tensor
    """[R] int64, how many leading tokens a row shares with all rows of its `group_index`; 0 shares nothing."""
    group_index: Tensor
    """[R] int64, which rows begin alike."""

    @classmethod
    def of(cls, input_ids: Tensor, attention_mask: Tensor) -> "PromptRows":
        """Rows that share nothing."""
        alone = torch.arange(len(input_ids), device=input_ids.device)
        return cls(
            input_ids=input_ids,
            attention_mask=attention_mask,
            shared_tokens=torch.zeros_like(alone),
            group_index=alone,
        )

    def token_ids(self) -> list[list[int]]:
        """Each row without its padding."""
        rows = zip(self.input_ids, self.attention_mask.bool(), strict=True)
        return [ids[valid].tolist() for ids, valid in rows]


@dataclass(frozen=True)
class Branches:
    """The N = R * M rows to sample, prompt by prompt."""

    temperatures: Tensor
    """[N] float64, 0 is greedy."""
    top_ps: Tensor
    """[N] float64 in (0, 1]."""
    item_ids: Tensor
    """[N] int64."""
    branch_ids: Tensor
    """[N] int64, distinct among the rows of one item."""
    per_prompt: int
    """M."""
    seed: int
    """Seed of all random numbers."""
    live: Tensor | None = None
    """[N] bool, rows that are drawn at all; None: all. Prompts with fewer branches than others are filled up with rows
    that are not."""

    def rows_of(self, prompts: Tensor) -> Tensor:
        """The rows [n * M] of some prompts [n] int64."""
        return (prompts[:, None] * self.per_prompt + torch.arange(self.per_prompt, device=prompts.device)).flatten()

    def select(self, prompts: Tensor) -> "Branches":
        """The branches of some prompts [n] int64."""
        index = self.rows_of(prompts)
        moved = {f.name: v[index] for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True)
class Drafted:
    """What drafting did for N rows."""

    rounds: Tensor
    """[N] int64, passes of the generator in which the row took part, the prompt's own left out."""
    kept: Tensor
    """[N, L] int64, how many of them wrote at least i + 1 drafted tokens."""
    flops: Tensor
    """[N] float64, operations of generator and draft."""


@dataclass(frozen=True)
class Drawn:
    """What N rows have drawn: in the end, or so far where `decide` asks."""

    tokens: Tensor
    """[N, L] int64, 0 after a row's end."""
    lengths: Tensor
    """[N] int64, the end token included; 0 where nothing was drawn."""
    ended: Tensor
    """[N] bool, rows that ended by themselves."""
    complete: Tensor
    """[N] bool, rows that ended by themselves or filled their budget: nothing more can come."""
    late: Tensor
    """[N] bool, rows that their deadline stopped."""
    broken: Tensor
    """[N] bool, rows that cannot go on: the model gave numbers that are not finite."""
    log_probs: Tensor | None = None
    """[N] float32, sum of the tokens' log-probabilities at temperature 1, in nats; None where not asked for."""
    states: Tensor | None = None
    """[N, H] float32, hidden states pooled over each row's tokens; None where not asked for."""
    drafted: Drafted | None = None
    """What drafting did; None without drafts."""


Decide = Callable[[Drawn], Tensor]
"""What was drawn so far -> [R] bool, prompts whose rows need not go on."""


class Body(Protocol):
    """One prompt without its mode suffix, independent of the batch it was run in; what it holds is its engine's matter."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        ...

    @property
    def joins(self) -> bool:
        """Whether it can be resumed in one batch with others that join."""
        ...


class Prompts(Protocol):
    """R prompts, suffix included, ready to be continued."""

    @property
    def tokens_run(self) -> list[int]:
        """[R] tokens that were run for each prompt; shared ones count for the first prompt of their group."""
        ...

    @property
    def lengths(self) -> list[int]:
        """[R] tokens of each prompt."""
        ...

    @property
    def states(self) -> Tensor:
        """[R, H] the final hidden state after each prompt, suffix included; needs `states`."""
        ...

    def sample(
        self, branches: Branches, vocabulary: OpenVocabulary | VerdictTrie, max_tokens: int, *,
        deadlines: Sequence[float] | None = None, decide: Decide | None = None, log_probs: bool = False,
        pooling: str | None = None, drafting: Any = None,
    ) -> Drawn:  # fmt: skip
        """Draw M branches of every prompt.

        Args:
            branches: The rows.
            vocabulary: What may be drawn, and what ends a row. A list of verdicts needs `restrict`.
            max_tokens: Budget of a row, at least 1.
            deadlines: Per prompt, `time.monotonic()` at which its rows stop.
            decide: Called after every step by an engine that can stop early; others never call it.
            log_probs: Whether log-probabilities are wanted; needs `log_probs`.
            pooling: Which hidden states are wanted, one of `POOLINGS`; needs `states`.
            drafting: `DraftingOptions` to draft by, None for plain decoding; needs `drafts`.
        """
        ...

    def read(
        self, paths: Sequence[Sequence[int]], columns: Tensor, *, deadlines: Sequence[float] | None = None
    ) -> Tensor:
        """Log-probabilities of the token that follows each path; needs `logits`.

        Args:
            paths: Token ids, the same ones after every prompt; () is the prompt's own end.
            columns: [A] int64, the tokens asked about.
            deadlines: Per prompt, `time.monotonic()` at which an engine that waits for others gives it up.

        Returns:
            [R, number of paths, A] float32, up to a constant for each prompt and path; NaN where the model gave none.
        """
        ...

    def body(self, row: int) -> Body:
        """A copy of one prompt without the suffix."""
        ...


class Engine(Protocol):
    """Continues token ids."""

    @property
    def can(self) -> frozenset[str]:
        """Which of `ABILITIES` it has."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its values live."""
        ...

    @property
    def cost(self) -> CostModel:
        """Sizes that decide what a token costs."""
        ...

    def start(self, prompts: PromptRows, suffix: Sequence[int], *, decoder: str = "auto") -> Prompts:
        """Run prompts, each followed by a suffix.

        Args:
            prompts: R prompts, on the engine's device.
            suffix: Token ids of the mode suffix, perhaps none.
            decoder: How branches will be run; anything but `auto` needs `decoders`.
        """
        ...

    def resume(self, bodies: Sequence[Any], suffix: Sequence[int]) -> Prompts:
        """Continue bodies of this engine with another suffix; several only where each `joins`."""
        ...


def need_abilities(engine: Engine, needed: Iterable[str]) -> None:
    """Refuse what an engine cannot do, before anything is run.

    Args:
        engine: Who writes.
        needed: Of `ABILITIES`.

    Raises:
        UnsupportedModelError: It lacks one.
    """
    missing = sorted(set(needed) - engine.can)
    if missing:
        able = ", ".join(sorted(engine.can)) or "continue token ids, nothing more"
        raise UnsupportedModelError(
            f"{type(engine).__name__} cannot {'; nor '.join(ABILITIES[name] for name in missing)}.",
            f"It can: {able}. Change the option, or use another engine.",
        )


__all__ = [
    "ABILITIES",
    "Body",
    "Branches",
    "Decide",
    "Drafted",
    "Drawn",
    "Engine",
    "PromptRows",
    "Prompts",
    "Tensors",
    "need_abilities",
]
