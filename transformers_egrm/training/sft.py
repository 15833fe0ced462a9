"""Stage 1, routed supervised fine-tuning: a bootstrap on both modes, then rounds on the split of the model's consensus."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import peft
from accelerate import PartialState
from transformers import PreTrainedModel

from transformers_egrm.modeling.configuration_egrm import JudgeOptions
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.training.components import (
    judge_options,
    load_saved_generator,
    make_judge,
    make_processor,
    save_generator,
    start_generator,
)
from transformers_egrm.training.config import LoraConfig, SFTStageConfig
from transformers_egrm.training.curriculum import Curriculum, Pick, plan
from transformers_egrm.training.items import ItemEncoder, TrainingItem, TrainingSequence
from transformers_egrm.training.measure import measure_judge
from transformers_egrm.training.optimizer import MuonFactory
from transformers_egrm.training.routing import read_audit, route_examples, summarise, write_audit
from transformers_egrm.training.run import MetricsCallback, Run, last_checkpoint
from transformers_egrm.training.trainer import JudgeCollator, JudgeSFTTrainer, to_dataset, training_arguments
from transformers_egrm.training.world import Example, draw_examples


@dataclass
class Workshop:
    """What every stage of a run reads: data and prompts, made when first asked for."""

    run: Run
    """The run."""
    progress: bool = False
    """Whether to show progress bars."""

    def generator(self, stage: str) -> tuple[PreTrainedModel, EGRMProcessor]:
        """The generator that a stage left, and the processor that makes its prompts.

        Args:
            stage: Name of the stage.
        """
        generator, tokenizer = load_saved_generator(self.run.stage_folder(stage) / "model")
        return generator, make_processor(generator, tokenizer, self.run.config.judge)

    @cached_property
    def encoder(self) -> ItemEncoder:
        """Encodes examples with the run's processor."""
        return ItemEncoder(self.generator("start")[1])

    @cached_property
    def judge_options(self) -> JudgeOptions:
        """The judging defaults of the run."""
        return judge_options(self.generator("start")[0], self.run.config.judge)

    @cached_property
    def train_examples(self) -> list[Example]:
        """The training set."""
        config = self.run.config
        return draw_examples(config.data, "train", config.data.train_examples, config.seed)

    @cached_property
    def train_items(self) -> list[TrainingItem]:
        """The training set, encoded."""
        return self.encoder.encode_all(self.train_examples, self._context)

    @cached_property
    def held_out_items(self) -> list[TrainingItem]:
        """What is measured on, encoded."""
        config = self.run.config
        chosen = draw_examples(
            config.data, config.evaluation.split, config.evaluation.examples, config.evaluation.stream
        )
        return self.encoder.encode_all(chosen)

    @property
    def _context(self) -> int | None:
        generator, _ = self.generator("start")
        return getattr(generator.config.get_text_config(), "max_position_embeddings", None)


def run_sft(shop: Workshop) -> str:
    """Every part of stage 1 that is not done yet.

    Args:
        shop: The run and its data.

    Returns:
        Name of the part whose model is the result.
    """
    run, config = shop.run, shop.run.config.sft
    prepare_start(run)
    if not run.is_done("sft-0"):
        everything = range(len(shop.train_items))
        curriculum = Curriculum(
            short_set=everything, long_set=everything, is_easy=_is_easy(shop.train_items, config),
            short_share=config.short_share, short_easy_share=config.short_easy_share,
            long_easy_share=config.long_easy_share,
        )  # fmt: skip
        fine_tune(shop, "start", "sft-0", curriculum, config.bootstrap_steps, config.learning_rate, run.config.seed)
    for number in range(1, config.rounds + 1):
        before, route, stage = f"sft-{number - 1}", f"route-{number}", f"sft-{number}"
        if not run.is_done(route):
            _route(shop, before, route, run.config.seed + number)
        if not run.is_done(stage):
            routed = read_audit(run.stage_folder(route))
            curriculum = Curriculum(
                short_set=[row.index for row in routed if row.in_short_set],
                long_set=[row.index for row in routed if row.in_long_set],
                is_easy=_is_easy(shop.train_items, config), short_share=config.round_short_share,
            )  # fmt: skip
            seed = run.config.seed + number
            fine_tune(shop, before, stage, curriculum, config.round_steps, config.round_learning_rate, seed)
    final = f"sft-{config.rounds}"
    if not run.is_done("sft"):
        generator, processor = shop.generator(final)
        model = make_judge(generator, processor, run.config.judge)
        evaluation = run.config.evaluation
        measured = measure_judge(
            model, shop.held_out_items, evaluation.batch_size, seed=run.config.seed, progress=shop.progress
        )
        if run.is_main:
            model.save_pretrained(run.stage_folder("sft"))
        run.forget("sft")
        run.log("sft", 0, {f"{path}_{name}": value for path in ("routed", "short", "long")
                           for name, value in measured[path].items() if value is not None})  # fmt: skip
        run.finish("sft", {"split": evaluation.split, **measured})
    return final


