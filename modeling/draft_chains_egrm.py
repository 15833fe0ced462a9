"""Chains of thought decoded from drafts: the same law, fewer passes of the generator."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .configuration_egrm import JudgeOptions
from .draft_generate_egrm import draft_warp, drafter_starter, make_plan
from .draft_loop_egrm import Rows, SpeculationPlan, Written, speculate
from .draft_sources_egrm import DraftSource, Warp
from .draft_tree_egrm import tree_refusal
from .engine_backbone_egrm import Backbone
from .engine_flops_egrm import CostModel
from .engine_local_egrm import StarPrompts
from .engine_sampler_egrm import Branches, BranchSampler
from .engine_vocabulary_egrm import OpenVocabulary
from .errors_egrm import ConfigError, UnsupportedModelError
from .judge_short_egrm import Judge, LongItem


TRIAL_TOKENS = 24  # of every chain, both ways, to tell which is faster


def draft_source(model: Judge, options: JudgeOptions) -> DraftSource | None:
    """Who drafts, None where nobody is asked to.

    Args:
        model: The judge.
        options: `drafting` decides.

    Raises:
        ConfigError: The checkpoint has no draft model, or the generator not so many layers.
        UnsupportedModelError: Generator or draft cannot run several drafts behind one prompt.
    """
    if options.drafting == "none" or (options.drafting == "auto" and model.draft is None):
        return None
    if options.drafting in ("auto", "model"):
        if model.draft is None:
            raise ConfigError(
                "drafting='model' was asked for, but the checkpoint has no draft model.",
                "Call `model.attach_draft`, pass --draft, or use drafting='layers' or 'ngram'.",
            )
        source = DraftSource(model=model.draft)
    elif options.drafting == "layers":
        source = DraftSource(layers=options.draft_layers)
    else:
        source = DraftSource(ngram=options.draft_ngram)
    for part in (model.backbone, source.backbone(model.backbone)):
        if part is not None and (refusal := tree_refusal(part)) is not None:
            raise UnsupportedModelError(
                f"{type(part.generator).__name__} cannot take part in speculative decoding. {refusal}",
                "Use drafting='none'.",
            )
    return source


def has_room(model: Judge, item: LongItem, options: JudgeOptions) -> bool:
    """Whether an item's chains and a draft behind them fit both contexts; where not, it is decoded without drafts.

    Args:
        model: The judge.
        item: On the long path.
        options: Of the call.
    """
    longest = max(item.prompt_lengths) + len(item.task.long_suffix_ids) + options.max_chain_tokens
    parts = [
        model.backbone,
        *([Backbone(model.draft)] if options.drafting in ("auto", "model") and model.draft else []),
    ]
    limits = [getattr(part.config, "max_position_embeddings", None) for part in parts]
    return all(limit is None or longest + options.draft_length <= limit for limit in limits)


def saves_time(
    model: Judge, source: DraftSource, items: Sequence[LongItem], prompts: StarPrompts, branches: Branches,
    options: JudgeOptions,
) -> bool:  # fmt: skip
    """Whether chains of these prompts are written faster with drafts: a trial of a few tokens, both ways twice.

    It is made once for each generator, plan and number of rows (to a factor of two). What it writes is discarded.

    Args:
        model: The judge.
        source: Who drafts.
        items: Items of one task.
        prompts: Their prompts with the mode suffix, run.
        branches: The rows.
        options: Of the call.
    """
    short = options.with_overrides(max_chain_tokens=min(TRIAL_TOKENS, options.max_chain_tokens))
    endless = [replace(item, task=replace(item.task, chain_stop_ids=())) for item in items]
    forever = [float("inf")] * len(branches.item_ids)

    def drafted() -> None:
        write_chains(model, source, endless, prompts, branches, short, forever, want_log_probs=False, pooling=None)

    def plain() -> None:
        sampler = BranchSampler(branches, OpenVocabulary(()), short.max_chain_tokens)
        sampler.draw(prompts.first_logits(None))
        prompts.run(sampler)

    rows = 1 << (len(branches.item_ids) - 1).bit_length()
    plan = make_plan(source, options.verification, options.num_drafts, options.draft_length)
    name = f"drafts of {id(model.draft)} by {plan} save time for {rows} rows"
    return model.backbone.fact(name, lambda: _seconds_of(drafted) < _seconds_of(plain))


def write_chains(
    model: Judge, source: DraftSource, items: Sequence[LongItem], prompts: StarPrompts, branches: Branches,
    options: JudgeOptions, deadlines: Sequence[float], *, want_log_probs: bool, pooling: str | None,
) -> Written:  # fmt: skip
    """Write the chains of some items.

    Args:
        model: The judge.
        source: Who drafts.
        items: Items of one task.
        prompts: Their prompts with the mode suffix, run.
        branches: The rows, those of a prompt adjacent.
        options: Of the call.
        deadlines: Per row.
        want_log_probs: As in `speculate`.
        pooling: As in `speculate`.
    """
    backbone, copies, device = model.backbone, branches.per_prompt, branches.item_ids.device
    suffix = torch.tensor(items[0].task.long_suffix_ids, dtype=torch.int64)
    texts = [torch.cat([ids, suffix]) for item in items for ids in item.prompt_ids]
    contexts, valid = _left_padded([text for text in texts for _ in range(copies)], device)
    plan = make_plan(source, options.verification, options.num_drafts, options.draft_length)
    warp = Warp(options.chain_temperature, options.chain_top_p)
    start = drafter_starter(
        source, source.backbone(backbone), plan, draft_warp(warp, plan.num_drafts, None), contexts, valid,
        warp.temperature == 0, copies,
    )  # fmt: skip
    prefix = prompts.prefix.select(torch.arange(len(texts), device=device).repeat_interleave(copies))
    rows = Rows(
        contexts, valid, branches.item_ids, branches.branch_ids, branches.seed, items[0].task.chain_stop_ids,
        options.max_chain_tokens, deadlines,
    )  # fmt: skip
    return speculate(backbone, prefix, start, plan, warp, rows, want_log_probs=want_log_probs, pooling=pooling)


def drafted_flops(
    cost: CostModel, draft: CostModel | None, plan: SpeculationPlan, rounds: int, prompt: int, tokens: int
) -> float:
    """Operations that one chain took: every pass reads the last token and all drafts.

    Args:
        cost: The generator's.
        draft: The draft's; None where no model drafts.
        plan: How much was drafted.
        rounds: Passes of the generator.
        prompt: Tokens of the prompt.
        tokens: Tokens of the chain.
    """
    width, context = 1 + plan.num_drafts * plan.draft_length, prompt + tokens // 2
    total = rounds * (width * cost.run(1, context) + cost.head(width))
    if draft is not None:
        fed = 1 + plan.num_drafts * (plan.draft_length - 1)
        total += draft.run(prompt) + rounds * (fed * draft.run(1, context) + draft.head(fed))
    return total


def _seconds_of(run: Callable[[], None]) -> float:
    # The second time counts: the first one warms up.
    for _ in range(2):
        started = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent = time.perf_counter() - started
    return spent  # pyright: ignore[reportPossiblyUnboundVariable] (the loop runs)


def _left_padded(texts: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(map(len, texts))
    ids = torch.stack([torch.nn.functional.pad(text, (width - len(text), 0)) for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    return ids.to(device), (torch.arange(width) >= width - lengths[:, None]).to(device)


__all__ = ["draft_source", "drafted_flops", "has_room", "saves_time", "write_chains"]
