"""The ladder as a way to generate: M branches of every prompt from one prefill, each at its own temperature.

`EGRMRewardModel.generate(temperatures=…)` calls it, and any causal LM can by path:
`model.generate(**inputs, custom_generate="<folder>", trust_remote_code=True, temperatures=[0.6, 0.8, 1.0])`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from .engine_backbone_egrm import Backbone
from .engine_local_egrm import LocalEngine
from .engine_protocol_egrm import Branches, PromptRows
from .engine_random_egrm import item_id_of_tokens
from .engine_vocabulary_egrm import OpenVocabulary
from .errors_egrm import ConfigError


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    inputs: Tensor | None = None,
    *,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    temperatures: Sequence[float] = (0.6, 0.7, 0.8, 0.9, 1.0),
    top_ps: Sequence[float] | float = 0.95,
    seed: int = 0,
    item_ids: Sequence[int] | None = None,
    decoder: str = "auto",
    generation_config: GenerationConfig | None = None,
    max_new_tokens: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    **unsupported: Any,
) -> Tensor:
    """Sample M branches of each prompt.

    Args:
        model: Any causal LM.
        inputs: [B, T] int64, left-padded; the same as `input_ids`.
        input_ids: [B, T] int64, left-padded.
        attention_mask: [B, T], 1 on tokens; by default all 1.
        temperatures: M values, at least 0.
        top_ps: M values in (0, 1], or one for all.
        seed: Of all random numbers.
        item_ids: B integers: the key of each prompt's random numbers; by default a hash of its tokens.
        decoder: `star` (prefix shared in place), `expand` (prefix repeated M times) or `auto`.
        generation_config: Its lengths and token ids are read, no other field.
        max_new_tokens: Budget of a branch; by default the generation config's, else 20.
        eos_token_id: Ends a branch; by default the generation config's.
        pad_token_id: Fills what follows an end; by default the generation config's, else the end token, else 0.
        **unsupported: Other arguments of `generate`; only None and False are accepted.

    Returns:
        [B * M, T + L] int64, branches of a prompt adjacent, prompt included, as `generate(num_return_sequences=M)`
        orders them. Equal prompts with equal item ids have equal branches.

    Raises:
        ConfigError: Prompts or ladder are missing or do not fit together, or an argument has no meaning here.
        UnsupportedModelError: `star` was asked for, but the model cannot share a prefix.
    """
    input_ids = inputs if input_ids is None else input_ids
    refused = sorted(name for name, value in unsupported.items() if value is not None and value is not False)
    if refused:
        raise ConfigError(f"The ladder does not take {refused}.", "Leave them out, or use plain `generate`.")
    ladder = _read_ladder(temperatures, top_ps)
    config = generation_config or model.generation_config
    budget = max_new_tokens if max_new_tokens is not None else config.max_new_tokens or 20
    if budget < 1:
        raise ConfigError(f"A branch needs a budget of at least one token, got max_new_tokens={budget}.")
    ends = eos_token_id if eos_token_id is not None else config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else [int(end) for end in ends]
    pad = pad_token_id if pad_token_id is not None else config.pad_token_id
    pad = pad if pad is not None else ends[0] if ends else 0

    engine, rungs = LocalEngine(Backbone(model)), len(temperatures)
    rows = _read_prompts(input_ids, attention_mask, engine.device)
    if item_ids is None:
        item_ids = [item_id_of_tokens(row) for row in rows.token_ids()]
    count = len(rows.input_ids)
    prompts = engine.start(rows, (), decoder=decoder)
    drawn = prompts.sample(
        Branches(
            temperatures=ladder[0].to(engine.device).repeat(count),
            top_ps=ladder[1].to(engine.device).repeat(count),
            item_ids=torch.tensor(list(item_ids), device=engine.device).repeat_interleave(rungs),
            branch_ids=torch.arange(rungs, device=engine.device).repeat(count),
            per_prompt=rungs,
            seed=seed,
        ),
        OpenVocabulary(tuple(ends)),
        budget,
    )
    longest = int(drawn.lengths.max())
    after = torch.arange(longest, device=engine.device) >= drawn.lengths[:, None]
    new = drawn.tokens[:, :longest].masked_fill(after, pad)
    return torch.cat([rows.input_ids.repeat_interleave(rungs, 0), new], dim=1)


def _read_ladder(temperatures: Sequence[float], top_ps: Sequence[float] | float) -> Tensor:
    # [2, M] float64.
    top_ps = [float(top_ps)] * len(temperatures) if isinstance(top_ps, int | float) else list(top_ps)
    if not temperatures or len(top_ps) != len(temperatures):
        raise ConfigError(f"A ladder has one top-p per temperature, got {list(temperatures)} and {top_ps}.")
    if not all(t >= 0 for t in temperatures) or not all(0 < p <= 1 for p in top_ps):
        raise ConfigError(
            f"Temperatures are at least 0 and top-ps in (0, 1], got {list(temperatures)} and {top_ps}.",
            "Temperature 0 is greedy, top-p 1 keeps every token.",
        )
    return torch.tensor([list(temperatures), top_ps], dtype=torch.float64)


def _read_prompts(input_ids: Tensor | None, attention_mask: Tensor | None, device: torch.device) -> PromptRows:
    if input_ids is None or input_ids.ndim != 2 or input_ids.shape[1] == 0:
        raise ConfigError(
            "The ladder continues prompts of at least one token, and got none.", "Pass input_ids [B, T]."
        )
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
    return PromptRows.of(input_ids.to(device), mask.to(device))


__all__ = ["generate"]
