"""What flows between the stages, and what leaves them.

Shape letters, used in every file: B items, R prompts (rows; a pair judged in both orders is one item and two prompts),
M probes of a prompt, K chains of an item, N chains in all, T prompt tokens, L new tokens, V vocabulary, H hidden,
C verdicts of the space, P prefix length in the cache, D head dimension.
"""

from dataclasses import dataclass, fields, replace
from enum import IntEnum

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from .verdicts_egrm import JudgeTask


class Route(IntEnum):
    """Which path produced the reward."""

    SHORT = 0
    LONG = 1


class Status(IntEnum):
    """Why there is a reward, or none."""

    OK = 0
    NO_VERDICT = 1
    TOO_LONG = 2
    TIMEOUT = 3
    ERROR = 4


@dataclass(frozen=True)
class Tensors:
    """Mixin of frozen stage dataclasses: move every tensor field at once."""

    def to(self, device: torch.device | str):
        """A copy with all tensor fields on `device`."""
        moved = {f.name: v.to(device) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True)
class JudgeInputs(Tensors):
    """Judge prompts as token ids, without the mode suffix: `EGRMProcessor` makes them, `EGRMRewardModel.judge` reads them.

    Rows are prompts, left-padded. An item judged in both orders has two consecutive rows.
    """

    input_ids: Tensor
    """[R, T] int64, left-padded."""
    attention_mask: Tensor
    """[R, T] int64, 1 on tokens, 0 on padding."""
    item_index: Tensor
    """[R] int64, the item each row belongs to, ascending from 0 to B - 1."""
    swapped: Tensor
    """[R] bool, whether the row shows the two candidates in reverse order."""
    item_ids: Tensor
    """[B] int64, the key of each item's random numbers."""
    task: JudgeTask
    """Verdict space and the token ids of the judge's turn."""
    shared_tokens: Tensor
    """[R] int64, how many leading tokens a row shares with all rows of its `group_index`; 0 shares nothing."""
    group_index: Tensor
    """[R] int64, the question each row belongs to, ascending."""
    references: tuple[str | None, ...] | None = None
    """[B] reference answers of `free` verdicts."""
    truncated_tokens: tuple[int, ...] | None = None
    """[B] tokens that the truncation policy removed from each item's prompts."""

    @property
    def num_items(self) -> int:
        """B."""
        return self.item_ids.shape[0]

    def item(self, index: int) -> "JudgeInputs":
        """One item alone, without what other items' lengths padded it with, sharing nothing."""
        rows = (self.item_index == index).nonzero()[:, 0]
        width = int(self.attention_mask[rows].sum(-1).max())
        return replace(
            self,
            input_ids=self.input_ids[rows, -width:],
            attention_mask=self.attention_mask[rows, -width:],
            item_index=torch.zeros_like(rows),
            swapped=self.swapped[rows],
            item_ids=self.item_ids[index : index + 1],
            shared_tokens=torch.zeros_like(rows),
            group_index=torch.zeros_like(rows),
            references=None if self.references is None else (self.references[index],),
            truncated_tokens=None if self.truncated_tokens is None else (self.truncated_tokens[index],),
        )


@dataclass(frozen=True)
class Consensus(Tensors):
    """One vote per item."""

    verdicts: Tensor
    """[B] int64, the most frequent verdict id (ties: the lowest id); meaningless where `agreement` is 0."""
    agreement: Tensor
    """[B] float32 in [0, 1], its share; 0 where nobody voted."""
    is_bound: Tensor
    """[B] bool, True where probes were stopped early: `agreement` is then a lower bound on the short path and an upper
    bound on the long one."""
    routes: Tensor
    """[B] int64, `Route` of each item."""


@dataclass
class EGRMOutput(ModelOutput):
    """The judgement of B items."""

    rewards: Tensor | None = None
    """[B] float32, NaN where no verdict exists."""
    verdicts: Tensor | None = None
    """[B] int64 verdict ids; meaningless where `statuses` is not OK, and for `free` verdicts (see `verdict_texts`)."""
    consensus: Tensor | None = None
    """[B] float32 in [0, 1]; NaN where no probe was asked for (`path="long"`)."""
    consensus_is_bound: Tensor | None = None
    """[B] bool, True where early stop left probes unread."""
    routes: Tensor | None = None
    """[B] int64, `Route`."""
    probe_verdicts: Tensor | None = None
    """[R, M] int64 verdict ids in the item's own order, masked by `probe_parsed`; None with exact consensus."""
    probe_parsed: Tensor | None = None
    """[R, M] bool."""
    verdict_probs: Tensor | None = None
    """[B, C] float32, ladder-averaged exact verdict distribution; None where it was not computed."""
    verdict_mass: Tensor | None = None
    """[B] float32, unrestricted probability of the verdict space's tokens; NaN where unknown."""
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


__all__ = ["Consensus", "EGRMOutput", "JudgeInputs", "Route", "Status", "Tensors"]
