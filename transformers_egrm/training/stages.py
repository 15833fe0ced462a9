"""The order of a run's stages, and what of a configuration decides which of them.

A changed key touches the first stage whose outcome it decides, and all stages after that one. So a run may go on with
another configuration as long as none of the touched stages has begun.
"""

import re
from collections.abc import Iterable, Sequence


_ORDER = (
    "data", "start", "chains", r"sft-0", r"(?:route|sft)-[1-9]\d*", "sft", "candidates", "scorer-fit", "scorer",
    "grpo", "candidates-grpo", "scorer-grpo-fit", "scorer-grpo",
)  # fmt: skip
_FIRST_TOUCHED = (
    ("data.train_examples", "chains"),
    ("judge.options.max_chain_tokens", "data"),  # it decides how long a prompt may be
    ("judge.options", "chains"),
    ("sft.rounds", "sft"),
    ("sft.round_", "route-1"),
    ("sft", "sft-0"),
    ("routing", "route-1"),
    ("evaluation", "sft"),
    *((f"scorer.{name}", "candidates") for name in
      ("kind", "pooling", "examples", "data_options", "threshold", "files", "quality")),
    ("scorer", "scorer-fit"),
    ("grpo", "grpo"),
)  # fmt: skip
"""How keys begin, and the first stage that they decide; the first that fits counts. All others decide everything."""


def rank_of(stage: str) -> int:
    """Where a stage stands in the order; one that is not known comes first, so that any change touches it.

    Args:
        stage: Its name.
    """
    return next((place for place, name in enumerate(_ORDER) if re.fullmatch(name, stage)), 0)


def touched(keys: Iterable[str], stages: Iterable[str]) -> Sequence[str]:
    """The stages whose outcome changed keys decide, in order.

    Args:
        keys: Paths of keys, such as `sft.rounds`.
        stages: Names of stages that have begun.
    """
    first = min((rank_of(_first(key)) for key in keys), default=len(_ORDER))
    return sorted((stage for stage in stages if rank_of(stage) >= first), key=lambda stage: (rank_of(stage), stage))


def _first(key: str) -> str:
    return next((stage for beginning, stage in _FIRST_TOUCHED if key.startswith(beginning)), _ORDER[0])


__all__ = ["rank_of", "touched"]
