"""Conversations given as token ids: how trainers ask a reward model, and what they get back."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .errors_egrm import ConfigError, InputError
from .judge_batch_egrm import batch_of_tokens
from .judge_values_egrm import EGRMOutput, EGRMSequenceOutput, JudgeInputs, Status
from .prompt_task_egrm import JudgeTask
from .verdict_consensus_egrm import Route


IGNORED = (
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "position_ids",
    "use_cache",
)
"""What wrappers and trainers pass to every model and what changes no judgement: positions follow from the mask."""
ABSENT = ("inputs_embeds", "labels", "past_key_values")
"""What they pass too, as None."""
NOT_DIFFERENTIABLE = "A generative reward is sampled text, so no gradient flows through it."
_TRAIN = "Train generator and scorer with `egrm train`; the finished judge can be the reward of any trainer."


def judging_options(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """What of `forward`'s keywords is a judging option.

    Args:
        keywords: As a trainer or wrapper passes them.

    Raises:
        ConfigError: There are labels, or embeddings or a cache instead of token ids.
    """
    if keywords.get("labels") is not None:
        raise ConfigError(f"{NOT_DIFFERENTIABLE} Labels have no use here.", _TRAIN)
    given = [name for name in ABSENT if keywords.get(name) is not None]
    if given:
        raise ConfigError(f"Conversations are judged from their token ids, got {given}.", "Pass `input_ids`.")
    return {name: value for name, value in keywords.items() if name not in (*IGNORED, *ABSENT)}


def read_conversations(input_ids: Tensor | None, attention_mask: Tensor | None, task: JudgeTask) -> list[list[int]]:
    """The tokens of each row that the mask keeps.

    Args:
        input_ids: [B, T] int64.
        attention_mask: [B, T], 1 on tokens; None: all 1.
        task: What they are judged as.

    Raises:
        ConfigError: The ids have another shape, or the task judges no conversations.
        InputError: A row holds no token.
    """
    if task.layout != "conversation":
        raise ConfigError(
            f"Conversations are judged pointwise or as binary, but the checkpoint judges {task.space.kind}.",
            "Assign a processor with such a verdict space, or call `judge` with the inputs that a processor makes.",
        )
    shape = None if input_ids is None else tuple(input_ids.shape)
    if input_ids is None or len(shape or ()) != 2:
        raise ConfigError(
            f"`input_ids` must be of shape [B, T], got {shape}.",
            "Pass one row per conversation: `input_ids[None]` is one alone.",
        )
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if mask.shape != input_ids.shape:
        raise ConfigError(f"`attention_mask` must be of shape {list(input_ids.shape)}, got {list(mask.shape)}.")
    rows = [ids[kept].tolist() for ids, kept in zip(input_ids.cpu(), mask.bool().cpu(), strict=True)]
    if empty := [row for row, ids in enumerate(rows) if not ids]:
        raise InputError(f"Each row needs at least one token, got none in row {empty[0]}.")
    return rows


def lacks_turns(conversations: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase, task: JudgeTask) -> bool:
    """Whether a conversation shows no turn of the chat template.

    Args:
        conversations: B token sequences.
        tokenizer: The generator's.
        task: Its judge's turn opens like any other.
    """
    # A text without turns may begin and end with these too.
    ends = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    marks = {token for token in task.judge_turn_ids if token in tokenizer.added_tokens_decoder and token not in ends}
    if marks:
        return any(marks.isdisjoint(ids) for ids in conversations)
    marker = (task.turn_marker or "").strip()
    return bool(marker) and any(marker not in tokenizer.decode(list(ids)) for ids in conversations)


def warn_of_missing_turns() -> None:
    """Say that what was judged was no conversation of this generator."""
    warnings.warn(
        "A row of `input_ids` shows no turn of the generator's chat template. Its reward is that of a text without "
        "question and answer, and says little. Render prompt and completion with "
        "`model.processor.tokenizer.apply_chat_template` first.",
        UserWarning,
        stacklevel=3,
    )


def judge_conversations(
    conversations: Sequence[Sequence[int]],
    task: JudgeTask,
    limit: int | None,
    judge: Callable[[JudgeInputs], EGRMOutput],
) -> EGRMSequenceOutput:
    """The judgement of B conversations, each followed by the judge's turn.

    Args:
        conversations: B token sequences.
        task: Has the turn.
        limit: Tokens of the longest prompt that can be judged; longer ones are `TOO_LONG`. None: any.
        judge: Judges those that fit.
    """
    prompts = [[*ids, *task.judge_turn_ids] for ids in conversations]
    fits = [row for row, prompt in enumerate(prompts) if limit is None or len(prompt) <= limit]
    output = EGRMSequenceOutput(
        logits=torch.full((len(prompts), 1), torch.nan, dtype=torch.float32),
        consensus=torch.full((len(prompts),), torch.nan, dtype=torch.float64),
        routes=torch.full((len(prompts),), int(Route.LONG)),
        statuses=torch.full((len(prompts),), int(Status.TOO_LONG)),
        new_tokens=torch.zeros(len(prompts), dtype=torch.int64),
    )
    if fits:
        judged = judge(batch_of_tokens([prompts[row] for row in fits], task))
        for name, value in (("logits", judged["rewards"][:, None]), *judged.items()):
            if name in output:
                output[name][fits] = value.to(output[name].device)
    return output


class _Refusal(torch.autograd.Function):
    """The identity; its backward pass says why there is none."""

    @staticmethod
    def forward(ctx: Any, rewards: Tensor, _leaf: Tensor) -> Tensor:
        """The rewards as they are."""
        return rewards.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Raise: a trainer that asks for a gradient hears the reason."""
        raise ConfigError(NOT_DIFFERENTIABLE, _TRAIN)


def refusing_gradients(rewards: Tensor) -> Tensor:
    """The same numbers, in a graph whose backward pass is refused with a reason.

    Args:
        rewards: Any tensor of a floating dtype.
    """
    return _Refusal.apply(rewards, torch.zeros((), dtype=rewards.dtype, requires_grad=True))  # pyright: ignore


__all__ = [
    "ABSENT",
    "IGNORED",
    "judge_conversations",
    "judging_options",
    "lacks_turns",
    "read_conversations",
    "refusing_gradients",
    "warn_of_missing_turns",
]
