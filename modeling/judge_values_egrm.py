"""What flows between the stages, and what leaves them.

Shape letters, used in every file: B items, R prompts (rows; a pair judged in both orders is one item and two prompts),
M probes of a prompt, K chains of an item, N chains in all, T prompt tokens, L new tokens, V vocabulary, H hidden,
C verdicts of the space, P prefix length in the cache, D head dimension.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import IntEnum
from typing import Any, Protocol, SupportsIndex, overload

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from .engine_protocol_egrm import Body, Engine, PromptRows
from .judge_assessor_egrm import EGRMAssessor
from .judge_options_egrm import JudgeOptions
from .prompt_task_egrm import JudgeTask


class Status(IntEnum):
    """Why there is a reward, or none."""

    OK = 0
    NO_VERDICT = 1
    TOO_LONG = 2
    TIMEOUT = 3
    ERROR = 4
    ABSTAINED = 5


class Judge(Protocol):
    """What the stages need of a model."""

    @property
    def engine(self) -> Engine:
        """What writes."""
        ...

    @property
    def state_pooling(self) -> str | None:
        """What the scorer reads of the generator's hidden states, one of `POOLINGS`; None where it reads texts."""
        ...

    def assessor_for(self, task: JudgeTask | None, options: JudgeOptions) -> EGRMAssessor | None:
        """Who decides before the probes of a call; None: no one."""
        ...

    def decode_tokens(self, token_ids: list[list[int]], *, control: bool = False) -> list[str]:
        """N texts, control tokens spelled out or left out."""
        ...

    def score_candidates(
        self, prompts: Sequence[str], texts: Sequence[str], states: Tensor | None, strict: bool
    ) -> tuple[Tensor, list[float]]:
        """[N] float32 scores in [0, 1] of N candidates, and the operations each took."""
        ...


@dataclass(frozen=True, kw_only=True)
class JudgeInputs(PromptRows):
    """Judge prompts as token ids, without the mode suffix: `EGRMProcessor` makes them, `EGRMRewardModel.judge` reads them.

    Rows are prompts, left-padded. An item judged in both orders has two consecutive rows.
    """

    item_index: Tensor
    """[R] int64, the item each row belongs to, ascending from 0 to B - 1."""
    swapped: Tensor
    """[R] bool, whether the row shows the two candidates in reverse order."""
    item_ids: Tensor
    """[B] int64, the key of each item's random numbers."""
    task: JudgeTask
    """Verdict space and the token ids of the judge's turn."""
    turn_tokens: tuple[int, ...] | None = None
    """[B] how many of its prompts' last tokens are the judge's own turn, which no scorer reads; by default as many as the
    task's. An item with a rubric or a reference of its own has a turn of its own."""
    references: tuple[str | None, ...] | None = None
    """[B] reference answers of `free` verdicts."""
    truncated_tokens: tuple[int, ...] | None = None
    """[B] tokens that the truncation policy removed from each item's prompts."""

    @property
    def num_items(self) -> int:
        """B."""
        return self.item_ids.shape[0]

    def rows_of(self, items: Sequence[int]) -> Tensor:
        """[n] int64, the rows of some items, item by item."""
        return torch.cat([(self.item_index == item).nonzero()[:, 0] for item in items])

    def select(self, items: Sequence[int]) -> "JudgeInputs":
        """Some items, in the order given, without padding that none of them needs."""
        rows = self.rows_of(items)
        width = int(self.attention_mask[rows].sum(-1).max())
        places = {item: place for place, item in enumerate(items)}
        return replace(
            self,
            input_ids=self.input_ids[rows, -width:],
            attention_mask=self.attention_mask[rows, -width:],
            item_index=torch.tensor([places[item] for item in self.item_index[rows].tolist()], device=rows.device),
            swapped=self.swapped[rows],
            item_ids=self.item_ids[list(items)],
            shared_tokens=self.shared_tokens[rows],
            group_index=self.group_index[rows],
            turn_tokens=_picked(self.turn_tokens, items),
            references=_picked(self.references, items),
            truncated_tokens=_picked(self.truncated_tokens, items),
        )

    def item(self, index: int) -> "JudgeInputs":
        """One item alone, sharing nothing."""
        alone = self.select([index])
        return replace(
            alone, shared_tokens=torch.zeros_like(alone.item_index), group_index=torch.zeros_like(alone.item_index)
        )


def _picked(values: tuple | None, items: Sequence[int]) -> tuple | None:
    return None if values is None else tuple(values[item] for item in items)


