"""Both models' laws brought to one form: a few columns of the target's, node by node."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .draft_nodes_egrm import Drafts
from .draft_sources_egrm import Proposal
from .engine_sampling_egrm import Support


def sound(logits: Tensor, finite: Tensor) -> Tensor:
    """Logits [N, V] with 0 in rows that are not finite [N]: they are stopped, and must not disturb the others until then."""
    # Nothing is asked of the device: a question would cost more than the copy.
    return torch.where(finite[:, None], logits, 0.0)


def joined(parts: Sequence[Support], size: int | None) -> Support:
    """One support of all rows, over the whole vocabulary where `size` is given."""
    if size is not None:
        return Support(torch.cat([part.everywhere(size) for part in parts]), None)
    width = max(part.probs.shape[-1] for part in parts)
    probs = [torch.nn.functional.pad(part.probs, (0, width - part.probs.shape[-1])) for part in parts]
    # Columns stay ascending. Those added have no probability, and no token has such an id.
    far = torch.iinfo(torch.int64).max
    columns = [
        torch.nn.functional.pad(part.columns, (0, width - part.columns.shape[-1]), value=far)
        for part in parts
        if part.columns is not None
    ]
    return Support(torch.cat(probs), torch.cat(columns))


def drafts_of(proposal: Proposal, support: Support, nodes: Tensor) -> Drafts:
    """Bring both models' laws to the target's columns, node by node."""
    count, width = nodes.shape
    tokens = proposal.tokens
    target = support.probs[:, nodes.flatten()].unflatten(1, (count, width))
    if support.columns is None:
        size = target.shape[-1]
        draft = torch.stack([_everywhere(part, size) for part in proposal.supports], dim=2)
        return Drafts(tokens, tokens, draft, target)
    columns = support.columns[:, nodes.flatten()].unflatten(1, (count, width))  # [R, S, L + 1, C]
    draft = torch.stack([part.at(columns[:, :, node]) for node, part in enumerate(proposal.supports)], dim=2)
    places = torch.searchsorted(columns[:, :, :-1].contiguous(), tokens[..., None])[..., 0]
    inside = places.clamp_max(columns.shape[-1] - 1)
    found = columns[:, :, :-1].gather(-1, inside[..., None])[..., 0] == tokens
    # All that the draft may write and the target may not is one more column: no rule tells such tokens apart.
    rest = (1 - draft.sum(-1, keepdim=True)).clamp_min(torch.finfo(torch.float64).tiny)
    places = torch.where(found, inside, columns.shape[-1])
    return Drafts(
        tokens,
        places,
        torch.cat([draft, rest], dim=-1),
        torch.nn.functional.pad(target, (0, 1)),
        torch.nn.functional.pad(columns, (0, 1)),
    )


def _everywhere(support: Support, size: int) -> Tensor:
    # A draft whose vocabulary is shorter never writes the target's last tokens.
    probs = support.everywhere(size)
    return torch.nn.functional.pad(probs, (0, size - probs.shape[-1]))


__all__ = ["drafts_of", "joined", "sound"]
