"""The scorer: how good is a chain of thought for its judge prompt, as one number in [0, 1].

It computes in float32 whatever the generator runs in: in bfloat16 an encoder's score moved by up to 0.014 between a
batch and the same text alone, in float32 by 1.5e-6.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from .configuration_egrm import EGRMConfig
from .errors_egrm import ConfigError, UnsupportedModelError
from .judge_precision_egrm import Float32Module


MICRO_BATCH_TOKENS = 8192  # padded tokens per encoder call: about 100 MB of activations for a base-size encoder


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """One (judge prompt, chain) pair as an encoder reads it."""

    input_ids: tuple[int, ...]
    """Special tokens included."""
    token_type_ids: tuple[int, ...]
    """Segment of each token."""
    trimmed_tokens: int
    """How many tokens were cut to fit."""


def encode_pairs(
    prompts: Sequence[str], chains: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_tokens: int
) -> list[EncodedPair]:
    """Tokenise pairs. Too long ones lose the middle of the prompt; only a chain that fills `max_tokens` alone is cut.

    Control tokens spelled out in the texts are read as ordinary text.

    Args:
        prompts: N judge prompts.
        chains: N chains, one for each prompt.
        tokenizer: The encoder's own, with a fast backend.
        max_tokens: Most tokens of a pair, special ones included.

    Raises:
        UnsupportedModelError: The tokenizer cannot say which token stems from which text.
    """
    if not tokenizer.is_fast:
        raise UnsupportedModelError(
            f"The scorer needs a tokenizer with a fast backend, got {type(tokenizer).__name__}.",
            "Convert it to a `tokenizer.json` first.",
        )
    if not prompts:
        return []
    encoded = tokenizer(
        list(prompts), list(chains), split_special_tokens=True, return_token_type_ids=True, truncation=False,
        verbose=False,
    )  # fmt: skip
    return [
        _fit(encoded["input_ids"][row], encoded["token_type_ids"][row], encoded.sequence_ids(row), max_tokens)
        for row in range(len(prompts))
    ]


def _fit(ids: list[int], types: list[int], sources: list[int | None], max_tokens: int) -> EncodedPair:
    excess = max(len(ids) - max_tokens, 0)
    dropped: set[int] = set()
    for source in (0, 1):  # the prompt first; the chain only when nothing is left of the prompt
        places = [place for place, origin in enumerate(sources) if origin == source]
        cut = min(excess - len(dropped), len(places))
        start = (len(places) - cut + 1) // 2
        dropped.update(places[start : start + cut])
    keep = [place for place in range(len(ids)) if place not in dropped]
    return EncodedPair(tuple(ids[place] for place in keep), tuple(types[place] for place in keep), len(dropped))


class EGRMScorer(Float32Module):
    """Scores chains of thought: an encoder with a linear head, or a head on the generator's own hidden states.

    Args:
        config: `scorer_kind` decides between the two; `scorer_config` is the encoder's. `scorer_pooling` says what a head on
            states reads: their `mean` over a candidate's tokens, or the one at its `last` token.
        encoder: Use this one instead of a newly initialised one.

    Source:
        https://huggingface.co/papers/2604.10072: `prompt [SEP] chain`, [CLS] -> linear.
    """

    encoder: PreTrainedModel
    norm: nn.LayerNorm

    def __init__(self, config: EGRMConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__()
        self.kind, self.pooling = config.scorer_kind, config.scorer_pooling
        self.max_tokens = config.scorer_max_tokens
        if self.kind == "encoder":
            # Whatever dtype the whole checkpoint is asked for, the scorer is built in float32.
            self.encoder = encoder or AutoModel.from_config(config.scorer_config, dtype=torch.float32)
            if self.encoder.config.is_encoder_decoder:
                raise UnsupportedModelError(
                    f"A scorer needs an encoder, got {type(self.encoder).__name__} with a decoder.",
                    "Pass an encoder-only model such as BERT or ModernBERT.",
                )
            if getattr(self.encoder, "pooler", None) is not None:
                # The score reads [CLS] itself; a pooler's weights would only be carried along.
                self.encoder.register_module("pooler", None)
            hidden_size = self.encoder.config.hidden_size
            # A composite asks its direct children for these; the encoder is one level deeper.
            self._no_split_modules = self.encoder._no_split_modules
            self.all_tied_weights_keys = {
                f"encoder.{target}": f"encoder.{source}"
                for target, source in self.encoder.all_tied_weights_keys.items()
            }
        else:
            hidden_size = config.get_text_config().hidden_size
            self.norm = nn.LayerNorm(hidden_size, dtype=torch.float32)
        self.score_head = nn.Linear(hidden_size, 1, dtype=torch.float32)

    @property
    def device(self) -> torch.device:
        """Where the scorer computes, also while its weights are offloaded."""
        for module in self.modules():
            execution_device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
            if execution_device is not None:
                return torch.device(execution_device)
        return self.score_head.weight.device

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Score tokenised pairs; training and judging both end here.

        Args:
            input_ids: [N, T] int64, right-padded: the head reads position 0.
            attention_mask: [N, T] int64, 1 on tokens, 0 on padding.
            token_type_ids: [N, T] int64 segments, for encoders that have some.

        Returns:
            [N] float32 in [0, 1].
        """
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        with torch.autocast(input_ids.device.type, enabled=False):
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **segments).last_hidden_state
            return self.score_head(hidden[:, 0]).squeeze(-1).sigmoid()

    def score_states(self, hidden: Tensor) -> Tensor:
        """Score chains by the generator's final hidden states, pooled over their tokens (kind `generator_state`).

        Args:
            hidden: [N, H], any floating dtype, any device.

        Returns:
            [N] float32 in [0, 1], on the scorer's device.
        """
        with torch.autocast(self.device.type, enabled=False):
            hidden = hidden.to(self.device, self.score_head.weight.dtype)
            return self.score_head(self.norm(hidden)).squeeze(-1).sigmoid()

    @torch.no_grad()
    def score_texts(
        self,
        prompts: Sequence[str],
        chains: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        strict: bool = False,
    ) -> Tensor:
        """Score chains by their text (kind `encoder`).

        Args:
            prompts: N judge prompts.
            chains: N chains, one for each prompt.
            tokenizer: The encoder's own.
            strict: One pair per call: exact equality whatever the batch. Otherwise within 1e-5.

        Returns:
            [N] float32 in [0, 1], on the scorer's device.

        Raises:
            ConfigError: The tokenizer belongs to another encoder.
        """
        check_vocabulary(tokenizer, self.encoder.config.vocab_size, "scorer")
        pairs = encode_pairs(prompts, chains, tokenizer, self.token_limit(tokenizer))
        return self.score_pairs(pairs, tokenizer, strict=strict)

    @torch.no_grad()
    def score_pairs(
        self, pairs: Sequence[EncodedPair], tokenizer: PreTrainedTokenizerBase, *, strict: bool = False
    ) -> Tensor:
        """`score_texts` of pairs that are tokenised already.

        Args:
            pairs: N encoded pairs.
            tokenizer: The encoder's own.
            strict: One pair per call.
        """
        order = sorted(range(len(pairs)), key=lambda row: len(pairs[row].input_ids))
        scores = torch.empty(len(pairs), dtype=torch.float32, device=self.device)
        lengths = [len(pairs[row].input_ids) for row in order]
        for start, stop in pairwise(_micro_batches(lengths, 1 if strict else MICRO_BATCH_TOKENS)):
            rows = order[start:stop]
            scores[rows] = self(**self.collate([pairs[row] for row in rows], tokenizer)).float()
        return scores

    def collate(self, pairs: Sequence[EncodedPair], tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
        """Arguments of `forward` for some pairs, right-padded, on the scorer's device.

        Args:
            pairs: N encoded pairs.
            tokenizer: The encoder's own; without a pad token, 0 pads (the mask decides).
        """
        width = max(len(pair.input_ids) for pair in pairs)
        pad = tokenizer.pad_token_id
        input_ids = torch.full((len(pairs), width), pad if isinstance(pad, int) else 0)
        attention_mask, token_type_ids = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
        for row, pair in enumerate(pairs):
            length = len(pair.input_ids)
            input_ids[row, :length] = torch.tensor(pair.input_ids)
            attention_mask[row, :length] = 1
            token_type_ids[row, :length] = torch.tensor(pair.token_type_ids)
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._reads_segments:
            batch["token_type_ids"] = token_type_ids
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def token_limit(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """Most tokens of a pair: the smallest limit among configuration, tokenizer and encoder.

        Args:
            tokenizer: The encoder's own.
        """
        limits = [self.max_tokens, tokenizer.model_max_length]
        if (positions := getattr(self.encoder.config, "max_position_embeddings", None)) and positions > 0:
            # RoBERTa counts positions from the one after its padding index, so it never uses the first ones.
            table = getattr(getattr(self.encoder, "embeddings", None), "position_embeddings", None)
            unused = getattr(table, "padding_idx", None)
            limits.append(positions if unused is None else positions - unused - 1)
        return int(min(limits))

    @property
    def _reads_segments(self) -> bool:
        parameters = inspect.signature(self.encoder.forward).parameters
        return "token_type_ids" in parameters and getattr(self.encoder.config, "type_vocab_size", 0) > 1


def _micro_batches(lengths: Sequence[int], budget: int) -> list[int]:
    """Cut points of an ascending list, such that rows times longest row stays within the budget where it can."""
    cuts = [0]
    for stop, length in enumerate(lengths):
        if stop > cuts[-1] and length * (stop - cuts[-1] + 1) > budget:
            cuts.append(stop)
    return [*cuts, len(lengths)] if lengths else cuts


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, num_embeddings: int, reader: str) -> None:
    """Refuse a tokenizer that belongs to another model.

    Tokens added after the base vocabulary may lack an embedding as long as nothing writes them. Gemma 3's text models
    have such tokens.

    Args:
        tokenizer: The one to check.
        num_embeddings: How many token ids the model knows.
        reader: Who reads the tokens, for the message.

    Raises:
        ConfigError: Text or control tokens can have ids that the model does not know.
    """
    control = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.cls_token_id]
    highest = max([tokenizer.vocab_size - 1, *(token for token in control if isinstance(token, int))])
    if highest >= num_embeddings:
        raise ConfigError(
            f"The tokenizer of the {reader} writes token ids up to {highest}, but the {reader} knows {num_embeddings}.",
            "Pass the tokenizer it was trained with, or resize its token embeddings.",
        )


__all__ = ["EGRMScorer", "EncodedPair", "check_vocabulary", "encode_pairs"]
