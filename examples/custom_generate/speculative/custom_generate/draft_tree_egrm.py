"""A context that grows by branches: several continuations of a row are run side by side, and one of them is kept.

Keys and values of a row lie in one buffer. New tokens are appended to it, with a mask that says which of them sees
which. Then `keep` moves the chosen ones next to what was kept before, and forgets the others. What was kept is copied
only when the buffer grows or rows are dropped.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import Prefix, positions_of, prefill
from .errors_egrm import UnsupportedModelError


class TreeLayer(DynamicLayer):
    """One layer's keys and values, [R, Hkv, slots, D], in a buffer with room after the slots in use.

    Args:
        keys: [R, Hkv, P, D] of the prompts.
        values: [R, Hkv, P, D].
        room: Slots to append before the buffer has to grow.
    """

    keys: Any  # tensors, as in the base class, but never None
    values: Any

    def __init__(self, keys: Tensor, values: Tensor, room: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.used, self.keys, self.values = keys.shape[2], _with_room(keys, room), _with_room(values, room)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append [R, Hkv, Q, D] tokens and return all slots in use, [R, Hkv, slots, D] each."""
        end = self.used + key_states.shape[2]
        if end > self.keys.shape[2]:
            room = max(end - self.keys.shape[2], self.keys.shape[2] // 4, 64)
            self.keys, self.values = _with_room(self.keys, room), _with_room(self.values, room)
        self.keys[:, :, self.used : end], self.values[:, :, self.used : end] = key_states, value_states
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def move(self, source: Tensor, target: Tensor, used: int) -> None:
        """Copy slots `source` [R, n] of each row to `target` [R, n]. After that, only `used` slots are in use."""
        for buffer in (self.keys, self.values):
            shape = (-1, buffer.shape[1], -1, buffer.shape[3])
            moved = buffer.gather(2, source.to(buffer.device)[:, None, :, None].expand(shape))
            buffer.scatter_(2, target.to(buffer.device)[:, None, :, None].expand(shape), moved)
        self.used = used

    def keep_rows(self, index: Tensor) -> None:
        """Drop all other rows."""
        self.keys, self.values = (buffer[index.to(buffer.device)] for buffer in (self.keys, self.values))

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self.used


class Tree:
    """R rows that grow by branches.

    Args:
        backbone: The model.
        prefix: Its prompts. They are read once and not written to.
        room: Tokens that are expected to be in flight and kept.

    Attributes:
        lengths: [R] int64, tokens kept so far.
        in_flight: Tokens run since the last `keep`, of each row.

    Raises:
        UnsupportedModelError: The model's layers cannot be run like this.
    """

    def __init__(self, backbone: Backbone, prefix: Prefix, room: int = 64) -> None:
        refusal = tree_refusal(backbone)
        if refusal is not None:
            raise UnsupportedModelError(
                f"{type(backbone.generator).__name__} cannot run several drafts after one prompt. {refusal}",
                "Decode without a draft, or use a model of full or sliding attention with 'sdpa' or 'eager'.",
            )
        self._init(backbone, prefix, room)

    def _init(self, backbone: Backbone, prefix: Prefix, room: int) -> None:
        self.backbone, self.windows = backbone, prefix.windows
        self.layers: list[Any] = [TreeLayer(layer.keys, layer.values, room) for layer in prefix.layers]
        self.cache: Any = Cache(layers=self.layers)
        self.lengths, self.in_flight = prefix.lengths, 0
        self._slots = prefix.valid.shape[1]  # kept slots; layers that evict hold only the last of them
        self._skipped = [self._slots - layer.used for layer in self.layers]
        self._visible = prefix.valid  # [R, slots]
        self._positions = positions_of(prefix.valid)  # [R, slots]
        self._fill = torch.full_like(self.lengths, self._slots)  # [R] where each row's next kept token goes
        self._flying = self._positions[:, :0]  # [R, in_flight] positions

    def run(self, tokens: Tensor, offsets: Tensor, seen: Tensor) -> Tensor:
        """Run new tokens.

        Args:
            tokens: [R, Q] int64.
            offsets: [R, Q] or [Q] int64, how far after the kept tokens each one stands; 0: next to them.
            seen: [R, Q, F + Q] or [Q, F + Q] bool, which tokens in flight each one sees, itself included. F tokens are
                in flight from earlier runs.

        Returns:
            [R, Q, H] final hidden states.
        """
        positions = self.lengths[:, None] + offsets
        self._flying = torch.cat([self._flying, positions], dim=1)
        seen = seen.expand(tokens.shape[0], -1, -1)
        visible = torch.cat([self._visible[:, None].expand(-1, seen.shape[1], -1), seen], dim=2)
        masks: dict[str, Tensor] = {}
        for layer, window, skipped in zip(self.layers, self.windows, self._skipped, strict=True):
            kind = "full_attention" if window is None else "sliding_attention"
            if kind not in masks:
                near, dtype = visible, layer.keys.dtype
                if window is not None:
                    stands = torch.cat([self._positions, self._flying], dim=1)
                    near = visible & (positions[:, :, None] - stands[:, None] < window)
                # Additive: the one form that both sdpa and eager attention read correctly.
                out_of_sight = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=near.device)
                masks[kind] = torch.where(near[:, None, :, skipped:], out_of_sight.new_zeros(()), out_of_sight)
        mask = next(iter(masks.values())) if len(masks) == 1 else masks
        self.in_flight += tokens.shape[1]
        return self.backbone.run(tokens, mask, positions, self.cache)

    def keep(self, flying: Tensor, counts: Tensor) -> None:
        """Keep some tokens in flight and forget the others.

        Args:
            flying: [R, n] int64, which ones, in the order of their positions. They count from 0 in the order of running.
            counts: [R] int64, how many of a row's n are meant.
        """
        steps = torch.arange(flying.shape[1], device=flying.device)
        target = self._fill[:, None] + steps
        source = self._slots + flying
        fill = self._fill + counts
        slots = int(fill.max())
        for layer, skipped in zip(self.layers, self._skipped, strict=True):
            layer.move(source - skipped, target - skipped, slots - skipped)
        width = max(slots, int(target.max()) + 1 if flying.shape[1] else 0) - self._slots
        self._visible = torch.nn.functional.pad(self._visible, (0, width))
        self._positions = torch.nn.functional.pad(self._positions, (0, width))
        self._visible.scatter_(1, target, steps < counts[:, None])
        self._positions.scatter_(1, target, self._flying.gather(1, flying))
        self._visible, self._positions = self._visible[:, :slots], self._positions[:, :slots]
        self._fill, self._slots, self.in_flight = fill, slots, 0
        self.lengths, self._flying = self.lengths + counts, self._flying[:, :0]

    def keep_rows(self, index: Tensor) -> None:
        """Drop all other rows. Nothing may be in flight."""
        for layer in self.layers:
            layer.keep_rows(index)
        for name in ("lengths", "_visible", "_positions", "_fill", "_flying"):
            setattr(self, name, getattr(self, name)[index])


