"""Run a prompt once and keep what its branches continue from.

A `Prefix` holds keys and values of R prompts and is never written to: branches read it in place (`star`), longer
prompts copy it (`extend`). `prefill` serves whole prompts, `prefill_groups` prompts that begin alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from .engine_backbone_egrm import Backbone
from .engine_kernels_egrm import PrefixLayer, SharedPrefix
from .engine_protocol_egrm import PromptRows


@dataclass(frozen=True)
class Prefix:
    """Keys and values of R prompts of at most P tokens, left-padded. Read-only."""

    layers: tuple[PrefixLayer, ...]
    """Per layer: [R, Hkv, P, D]; sliding layers may hold only their last slots."""
    valid: Tensor
    """[R, P] bool, False on left padding."""
    windows: tuple[int | None, ...]
    """Per layer: sliding window in tokens, or None."""
    hidden: Tensor
    """[R, H] final hidden state of each prompt's last token."""

    @property
    def lengths(self) -> Tensor:
        """[R] int64, tokens of each prompt."""
        return self.valid.sum(-1)

    @property
    def num_prompts(self) -> int:
        """R."""
        return self.valid.shape[0]

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in (layer.keys, layer.values))

    def crop(self, num_tokens: int, hidden: Tensor) -> "Prefix":
        """Views without the last `num_tokens` slots, whose final hidden states were `hidden` [R, H]."""
        if num_tokens == 0:
            return self
        layers = tuple(PrefixLayer(layer.keys[:, :, :-num_tokens], layer.values[:, :, :-num_tokens])
                       for layer in self.layers)  # fmt: skip
        return replace(self, layers=layers, valid=self.valid[:, :-num_tokens], hidden=hidden)

    def select(self, index: Tensor) -> "Prefix":
        """A copy of some prompts, in the order of `index` [R'] int64."""
        layers = tuple(PrefixLayer(_rows(layer.keys, index), _rows(layer.values, index)) for layer in self.layers)
        return replace(self, layers=layers, valid=_rows(self.valid, index), hidden=_rows(self.hidden, index))

    def take(self, row: int) -> "Prefix":
        """A copy of one prompt without its padding, so that the rest of the batch can be freed."""
        length = int(self.lengths[row])
        layers = tuple(
            PrefixLayer(
                layer.keys[row : row + 1, :, -length:].clone(), layer.values[row : row + 1, :, -length:].clone()
            )
            for layer in self.layers
        )
        valid = self.valid[row : row + 1, -length:].clone()
        return replace(self, layers=layers, valid=valid, hidden=self.hidden[row : row + 1].clone())

    @staticmethod
    def concat(prefixes: Sequence["Prefix"]) -> "Prefix":
        """One left-padded batch of all prompts, in order."""
        if len(prefixes) == 1:
            return prefixes[0]
        length = max(prefix.valid.shape[1] for prefix in prefixes)
        layers = tuple(
            PrefixLayer(_stack_left([p.layers[i].keys for p in prefixes]), _stack_left([p.layers[i].values for p in prefixes]))
            for i in range(len(prefixes[0].layers))
        )  # fmt: skip
        valid = torch.cat([torch.nn.functional.pad(p.valid, (length - p.valid.shape[1], 0)) for p in prefixes])
        return replace(prefixes[0], layers=layers, valid=valid, hidden=torch.cat([p.hidden for p in prefixes]))

    def shared(self) -> SharedPrefix:
        """The form `shared_prefix_attention` reads."""
        padded = not bool(self.valid.all())
        bias = []
        for layer in self.layers:
            visible = self.valid[:, None, None, -layer.keys.shape[2] :].to(layer.keys.device)
            bias.append(
                torch.zeros_like(visible, dtype=torch.float32).masked_fill(~visible, -torch.inf) if padded else None
            )
        return SharedPrefix(self.layers, tuple(bias), self.windows)


