"""`egrm train all`: from a configuration to a checkpoint with its measurements."""

import platform
import shutil
from importlib.metadata import version
from typing import Any

import torch
from accelerate import PartialState

from transformers_egrm.data.files import replacing, write_json
from transformers_egrm.training.config import to_dict
from transformers_egrm.training.grpo import run_grpo
from transformers_egrm.training.plots import draw_plots
from transformers_egrm.training.run import Run
from transformers_egrm.training.scorer import NothingToChooseError, ScorerStages, run_scorer
from transformers_egrm.training.sft import Workshop, run_sft


AFTER_GRPO = ScorerStages("candidates-grpo", "scorer-grpo-fit", "scorer-grpo")


def train_all(shop: Workshop) -> str:
    """Every stage that is not done yet, then the checkpoint and the results.

    Args:
        shop: The run and its data.

    Returns:
        The stage whose checkpoint is the run's: that of fine-tuning where no scorer can be trained.
    """
    generator = run_sft(shop)
    try:
        result = run_scorer(shop, generator)
    except NothingToChooseError:  # the judge is whole without one: its chains vote
        result = "sft"
    if shop.run.config.grpo.steps:
        # The policy has moved: its candidates are new ones, and so are the states that a scorer may read.
        result = run_scorer(shop, run_grpo(shop, generator), AFTER_GRPO)
    if shop.run.is_main:
        write_outcome(shop.run, result)
    PartialState().wait_for_everyone()
    return result


def write_outcome(run: Run, result: str) -> None:
    """Write `checkpoint/`, `results.json` and the plots.

    Args:
        run: A run whose stages are done.
        result: The stage whose checkpoint is the run's.
    """
    with replacing(run.folder / "checkpoint") as partial:
        shutil.copytree(run.stage_folder(result), partial)
    write_json(run.folder / "results.json", {
        "result": result, "config": to_dict(run.config), "environment": environment(), "stages": run.results(),
    })  # fmt: skip
    draw_plots(run)


def environment() -> dict[str, Any]:
    """The releases and the processor that numbers depend on."""
    packages = ("transformers-egrm", "torch", "transformers", "trl", "peft", "accelerate")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "device": str(PartialState().device),
        "processes": PartialState().num_processes,
        "threads": torch.get_num_threads(),
    }


__all__ = ["AFTER_GRPO", "environment", "train_all", "write_outcome"]
