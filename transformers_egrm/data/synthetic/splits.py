"""Which split, and which of its streams, a task belongs to.

The one rule: a task's identity decides, whatever names and words it is told in. A question belongs where all of its
tasks belong. So no two splits share a task, as a question of its own or as a part of another one, and no two streams of
a held-out split do. Single steps are shared: the world has few facts, as a times table has.
"""

import hashlib
from collections.abc import Callable, Iterable

from transformers_egrm.modeling.errors_egrm import ConfigError


SPLITS = {"train": range(70), "calibration": range(70, 80), "test": range(80, 90), "sealed": range(90, 100)}
"""Split -> its hundredths of all tasks. `sealed` is for the tables that are published, and for nothing else."""
STREAMS = 5
"""Streams of a held-out split, numbered from 0: each has a fifth of the split's tasks for itself."""
TRAINING_LEVEL = 0
"""The difficulty that is for training alone: its drills are too few to be dealt out."""


def digest(identities: Iterable[str]) -> str:
    """Sixteen hexadecimal digits that stand for a question in any words: its tasks in any order.

    Args:
        identities: Of its tasks.
    """
    return hashlib.sha256("\n".join(sorted(identities)).encode()).hexdigest()[:16]


def membership(split: str, stream: int) -> Callable[[str], bool]:
    """The test of whether a task belongs to a stream, by its identity.

    Args:
        split: Key of `SPLITS`.
        stream: Number of the stream. In training every stream draws from all of the split's tasks.

    Raises:
        ConfigError: The split has no such stream.
    """
    hundredths = SPLITS[split]
    if split != "train":
        if not 0 <= stream < STREAMS:
            raise ConfigError(
                f"The {split} split has streams 0 to {STREAMS - 1}, got seed={stream}.",
                "Streams share no task, so there are only so many: draw more items of each, or use fewer streams.",
            )
        share = len(hundredths) // STREAMS
        hundredths = hundredths[stream * share : (stream + 1) * share]
    return lambda identity: int(digest([identity]), 16) % 100 in hundredths


__all__ = ["SPLITS", "STREAMS", "TRAINING_LEVEL", "digest", "membership"]
