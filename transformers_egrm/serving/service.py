"""`Service`: what the endpoints of one server work with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers_egrm.calibration.comparison import Comparison
from transformers_egrm.calibration.feedback import FeedbackStore
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.serving.job_store import Jobs
from transformers_egrm.serving.metrics import Metrics
from transformers_egrm.serving.options import ServeOptions
from transformers_egrm.serving.worker import Worker


@dataclass(eq=False)
class Service:
    """What endpoints work with."""

    name: str
    options: ServeOptions
    space: VerdictSpace
    """The checkpoint's own."""
    label: str
    """What the checkpoint calls its one class."""
    fallback: float | None
    """Reward where there is no verdict, for contracts that know numbers only."""
    decider: Any
    """The same judge as an `EGRMForDecision`; None where decisions cannot be answered."""
    judging: Mapping[str, Any]
    """Fields of `JudgeOptions` that differ from the checkpoint's."""
    worker: Worker
    metrics: Metrics
    jobs: Jobs
    store: FeedbackStore | None
    comparison: Comparison


__all__ = ["Service"]
