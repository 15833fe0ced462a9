"""A run's folder: its configuration, which stages are done, its metrics, and where each stage keeps its files.

```
RUN/
  config.json      the configuration; a change of what decides a stage that has begun is refused
  metrics.jsonl    one line per logged step of any stage
  stages/NAME.json what a finished stage measured: its mark
  NAME/            the stage's own files: checkpoints while it runs, a model when it is done
  plots/           loss, reward, route share, consensus against correctness
  checkpoint/      the E-GRM checkpoint
  results.json     every stage's measurements
```
"""

import json
import math
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations
from transformers.utils import logging as transformers_logging

from transformers_egrm.data.files import write_json, write_text
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.config import TrainConfig, read_config, to_dict
from transformers_egrm.training.stages import touched


_FREE_KEYS = ("report_to",)  # may change between two parts of a run: they decide no number
_OUTCOMES = {"stages", "plots", "checkpoint"}  # folders that belong to no stage


class Run:
    """A run of `egrm train`, new or resumed.

    Args:
        folder: Made if absent.
        config: What the run does. It may differ from an earlier one's in what decides no stage that has begun.
        is_main: Whether this process writes; in distributed runs only one does.
        restart: Remove what an earlier run left in the folder.
        redo: Where the configuration has changed, remove the stages that this decides, and keep the others.

    Raises:
        ConfigError: The folder holds another run, or something else.
    """

    def __init__(
        self, folder: str | Path, config: TrainConfig, *, is_main: bool = True, restart: bool = False,
        redo: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self.config, self.is_main = Path(folder), config, is_main
        self._since = time.monotonic()
        values = {name: value for name, value in to_dict(config).items() if name not in _FREE_KEYS}
        path = self.folder / "config.json"
        known = _known_run(path)
        if known is None and self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError(f"A run needs a new or an empty folder, got {folder} with other files in it.")
        if known is not None and restart:
            if is_main:
                shutil.rmtree(self.folder)
        elif known is not None and (changed := _difference(known, json.loads(json.dumps(values)))):
            stale = touched(changed, self._begun())
            if stale and not redo:
                differs = ", ".join(f"{key} ({old!r}, now {new!r})" for key, (old, new) in changed.items())
                raise ConfigError(
                    f"{folder} holds a run with another configuration; it differs in {differs}, which decides the "
                    f"stages {', '.join(stale)}.",
                    "Name another folder, pass --redo to repeat these stages and keep the others, or --restart to begin "
                    "anew.",
                )
            for stage in stale if is_main else ():
                self._drop(stage)
        if is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, values)

    def _begun(self) -> list[str]:
        marked = [path.stem for path in (self.folder / "stages").glob("*.json")]
        return sorted({*marked, *(path.name for path in self.folder.iterdir() if path.is_dir())} - _OUTCOMES)

    def _drop(self, stage: str) -> None:
        # The mark goes first: a kill then leaves a stage that is not done, never a mark without its files.
        self._mark(stage).unlink(missing_ok=True)
        shutil.rmtree(self.stage_folder(stage), ignore_errors=True)
        self.forget(stage)

    def stage_folder(self, stage: str) -> Path:
        """Where a stage keeps its files.

        Args:
            stage: Its name.
        """
        return self.folder / stage

    def is_done(self, stage: str) -> bool:
        """Whether a stage is finished: the same answer in every process, also while the main one goes on to write.

        Args:
            stage: Its name.
        """
        answer = [self.result(stage) is not None]
        broadcast_object_list(answer)
        return answer[0]

    def result(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage measured; None where it is not finished.

        Args:
            stage: Its name.
        """
        path = self._mark(stage)
        return json.loads(path.read_text("utf-8")) if path.is_file() else None

    def finish(self, stage: str, measured: Mapping[str, Any]) -> dict[str, Any]:
        """Mark a stage as done. Every process calls it, and leaves it when the mark is there.

        Args:
            stage: Its name.
            measured: Its measurements, ready for JSON; the main process's count.

        Returns:
            The same measurements, and `wall_seconds` since the previous mark of this process: the whole stage, or what was
            left of it where it was resumed.
        """
        measured = {**measured, "wall_seconds": round(time.monotonic() - self._since, 1)}
        self._since = time.monotonic()
        if self.is_main:
            write_json(self._mark(stage), measured)
        PartialState().wait_for_everyone()
        return measured

    def results(self) -> dict[str, Any]:
        """Every finished stage's measurements, in the order of their ends."""
        marks = sorted((self.folder / "stages").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        return {path.stem: json.loads(path.read_text("utf-8")) for path in marks}

    def log(self, stage: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one line to the metrics.

        Args:
            stage: Name of the stage.
            step: Its optimiser step.
            values: What was measured; numbers that are not finite become null.
        """
        if not self.is_main:
            return
        row = {"stage": stage, "step": step, "time": round(time.time(), 3), **values}
        plain = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")

    def metrics(self, stage: str | None = None) -> list[dict[str, Any]]:
        """The lines of the metrics, of one stage or of all.

        Args:
            stage: Its name; None: all.
        """
        path = self.folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
        return [row for row in rows if stage in (None, row["stage"])]

    def forget(self, stage: str, after_step: int = -1) -> None:
        """Drop lines that a killed part of the run wrote after its last checkpoint: they come again.

        Args:
            stage: Name of the stage.
            after_step: Its last step that stays; by default none does.
        """
        path = self.folder / "metrics.jsonl"
        if not self.is_main or not path.is_file():
            return
        kept = []
        for line in path.read_text("utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # a kill may have cut the last line
                continue
            if row["stage"] != stage or row["step"] <= after_step:
                kept.append(line + "\n")
        write_text(path, "".join(kept))

    def _mark(self, stage: str) -> Path:
        return self.folder / "stages" / f"{stage}.json"


class MetricsCallback(TrainerCallback):
    """Writes what a trainer logs into the run's metrics.

    Args:
        run: The run.
        stage: Name of the stage.
    """

    def __init__(self, run: Run, stage: str) -> None:
        self.run, self.stage = run, stage

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called by the trainer.

        Args:
            args: Its arguments.
            state: Its state.
            control: Its control.
            logs: What it logs.
            **kwargs: The rest.
        """
        # The summary at the end counts from where a run was resumed; the stage's mark has its own.
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            self.run.log(self.stage, state.global_step, {k: v for k, v in logs.items() if isinstance(v, int | float)})


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a trainer, if any.

    Args:
        folder: The trainer's output folder.
    """
    # The trainer's state is the last file it writes.
    found = [path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def process_state() -> PartialState:
    """This process among those that share the run; the first call decides for all of them.

    Without an accelerator the processes must be told that they meet on the CPU: each would take itself for alone.
    """
    return PartialState(cpu=not torch.accelerator.is_available())


def quiet(progress: bool) -> None:
    """Keep other libraries' bars and notes off a terminal that shows no progress.

    Args:
        progress: Whether bars are shown.
    """
    if not progress:
        datasets.disable_progress_bars()
        transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    # TRL 1.16 and PEFT 0.21 ask Transformers 5.24 for it under its old name.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)


def _known_run(path: Path) -> dict[str, Any] | None:
    # A model's folder has a file of this name, too, and nothing of it may be removed.
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(values, dict) or not {"seed", "judge", "sft"} <= values.keys():
        return None
    try:  # a key that is newer than the run had its default
        whole = json.loads(json.dumps(to_dict(read_config(values))))
    except ConfigError:
        return values
    return {name: value for name, value in whole.items() if name not in _FREE_KEYS}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that cannot take part, before anything is trained.

    Args:
        names: As Transformers' `report_to` knows them.

    Raises:
        ConfigError: One is unknown, or its package is not installed.
    """
    known, installed = list(INTEGRATION_TO_CALLBACK), get_available_reporting_integrations()
    for name in names:
        if name not in known:
            raise ConfigError(
                f"`report_to` takes trackers that Transformers knows, got {name!r}.", f"It knows {', '.join(known)}."
            )
        if name not in installed:
            raise ConfigError(
                f"`report_to` names {name}, whose package is not installed.", "Install it, or leave it out."
            )


def _difference(old: Any, new: Any, where: str = "") -> dict[str, tuple[Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        parts = (_difference(old.get(name), new.get(name), f"{where}.{name}".lstrip(".")) for name in names)
        return {key: values for part in parts for key, values in part.items()}
    return {} if old == new else {where: (old, new)}


__all__ = [
    "MetricsCallback",
    "Run",
    "check_trackers",
    "last_checkpoint",
    "process_state",
    "quiet",
]
