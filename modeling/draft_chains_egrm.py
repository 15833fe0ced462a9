"""Branches written from drafts: the same law, fewer passes of the generator."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .draft_generate_egrm import DraftSource, draft_warp, drafter_starter, make_plan
from .draft_loop_egrm import Rows, SpeculationPlan, speculate
from .draft_options_egrm import DraftingOptions
from .draft_sources_egrm import Warp
from .draft_tree_egrm import tree_refusal
from .engine_backbone_egrm import Backbone
from .engine_flops_egrm import CostModel
from .engine_local_egrm import StarPrompts
from .engine_protocol_egrm import Branches, Drafted, Drawn
from .engine_vocabulary_egrm import OpenVocabulary
from .errors_egrm import ConfigError, UnsupportedModelError


TRIAL_TOKENS = 24  # of every branch, both ways, to tell which is faster


class ChainDrafts:
    """Who writes a local engine's branches from drafts.

    Args:
        backbone: The generator.
        draft: The checkpoint's draft model, where it has one.
    """

    def __init__(self, backbone: Backbone, draft: PreTrainedModel | None) -> None:
        self.backbone, self.draft = backbone, draft

    def source(self, options: DraftingOptions) -> DraftSource | None:
        """Who drafts, None where no one is asked to.

        Args:
            options: `drafting` decides.

        Raises:
            ConfigError: The checkpoint has no draft model, or the generator not so many layers.
            UnsupportedModelError: Generator or draft cannot run several drafts after one prompt.
        """
        if options.drafting == "none" or (options.drafting == "auto" and self.draft is None):
            return None
        if options.drafting in ("auto", "model"):
            if self.draft is None:
                raise ConfigError(
                    "drafting='model' was asked for, but the checkpoint has no draft model.",
                    "Call `model.attach_draft`, pass --draft, or use drafting='layers' or 'ngram'.",
                )
            source = DraftSource(model=self.draft)
        elif options.drafting == "layers":
            source = DraftSource(layers=options.draft_layers)
        else:
            source = DraftSource(ngram=options.draft_ngram)
        for part in (self.backbone, source.backbone(self.backbone)):
            if part is not None and (refusal := tree_refusal(part)) is not None:
                raise UnsupportedModelError(
                    f"{type(part.generator).__name__} cannot take part in speculative decoding. {refusal}",
                    "Use drafting='none'.",
                )
        return source

    def check(self, options: DraftingOptions) -> None:
        """Refuse what cannot be done before anything is run.

        Args:
            options: How to draft.

        Raises:
            ConfigError: As in `source`.
            UnsupportedModelError: As in `source`.
        """
        self.source(options)

    def sample(
        self, prompts: StarPrompts, branches: Branches, vocabulary: OpenVocabulary, max_tokens: int,
        options: DraftingOptions, *, deadlines: Sequence[float] | None, log_probs: bool, pooling: str | None,
    ) -> Drawn | None:  # fmt: skip
        """Branches of every prompt, as `Prompts.sample`.

        Prompts that leave no room for a draft after their last token are decoded without one: what an item draws depends
        on the item alone.

        Args:
            prompts: Run in place.
            branches: The rows, all at one temperature.
            vocabulary: What ends a row.
            max_tokens: Budget of a row.
            options: How to draft.
            deadlines: Per prompt.
            log_probs: As in `Prompts.sample`.
            pooling: As in `Prompts.sample`.

        Returns:
            None where no prompt is to be written from drafts.
        """
        source = self.source(options)
        if source is None:
            return None
        wanted = {"log_probs": log_probs, "pooling": pooling}
        fits = torch.tensor(self._has_room(prompts, max_tokens, options))
        if not bool(fits.any()):
            return None
        if options.drafting == "auto" and not self._saves_time(source, prompts, branches, max_tokens, options):
            return None
        if bool(fits.all()):
            return self._write(
                source, prompts, branches, vocabulary.stop_ids, max_tokens, options, deadlines, **wanted
            )
        parts = []
        for rows, drafted in ((fits, True), (~fits, False)):
            index = rows.nonzero()[:, 0].to(branches.item_ids.device)
            own, own_branches = prompts.select(index), branches.select(index)
            own_deadlines = None if deadlines is None else [deadlines[row] for row in index.tolist()]
            if drafted:
                drawn = self._write(
                    source, own, own_branches, vocabulary.stop_ids, max_tokens, options, own_deadlines, **wanted
                )
            else:
                drawn = own.sample(own_branches, vocabulary, max_tokens, deadlines=own_deadlines, **wanted)
            parts.append((branches.rows_of(index), drawn))
        return _joined(parts)

    def _has_room(self, prompts: StarPrompts, max_tokens: int, options: DraftingOptions) -> list[bool]:
        # Per prompt: whether its branches and a draft after them fit both contexts.
        models = [self.backbone]
        if options.drafting in ("auto", "model") and self.draft is not None:
            models.append(Backbone(self.draft))
        limits = [getattr(part.config, "max_position_embeddings", None) for part in models]
        longest = min((limit for limit in limits if limit is not None), default=None)
        needed = max_tokens + options.draft_length
        return [longest is None or length + needed <= longest for length in prompts.lengths]

    def _saves_time(
        self, source: DraftSource, prompts: StarPrompts, branches: Branches, max_tokens: int, options: DraftingOptions
    ) -> bool:
        # A trial of a few tokens, both ways twice, once for each generator, plan and number of rows (to a factor of two).
        # What it writes is discarded.
        budget = min(TRIAL_TOKENS, max_tokens)

        def drafted() -> None:
            self._write(source, prompts, branches, (), budget, options, None, log_probs=False, pooling=None)

        def plain() -> None:
            prompts.sample(branches, OpenVocabulary(()), budget)

        rows = 1 << (len(branches.item_ids) - 1).bit_length()
        plan = make_plan(source, options.verification, options.num_drafts, options.draft_length)
        name = f"drafts of {id(self.draft)} by {plan} save time for {rows} rows"
        return self.backbone.fact(name, lambda: _seconds_of(drafted) < _seconds_of(plain))

    def _write(
        self, source: DraftSource, prompts: StarPrompts, branches: Branches, stop_ids: Sequence[int], max_tokens: int,
        options: DraftingOptions, deadlines: Sequence[float] | None, *, log_probs: bool, pooling: str | None,
    ) -> Drawn:  # fmt: skip
        copies, device = branches.per_prompt, branches.item_ids.device
        suffix = torch.tensor(prompts.suffix, dtype=torch.int64)
        texts = [torch.cat([ids, suffix]) for ids in prompts.token_ids]
        contexts, valid = _left_padded([text for text in texts for _ in range(copies)], device)
        plan = make_plan(source, options.verification, options.num_drafts, options.draft_length)
        warp = Warp(float(branches.temperatures[0]), float(branches.top_ps[0]))
        draft = source.backbone(self.backbone)
        start = drafter_starter(
            source, draft, plan, draft_warp(warp, plan.num_drafts, None), contexts, valid, warp.temperature == 0,
            copies,
        )  # fmt: skip
        prefix = prompts.prefix.select(torch.arange(len(texts), device=device).repeat_interleave(copies))
        by_row = None if deadlines is None else [deadline for deadline in deadlines for _ in range(copies)]
        rows = Rows(
            contexts, valid, branches.item_ids, branches.branch_ids, branches.seed, stop_ids, max_tokens, by_row
        )
        written = speculate(
            self.backbone, prefix, start, plan, warp, rows, want_log_probs=log_probs, pooling=pooling
        )  # fmt: skip
        cost, draft_cost = self.backbone.cost, None if draft is None else draft.cost
        flops = [
            drafted_flops(cost, draft_cost, plan, rounds, len(texts[row // copies]), length)
            for row, (rounds, length) in enumerate(zip(written.rounds.tolist(), written.lengths.tolist(), strict=True))
        ]
        return Drawn(
            tokens=written.tokens,
            lengths=written.lengths,
            ended=written.ended,
            complete=~(written.late | written.broken),
            late=written.late,
            broken=written.broken,
            log_probs=written.log_probs if log_probs else None,
            states=written.states,
            drafted=Drafted(written.rounds, written.kept, torch.tensor(flops, dtype=torch.float64, device=device)),
        )


def drafted_flops(
    cost: CostModel, draft: CostModel | None, plan: SpeculationPlan, rounds: int, prompt: int, tokens: int
) -> float:
    """Operations that one branch took: every pass reads the last token and all drafts.

    Args:
        cost: The generator's.
        draft: The draft's; None where no model drafts.
        plan: How much was drafted.
        rounds: Passes of the generator.
        prompt: Tokens of the prompt.
        tokens: Tokens of the branch.
    """
    width, context = 1 + plan.num_drafts * plan.draft_length, prompt + tokens // 2
    total = rounds * (width * cost.run(1, context) + cost.head(width))
    if draft is not None:
        fed = 1 + plan.num_drafts * (plan.draft_length - 1)
        total += draft.run(prompt) + rounds * (fed * draft.run(1, context) + draft.head(fed))
    return total


def _joined(parts: Sequence[tuple[Tensor, Drawn]]) -> Drawn:
    # Drawn rows of several runs, each put back to its places. Rows without drafts have no rounds; what they cost is told by
    # their lengths, as ever.
    places = torch.cat([rows for rows, _ in parts]).argsort()
    drawn = [part for _, part in parts]
    first = drawn[0]
    assert first.drafted is not None, "the first part was drafted"
    drafted = []
    for part in drawn:
        nothing = torch.zeros_like(part.lengths)
        none = Drafted(nothing, nothing[:, None].expand(-1, first.drafted.kept.shape[1]), nothing.double() + torch.nan)
        drafted.append(part.drafted or none)
    columns = {
        name: None if getattr(first, name) is None else torch.cat([getattr(part, name) for part in drawn])[places]
        for name in ("tokens", "lengths", "ended", "complete", "late", "broken", "log_probs", "states")
    }
    kept = {name: torch.cat([getattr(part, name) for part in drafted])[places] for name in ("rounds", "kept", "flops")}
    return replace(first, **columns, drafted=Drafted(**kept))


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
    ids = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True, padding_side="left")
    lengths = torch.tensor([len(text) for text in texts])
    return ids.to(device), (torch.arange(ids.shape[1]) >= ids.shape[1] - lengths[:, None]).to(device)


__all__ = ["ChainDrafts", "drafted_flops"]
