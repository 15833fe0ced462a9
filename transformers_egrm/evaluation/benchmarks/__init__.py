"""The field's benchmarks, one file each. Reading one costs nothing until it is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

from transformers_egrm.modeling.errors_egrm import ConfigError


if TYPE_CHECKING:
    from transformers_egrm.evaluation.scoring import Benchmark

TITLES = {
    "own": "Your own file: pairs, graded answers or groups of answers",
    "rewardbench": "RewardBench: 2,985 pairs in four sections",
    "rewardbench2": "RewardBench 2: 1,865 choices among four and more",
    "rm-bench": "RM-Bench: 1,327 prompts, three styles against three",
    "rmb": "RMB: pairs and best-of-n in 49 scenarios",
    "judgebench": "JudgeBench: 620 hard pairs with an objective truth",
    "llmbar": "LLMBar: 419 pairs about following instructions",
    "ppe": "PPE: 2,555 prompts with 32 answers each, verified",
    "gsm8k": "GSM8K: solutions verified, and the best of several chosen",
    "math500": "MATH-500: answers verified, and the best of several chosen",
    "adversarial": "Attacks on the judge: master keys, injected verdicts, control tokens and more",
}
"""Every benchmark by its name on the command line."""


def load_benchmark(name: str) -> "Benchmark":
    """A benchmark by its name.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in TITLES:
        raise ConfigError(f"The benchmark must be one of {', '.join(TITLES)}, got {name!r}.")
    return import_module(f"{__name__}.{name.replace('-', '_')}").BENCHMARK


__all__ = ["TITLES", "load_benchmark"]
