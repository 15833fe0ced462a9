"""Where drafts come from: a smaller model, the first layers of the target itself, or the text written so far."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .draft_tree_egrm import Tree
from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import Prefix
from .engine_sampling_egrm import Support, warped_support
from .errors_egrm import ConfigError, UnsupportedModelError


@dataclass(frozen=True)
class Warp:
    """How logits become a distribution; draft and target share all but the temperature."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ConfigError(f"A temperature is at least 0, got {self.temperature}.", "0 is greedy.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p lies in (0, 1], got {self.top_p}.", "1 keeps every token.")
        if self.top_k < 0:
            raise ConfigError(f"top_k is at least 0, got {self.top_k}.", "0 keeps every token.")
        if not self.repetition_penalty > 0:
            raise ConfigError(f"repetition_penalty is positive, got {self.repetition_penalty}.", "1 is none.")

    def support(self, logits: Tensor, written: Tensor | None) -> Support:
        """The distribution to draw from.

        Args:
            logits: [N, V] float32.
            written: [N, V] bool, tokens that the context holds; None where nothing depends on them.
        """
        if written is not None:
            punished = torch.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = torch.where(written, punished, logits)
        full = torch.full((logits.shape[0],), self.temperature, dtype=torch.float64, device=logits.device)
        return warped_support(logits, full, torch.full_like(full, self.top_p), self.top_k)


class HeldTokens:
    """Which tokens each row's context holds. They are kept only where a repetition penalty asks for them.

    Args:
        warp: Says whether one does.
        contexts: [R, T] int64.
        valid: [R, T] bool, False on padding, which no penalty touches.
        size: V.

    Attributes:
        mask: [R, V] bool; None where nothing depends on it.
    """

    def __init__(self, warp: Warp, contexts: Tensor, valid: Tensor, size: int) -> None:
        self.mask: Tensor | None = None
        if warp.repetition_penalty != 1.0:
            mask = torch.zeros(contexts.shape[0], size + 1, dtype=torch.bool, device=contexts.device)
            self.mask = mask.scatter_(1, torch.where(valid, contexts, size), True)[:, :size]

    def after(self, tokens: Tensor) -> Tensor | None:
        """[R, S, V] bool for contexts continued by tokens [R, S, n]."""
        if self.mask is None:
            return None
        return self.mask[:, None].expand(-1, tokens.shape[1], -1).scatter(2, tokens, True)

    def add(self, tokens: Tensor, counts: Tensor) -> None:
        """Append the first `counts` [R] of tokens [R, n]."""
        if self.mask is not None:
            first = torch.arange(tokens.shape[1], device=tokens.device) < counts[:, None]
            self.mask = self.mask.scatter(1, torch.where(first, tokens, tokens[:, :1]), True)

    def keep_rows(self, index: Tensor) -> None:
        """Drop all other rows."""
        self.mask = None if self.mask is None else self.mask[index]


@dataclass(frozen=True)
class Proposal:
    """S drafts of L tokens for each row."""

    tokens: Tensor
    """[R, S, L] int64."""
    supports: Sequence[Support]
    """L distributions [R, S, C] that the tokens were drawn from."""


class Drafter(Protocol):
    """Proposes what comes next."""

    calls: int
    """Forward passes so far."""

    def propose(self, uniform: Tensor, held: HeldTokens) -> Proposal:
        """Write S drafts of L tokens for each row. Each token takes one of the numbers [R, S, L]."""
        ...

    def accept(self, winners: Tensor, accepted: Tensor, next_tokens: Tensor) -> None:
        """Go on after the first `accepted` [R] tokens of draft `winners` [R], and `next_tokens` [R]."""
        ...

    def keep_rows(self, index: Tensor) -> None:
        """Drop all other rows."""
        ...


