"""TRL's SFTTrainer for judges: completion-only loss with weighted verdicts, computed only where a token is learnt."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PrinterCallback, TrainingArguments
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.hub_components_egrm import plain_generator
from transformers_egrm.training.items import TrainingSequence


IGNORED = -100


def to_dataset(sequences: Iterable[TrainingSequence]) -> Dataset:
    """Training sequences as a dataset that TRL takes as tokenised already.

    Args:
        sequences: In the order they are trained on.
    """
    ids, completion, verdict, answer = [], [], [], []
    lengths, is_short = [0], []
    for sequence in sequences:
        ids.append(np.asarray(sequence.input_ids, dtype=np.int32))
        completion.append(np.asarray(sequence.completion_mask, dtype=np.int8))
        verdict.append(np.asarray(sequence.verdict_mask, dtype=np.int8))
        answer.append(np.asarray(sequence.answer_mask, dtype=np.int8))
        lengths.append(len(sequence.input_ids))
        is_short.append(sequence.is_short)
    offsets = pa.array(np.cumsum(lengths, dtype=np.int64), pa.int64())

    def lists(parts: list[np.ndarray]) -> pa.Array:
        return pa.LargeListArray.from_arrays(offsets, pa.array(np.concatenate(parts)))

    columns = {"input_ids": lists(ids), "completion_mask": lists(completion), "verdict_mask": lists(verdict),
               "answer_mask": lists(answer)}  # fmt: skip
    return Dataset(pa.table({**columns, "is_short": pa.array(is_short)}))


class JudgeCollator:
    """Batches of sequences with what each token counts, padded on the right: a causal model then needs no mask.

    Args:
        pad_id: Fills the rows; never read.
        verdict_weight: Loss weight of a verdict's tokens; others of the completion have 1.
        answer_weight: Loss weight of a judged response's tokens, where they are learnt.
        short_weight: Factor of all weights of a short-mode sequence.
        balance: `items` scales each sequence's weights to a sum of 1 before that factor; `tokens` does not.
    """

    def __init__(
        self, pad_id: int, *, verdict_weight: float, answer_weight: float = 0.0, short_weight: float, balance: str
    ) -> None:
        self.pad_id, self.verdict_weight, self.answer_weight = pad_id, verdict_weight, answer_weight
        self.short_weight, self.balance = short_weight, balance

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """A batch.

        Args:
            rows: With `input_ids`, `labels`, `verdict_mask`, `answer_mask`, `is_short`.

        Returns:
            `input_ids`, `labels` [B, T] int64, `loss_weights` [B, T] float32, `verdict_mask` [B, T] bool, `is_short`
            [B] bool.
        """
        width, count = max(len(row["input_ids"]) for row in rows), len(rows)
        ids = np.full((count, width), self.pad_id, dtype=np.int64)
        labels = np.full((count, width), IGNORED, dtype=np.int64)
        verdict, answer = (np.zeros((count, width), dtype=bool) for _ in range(2))
        for row, values in enumerate(rows):
            length = len(values["input_ids"])
            ids[row, :length], labels[row, :length] = values["input_ids"], values["labels"]
            verdict[row, :length] = np.asarray(values["verdict_mask"], dtype=bool)
            answer[row, :length] = np.asarray(values["answer_mask"], dtype=bool)
        is_short = np.asarray([row["is_short"] for row in rows], dtype=bool)
        weights = np.where(verdict, self.verdict_weight, np.where(answer, self.answer_weight, 1.0)) * (
            labels != IGNORED
        )
        if self.balance == "items":
            weights /= weights.sum(-1, keepdims=True)
        weights *= np.where(is_short, self.short_weight, 1.0)[:, None]
        return {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            "loss_weights": torch.from_numpy(weights.astype(np.float32)),
            "verdict_mask": torch.from_numpy(verdict),
            "is_short": torch.from_numpy(is_short),
        }


def completion_logits(model: Any, generator: PreTrainedModel, input_ids: Tensor, where: Tensor) -> Tensor:
    """Next-token logits at chosen places: the head is the larger half of a small model's work, and most places need none.

    Args:
        model: The generator as the trainer wraps it: it is called, so that a wrapper sees its forward.
        generator: The causal LM inside.
        input_ids: [B, T] int64, padded on the right.
        where: [B, T] bool, n places.

    Returns:
        [n, V] float32, row by row.
    """
    backbone, states = Backbone(generator), []
    # What the head reads is what the body returns; keeping one place saves the model's own pass over the head.
    hook = backbone.body.register_forward_hook(lambda module, args, output: states.append(output.last_hidden_state))
    few = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(type(generator).forward).parameters else {}
    try:
        model(input_ids=input_ids, use_cache=False, **few)
    finally:
        hook.remove()
    head: Any = generator.get_output_embeddings()
    return backbone.logits(states[0][where].to(head.weight.dtype))


class JudgeSFTTrainer(SFTTrainer):
    """Supervised fine-tuning of a judge.

    Arguments are those of `SFTTrainer`, with a `JudgeCollator` as data collator. Its log has, beside the loss, the share
    of verdict tokens that are the model's first choice given everything before them, in short and in long mode.
    """

    data_collator: JudgeCollator

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)  # the metrics have a file of their own
        self.loss_is_scaled_for_ga = True  # the whole step's count is divided by below

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Weighted negative log-likelihood, in nats.

        Args:
            model: The wrapped generator.
            inputs: A batch of `JudgeCollator`.
            return_outputs: Must be False: there are no full logits to return.
            num_items_in_batch: Tokens of the whole step, over its micro-batches and processes.

        Returns:
            Scalar: the mean over the step's sequences (balance `items`) or tokens (`tokens`).
        """
        assert not return_outputs, "a judge's trainer computes no logits outside completions"
        labels = inputs["labels"][:, 1:]
        where = labels != IGNORED
        padded = torch.nn.functional.pad(where, (0, 1))
        generator = plain_generator(self.accelerator.unwrap_model(model))
        logits = completion_logits(model, generator, inputs["input_ids"], padded)
        targets = labels[where]
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        total = (losses * inputs["loss_weights"][:, 1:][where]).sum()
        self._count_verdicts(logits, targets, inputs, where)
        processes = self.accelerator.num_processes
        if self.data_collator.balance == "items" or num_items_in_batch is None:
            rows = len(labels) * self.args.gradient_accumulation_steps * processes  # every step is full
            count = rows if self.data_collator.balance == "items" else where.sum() * processes
        else:
            count = num_items_in_batch
        return total / count * processes  # processes average their gradients

    def _count_verdicts(self, logits: Tensor, targets: Tensor, inputs: dict[str, Tensor], where: Tensor) -> None:
        verdict = inputs["verdict_mask"][:, 1:][where]
        short = inputs["is_short"][:, None].expand_as(where)[where]
        right = logits.detach()[verdict].argmax(-1) == targets[verdict]
        for name, mode in (("short", short[verdict]), ("long", ~short[verdict])):
            if bool(mode.any()):
                self._metrics["train"][f"verdict_accuracy_{name}"].append(right[mode].float().mean().item())

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Checkpoints on the way carry no card: the finished judge has one."""


def no_recomputation() -> dict[str, Any]:
    """The argument that turns TRL's default of recomputing activations off: small models gain nothing from it."""
    # Transformers 5.24 renamed it; the old name goes when that is the oldest release supported.
    names = {field.name for field in fields(TrainingArguments)}
    return {"activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing": False}


def training_arguments(folder: str, **settings: Any) -> SFTConfig:
    """Arguments of `JudgeSFTTrainer`.

    Args:
        folder: Where checkpoints go.
        **settings: Fields of `SFTConfig`.
    """
    return SFTConfig(
        output_dir=folder,
        **no_recomputation(),
        max_length=None,  # the processor has bounded the prompts; a cut completion would teach nothing
        completion_only_loss=True,
        remove_unused_columns=False,  # the collator reads the masks
        train_sampling_strategy="sequential",  # the curriculum is the order
        lr_scheduler_type="cosine",
        save_total_limit=1,
        logging_nan_inf_filter=False,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=torch.accelerator.is_available(),
        use_cpu=not torch.accelerator.is_available(),
        **settings,
    )


__all__ = [
    "JudgeCollator",
    "JudgeSFTTrainer",
    "completion_logits",
    "no_recomputation",
    "to_dataset",
    "training_arguments",
]
