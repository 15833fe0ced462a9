"""Stage 2, the scorer: learns from the judge's own candidates which of them to believe."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from tokenizers import processors
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_scorer_egrm import EGRMScorer
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.training.candidates import Group, read_candidate_file, read_groups, sample_groups, write_groups
from transformers_egrm.training.choice import encode_groups, measure_choice, pairs_of, score_groups
from transformers_egrm.training.components import make_judge, make_processor
from transformers_egrm.training.config import ScorerStageConfig
from transformers_egrm.training.loss import HybridLoss
from transformers_egrm.training.measure import measure_judge
from transformers_egrm.training.run import MetricsCallback, last_checkpoint
from transformers_egrm.training.sft import Workshop, micro_batches
from transformers_egrm.training.world import draw_examples


@dataclass(frozen=True)
class ScorerStages:
    """Names of stage 2's parts: once after stage 1, and once more where stage 3 has moved the generator."""

    candidates: str = "candidates"
    fit: str = "scorer-fit"
    result: str = "scorer"


def run_scorer(shop: Workshop, generator_stage: str, stages: ScorerStages | None = None) -> str:
    """Every part of stage 2 that is not done yet: candidates, training, measurement.

    Args:
        shop: The run and its data.
        generator_stage: The stage whose generator judges.
        stages: Names of the parts.

    Returns:
        Name of the part whose checkpoint is the result.
    """
    run, config, names = shop.run, shop.run.config.scorer, stages or ScorerStages()
    folder, weights = run.stage_folder(names.candidates), run.stage_folder(names.fit) / "scorer.safetensors"
    if not run.is_done(names.candidates):
        groups = _candidates(shop, generator_stage)
        if run.is_main:
            for split, own in groups.items():
                write_groups(folder / split, own)
        run.finish(names.candidates, {split: _counts(own) for split, own in groups.items()})
    if not run.is_done(names.fit):
        model = build_model(shop, generator_stage)
        measured = fit_scorer(shop, model, read_groups(folder / "train"), names.fit)
        if run.is_main and model.scorer is not None:
            save_file(model.scorer.state_dict(), weights)
        run.finish(names.fit, measured)
    if not run.is_done(names.result):
        held_out, evaluation = read_groups(folder / "held_out"), run.config.evaluation
        model = load_stage_judge(shop, generator_stage, names)
        choice = measure_choice(score_groups(model, held_out), held_out)
        judged = {} if config.files else measure_judge(
            model, shop.held_out_items, evaluation.batch_size, seed=run.config.seed, progress=shop.progress
        )  # fmt: skip
        if run.is_main:
            model.save_pretrained(run.stage_folder(names.result))
        run.forget(names.result)
        run.log(names.result, 0, {name: value for name, value in choice.items() if isinstance(value, int | float)})
        parameters = sum(weight.numel() for weight in model.scorer.parameters()) if model.scorer is not None else 0
        run.finish(names.result, {"parameters": parameters, "choice": choice, **judged})
    return names.result


def _candidates(shop: Workshop, generator_stage: str) -> dict[str, list[Group]]:
    run, config = shop.run, shop.run.config.scorer
    if config.files:
        return {
            "train": read_candidate_file(config.files["train"]),
            "held_out": read_candidate_file(config.files["test"]),
        }
    generator, processor = shop.generator(generator_stage)
    model = make_judge(generator, processor, run.config.judge)
    data, evaluation, seed = run.config.data, run.config.evaluation, run.config.seed
    # Behind the examples the generator was trained on: on those its chains are better than it is.
    if config.data_options is None:
        fresh = draw_examples(data, "train", data.train_examples + config.examples, seed)[data.train_examples :]
    else:  # another mix under another seed: a question may come again, hardly ever with the same response
        fresh = draw_examples(replace(data, options=config.data_options), "train", config.examples, seed + 1)
    if not fresh:
        raise ConfigError("The training file holds no example beyond those the generator is trained on.",
                          "Lower `data.train_examples`.")  # fmt: skip
    held_out = draw_examples(data, evaluation.split, evaluation.examples, evaluation.stream)
    groups = {}
    for split, drawn in (("train", fresh), ("held_out", held_out)):
        groups[split] = sample_groups(
            model, shop.encoder.encode_all(drawn), [example.question_id for example in drawn],
            pooling=config.pooling if config.kind == "generator_state" else None, quality=config.quality,
            batch_size=evaluation.batch_size, seed=seed, progress=shop.progress,
            # What is measured on is what the judge will ask.
            threshold=config.threshold if split == "train" else None,
        )  # fmt: skip
    if not any(group.is_mixed for group in groups["train"]):
        raise ConfigError(
            "No group of candidates holds better and worse ones, so there is nothing to learn.",
            "Draw more examples, raise the judge's temperatures, or train the generator longer.",
        )
    return groups


