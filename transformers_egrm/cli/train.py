"""`egrm train`: a judge from nothing, or from a language model, stage by stage or all at once."""

from dataclasses import dataclass, field
from typing import Any

import typer

from transformers_egrm.cli.options import with_options
from transformers_egrm.cli.summary import message_console
from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import ConfigError


app = typer.Typer(
    help="Train a judge: routed fine-tuning, then a scorer of chains, then reinforcement learning.\n\n"
    "A run is one folder. The same command goes on where a killed run stopped; finished stages are not repeated.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What every command takes; each setting of the configuration stands in its file."""

    output: str = field(metadata={"flags": ("--output", "-o"), "metavar": "FOLDER"})
    """The run's folder."""
    config: str | None = field(default=None, metadata={"flags": ("--config", "-c"), "metavar": "FILE.yaml"})
    """What to train; keys left out keep their defaults."""
    data: str | None = field(default=None, metadata={"metavar": "LABELLED"})
    """Your own labels, as egrm bench own reads them (data.labelled)."""
    label: str | None = field(default=None, metadata={"metavar": "COLUMN"})
    """The column of your labels that holds the truth (data.label)."""
    map: tuple[str, ...] = field(default=(), metadata={"metavar": "FIELD=COLUMN"})
    """Read a field of your labels from another column (data.map). Repeatable."""
    generator: str | None = field(default=None, metadata={"flags": ("--generator", "-g"), "metavar": "MODEL"})
    """The model to start from: egrm-mini, a folder or a Hub id (generator.path)."""
    redo: bool = False
    """After a change of the configuration, repeat the stages that it decides, and keep the others."""
    restart: bool = False
    """Remove an earlier run from the folder and begin anew."""
    progress: bool | None = None
    """Show progress bars; by default only on a terminal."""

    def values(self) -> Any:
        """The configuration as plain data: the file's, with what the command line says in place."""
        from transformers_egrm.training.config import read_yaml

        if self.config is None and self.data is None:
            raise ConfigError("A training needs --config FILE.yaml, or --data LABELLED with --generator MODEL.")
        values: Any = {} if self.config is None else read_yaml(self.config)
        said = {"data": {"labelled": self.data, "label": self.label, "map": list(self.map) or None},
                "generator": {"path": self.generator}}  # fmt: skip
        for section, own in said.items():
            own = {name: value for name, value in own.items() if value is not None}
            if own and isinstance(values, dict) and isinstance(values.setdefault(section, {}), dict):
                values[section] |= own
        return values


@app.command(epilog="Examples:\n\negrm train sft --config examples/train/egrm_mini.yaml --output ./run\n\n"
             "accelerate launch --multi_gpu --num_processes 2 -m transformers_egrm.cli train sft -c mini.yaml -o ./run")  # fmt: skip
@with_options(TrainOptions, "asked")
def sft(*, asked: TrainOptions) -> None:
    """Stage 1: fine-tune on both modes, then on the split of the model's own consensus."""
    shop = _open(asked, "sft")
    from transformers_egrm.training.sft import run_sft

    run_sft(shop)
    _report(shop, "sft")


@app.command(epilog="Example:\n\negrm train scorer --config examples/train/egrm_mini.yaml --output ./run")
@with_options(TrainOptions, "asked")
def scorer(*, asked: TrainOptions) -> None:
    """Stage 2: sample the judge's candidates and train the scorer that chooses among them.

    The judge is the run's own, trained by stage 1 in the same folder, or `generator.path` of a run without one.
    """
    shop = _open(asked, "scorer")
    from transformers_egrm.training.scorer import run_scorer
    from transformers_egrm.training.sft import generator_stage

    _report(shop, run_scorer(shop, generator_stage(shop.run)))


@app.command(epilog="Example:\n\negrm train grpo --config examples/train/egrm_mini.yaml --output ./run")
@with_options(TrainOptions, "asked")
def grpo(*, asked: TrainOptions) -> None:
    """Stage 3: extended GRPO, and the scorer once more for the policy it leads to.

    The judge and its scorer are those of stages 1 and 2 in the same folder.
    """
    shop = _open(asked, "grpo", "scorer")
    from transformers_egrm.training.everything import AFTER_GRPO
    from transformers_egrm.training.grpo import run_grpo
    from transformers_egrm.training.scorer import run_scorer
    from transformers_egrm.training.sft import generator_stage

    _report(shop, run_scorer(shop, run_grpo(shop, generator_stage(shop.run)), AFTER_GRPO))


@app.command(name="all", epilog="Examples:\n\negrm train all --config examples/train/egrm_mini.yaml --output ./run\n\n"
             "egrm train all --config examples/train/smoke.yaml --output ./smoke\n\n"
             "egrm train all --data labelled.jsonl --generator egrm-mini --output ./run")  # fmt: skip
@with_options(TrainOptions, "asked")
def everything(*, asked: TrainOptions) -> None:
    """All stages, from nothing to a checkpoint with its measurements.

    The folder then holds `checkpoint/`, `results.json`, `metrics.jsonl` and `plots/`.
    """
    shop = _open(asked, "sft", "scorer", "grpo")
    from transformers_egrm.training.everything import train_all

    result = train_all(shop)
    _report(shop, result, "checkpoint")
    if shop.run.is_main and result == "sft":
        message_console().print(
            "Note: no scorer was trained, because no group of chains holds better and worse ones; the chains vote. "
            "scorer.threshold: 1.0, warmer chains (judge.options.chain_temperature) or more labels give it more to learn "
            "from.", markup=False, soft_wrap=True,
        )  # fmt: skip


def _open(asked: TrainOptions, *stages: str) -> Any:
    # What the extra brings, asked for first: an error of our own modules must not look like a missing package.
    for package in ("yaml", "matplotlib", "peft", "trl.trainer.sft_trainer"):
        import_extra(package, "train")
    from transformers_egrm.training.checks import check_run
    from transformers_egrm.training.config import read_config
    from transformers_egrm.training.defaults import complete
    from transformers_egrm.training.run import Run, check_trackers, process_state, quiet
    from transformers_egrm.training.sft import Workshop

    console, state = message_console(), process_state()
    shown = (console.is_terminal if asked.progress is None else asked.progress) and state.is_main_process
    quiet(shown)
    values = read_config(complete(asked.values()))
    check_trackers(values.report_to)
    with state.main_process_first():
        run = Run(asked.output, values, is_main=state.is_main_process, restart=asked.restart, redo=asked.redo)
    shop = Workshop(run, progress=shown)
    check_run(shop, stages)
    return shop


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


__all__ = ["TrainOptions", "app"]
