"""The judge at the start of a run, between its stages, and at its end: components, checkpoint, batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3Config, set_seed

from transformers_egrm.bundle import folder_of
from transformers_egrm.modeling.configuration_egrm import EGRMConfig, JudgeOptions
from transformers_egrm.modeling.engine_random_egrm import item_id_of_tokens
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_batch_egrm import EncodedItem
from transformers_egrm.modeling.judge_results_egrm import Entry, JudgeResult
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.prompt_groups_egrm import common_prefix
from transformers_egrm.modeling.prompt_templates_egrm import (
    LONG_MODE,
    SHORT_MODE,
    format_line,
    read_rubric,
    verdict_word,
)
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.training.config import GeneratorConfig, JudgeConfig, TrainConfig
from transformers_egrm.training.items import TrainingItem
from transformers_egrm.training.world import draw_examples, make_tokenizer


def start_generator(config: TrainConfig) -> tuple[PreTrainedModel, Any]:
    """The generator a run starts with, and its tokenizer.

    Args:
        config: `generator.path` is loaded; without one a Qwen3 is initialised and a tokenizer trained.

    Raises:
        ConfigError: The path holds no causal LM.
    """
    if config.generator.path is not None:
        return _load(config.generator.path)
    data, sizes = config.data, config.generator
    space = verdict_space(config.judge)
    phrases = [read_rubric(config.judge.rubric, space), format_line(space), SHORT_MODE, LONG_MODE]
    spoken = [f"{verdict_word(space)}: {label}" for label in space.labels]
    examples = draw_examples(data, "train", sizes.tokenizer_examples, config.seed)
    tokenizer = make_tokenizer(data, examples, spoken, phrases, sizes.vocab_size)
    set_seed(config.seed)
    return AutoModelForCausalLM.from_config(_qwen3(sizes, tokenizer)), tokenizer


def _qwen3(sizes: GeneratorConfig, tokenizer: Any) -> Qwen3Config:
    # Normalised queries and keys: copying is learnt in two thirds of the steps that a Llama of the same size takes.
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        head_dim=sizes.hidden_size // sizes.num_attention_heads,
        max_position_embeddings=sizes.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _load(path: str) -> tuple[PreTrainedModel, Any]:
    path = folder_of(path)
    try:
        if AutoConfig.from_pretrained(path).model_type == "egrm_reward":
            model = EGRMRewardModel.from_pretrained(path, dtype=torch.float32)
            return model.generator, model.processor.tokenizer
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"`generator.path` must hold a causal LM or an E-GRM checkpoint, got {path!r}: {reason}"
        ) from error


def save_generator(generator: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Write a generator and its tokenizer.

    Args:
        generator: A causal LM.
        tokenizer: Its tokenizer.
        folder: Made if absent.
    """
    # A trainer switches it off, and `generate` would run every text anew for each token.
    generator.config.use_cache = True
    generator.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_saved_generator(folder: Path) -> tuple[PreTrainedModel, Any]:
    """What `save_generator` wrote.

    Args:
        folder: Its folder.
    """
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def verdict_space(judge: JudgeConfig) -> VerdictSpace:
    """The verdict space of a run.

    Args:
        judge: Its kind and bounds.
    """
    if judge.space == "pointwise":
        return VerdictSpace.pointwise(judge.low, judge.high)
    return VerdictSpace(judge.space)


def make_processor(
    generator: PreTrainedModel, tokenizer: Any, judge: JudgeConfig, scorer_tokenizer: Any = None
) -> EGRMProcessor:
    """The processor that makes every prompt of a run, in training and in judging.

    Args:
        generator: Its context bounds the prompts.
        tokenizer: The generator's.
        judge: Verdict space and rubric.
        scorer_tokenizer: The scorer's, if it has one.
    """
    options = judge_options(generator, judge)
    context = getattr(generator.config.get_text_config(), "max_position_embeddings", None)
    room = max(options.max_chain_tokens, options.max_probe_tokens)
    if context is not None and context <= room:
        raise ConfigError(
            f"The generator holds {context} tokens, but a chain alone may take {room}.",
            "Lower `judge.options.max_chain_tokens` or raise `generator.max_position_embeddings`.",
        )
    return EGRMProcessor(
        tokenizer, scorer_tokenizer, space=verdict_space(judge), rubric=judge.rubric,
        max_prompt_tokens=None if context is None else context - room,
    )  # fmt: skip


def judge_options(generator: PreTrainedModel, judge: JudgeConfig) -> JudgeOptions:
    """The judging defaults of a run.

    Args:
        generator: A causal LM.
        judge: What the configuration sets.
    """
    return EGRMConfig(generator_config=generator.config, **judge.options).judge_options()


def make_judge(
    generator: PreTrainedModel, processor: EGRMProcessor, judge: JudgeConfig, **settings: Any
) -> EGRMRewardModel:
    """The generator as a judge, its weights shared, on this process's device.

    Args:
        generator: A causal LM.
        processor: See `make_processor`.
        judge: Judging defaults.
        **settings: More of `EGRMRewardModel.from_components`: a scorer.
    """
    model: Any = EGRMRewardModel.from_components(generator, processor=processor, **judge.options, **settings)
    return model.to(PartialState().device)


def judge_items(
    model: EGRMRewardModel, items: Sequence[TrainingItem], batch_size: int, *, progress: str | None = None,
    explain: bool = True, states: str | None = None, share: bool = True, **options: Any,
) -> list[JudgeResult]:  # fmt: skip
    """Judge encoded examples; several processes share the work and all get the whole result.

    Args:
        model: The judge.
        items: Encoded examples.
        batch_size: Most items of a batch.
        progress: What a progress bar is called; None: none.
        explain: Whether results carry their accounts.
        states: Which hidden states their candidates carry, as in `Scheduler`.
        share: Whether answers to one question share its prefill; without, an item's cost depends on the item alone.
        **options: Fields of `JudgeOptions`.

    Returns:
        One result per item, in order.
    """
    state = PartialState()
    mine = range(state.process_index, len(items), state.num_processes)
    scheduler = Scheduler(model, batch_size=batch_size, explain=explain, states=states, **options)
    by_length = sorted(mine, key=lambda index: len(items[index].prompt_ids))
    indices = {
        scheduler.submit_entry(_entry(model.processor, items[index]), group=None if share else index): index
        for index in by_length
    }
    found: list[tuple[int, JudgeResult]] = []
    model.eval()
    with tqdm(total=len(mine), unit="example", desc=progress, disable=progress is None) as bar:
        while scheduler.step(flush=True):
            done = scheduler.take()
            found += [(indices[ticket], result) for ticket, result in done]
            bar.update(len(done))
    everyone = found if state.num_processes == 1 else gather_object(found)
    return [result for _, result in sorted(everyone, key=lambda pair: pair[0])]


def _entry(processor: EGRMProcessor, item: TrainingItem) -> Entry:
    prompt = tuple(item.prompt_ids)
    prompts = (prompt,) if item.swapped_ids is None else (prompt, tuple(item.swapped_ids))
    encoded = EncodedItem(
        prompts=prompts, swapped=(False, True)[: len(prompts)], item_id=item_id_of_tokens(prompt),
        shared_tokens=common_prefix(prompts), truncated_tokens=0,
        turn_tokens=len(processor.task().judge_turn_ids),
        reference=None, task=processor.task(),
    )  # fmt: skip
    return Entry(None, encoded)


__all__ = [
    "judge_items",
    "judge_options",
    "load_saved_generator",
    "make_judge",
    "make_processor",
    "save_generator",
    "start_generator",
    "verdict_space",
]