class ModelDrafter:
    """A causal LM that writes S independent drafts after one prompt.

    Args:
        backbone: The model.
        prefix: Its own run of the prompts.
        first_tokens: [R] int64, the token after each prompt.
        warp: How its tokens are drawn.
        room: Tokens expected to be in flight or kept.
        first_is_greedy: Whether the first draft takes the most probable tokens instead of drawing them. This is only
            for a greedy target: it keeps what agrees with it, whatever that was drawn from.
    """

    def __init__(
        self, backbone: Backbone, prefix: Prefix, first_tokens: Tensor, warp: Warp, room: int = 64,
        first_is_greedy: bool = False,
    ) -> None:  # fmt: skip
        self.backbone, self.warp, self.calls = backbone, warp, 0
        self.first_is_greedy = first_is_greedy
        self.tree = Tree(backbone, prefix, room)
        # What was written but not run: one token, or two after a whole draft was kept, whose last token was never fed.
        self._waiting = torch.stack([first_tokens, first_tokens], dim=1)
        self._counts = torch.ones_like(first_tokens)
        self._drafts: Tensor = first_tokens[:, None, None][:, :, :0]

    def propose(self, uniform: Tensor, held: HeldTokens) -> Proposal:
        """See `Drafter`."""
        rows, count, length = uniform.shape
        device = uniform.device
        width = int(self._counts.max())
        offsets = torch.arange(width, device=device) - width + self._counts[:, None]
        known = offsets >= 0  # a row with fewer tokens than others starts with a slot that no one sees
        causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        own = torch.eye(width, dtype=torch.bool, device=device)
        seen = (causal & known[:, None, :]) | own
        hidden = self._run(self._waiting[:, -width:], offsets.clamp_min(0), seen)[:, -1:]
        branches = torch.eye(count, dtype=torch.bool, device=device)
        drawn: list[Tensor] = []
        supports: list[Support] = []
        for step in range(length):
            prefix = torch.stack(drawn, dim=2) if drawn else uniform[:, :1, :0].long()
            contexts = held.after(prefix)
            logits = self.backbone.logits(hidden.flatten(0, 1)).to(device)
            support = self.warp.support(logits, None if contexts is None else contexts.flatten(0, 1))
            support = _shaped(support, rows, hidden.shape[1], count)
            tokens = support.draw(uniform[:, :, step, None])[..., 0]
            if self.first_is_greedy:
                tokens[:, 0] = support.best()[:, 0]
            drawn.append(tokens)
            supports.append(support)
            if step + 1 < length:
                past = known[:, None].expand(-1, count, -1)
                seen = torch.cat([past, branches.repeat(1, step + 1).expand(rows, -1, -1)], dim=2)
                hidden = self._run(drawn[-1], (self._counts + step)[:, None].expand(-1, count), seen)
        self._drafts = torch.stack(drawn, dim=2)
        return Proposal(self._drafts, supports)

    def accept(self, winners: Tensor, accepted: Tensor, next_tokens: Tensor) -> None:
        """See `Drafter`."""
        rows, count, length = self._drafts.shape
        device = winners.device
        width = int(self._counts.max())
        order = torch.arange(width + length - 1, device=device) + width - self._counts[:, None]
        of_branch = width + (order - width) * count + winners[:, None]
        flying = torch.where(order < width, order, of_branch).clamp_max(self.tree.in_flight - 1)
        self.tree.keep(flying, self._counts + accepted.clamp_max(length - 1))
        last = self._drafts[torch.arange(rows, device=device), winners, -1]
        self._waiting = torch.stack([last, next_tokens], dim=1)
        self._counts = 1 + (accepted == length).long()

    def keep_rows(self, index: Tensor) -> None:
        """See `Drafter`."""
        self.tree.keep_rows(index)
        self._waiting, self._counts, self._drafts = self._waiting[index], self._counts[index], self._drafts[index]

    def _run(self, tokens: Tensor, offsets: Tensor, seen: Tensor) -> Tensor:
        self.calls += 1
        device = self.backbone.device
        return self.tree.run(tokens.to(device), offsets.to(device), seen.to(device)).to(tokens.device)


class NgramDrafter:
    """Repeats what followed the last few tokens when they were written before. One draft, no model.

    Args:
        texts: Token ids of each row's prompt, and the token after it.
        length: L.
        longest: How many last tokens are looked up at most; fewer are tried where that many do not recur.

    Source:
        Prompt lookup decoding: https://github.com/apoorvumang/prompt-lookup-decoding
    """

    def __init__(self, texts: Sequence[Sequence[int]], length: int, longest: int) -> None:
        self.calls, self.length, self.longest = 0, length, longest
        self.texts = [list(text) for text in texts]
        self._drafts = torch.zeros(len(self.texts), length, dtype=torch.int64)

    def propose(self, uniform: Tensor, held: HeldTokens) -> Proposal:
        """See `Drafter`."""
        drafts = torch.tensor([self._continuation(text) for text in self.texts], dtype=torch.int64)
        self._drafts = drafts
        tokens = drafts[:, None].to(uniform.device)  # [R, 1, L]
        certain = torch.ones_like(tokens[..., :1], dtype=torch.float64)
        return Proposal(tokens, [Support(certain, tokens[..., step, None]) for step in range(self.length)])

    def accept(self, winners: Tensor, accepted: Tensor, next_tokens: Tensor) -> None:
        """See `Drafter`."""
        for text, draft, count, token in zip(
            self.texts, self._drafts.tolist(), accepted.tolist(), next_tokens.tolist(), strict=True
        ):
            text += [*draft[:count], token]

    def keep_rows(self, index: Tensor) -> None:
        """See `Drafter`."""
        self.texts = [self.texts[row] for row in index.tolist()]
        self._drafts = self._drafts[index.to(self._drafts.device)]

    def _continuation(self, text: list[int]) -> list[int]:
        found: list[int] = []
        for size in range(min(self.longest, len(text) - 1), 0, -1):
            tail = text[-size:]
            start = next((s for s in range(len(text) - size - 1, -1, -1) if text[s : s + size] == tail), None)
            if start is not None:
                found = text[start + size : start + size + self.length]
                break
        # Some token has to stand where nothing was found. It is refused like any other wrong guess.
        return found + [text[-1]] * (self.length - len(found))


