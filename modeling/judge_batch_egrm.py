"""Encoded items, and batches of them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .engine_random_egrm import item_id_of_tokens
from .errors_egrm import InputError
from .judge_values_egrm import JudgeInputs
from .prompt_groups_egrm import common_prefix, find_groups
from .prompt_task_egrm import JudgeTask


@dataclass(frozen=True)
class EncodedItem:
    """One record as judge prompts, ready to be batched."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each prompt without the mode suffix: one, or both orders of a pair."""
    swapped: tuple[bool, ...]
    """Per prompt, whether it shows the candidates in reverse order."""
    item_id: int
    """Key of the item's random numbers: the record's id, or a hash of its text id or of its prompts."""
    shared_tokens: int
    """How many leading tokens its prompts share; 0 for a single prompt."""
    truncated_tokens: int
    """Tokens that the truncation policy removed from the record's texts."""
    turn_tokens: int
    """How many last tokens of each prompt are the judge's own turn: rubric, reference, format."""
    reference: str | None
    """The record's reference answer."""
    task: JudgeTask
    """The task it is judged in."""
    fallback: str | None = None
    """Why its conversation is shown as one text instead of through the chat template; None where it is not."""

    @property
    def judged_ids(self) -> tuple[int, ...]:
        """Its first prompt up to the judge's own turn: what is judged, as tokens."""
        return self.prompts[0][: len(self.prompts[0]) - self.turn_tokens]


def collate(
    items: Sequence[EncodedItem], task: JudgeTask | None = None, groups: Sequence[Hashable] | None = None, pad: int = 0
) -> JudgeInputs:
    """A batch of items, left-padded.

    Args:
        items: B of them, judged in the same verdict space.
        task: Their task, by default the first item's.
        groups: Per item, the question it belongs to; items of one question share its leading tokens. By default found: items
            whose prompts begin alike share what they have in common.
        pad: Token id of padding; masks decide what is padding.

    Raises:
        InputError: There is no item, their verdict spaces differ, or there is not one group for each.
    """
    if not items:
        raise InputError("A batch needs at least one item, got none.")
    task = task or items[0].task
    for item in items:
        if replace(item.task, judge_turn_ids=()) != replace(task, judge_turn_ids=()):
            raise InputError(
                f"The items of a batch share one verdict space, got {item.task.space} beside {task.space}.",
                "Make a batch per verdict space.",
            )
    groups = find_groups([item.prompts[0] for item in items]) if groups is None else groups
    if len(groups) != len(items):
        raise InputError(f"`groups` needs one entry per item ({len(items)}), got {list(groups)}.")
    rows = [prompt for item in items for prompt in item.prompts]
    item_index = [index for index, item in enumerate(items) for _ in item.prompts]
    input_ids, attention_mask = _left_padded(rows, pad)
    shared_tokens, group_index = _shared(rows, [groups[index] for index in item_index])
    return JudgeInputs(
        input_ids=input_ids,
        attention_mask=attention_mask,
        item_index=torch.tensor(item_index),
        swapped=torch.tensor([swapped for item in items for swapped in item.swapped]),
        item_ids=torch.tensor([item.item_id for item in items]),
        task=task,
        shared_tokens=shared_tokens,
        group_index=group_index,
        turn_tokens=tuple(item.turn_tokens for item in items),
        references=tuple(item.reference for item in items),
        truncated_tokens=tuple(item.truncated_tokens for item in items),
    )


def batch_of_tokens(prompts: Sequence[Sequence[int]], task: JudgeTask) -> JudgeInputs:
    """A batch of whole judge prompts of one task, each an item of its own, whose id is a hash of its tokens.

    Args:
        prompts: Token ids of each, without the mode suffix.
        task: What is judged.
    """
    rows = [tuple(prompt) for prompt in prompts]
    input_ids, attention_mask = _left_padded(rows, 0)
    shared_tokens, group_index = _shared(rows, find_groups(rows))
    return JudgeInputs(
        input_ids=input_ids,
        attention_mask=attention_mask,
        item_index=torch.arange(len(rows)),
        swapped=torch.zeros(len(rows), dtype=torch.bool),
        item_ids=torch.tensor([item_id_of_tokens(row) for row in rows]),
        task=task,
        shared_tokens=shared_tokens,
        group_index=group_index,
    )


def keyed_by_text(inputs: JudgeInputs) -> JudgeInputs:
    """The same items, each with a hash of its first prompt's tokens as its id.

    Args:
        inputs: R prompts of B items.
    """
    first = [int((inputs.item_index == item).nonzero()[0]) for item in range(inputs.num_items)]
    ids, masks = inputs.input_ids.cpu(), inputs.attention_mask.cpu().bool()
    keys = [item_id_of_tokens(ids[row][masks[row]].tolist()) for row in first]
    return replace(inputs, item_ids=torch.tensor(keys, device=inputs.item_ids.device))


def _left_padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad, padding_side="left")
    lengths = torch.tensor([len(row) for row in rows])
    return ids, (torch.arange(ids.shape[1]) >= ids.shape[1] - lengths[:, None]).long()


def _shared(rows: Sequence[tuple[int, ...]], groups: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    # [R] tokens that each row shares with its whole group, and [R] the group's number.
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    index = [numbers[group] for group in groups]
    shared = [
        common_prefix([row for row, own in zip(rows, index, strict=True) if own == number])
        for number in range(len(numbers))
    ]
    return torch.tensor([shared[number] for number in index]), torch.tensor(index)


__all__ = ["EncodedItem", "batch_of_tokens", "collate", "keyed_by_text"]
