"""The checkpoints that golden rows are judged with, each loaded once."""

from functools import cache
from typing import Any

from golden.cases import FIXTURES, MINI

from transformers_egrm import EGRMRewardModel, load_mini


@cache
def load(name: str) -> Any:
    """A checkpoint by its name, in evaluation mode."""
    # Memory-mapped weights are unaligned, and some kernels then add in another order.
    return load_mini(disable_mmap=True) if name == MINI else EGRMRewardModel.from_pretrained(
        FIXTURES / name, disable_mmap=True
    )  # fmt: skip