def generator_stage(run: Run) -> str:
    """The stage whose generator is the newest judge.

    Args:
        run: The run.

    Raises:
        ConfigError: No stage has trained one, and the configuration names none.
    """
    if run.is_done("sft"):
        return f"sft-{run.config.sft.rounds}"
    if run.config.generator.path is None:
        raise ConfigError(
            f"{run.folder} holds no trained generator yet.",
            "Run `egrm train sft` in the same folder first, or name one under `generator.path`.",
        )
    prepare_start(run)
    return "start"


def prepare_start(run: Run) -> None:
    """Write the generator and tokenizer a run begins with, unless they are there.

    Args:
        run: The run.
    """
    if run.is_done("start"):
        return
    measured = {}
    if run.is_main:
        generator, tokenizer = start_generator(run.config)
        save_generator(generator, tokenizer, run.stage_folder("start") / "model")
        measured = {"parameters": generator.num_parameters(), "vocabulary": len(tokenizer)}
    run.finish("start", measured)


def fine_tune(
    shop: Workshop, before: str, stage: str, curriculum: Curriculum, steps: int, learning_rate: float, seed: int
) -> None:
    """One training, resumed where a killed one left its last checkpoint.

    Args:
        shop: The run and its data.
        before: The stage whose model it starts from.
        stage: Its own name.
        curriculum: What it sees.
        steps: Optimiser steps; 0 hands the model on.
        learning_rate: Peak rate.
        seed: Of the order of items and of dropout.
    """
    run, config = shop.run, shop.run.config.sft
    folder = run.stage_folder(stage)
    generator, processor = shop.generator(before)
    measured: dict[str, Any] = {"steps": steps}
    if steps:
        encoder, items = shop.encoder, shop.train_items

        def length(pick: Pick) -> int:
            return encoder.length(items[pick[0]], is_short=pick[1])

        order = plan(curriculum, steps, config.batch_size, length, sort_steps=config.sort_steps, seed=seed)
        sequences = _sequences(encoder, items, order, with_answer=config.answer_weight > 0)
        trainer = make_trainer(run, stage, generator, processor, sequences,
                               steps, learning_rate, seed, shop.progress)  # fmt: skip
        checkpoint = last_checkpoint(folder)
        run.forget(stage, int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0)
        started = time.monotonic()
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        measured |= _trained(run.metrics(stage), order, trainer.state.global_step, time.monotonic() - started)
        generator = _merged(trainer.accelerator.unwrap_model(trainer.model))
    if run.is_main:
        save_generator(generator, processor.tokenizer, folder / "model")
    run.finish(stage, measured)


def make_trainer(
    run: Run, stage: str, generator: PreTrainedModel, processor: EGRMProcessor,
    sequences: Iterator[TrainingSequence], steps: int, learning_rate: float, seed: int, progress: bool,
) -> JudgeSFTTrainer:  # fmt: skip
    """The trainer of one part.

    Args:
        run: The run.
        stage: Name of the part.
        generator: The model to train.
        processor: Its processor.
        sequences: `steps * batch_size` of them, in order.
        steps: Optimiser steps.
        learning_rate: Peak rate.
        seed: Of adapter weights and dropout.
        progress: Whether to show a progress bar.
    """
    config, state = run.config.sft, PartialState()
    micro, accumulation = micro_batches(config.batch_size, config.micro_batch_size, state.num_processes)
    arguments = training_arguments(
        str(run.stage_folder(stage)), per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation,
        max_steps=steps, learning_rate=learning_rate, warmup_steps=round(config.warmup_share * steps),
        weight_decay=config.weight_decay, adam_beta2=config.adam_beta2, max_grad_norm=config.max_grad_norm,
        logging_steps=config.logging_steps, logging_first_step=True, save_steps=config.save_steps, seed=seed,
        bf16=config.precision == "bfloat16", report_to=list(run.config.report_to), run_name=stage,
        disable_tqdm=not progress,
    )  # fmt: skip
    tokenizer = processor.tokenizer
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    collator = JudgeCollator(
        int(pad), verdict_weight=config.verdict_weight, answer_weight=config.answer_weight,
        short_weight=config.short_weight, balance=config.balance,
    )  # fmt: skip
    return JudgeSFTTrainer(
        model=generator, args=arguments, data_collator=collator, train_dataset=to_dataset(sequences),
        processing_class=tokenizer, callbacks=[MetricsCallback(run, stage)],
        optimizer_cls_and_kwargs=_optimizer(config, learning_rate),
        peft_config=None if config.lora is None else adapter_config(config.lora),
    )  # fmt: skip