def early_exit(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A causal LM of another one's first layers, norm and head. Weights are shared, not copied.

    Args:
        model: The target.
        layers: How many of its layers.

    Raises:
        ConfigError: The target does not have more layers than that.
        UnsupportedModelError: The target's layers are not where they are expected.
    """
    config: Any = model.config.get_text_config(decoder=True)
    if not 1 <= layers < config.num_hidden_layers:
        raise ConfigError(
            f"An early exit leaves out some of {config.num_hidden_layers} layers, got draft_layers={layers}.",
            f"Use 1 to {config.num_hidden_layers - 1}.",
        )
    body: Any = Backbone(model).body
    if not isinstance(getattr(body, "layers", None), nn.ModuleList):
        raise UnsupportedModelError(
            f"The layers of {type(body).__name__} are not in a list called `layers`.", "Use another draft model."
        )
    name = next((name for name, module in model.named_modules() if module is body), "")
    shorter = copy.deepcopy(config)
    shorter.num_hidden_layers = layers
    if getattr(shorter, "layer_types", None) is not None:
        shorter.layer_types = list(shorter.layer_types[:layers])
    small_body: Any = _shell(body, shorter)
    small_body.layers = nn.ModuleList(list(body.layers)[:layers])
    small: Any = _shell(model, shorter)
    if "." in name or name not in small._modules:
        raise UnsupportedModelError(
            f"The decoder of {type(model).__name__} is not one of its direct parts.", "Use another draft model."
        )
    small._modules[name] = small_body
    return small


@dataclass(frozen=True)
class DraftSource:
    """Who drafts: exactly one of the three.

    Args:
        model: A causal LM with the same tokenizer.
        layers: That many first layers of the target itself, with its norm and head.
        ngram: The text written so far: what followed up to that many last tokens is repeated.
    """

    model: PreTrainedModel | None = None
    layers: int | None = None
    ngram: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("model", "layers", "ngram") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"Drafts need exactly one source, got {len(given)}.",
                "Pass one of draft_model, draft_layers and draft_ngram.",
            )
        if self.ngram is not None and self.ngram < 1:
            raise ConfigError(f"At least one token has to be looked up, got draft_ngram={self.ngram}.", "Try 3.")

    def backbone(self, target: Backbone) -> Backbone | None:
        """The drafting model; None where there is none.

        Args:
            target: Whose drafts they are.

        Raises:
            ConfigError: It is not a causal LM, or has another vocabulary; or there are too few layers.
            UnsupportedModelError: It cannot be run after a prompt.
        """
        if self.ngram is not None:
            return None
        if self.layers is not None:
            count = self.layers
            return Backbone(target.fact(f"first {count} layers", lambda: early_exit(target.generator, count)))
        if not isinstance(self.model, PreTrainedModel):
            raise ConfigError(
                f"draft_model is a causal LM of Transformers, got {type(self.model).__name__}.",
                "Load it with `AutoModelForCausalLM.from_pretrained`.",
            )
        draft = Backbone(self.model)
        ours, theirs = target.config.vocab_size, draft.config.vocab_size
        if ours != theirs:
            raise ConfigError(
                f"Draft and target need one vocabulary, but the draft knows {theirs} tokens and the target {ours}.",
                "Use a draft with the target's tokenizer. If only the padding of the embeddings differs, resize them "
                "with `draft.resize_token_embeddings`.",
            )
        return draft

    @property
    def is_certain(self) -> bool:
        """Whether a context has only one draft, which is looked up and not drawn."""
        return self.ngram is not None


def _shell(module: PreTrainedModel, config: Any) -> PreTrainedModel:
    # The same module with its own list of parts: to replace one leaves the original alone.
    shell = copy.copy(module)
    shell._modules = dict(module._modules)
    shell.config = config
    return shell


def _shaped(support: Support, rows: int, given: int, count: int) -> Support:
    # [rows * given, C] as [rows, count, C]; one context may serve all drafts of a row.
    def shape(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.view(rows, given, -1).expand(-1, count, -1)

    probs = shape(support.probs)
    assert probs is not None, "a support has probabilities"
    columns = shape(support.columns)
    return Support(probs.contiguous(), None if columns is None else columns.contiguous())


__all__ = [
    "DraftSource",
    "Drafter",
    "HeldTokens",
    "ModelDrafter",
    "NgramDrafter",
    "Proposal",
    "Warp",
    "early_exit",
]
