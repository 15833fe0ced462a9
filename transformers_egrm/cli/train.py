"""`egrm train`: a judge from nothing, or from a language model, stage by stage or all at once."""

from typing import Annotated, Any

import typer

from transformers_egrm.cli.summary import message_console
from transformers_egrm.extras import import_extra


app = typer.Typer(
    help="Train a judge: routed fine-tuning, then a scorer of chains, then reinforcement learning.\n\n"
    "A run is one folder. The same command goes on where a killed run stopped; finished stages are not repeated.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)

_Config = Annotated[
    str, typer.Option("--config", "-c", metavar="FILE.yaml", help="What to train; keys left out keep their defaults.")
]
_Output = Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="The run's folder.")]
_Restart = Annotated[bool, typer.Option("--restart", help="Remove an earlier run from the folder and begin anew.")]
_Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress bars; by default only on a terminal.")
]


@app.command(epilog="Examples:\n\negrm train sft --config examples/train/egrm_mini.yaml --output ./run\n\n"
             "accelerate launch --multi_gpu --num_processes 2 -m transformers_egrm.cli train sft -c mini.yaml -o ./run")  # fmt: skip
def sft(config: _Config, output: _Output, restart: _Restart = False, progress: _Progress = None) -> None:
    """Stage 1: fine-tune on both modes, then on the split of the model's own consensus."""
    shop = _open(config, output, restart, progress)
    from transformers_egrm.training.sft import run_sft

    run_sft(shop)
    _report(shop, "sft")


@app.command(epilog="Example:\n\negrm train scorer --config examples/train/egrm_mini.yaml --output ./run")
def scorer(config: _Config, output: _Output, restart: _Restart = False, progress: _Progress = None) -> None:
    """Stage 2: sample the judge's candidates and train the scorer that chooses among them.

    The judge is the run's own, trained by stage 1 in the same folder, or `generator.path` of a run without one.
    """
    shop = _open(config, output, restart, progress)
    from transformers_egrm.training.scorer import run_scorer
    from transformers_egrm.training.sft import generator_stage

    _report(shop, run_scorer(shop, generator_stage(shop.run)))


@app.command(epilog="Example:\n\negrm train grpo --config examples/train/egrm_mini.yaml --output ./run")
def grpo(config: _Config, output: _Output, restart: _Restart = False, progress: _Progress = None) -> None:
    """Stage 3: extended GRPO, and the scorer once more for the policy it leads to.

    The judge and its scorer are those of stages 1 and 2 in the same folder.
    """
    shop = _open(config, output, restart, progress)
    from transformers_egrm.training.everything import AFTER_GRPO
    from transformers_egrm.training.grpo import run_grpo
    from transformers_egrm.training.scorer import run_scorer
    from transformers_egrm.training.sft import generator_stage

    _report(shop, run_scorer(shop, run_grpo(shop, generator_stage(shop.run)), AFTER_GRPO))


@app.command(name="all", epilog="Examples:\n\negrm train all --config examples/train/egrm_mini.yaml --output ./run\n\n"
             "egrm train all --config examples/train/smoke.yaml --output ./smoke")  # fmt: skip
def everything(config: _Config, output: _Output, restart: _Restart = False, progress: _Progress = None) -> None:
    """All stages, from nothing to a checkpoint with its measurements.

    The folder then holds `checkpoint/`, `results.json`, `metrics.jsonl` and `plots/`.
    """
    shop = _open(config, output, restart, progress)
    from transformers_egrm.training.everything import train_all

    _report(shop, train_all(shop), "checkpoint")


def _open(config: str, output: str, restart: bool, progress: bool | None) -> Any:
    # What the extra brings, asked for first: an error of our own modules must not look like a missing package.
    for package in ("yaml", "matplotlib", "peft", "trl.trainer.sft_trainer"):
        import_extra(package, "train")
    from transformers_egrm.training.config import load_config
    from transformers_egrm.training.run import Run, check_trackers, process_state, quiet
    from transformers_egrm.training.sft import Workshop

    values, console, state = load_config(config), message_console(), process_state()
    shown = (console.is_terminal if progress is None else progress) and state.is_main_process
    quiet(shown)
    check_trackers(values.report_to)
    with state.main_process_first():
        run = Run(output, values, is_main=state.is_main_process, restart=restart)
    return Workshop(run, progress=shown)


def _report(shop: Any, stage: str, folder: str | None = None) -> None:
    run = shop.run
    if not run.is_main:
        return
    from transformers_egrm.training.plots import draw_plots

    draw_plots(run)
    console, measured = message_console(), run.result(stage)
    for path in ("routed", "short", "long", "routed_by_vote", "long_by_vote", "choice"):
        figures = {name: value for name, value in measured.get(path, {}).items() if isinstance(value, int | float)}
        if figures:
            words = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
            console.print(f"{path}: {words}", markup=False, soft_wrap=True)
    console.print(f"Wrote {run.folder / (folder or stage)}.", markup=False, soft_wrap=True)


__all__ = ["app"]