class SuffixLayer(DynamicLayer):
    """A layer's keys and values of M branches of B prompts, in a buffer that grows in place.

    `update` returns [B, Hkv, M, S, D]: `shared_prefix_attention` takes this form, and only it.
    """

    keys: Any  # a tensor once a token came
    values: Any

    def __init__(self, branches: int, capacity: int) -> None:
        super().__init__()
        self.branches, self.capacity, self.length = branches, capacity, 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append one token per branch.

        Args:
            key_states: [B * M, Hkv, 1, D].
            value_states: [B * M, Hkv, 1, D].
            *args: Ignored.
            **kwargs: Ignored.
        """
        if not self.is_initialized:
            rows, heads, _, key_dim = key_states.shape
            shape = (rows // self.branches, heads, self.branches, self.capacity)
            self.keys = key_states.new_empty(*shape, key_dim)
            self.values = value_states.new_empty(*shape, value_states.shape[-1])
            self.is_initialized = True
        elif self.length == self.keys.shape[3]:
            self.keys, self.values = (torch.cat([t, torch.empty_like(t)], dim=3) for t in (self.keys, self.values))
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer[:, :, :, self.length] = states.view(buffer.shape[0], self.branches, *states.shape[1:])[
                :, :, :, 0
            ].transpose(1, 2)
        self.length += 1
        return self.keys[:, :, :, : self.length], self.values[:, :, :, : self.length]

    def keep_prompts(self, index: Tensor) -> None:
        """Drop the branches of all other prompts."""
        if self.is_initialized:
            self.keys, self.values = _rows(self.keys, index), _rows(self.values, index)

    def get_seq_length(self) -> int:
        """Suffix tokens held."""
        return self.length


def suffix_cache(num_layers: int, branches: int, capacity: int) -> Cache:
    """An empty cache for M branches per prompt; `capacity` tokens fit before a buffer has to grow."""
    return Cache(layers=[SuffixLayer(branches, capacity) for _ in range(num_layers)])


def positions_of(attention_mask: Tensor) -> Tensor:
    """Position ids of a padded batch; the model never derives them from the mask itself."""
    return (attention_mask.long().cumsum(-1) - 1).clamp_min(0)


def prefill(
    backbone: Backbone, input_ids: Tensor, attention_mask: Tensor, suffix: Sequence[int] = ()
) -> tuple[Prefix, Tensor]:
    """Run prompts once, from nothing.

    Args:
        backbone: The generator.
        input_ids: [R, T] int64, left-padded.
        attention_mask: [R, T], 1 on tokens.
        suffix: Token ids appended to every prompt.

    Returns:
        The prefix of prompt and suffix, and the [R, H] hidden state at the prompt's own last token, with which
        `Prefix.crop(len(suffix), hidden)` gives the prompt back.
    """
    input_ids, attention_mask = append_ids(input_ids, attention_mask, suffix)
    # Sliding layers keep enough to see a full window after the suffix is cropped.
    cache: Any = backbone.new_cache(extra_window=len(suffix))
    valid = attention_mask.bool()
    # Without padding the mask is plain causality, for which attention has a faster path.
    mask = None if bool(valid.all()) else attention_mask
    hidden = backbone.run(input_ids, mask, positions_of(attention_mask), cache)
    layers = tuple(PrefixLayer(layer.keys, layer.values) for layer in cache.layers)
    return Prefix(layers, valid, backbone.windows, hidden[:, -1].clone()), hidden[:, -1 - len(suffix)].clone()


def extend(backbone: Backbone, prefix: Prefix, input_ids: Tensor, valid: Tensor) -> tuple[Prefix, Tensor]:
    """Run more tokens after a prefix.

    Args:
        backbone: The generator.
        prefix: R prompts whose sliding layers hold at least a window.
        input_ids: [R, Q] int64, padded on the right.
        valid: [R, Q] bool, False on padding.

    Returns:
        The longer prefix, right padding moved to the left, and all [R, Q, H] hidden states, padding included.
    """
    # Plain layers: they append and never evict, and torch.cat leaves the given tensors alone.
    layers = []
    for given in prefix.layers:
        layer = DynamicLayer()
        layer.lazy_initialization(given.keys, given.values)
        layer.keys, layer.values = given.keys, given.values
        layers.append(layer)
    new = input_ids.shape[1]
    cache: Any = Cache(layers=layers)
    positions = prefix.lengths[:, None] + torch.arange(new, device=input_ids.device)
    masks = {}
    for window, given in zip(prefix.windows, prefix.layers, strict=True):
        kind = "full_attention" if window is None else "sliding_attention"
        if kind not in masks:
            masks[kind] = _mask_behind(prefix.valid[:, -given.keys.shape[2] :], new, window, given.keys.dtype)
    mask = next(iter(masks.values())) if len(masks) == 1 else masks
    hidden = backbone.run(input_ids, mask, positions, cache)
    lengths = valid.sum(-1)
    roll = new - lengths
    longer = [PrefixLayer(_roll_right(layer.keys, roll), _roll_right(layer.values, roll)) for layer in cache.layers]
    all_valid = _roll_right(torch.cat([prefix.valid, valid], dim=1)[:, None, :, None], roll)[:, 0, :, 0]
    last = hidden[torch.arange(len(lengths), device=hidden.device), lengths.to(hidden.device) - 1]
    return Prefix(tuple(longer), all_valid, prefix.windows, last), hidden


def extend_all(backbone: Backbone, prefix: Prefix, suffix: Sequence[int]) -> Prefix:
    """`extend` with the same token ids for every prompt."""
    ids = torch.tensor(suffix, device=prefix.valid.device).expand(prefix.num_prompts, -1)
    return extend(backbone, prefix, ids, torch.ones_like(ids, dtype=torch.bool))[0]


def prefill_groups(backbone: Backbone, prompts: PromptRows, suffix: Sequence[int]) -> tuple[Prefix, Tensor, list[int]]:
    """Run prompts of which some begin alike: the common tokens of each group once, then what is each prompt's own.

    However many groups there are, it takes three passes at most: all common tokens, all that follows them, and the
    prompts that share nothing.

    Args:
        backbone: The generator.
        prompts: R prompts and their groups.
        suffix: Token ids appended to every prompt.

    Returns:
        As `prefill`, and [R] tokens that were run for each prompt, common ones for the first of their group.
    """
    lengths, groups = prompts.attention_mask.sum(-1).tolist(), prompts.group_index.tolist()
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    common = [0] * len(lengths)
    shared = prompts.shared_tokens.tolist()
    for rows in members.values():
        if len(rows) > 1:
            # Each prompt keeps a token of its own, or no one would know the hidden state at its end.
            most = min(min(shared[row], lengths[row] - 1) for row in rows)
            for row in rows:
                common[row] = most
    tokens_run = [length - own + len(suffix) for length, own in zip(lengths, common, strict=True)]
    for rows in members.values():
        tokens_run[rows[0]] += common[rows[0]]
    alone = [row for row, tokens in enumerate(common) if not tokens]
    alike = [row for row, tokens in enumerate(common) if tokens]
    parts = []
    if alone:
        width = max(lengths[row] for row in alone)
        ids, mask = prompts.input_ids[alone, -width:], prompts.attention_mask[alone, -width:]
        parts.append(prefill(backbone, ids, mask, suffix))
    if alike:
        parts.append(_prefill_alike(backbone, prompts, alike, common, suffix))
    prefix, hidden = Prefix.concat([prefix for prefix, _ in parts]), torch.cat([hidden for _, hidden in parts])
    order = [*alone, *alike]
    if order != sorted(order):
        back = torch.tensor(order, device=prefix.valid.device).argsort()
        prefix, hidden = prefix.select(back), _rows(hidden, back)
    return prefix, hidden, tokens_run


def _prefill_alike(
    backbone: Backbone, prompts: PromptRows, rows: Sequence[int], common: Sequence[int], suffix: Sequence[int]
) -> tuple[Prefix, Tensor]:
    # `rows` begin with `common[row]` tokens that their whole group has.
    texts = [prompts.input_ids[row][prompts.attention_mask[row].bool()] for row in rows]
    groups = [int(group) for group in prompts.group_index[list(rows)]]
    first = {group: place for place, group in reversed(list(enumerate(groups)))}
    leaders = sorted(first.values())
    heads, seen = _left_padded([texts[place][: common[rows[place]]] for place in leaders])
    # A cache without a configuration evicts nothing, so that the members' last tokens see a whole window.
    cache: Any = DynamicCache()
    hidden = backbone.run(heads, None if bool(seen.all()) else seen.long(), positions_of(seen), cache)
    layers = tuple(PrefixLayer(layer.keys, layer.values) for layer in cache.layers)
    leader_of = torch.tensor([leaders.index(first[group]) for group in groups], device=seen.device)
    begun = Prefix(layers, seen, backbone.windows, hidden[:, -1]).select(leader_of)
    tail = torch.tensor(suffix, dtype=heads.dtype, device=heads.device)
    own = [torch.cat([text[common[row] :], tail]) for text, row in zip(texts, rows, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
    lengths = torch.tensor([len(tokens) for tokens in own], device=ids.device)
    longer, states = extend(backbone, begun, ids, torch.arange(ids.shape[1], device=ids.device) < lengths[:, None])
    layers = tuple(_last_slots(layer, None if window is None else window - 1 + len(suffix))
                   for layer, window in zip(longer.layers, longer.windows, strict=True))  # fmt: skip
    at = (lengths - 1 - len(suffix)).to(states.device)
    return replace(longer, layers=layers), states[torch.arange(len(rows), device=states.device), at]


def _left_padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    # [N, T] token ids, and [N, T] bool, False on padding.
    ids = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_side="left")
    lengths = torch.tensor([len(row) for row in rows], device=ids.device)
    return ids, torch.arange(ids.shape[1], device=ids.device) >= ids.shape[1] - lengths[:, None]


def _last_slots(layer: PrefixLayer, slots: int | None) -> PrefixLayer:
    if slots is None or layer.keys.shape[2] <= slots:
        return layer
    return PrefixLayer(layer.keys[:, :, -slots:].clone(), layer.values[:, :, -slots:].clone())


def append_ids(input_ids: Tensor, attention_mask: Tensor, suffix: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Append the same token ids to every row of a left-padded batch."""
    if not suffix:
        return input_ids, attention_mask
    tail = torch.tensor(suffix, dtype=input_ids.dtype, device=input_ids.device).expand(input_ids.shape[0], -1)
    return torch.cat([input_ids, tail], 1), torch.cat([attention_mask, torch.ones_like(tail)], 1)


