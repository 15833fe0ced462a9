"""What a configuration does not tell, a trial does.

A few tokens are run in the ways the decoders will run them and compared with one plain pass over the same tokens, once
per generator. An error or a difference is then a reason to decode otherwise, never a crash or a silently wrong number.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import extend_all, positions_of, prefill
from .engine_steps_egrm import StarStepper
from .errors_egrm import UnsupportedModelError


def star_refusal(backbone: Backbone) -> str | None:
    """Why branches of this model cannot share a prefix in place; None where they can."""
    if backbone.star_refusal is not None:
        return backbone.star_refusal
    return backbone.fact("star", lambda: _fault(_star_matches, backbone, _tolerance(backbone)))


def continues_in_chunks(backbone: Backbone) -> bool:
    """Whether several tokens may be run after a cache at once, else one by one.

    Raises:
        UnsupportedModelError: Neither gives what a plain pass gives.
    """

    def find() -> tuple[bool, str | None]:
        if _fault(_continuation_matches, backbone, 3, _tolerance(backbone)) is None:
            return True, None
        # Recurrent kernels may start several tokens from an empty state. One by one there is no such choice, so that
        # rounding is granted more.
        return False, _fault(_continuation_matches, backbone, 1, 10 * _tolerance(backbone))

    in_chunks, fault = backbone.fact("continuation", find)
    if fault is not None:
        raise UnsupportedModelError(
            f"Prompts of {type(backbone.generator).__name__} cannot be continued from a cache. {fault}",
            "Use a generator whose cache is a `DynamicCache`.",
        )
    return in_chunks


@torch.no_grad()
def _fault(matches: Callable[..., bool], *args: object) -> str | None:
    try:
        return None if matches(*args) else "A trial gave other hidden states than a plain pass over the same tokens."
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a foreign architecture raises, it is the answer
        return f"A trial ended with {type(error).__name__}: {error}"


def _star_matches(backbone: Backbone, tolerance: float) -> bool:
    tokens = _tokens(backbone, 8)
    ids = torch.stack([tokens[:3], tokens[2:5]])
    mask = torch.ones_like(ids)
    mask[1, 0] = 0  # padding has to be out of sight
    suffix = tokens[5:6].tolist()
    prefix, body_hidden = prefill(backbone, ids, mask, suffix)
    prefix = extend_all(backbone, prefix.crop(1, body_hidden), suffix)
    fed = torch.stack([tokens[6:8], tokens[6:8].flip(0)]).repeat(2, 1)  # [prompts * branches, steps]
    stepper = StarStepper(backbone, prefix, 2, 1)
    with backbone.star_attention():
        states = [stepper.step(fed[:, step], None)[1] for step in range(2)]
    whole = torch.cat([ids, tokens[5:6].expand(2, 1)], 1).repeat_interleave(2, 0)
    mask = torch.cat([mask.repeat_interleave(2, 0), torch.ones_like(whole[:, :3])], 1)
    plain = _plain(backbone, torch.cat([whole, fed], 1), mask)
    return _close(torch.stack([prefix.hidden.repeat_interleave(2, 0), *states], 1), plain[:, -3:], tolerance)


def _continuation_matches(backbone: Backbone, step: int, tolerance: float) -> bool:
    tokens = _tokens(backbone, 7)[None]
    mask, cache = torch.ones_like(tokens), backbone.new_cache()
    positions, states = positions_of(mask), []
    backbone.run(tokens[:, :3], mask[:, :3], positions[:, :3], cache)
    for start in range(3, 6, step):
        end = start + step
        states.append(backbone.run(tokens[:, start:end], mask[:, :end], positions[:, start:end], cache))
    cache.reorder_cache(tokens.new_tensor([0, 0]))  # pyright: ignore[reportArgumentType] (any int64 tensor)
    last = backbone.run(tokens[:, 6:].repeat(2, 1), mask.repeat(2, 1), positions[:, 6:].repeat(2, 1), cache)
    ours = torch.cat([torch.cat(states, 1).repeat(2, 1, 1), last], 1)
    return _close(ours, _plain(backbone, tokens, mask)[:, 3:].expand_as(ours), tolerance)


def _tokens(backbone: Backbone, count: int) -> Tensor:
    return (torch.arange(1, count + 1, device=backbone.device) * 7) % backbone.config.vocab_size


def _plain(backbone: Backbone, input_ids: Tensor, mask: Tensor) -> Tensor:
    return backbone.run(input_ids, mask, positions_of(mask), backbone.new_cache())


def _close(ours: Tensor, plain: Tensor, tolerance: float) -> bool:
    ours, plain = ours.float(), plain.to(ours.device).float()
    size = plain.abs().amax()
    # Broken weights (NaN) are no matter of the architecture: they end as a status.
    return not bool(size.isfinite()) or bool((ours - plain).abs().amax() <= tolerance * size)


def _tolerance(backbone: Backbone) -> float:
    # Share of the largest hidden state; what is computed wrongly differs by far more than what is rounded.
    return 2e-3 if backbone.generator.dtype in (torch.float32, torch.float64) else 2e-2


__all__ = ["continues_in_chunks", "star_refusal"]
