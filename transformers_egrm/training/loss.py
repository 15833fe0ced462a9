"""The loss that a scorer learns by."""

import torch
from torch import Tensor, nn

from transformers_egrm.modeling.configuration_egrm import EGRMConfig


def hybrid_loss(
    scores: Tensor,
    targets: Tensor,
    better: Tensor,
    worse: Tensor,
    *,
    regression_weight: float,
    huber_delta: float,
    hinge_margin: float,
) -> Tensor:
    """Regression to a target and ranking within pairs: `w * Huber + (1 - w) * hinge`.

    Args:
        scores: [N] float, the scorer's, in [0, 1].
        targets: [N] float in [0, 1], the quality to reach, for example 1 for a correct chain and 0 for a wrong one.
        better: [P] int64, index into `scores` of each pair's better chain; pairs share their question.
        worse: [P] int64, index of its worse chain.
        regression_weight: w, in [0, 1].
        huber_delta: Where Huber turns from quadratic to linear, in score units, above 0.
        hinge_margin: How far apart a pair should be, in score units, at least 0.

    Returns:
        Scalar, float32 or wider: means over chains and over pairs; without pairs the ranking part is 0.

    Raises:
        ValueError: `scores` and `targets`, or `better` and `worse`, differ in length.

    Source:
        https://huggingface.co/papers/2604.10072, hybrid regression-ranking objective of the discriminative scorer.
        The paper and its authors' code weigh the two parts by alpha in opposite senses, hence the other name; delta,
        margin and weight are not published.
    """
    if scores.shape != targets.shape or better.shape != worse.shape:
        raise ValueError(
            f"Every score needs one target and every better chain one worse chain, got {tuple(scores.shape)} and "
            f"{tuple(targets.shape)}, {tuple(better.shape)} and {tuple(worse.shape)}."
        )
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    regression = nn.functional.huber_loss(scores, targets.to(scores.dtype), delta=huber_delta)
    shortfall = (hinge_margin - (scores[better] - scores[worse])).clamp_min(0)
    ranking = shortfall.mean() if shortfall.numel() else shortfall.sum()
    return regression_weight * regression + (1 - regression_weight) * ranking


class HybridLoss(nn.Module):
    """`hybrid_loss` with its weights taken from a checkpoint's configuration.

    Args:
        config: `regression_weight`, `huber_delta` and `hinge_margin` are read.
    """

    def __init__(self, config: EGRMConfig) -> None:
        super().__init__()
        self.weights = {name: getattr(config, name) for name in ("regression_weight", "huber_delta", "hinge_margin")}

    def forward(self, scores: Tensor, targets: Tensor, better: Tensor, worse: Tensor) -> Tensor:
        """See `hybrid_loss`.

        Args:
            scores: [N] float in [0, 1].
            targets: [N] float in [0, 1].
            better: [P] int64.
            worse: [P] int64.
        """
        return hybrid_loss(scores, targets, better, worse, **self.weights)

    def extra_repr(self) -> str:
        """The weights, for `print`."""
        return ", ".join(f"{name}={value}" for name, value in self.weights.items())


__all__ = ["HybridLoss", "hybrid_loss"]