def _counts(groups: Sequence[Group]) -> dict[str, Any]:
    candidates = [candidate for group in groups for candidate in group.candidates]
    return {
        "groups": len(groups),
        "mixed_groups": sum(group.is_mixed for group in groups),
        "candidates": len(candidates),
        "chains": sum(candidate.is_chain for candidate in candidates),
        "mean_quality": float(np.mean([c.quality for c in candidates])) if candidates else None,
    }


# -- the model ----------------------------------------------------------------------------------------------------------


def build_model(shop: Workshop, generator_stage: str) -> EGRMRewardModel:
    """A stage's generator with a new scorer.

    Args:
        shop: The run.
        generator_stage: The stage whose generator judges.
    """
    config, judge = shop.run.config.scorer, shop.run.config.judge
    generator, processor = shop.generator(generator_stage)
    set_seed(shop.run.config.seed)
    weights = {name: getattr(config, name) for name in ("regression_weight", "huber_delta", "hinge_margin")}
    if config.kind == "generator_state":
        return make_judge(
            generator, processor, judge, scorer_kind="generator_state", scorer_pooling=config.pooling, **weights
        )
    encoder, tokenizer = make_encoder(config, processor.tokenizer)
    processor = make_processor(generator, processor.tokenizer, judge, tokenizer)
    return make_judge(generator, processor, judge, scorer=encoder, scorer_max_tokens=config.max_tokens, **weights)


def load_stage_judge(shop: Workshop, generator_stage: str, stages: ScorerStages | None = None) -> EGRMRewardModel:
    """A stage's generator with the fitted scorer.

    Args:
        shop: The run.
        generator_stage: The stage whose generator judges.
        stages: Names of stage 2's parts.
    """
    model = build_model(shop, generator_stage)
    assert model.scorer is not None, "built with one"
    names = stages or ScorerStages()
    model.scorer.load_state_dict(load_file(shop.run.stage_folder(names.fit) / "scorer.safetensors"))
    model.config.scorer_trained = True
    return model


def make_encoder(config: ScorerStageConfig, tokenizer: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The encoder that a scorer starts from, and its tokenizer.

    Args:
        config: Path, or sizes of a small BERT.
        tokenizer: The generator's; a BERT from scratch reads its tokens, as pairs.

    Raises:
        ConfigError: The path holds no encoder.
    """
    if config.encoder is not None:
        try:
            return AutoModel.from_pretrained(config.encoder, dtype=torch.float32), AutoTokenizer.from_pretrained(
                config.encoder
            )
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"`scorer.encoder` must hold an encoder, got {config.encoder!r}: {reason}") from error
    pairs = pair_tokenizer(tokenizer, config.max_tokens)
    sizes = BertConfig(
        vocab_size=len(pairs), hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers, num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_tokens, pad_token_id=pairs.get_vocab()["[PAD]"],
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,  # candidates are many, parameters few
    )  # fmt: skip
    return AutoModel.from_config(sizes), pairs


def pair_tokenizer(tokenizer: Any, max_tokens: int) -> PreTrainedTokenizerFast:
    """A generator's tokenizer as one of pairs: [CLS] prompt [SEP] chain [SEP].

    Args:
        tokenizer: With a fast backend.
        max_tokens: Longest pair.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    special = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", model_max_length=max_tokens
    )