def _optimizer(config: SFTStageConfig, learning_rate: float) -> Any:
    if config.optimizer == "adamw":
        return None  # the trainer's own
    settings = {"lr": learning_rate, "matrix_lr": config.matrix_learning_rate * learning_rate / config.learning_rate,
                "betas": (0.9, config.adam_beta2), "weight_decay": config.weight_decay}  # fmt: skip
    return MuonFactory, settings


def micro_batches(batch: int, micro: int | None, processes: int) -> tuple[int, int]:
    """How one step's sequences are spread.

    Args:
        batch: Sequences of a step.
        micro: Most sequences run at once; None: no bound.
        processes: Processes that share the step.

    Returns:
        Sequences run at once in one process, and how many such runs make a step.

    Raises:
        ConfigError: The processes cannot share the step evenly.
    """
    own = batch // processes
    micro = min(micro or own, own)
    if own * processes != batch or own % micro:
        raise ConfigError(f"A step of {batch} sequences cannot be shared evenly by {processes} processes in parts of "
                          f"{micro}.", "Set `batch_size` to a multiple of both.")  # fmt: skip
    return micro, own // micro


def adapter_config(config: LoraConfig) -> peft.LoraConfig:
    """PEFT's configuration of an adapter.

    Args:
        config: Ours.
    """
    return peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules=config.target_modules,
        task_type="CAUSAL_LM",
    )  # fmt: skip


def _merged(model: Any) -> PreTrainedModel:
    return model.merge_and_unload() if isinstance(model, peft.PeftModel) else model


def _sequences(
    encoder: ItemEncoder, items: Sequence[TrainingItem], order: Sequence[Pick], *, with_answer: bool
) -> Iterator[TrainingSequence]:
    for index, is_short in order:
        yield encoder.sequence(items[index], is_short=is_short, with_answer=with_answer)


def _is_easy(items: Sequence[TrainingItem], config: SFTStageConfig) -> list[bool]:
    return [item.difficulty <= config.easy_difficulty for item in items]


def _trained(lines: Sequence[dict[str, Any]], order: Sequence[Pick], steps: int, seconds: float) -> dict[str, Any]:
    losses = [line["loss"] for line in lines if "loss" in line]
    last = {name: value for line in lines for name, value in line.items() if name.startswith("verdict_accuracy")}
    return {
        "steps": steps,
        "sequences": len(order),
        "short_share": round(sum(is_short for _, is_short in order) / len(order), 6),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        **{f"last_{name}": value for name, value in last.items()},
        "seconds": round(seconds, 1),
    }


def _route(shop: Workshop, before: str, stage: str, seed: int) -> None:
    run, config = shop.run, shop.run.config.routing
    generator, processor = shop.generator(before)
    model = make_judge(generator, processor, run.config.judge)
    threshold = model.config.judge_options().consensus_threshold if config.threshold is None else config.threshold
    routed = route_examples(model, shop.train_examples, shop.train_items, config, seed=seed, progress=shop.progress)
    summary = summarise(routed, threshold)
    if run.is_main:
        write_audit(run.stage_folder(stage), routed, summary)
    run.forget(stage)
    run.log(stage, 0, {name: value for name, value in summary.items() if isinstance(value, int | float)})
    run.finish(stage, summary)


__all__ = [
    "Workshop",
    "adapter_config",
    "fine_tune",
    "generator_stage",
    "make_trainer",
    "micro_batches",
    "prepare_start",
    "run_sft",
]
