"""Metrics and costs: what this project reports about judges, each figure defined once.

The same metrics load as modules of the library `evaluate`: `evaluate.load(module_path("egrm_routing"))`.
"""

from pathlib import Path


MODULES = (
    "best_of_n", "calibration_error", "egrm_consensus", "egrm_routing", "order_accuracy", "pairwise_accuracy",
    "rewardbench", "rewardbench2", "rm_bench", "self_bleu",
)  # fmt: skip


def module_path(name: str) -> str:
    """Where `evaluate.load` finds one of this package's metrics; no network is needed.

    Args:
        name: One of `MODULES`.

    Raises:
        ValueError: There is no such metric.
    """
    if name not in MODULES:
        raise ValueError(f"The metric must be one of {', '.join(MODULES)}, got {name!r}.")
    return str(Path(__file__).parent / "modules" / name)


__all__ = ["MODULES", "module_path"]
