"""What a distribution of verdicts is worth: its mean, its variance, and what one takes for it who shuns or seeks risk."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Worth:
    """Rewards of B items as far as a distribution tells them; NaN where it is not known."""

    mean: Tensor
    """[B] float64, E r, in units of the reward."""
    variance: Tensor
    """[B] float64, E (r - E r)^2, in squared units of the reward."""
    risk_adjusted: Tensor
    """[B] float64, beta * log E exp(r / beta), in units of the reward."""

    def of(self, reward: str) -> Tensor:
        """[B] float64, what counts as the reward.

        Args:
            reward: `expected` or `risk_adjusted`.
        """
        return {"expected": self.mean, "risk_adjusted": self.risk_adjusted}[reward]


def worth_of(probs: Tensor, rewards: Sequence[float], beta: float) -> Worth:
    """Mean, variance and risk-adjusted value of each distribution.

    Args:
        probs: [B, C] float64, rows that sum to 1, or hold NaN.
        rewards: C values.
        beta: In units of the reward, not 0. Below 0 it is averse to risk: from the mean at minus infinity down to the worst
            possible reward at 0. Above 0 it seeks risk, up to the best.

    Source:
        The entropic certainty equivalent of H. Föllmer and A. Schied, Stochastic Finance, section 4.9.
    """
    values = torch.tensor(rewards, dtype=torch.float64, device=probs.device)
    mean = probs @ values
    off = values - mean[:, None]
    variance = (probs * off.square()).sum(-1)
    # Where beta is large all exponents are near 0, and a logarithm of nearly 1 times beta would be rounding noise. Where
    # it is small exponentials overflow. Each form is exact to rounding where the other one is not.
    if max(rewards) - min(rewards) < abs(beta):
        gain = torch.log1p((probs * torch.expm1(off / beta)).sum(-1))
    else:
        gain = torch.logsumexp(probs.log() + off / beta, -1)
    return Worth(mean, variance, mean + beta * gain)


def unknown_worth(num_items: int, device: torch.device) -> Worth:
    """The worth of B items whose distribution is not known.

    Args:
        num_items: B.
        device: Where to hold it.
    """
    unknown = torch.full((num_items,), torch.nan, dtype=torch.float64, device=device)
    return Worth(unknown, unknown.clone(), unknown.clone())


__all__ = ["Worth", "unknown_worth", "worth_of"]