class ScorerTrainee(nn.Module):
    """A scorer with its loss, as the trainer calls it.

    Args:
        model: A reward model with a scorer; only the scorer is trained.
    """

    def __init__(self, model: EGRMRewardModel) -> None:
        super().__init__()
        assert model.scorer is not None, "there is something to train"
        self.scorer: EGRMScorer = model.scorer
        self.loss = HybridLoss(model.config)

    def forward(self, targets: Tensor, better: Tensor, worse: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """Loss and scores of a batch of candidates.

        Args:
            targets: [N] float32, their qualities.
            better: [P] int64.
            worse: [P] int64.
            **inputs: `states` [N, H], or what `EGRMScorer.forward` takes.
        """
        states = inputs.get("states")
        scores = self.scorer(**inputs) if states is None else self.scorer.score_states(states)
        return {"loss": self.loss(scores, targets, better, worse), "scores": scores}


class _Groups(Dataset):
    # Groups in the order they are trained on: what a killed run resumes is a place in it.

    def __init__(self, order: Sequence[Group]) -> None:
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> tuple[int, Group]:
        return place, self.order[place]


class GroupCollator:
    """Groups of candidates as one batch, with pairs of better and worse chains inside each group.

    Reused probes are in no pair: that a chain is worth more than a guess is soon learnt from their qualities, and pairs with a
    probe, 97 of 100, would drown those that tell a good chain from a bad one.

    Args:
        model: The reward model; its scorer and scorer's tokenizer encode the candidates.
        max_pairs: Most pairs of a group.
        seed: Of the choice among more.
    """

    def __init__(self, model: EGRMRewardModel, max_pairs: int, seed: int) -> None:
        self.model, self.max_pairs, self.seed = model, max_pairs, seed

    def __call__(self, rows: Sequence[tuple[int, Group]]) -> dict[str, Tensor]:
        """A batch.

        Args:
            rows: Places in the order of training, and groups.
        """
        better, worse, start = [], [], 0
        for place, group in rows:
            pairs = [
                (good, bad) for good, bad in pairs_of([candidate.quality for candidate in group.candidates])
                if group.candidates[good].is_chain and group.candidates[bad].is_chain
            ]  # fmt: skip
            if len(pairs) > self.max_pairs:
                pairs = Random(f"{self.seed} {place}").sample(pairs, self.max_pairs)
            better += [start + good for good, _ in pairs]
            worse += [start + bad for _, bad in pairs]
            start += len(group.candidates)
        groups = [group for _, group in rows]
        targets = [candidate.quality for group in groups for candidate in group.candidates]
        return {
            "targets": torch.tensor(targets, dtype=torch.float32),
            "better": torch.tensor(better, dtype=torch.int64),
            "worse": torch.tensor(worse, dtype=torch.int64),
            **encode_groups(self.model, groups),
        }


# -- training -----------------------------------------------------------------------------------------------------------


def fit_scorer(shop: Workshop, model: EGRMRewardModel, groups: Sequence[Group], stage: str) -> dict[str, Any]:
    """Train a model's scorer in place, resumed where a killed training left its last checkpoint.

    Args:
        shop: The run.
        model: A reward model with a scorer.
        groups: What it learns from.
        stage: Name of the part.

    Returns:
        What was measured.
    """
    run, config = shop.run, shop.run.config.scorer
    folder, state = run.stage_folder(stage), PartialState()
    micro, _ = micro_batches(config.groups_per_step, None, state.num_processes)
    per_epoch = max(1, len(groups) // config.groups_per_step)
    steps = config.epochs * per_epoch
    trainee = ScorerTrainee(model)
    trainer = Trainer(
        model=trainee,
        args=TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=micro, max_steps=steps,
            learning_rate=config.learning_rate, lr_scheduler_type="cosine", weight_decay=config.weight_decay,
            warmup_steps=round(config.warmup_share * steps), logging_steps=config.logging_steps, logging_first_step=True,
            save_steps=config.save_steps, save_total_limit=1, seed=run.config.seed, run_name=stage,
            report_to=list(run.config.report_to), disable_tqdm=not shop.progress, remove_unused_columns=False,
            train_sampling_strategy="sequential", label_names=["targets"],
            dataloader_pin_memory=torch.accelerator.is_available(), use_cpu=not torch.accelerator.is_available(),
            ddp_find_unused_parameters=False,
        ),
        data_collator=GroupCollator(model, config.max_pairs, run.config.seed),
        train_dataset=_Groups(group_order(groups, steps, config.groups_per_step, run.config.seed)),
        callbacks=[MetricsCallback(run, stage)],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    checkpoint = last_checkpoint(folder)
    run.forget(stage, int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0)
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    losses = [row["loss"] for row in run.metrics(stage) if "loss" in row]
    trainee.cpu().eval()
    return {
        "steps": steps, "groups": len(groups), "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None, "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def group_order(groups: Sequence[Group], steps: int, per_step: int, seed: int) -> list[Group]:
    """The groups of a training, step by step: each once before any comes again.

    Args:
        groups: At least one.
        steps: Optimiser steps.
        per_step: Groups of each.
        seed: Of the order.
    """
    rng, order = Random(seed), []
    while len(order) < steps * per_step:
        order += rng.sample(list(groups), len(groups))
    return order[: steps * per_step]


__all__ = [
    "GroupCollator",
    "ScorerStages",
    "ScorerTrainee",
    "build_model",
    "fit_scorer",
    "group_order",
    "load_stage_judge",
    "make_encoder",
    "pair_tokenizer",
    "run_scorer",
]
