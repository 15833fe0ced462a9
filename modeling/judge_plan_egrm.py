"""What was decided for each item before its probes: how many of them, which path, when they agree enough."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

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
    floors: tuple[float, ...]
    """[B] share of the votes below which a verdict gives no reward, in [0, 1]."""
    may_stop: tuple[bool, ...]
    """[B] whether probes stop once the long path is sure; False where they are candidates there."""
    timeouts_s: tuple[float | None, ...]
    """[B] seconds until the item is given up, counted from when its judging begins; None: never."""
    audits: tuple[bool, ...]
    """[B] whether a short verdict is audited; False where consensus does not decide the path."""

    def __post_init__(self) -> None:
        sizes = {len(column) for column in self._columns}
        if len(sizes) != 1 or not set(self.paths) <= set(PATHS):
            raise ConfigError(
                f"A plan decides the same for every item, each path one of {', '.join(PATHS)}; got {self!r:.300}."
            )

    @classmethod
    def of(cls, options: Sequence[JudgeOptions], item_ids: Sequence[int]) -> "JudgePlan":
        """The plan of B items.

        Args:
            options: Resolved options of each.
            item_ids: What their random numbers belong to: who is audited is a matter of id and seed, never of place or batch.
        """
        return cls(
            num_probes=tuple(0 if own.path == "long" else int(own.num_probes or 0) for own in options),
            paths=tuple(own.path for own in options),
            thresholds=tuple(own.consensus_threshold for own in options),
            floors=tuple(own.abstain_below or 0.0 for own in options),
            may_stop=tuple(own.path == "auto" and not own.reuse_probes for own in options),
            timeouts_s=tuple(own.timeout_s for own in options),
            audits=tuple(_is_audited(own, item_id) for own, item_id in zip(options, item_ids, strict=True)),
        )

    @property
    def num_items(self) -> int:
        """B."""
        return len(self.paths)

    def select(self, items: Sequence[int]) -> "JudgePlan":
        """The plan of some items, in the order given."""
        return JudgePlan(*(tuple(values[item] for item in items) for values in self._columns))

    def distinct(self, options: JudgeOptions) -> list[JudgeOptions]:
        """Every combination of options that some item is judged with.

        Args:
            options: What all items share, resolved.
        """
        combinations = dict.fromkeys(zip(self.num_probes, self.paths, self.thresholds, strict=True))
        return [
            replace(options, num_probes=probes or options.num_probes, path=path, consensus_threshold=tau)
            for probes, path, tau in combinations
        ]

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

    def poll(self, item_index: Tensor) -> Poll:
        """Who votes, and when it is enough.

        Args:
            item_index: [R] int64, the item of each prompt.
        """
        threshold = self.threshold(item_index.device)
        floors = torch.tensor(self.floors, dtype=torch.float64, device=item_index.device)
        drawn = torch.tensor(self.num_probes, device=item_index.device)
        return Poll(
            item_index=item_index,
            voters=torch.bincount(item_index, minlength=self.num_items) * drawn,
            threshold=threshold,
            enough=torch.maximum(threshold, floors),
            stop_long=torch.tensor(self.may_stop, device=item_index.device),
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
        return tuple(getattr(self, column.name) for column in fields(self))


def _is_audited(options: JudgeOptions, item_id: int) -> bool:
    if options.path != "auto" or not options.audit_share:
        return False
    drawn = uniforms(options.seed, torch.tensor([item_id]), torch.tensor([AUDIT_BRANCH]), 0)
    return float(drawn) < options.audit_share


__all__ = ["JudgePlan"]