def _mask_behind(valid: Tensor, new: int, window: int | None, dtype: torch.dtype) -> Tensor:
    # Additive, in the model's dtype: the one form that both sdpa and eager attention read correctly.
    past = valid.shape[1]
    query = past + torch.arange(new, device=valid.device)[:, None]
    key = torch.arange(past + new, device=valid.device)
    visible = key <= query  # [Q, past + Q]
    if window is not None:
        visible &= query - key < window
    tokens = torch.cat([valid, valid.new_ones(valid.shape[0], new)], dim=1)
    visible = visible[None] & tokens[:, None]
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def _roll_right(states: Tensor, shift: Tensor) -> Tensor:
    # [R, heads, S, D]: the last `shift` slots of each row wrap around to its front, where they count as padding.
    if not bool(shift.any()):
        return states
    size = states.shape[2]
    source = (torch.arange(size, device=states.device) - shift[:, None].to(states.device)) % size
    return states.gather(2, source[:, None, :, None].expand_as(states))


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor[index.to(tensor.device)]  # layers may live on several devices


def _stack_left(tensors: Sequence[Tensor]) -> Tensor:
    size = max(t.shape[2] for t in tensors)
    return torch.cat([torch.nn.functional.pad(t, (0, 0, size - t.shape[2], 0)) for t in tensors])


__all__ = ["Prefix", "extend", "extend_all", "positions_of", "prefill", "prefill_groups", "suffix_cache"]
