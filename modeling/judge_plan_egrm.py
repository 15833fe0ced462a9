"""What was decided for each item before its probes: how many of them, which path, when they agree enough."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .engine_random_egrm import uniforms
from .errors_egrm import ConfigError
from .judge_options_egrm import PATHS, JudgeOptions
from .verdict_consensus_egrm import Poll


AUDIT_BRANCH = 1 << 30  # a branch that nothing is drawn for, far from those of ladder and chains


@dataclass(frozen=True)
class JudgePlan:
    """One decision per item. Items of one batch may differ in each."""

    num_probes: tuple[int, ...]
    """[B] M, the first rungs of the ladder that are drawn of each prompt; 0 where the path is `long`."""
    paths: tuple[str, ...]
    """[B] `auto`, `short` or `long`, see `JudgeOptions.path`."""
    thresholds: tuple[float, ...]
    """[B] tau, in [0, 1]."""
    timeouts_s: tuple[float | None, ...]
    """[B] seconds until the item is given up, counted from when its judging begins; None: never."""
    audit_shares: tuple[float, ...]
    """[B] chance that a short verdict is audited, in [0, 1]; 0 where consensus does not decide the path."""

    def __post_init__(self) -> None:
        sizes = {len(column) for column in self._columns}
        if len(sizes) != 1 or not set(self.paths) <= set(PATHS):
            raise ConfigError(
                f"A plan decides the same for every item, each path one of {', '.join(PATHS)}; got {self!r:.300}."
            )

    @classmethod
    def of(cls, options: Sequence[JudgeOptions]) -> "JudgePlan":
        """The plan of B items.

        Args:
            options: Resolved options of each.
        """
        return cls(
            num_probes=tuple(0 if own.path == "long" else int(own.num_probes or 0) for own in options),
            paths=tuple(own.path for own in options),
            thresholds=tuple(own.consensus_threshold for own in options),
            timeouts_s=tuple(own.timeout_s for own in options),
            audit_shares=tuple(own.audit_share if own.path == "auto" else 0.0 for own in options),
        )

    @property
    def num_items(self) -> int:
        """B."""
        return len(self.paths)

    def select(self, items: Sequence[int]) -> "JudgePlan":
        """The plan of some items, in the order given."""
        return JudgePlan(*(tuple(values[item] for item in items) for values in self._columns))

    def deadlines(self) -> list[float]:
        """[B] `time.monotonic()` at which each item is given up, if its judging begins now."""
        now = time.monotonic()
        return [math.inf if timeout is None else now + timeout for timeout in self.timeouts_s]

    def threshold(self, device: torch.device) -> Tensor:
        """[B] float64."""
        return torch.tensor(self.thresholds, dtype=torch.float64, device=device)

    def takes(self, path: str, device: torch.device) -> Tensor:
        """[B] bool, items whose path is this one."""
        return torch.tensor([own == path for own in self.paths], device=device)

    def audits(self, item_ids: Tensor, seed: int) -> Tensor:
        """[B] bool, items to be audited if they take the short path: a matter of id and seed, never of place or batch.

        Args:
            item_ids: [B] int64.
            seed: Of all random numbers.
        """
        shares = torch.tensor(self.audit_shares, dtype=torch.float64, device=item_ids.device)
        return uniforms(seed, item_ids, torch.full_like(item_ids, AUDIT_BRANCH), 0) < shares

    def poll(self, item_index: Tensor, *, probes_are_candidates: bool, abstain_below: float | None = None) -> Poll:
        """Who votes, and when it is enough.

        Args:
            item_index: [R] int64, the item of each prompt.
            probes_are_candidates: Whether probes are candidates on the long path, and so are read to their end there.
            abstain_below: Share below which a short verdict does not count.
        """
        threshold = self.threshold(item_index.device)
        drawn = torch.tensor(self.num_probes, device=item_index.device)
        return Poll(
            item_index=item_index,
            voters=torch.bincount(item_index, minlength=self.num_items) * drawn,
            threshold=threshold,
            enough=threshold.clamp_min(abstain_below or 0.0),
            stop_long=self.takes("auto", item_index.device) & (not probes_are_candidates),
            per_prompt=max(self.num_probes),
            live=self._live(item_index),
        )

    def _live(self, item_index: Tensor) -> Tensor | None:
        most = max(self.num_probes)
        if min(self.num_probes) == most:
            return None
        drawn = torch.tensor(self.num_probes, device=item_index.device)[item_index]
        return (torch.arange(most, device=item_index.device) < drawn[:, None]).flatten()

    @property
    def _columns(self) -> tuple[tuple, ...]:
        return self.num_probes, self.paths, self.thresholds, self.timeouts_s, self.audit_shares


__all__ = ["JudgePlan"]