@dataclass(frozen=True)
class Candidate:
    """One text the long path may choose."""

    text: str
    verdict: int | None
    """In the item's own order; None where the text states none."""
    prompt: int
    """Which of the item's prompts it answers."""
    is_chain: bool
    """False for a reused probe."""
    mean_log_prob: float = math.nan
    """Mean log-probability of its tokens at temperature 1, in nats; NaN for a probe or where not asked for."""
    score: float = math.nan
    """The scorer's, in [0, 1]; NaN where none was asked."""
    flops: float = 0.0
    """Operations of writing it, its prompt's left out; 0 for a probe."""
    state: Tensor | None = field(default=None, compare=False, repr=False)
    """[H] the generator's hidden states, pooled over its tokens, where the scorer reads states."""


@dataclass(frozen=True)
class ProbeVote:
    """What one probe said."""

    prompt: int
    """Which of the item's prompts it answers."""
    temperature: float
    top_p: float
    verdict: int | None
    """In the item's own order; None where it states none, or was stopped early."""
    text: str | None
    """What it wrote; None where it was stopped early."""


@dataclass(frozen=True)
class Account:
    """How one reward came about, where that was asked for."""

    stage: str
    """What answered: `cache`, `assessor`, `probes` or `chains`. What a cache answers cost nothing now: `prefill_tokens`, `new_tokens`
    and `flops` are 0, and the fields of probes and candidates tell what it had cost."""
    labels: tuple[str, ...]
    """Text of each verdict id below."""
    probes: tuple[ProbeVote, ...] = ()
    """Sampled probes, prompt by prompt, the ladder's rungs in order."""
    verdict_probs: tuple[tuple[float, ...], ...] = ()
    """Per rung of the ladder, the exact probability of each verdict, averaged over both orders; where it was computed."""
    probe_verdict: int | None = None
    """What the probes agreed on most; None where none stated a verdict, or none was asked for."""
    probe_tokens: int = 0
    """New tokens of the probes."""
    probe_flops: float = 0.0
    """Operations of prompt and probes: what the item would have cost on the short path."""
    candidates: tuple[Candidate, ...] = ()
    """What the long path had to choose from: reused probes first, then chains."""
    chosen: int | None = None
    """Which of the candidates was believed."""
    scorer_prompts: tuple[str, ...] = ()
    """Each of the item's prompts as a scorer that reads texts is shown it, where the item went on."""
    prefill_tokens: int = 0
    """Prompt tokens run for the item."""
    new_tokens: int = 0
    """Tokens sampled for the item."""
    flops: float = 0.0
    """Floating-point operations of generator and scorer, estimated."""

    def to_dict(self) -> dict[str, Any]:
        """The account as plain data that JSON can hold: verdicts as labels, numbers that are not finite as None."""

        def plain(value: Any) -> Any:
            if is_dataclass(value):
                shown = {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in _INTERNAL}
                if "verdict" in shown:
                    shown["verdict"] = self._label(shown["verdict"])
                return shown
            if isinstance(value, tuple):
                return [plain(part) for part in value]
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return plain(self) | {"probe_verdict": self._label(self.probe_verdict)}

    def _label(self, verdict: int | None) -> str | None:
        return None if verdict is None else self.labels[verdict]


_INTERNAL = ("state", "scorer_prompts")  # not for a reader