def tree_refusal(backbone: Backbone) -> str | None:
    """Why a model cannot be run as a tree; None where it can. A trial tells what its configuration does not."""
    if backbone.star_refusal is not None:
        return backbone.star_refusal
    return backbone.fact("tree", lambda: _fault(backbone))


@torch.no_grad()
def _fault(backbone: Backbone) -> str | None:
    try:
        return None if _matches_plain_pass(backbone) else "A trial gave other hidden states than a plain pass."
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a foreign architecture raises, it is the answer
        return f"A trial ended with {type(error).__name__}: {error}"


def _matches_plain_pass(backbone: Backbone) -> bool:
    # Two rows, one of them padded, and two branches of two tokens. The second branch is kept, of which one row keeps only
    # the first token; then one more token is run.
    device = backbone.device
    words = (torch.arange(1, 10, device=device) * 7) % backbone.config.vocab_size
    ids = torch.stack([words[:3], words[2:5]])
    mask = torch.ones_like(ids)
    mask[1, 0] = 0
    tree = Tree.__new__(Tree)
    tree._init(backbone, prefill(backbone, ids, mask)[0], 1)
    tokens = words[[3, 4, 5, 6, 7]].expand(2, -1)
    seen = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]])
    first = tree.run(tokens, torch.tensor([0, 1, 2, 1, 2], device=device), seen.bool().to(device))[:, [0, 3, 4]]
    tree.keep(torch.tensor([[0, 3, 4]], device=device).expand(2, -1), torch.tensor([3, 2], device=device))
    one = torch.ones(1, 1, dtype=torch.bool, device=device)
    last = tree.run(words[8:].expand(2, 1), torch.tensor([0], device=device), one)
    for row, kept in ((0, 3), (1, 2)):
        start = int(mask[row].argmax())
        whole = torch.cat([ids[row, start:], tokens[row, [0, 3, 4]][:kept], words[8:]])[None]
        plain = backbone.run(whole, None, positions_of(torch.ones_like(whole)), backbone.new_cache())[0, -kept - 1 :]
        ours = torch.cat([first[row, :kept], last[row]]).to(plain.device)
        size, exact = plain.float().abs().amax(), backbone.generator.dtype in (torch.float32, torch.float64)
        # Broken weights (NaN) do not speak against the architecture: they end as a status.
        if bool(size.isfinite()) and not bool((ours - plain).abs().amax() <= (2e-3 if exact else 2e-2) * size):
            return False
    return True


def _with_room(states: Tensor, room: int) -> Tensor:
    return torch.cat([states, states.new_zeros(*states.shape[:2], room, states.shape[3])], dim=2)


__all__ = ["Tree", "tree_refusal"]