@dataclass
class EGRMOutput(ModelOutput):
    """The judgement of B items."""

    rewards: Tensor | None = None
    """[B] float32, NaN where no verdict exists."""
    verdicts: Tensor | None = None
    """[B] int64 verdict ids; meaningless where `statuses` is not OK, and for `free` verdicts (see `verdict_texts`)."""
    consensus: Tensor | None = None
    """[B] float64 in [0, 1], so that 2 of 5 is 0.4; NaN where no probe was asked for (`path="long"`, or an assessor)."""
    consensus_is_bound: Tensor | None = None
    """[B] bool, True where early stop left probes unread."""
    support: Tensor | None = None
    """[B] float64 in [0, 1], share behind the believed verdict: the consensus on the short path, the assessor's own
    probability where it answers, the share of chains that state it on the long path; NaN where no verdict exists."""
    reward_mean: Tensor | None = None
    """[B] float64, mean reward under `verdict_probs`; NaN where these are not known, or rewards are no amounts."""
    reward_variance: Tensor | None = None
    """[B] float64, variance of the reward, likewise."""
    reward_risk_adjusted: Tensor | None = None
    """[B] float64, beta * log E exp(r / beta) with beta = `risk_beta`, likewise."""
    routes: Tensor | None = None
    """[B] int64, `Route`."""
    prompt_item_index: Tensor | None = None
    """[R] int64, the item of each prompt, for what has a row per prompt."""
    probe_verdicts: Tensor | None = None
    """[R, M] int64 verdict ids in the item's own order, masked by `probe_parsed`; None where no item drew any."""
    probe_parsed: Tensor | None = None
    """[R, M] bool."""
    verdict_probs: Tensor | None = None
    """[B, C] float32, ladder-averaged exact verdict distribution; None where it was not computed."""
    chain_scores: Tensor | None = None
    """[N] float32 in [0, 1], scores of the long path's candidates; NaN where none was asked."""
    chain_item_index: Tensor | None = None
    """[N] int64, the item of each candidate."""
    statuses: Tensor | None = None
    """[B] int64, `Status`."""
    new_tokens: Tensor | None = None
    """[B] int64, tokens sampled for the item: probes and chains."""
    draft_rounds: Tensor | None = None
    """[B] int64, passes of the generator that verified drafts of the item's chains, summed over them; 0 without."""
    draft_tokens: Tensor | None = None
    """[B] int64, tokens those passes wrote: divided by `draft_rounds`, the block efficiency."""
    draft_kept: Tensor | None = None
    """[B, draft_length] int64, how many of those passes wrote at least i + 1 drafted tokens: divided by `draft_rounds`, the
    acceptance by position."""
    prefill_tokens: Tensor | None = None
    """[B] int64, prompt tokens run for the item, shared ones counted once in their group's first item."""
    flops: Tensor | None = None
    """[B] float64, floating-point operations of generator and scorer, estimated by `CostModel`."""
    verdict_texts: list[str | None] | None = None
    """[B] verdicts as text; None where there is none."""
    rationales: list[str | None] | None = None
    """[B] text of the chosen candidate where asked for."""
    direct: Tensor | None = None
    """[B] bool, whether the assessor's own verdict stands, without any probe."""
    audited: Tensor | None = None
    """[B] bool, whether the long path was asked too, for comparison only: rewards and verdicts are the short path's."""
    audit_texts: list[str | None] | None = None
    """[B] the audit's verdicts as text; None where there was no audit, or it ended without one."""
    unread_texts: list[str | None] | None = None
    """[B] what was written for an item whose status is NO_VERDICT: its last chain, or its first probe; None for others."""
    accounts: list[Account | None] | None = None
    """[B] how each reward came about, where asked for."""


@dataclass
class EGRMSequenceOutput(ModelOutput):
    """What `EGRMRewardModel.forward` returns: the shape in which trainers expect a reward model's answer."""

    logits: Tensor | None = None
    """[B, 1] float32, the reward of each conversation; NaN where there is no verdict."""
    consensus: Tensor | None = None
    """[B] float64 in [0, 1]."""
    routes: Tensor | None = None
    """[B] int64, `Route`."""
    statuses: Tensor | None = None
    """[B] int64, `Status`: why a reward is NaN."""
    new_tokens: Tensor | None = None
    """[B] int64, tokens sampled for the conversation."""


@dataclass(frozen=True)
class LongItem:
    """One item on its way to the long path, with all it needs, independent of its batch."""

    task: JudgeTask
    item_id: int
    bodies: tuple[Body, ...]
    """Its prompts (one, or two orders) without the mode suffix."""
    prompt_texts: tuple[str, ...]
    """As the scorer reads them; empty where it reads no text."""
    swapped: tuple[bool, ...]
    reference: str | None
    answers: dict[str, int]
    """Ids of the `free` answers of its probes."""
    probes: tuple[Candidate, ...]
    """Reused probes that state a verdict."""
    deadline: float
    """`time.monotonic()` at which the item is given up."""
    short: EGRMOutput
    """The item's short stage: one row of each field."""
    audited: bool = False
    """Whether its short verdict stands whatever its chains say."""


class LongItems(tuple[LongItem, ...]):
    """Items waiting for the long path. They may be pooled across batches."""

    __slots__ = ()

    @staticmethod
    def concat(parts: "Sequence[LongItems]") -> "LongItems":
        """One pool of all parts, in order."""
        return LongItems(item for part in parts for item in part)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> LongItem: ...
    @overload
    def __getitem__(self, index: slice, /) -> "LongItems": ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> "LongItem | LongItems":
        """An item, or for a slice a pool."""
        if isinstance(index, slice):
            return LongItems(super().__getitem__(index))
        return super().__getitem__(index)


@dataclass(frozen=True)
class ShortStage:
    """What the probes decided about B items."""

    output: EGRMOutput
    """Final for every item but those of `long_index`, whose rewards are NaN, or final too where they are audited."""
    waiting: LongItems
    long_index: tuple[int, ...]
    """Positions of the waiting items among the B."""

    def long_items(self) -> LongItems:
        """The items that need the long path, in the order of `long_index`."""
        return self.waiting


__all__ = [
    "Account",
    "Candidate",
    "EGRMOutput",
    "EGRMSequenceOutput",
    "Judge",
    "JudgeInputs",
    "LongItem",
    "LongItems",
    "ProbeVote",
    "ShortStage",
    "Status",
]
