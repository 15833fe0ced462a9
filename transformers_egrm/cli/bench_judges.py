"""`egrm bench`: judges by the name that a user gives them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers_egrm.evaluation.judges import Judge, load_callable
from transformers_egrm.evaluation.rivals import BY_NAME, cheap_rivals
from transformers_egrm.modeling.errors_egrm import ConfigError, EGRMError


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """A judge as the command line names it, and how it is to judge."""

    place: str
    """`egrm-mini`, a folder or Hub id, `module:function`, `file.py:function`, or `rival:NAME`."""
    space: str | None = None
    """Kind of verdict space of an EGRM judge; by default the checkpoint's own."""
    low: int | None = None
    high: int | None = None
    rubric: str | None = None
    batch_size: int = 8
    device: str = "auto"
    dtype: str = "auto"
    revision: str | None = None
    rationale: bool = False
    explain: bool = True
    guard: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `JudgeOptions`."""


def load_judge(request: JudgeRequest) -> Judge:
    """The judge of that name.

    Raises:
        ConfigError: There is none, or it does not take what was asked for.
        ModelError: A model cannot be loaded.
    """
    kind, separator, name = request.place.partition(":")
    if separator and kind == "rival":
        if name not in BY_NAME:
            raise ConfigError(f"A rival is one of {', '.join(BY_NAME)}, got {name!r}.")
        return _without_space(request, BY_NAME[name]())
    if separator and not Path(request.place).exists():
        return _without_space(request, load_callable(request.place))
    if _is_scalar(request.place):
        return _without_space(request, _scalar(request))
    return _egrm(request)


def load_in_processes(request: JudgeRequest, processes: int) -> Judge:
    """The judge of that name in several processes, each on a device of its own where there are several.

    Args:
        request: The judge.
        processes: How many; 1 loads it here.
    """
    if processes == 1:
        return load_judge(request)
    from transformers_egrm.evaluation.parallel import ParallelJudge

    return ParallelJudge(partial(_load_numbered, request), processes, chunk=4 * request.batch_size)


def _load_numbered(request: JudgeRequest, number: int) -> Judge:
    import torch

    if request.device == "auto" and torch.accelerator.device_count() > 1:
        kind = torch.accelerator.current_accelerator()
        request = replace(request, device=f"{kind}:{number % torch.accelerator.device_count()}")
    return load_judge(request)


def load_rivals(which: str, judge: Judge, seed: int) -> tuple[Judge, ...]:
    """The rivals of a run.

    Args:
        which: `none`, `cheap`, or `decision`: also the judge's own generator, asked for a decision without thought.
        judge: The judge.
        seed: Of what is random about them.

    Raises:
        ConfigError: The judge has no generator to ask.
    """
    rivals = () if which == "none" else cheap_rivals(seed)
    if which != "decision":
        return rivals
    make = getattr(judge, "decision_rival", None)
    if make is None:
        raise ConfigError(f"--rivals decision needs an EGRM judge in this process, got {judge.name}.",
                          "Its generator is asked: leave out --processes.")  # fmt: skip
    return (*rivals, make())


def _egrm(request: JudgeRequest) -> Judge:
    from transformers_egrm.bundle import folder_of
    from transformers_egrm.cli.judging import rubric_text
    from transformers_egrm.cli.loading import load_model
    from transformers_egrm.evaluation.model_judges import EGRMJudge
    from transformers_egrm.evaluation.provenance import folder_digest
    from transformers_egrm.judge import RewardJudge

    model = load_model(request.place, device=request.device, dtype=request.dtype, revision=request.revision)
    judge = RewardJudge(
        model, batch_size=request.batch_size, rubric=rubric_text(request.rubric),
        return_rationale=request.rationale, explain=request.explain, **request.options,
    )  # fmt: skip
    identity = {
        "model": request.place,
        "revision": request.revision,
        "commit": getattr(model.config, "_commit_hash", None),
        "files": folder_digest(folder_of(request.place)),
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    return EGRMJudge(judge, _space(request, judge), name=request.place, identity=identity, guard=request.guard)


def _scalar(request: JudgeRequest) -> Judge:
    from transformers_egrm.cli.loading import ModelError, parse_device
    from transformers_egrm.evaluation.model_judges import load_scalar

    device = parse_device(request.device)
    try:
        return load_scalar(request.place, batch_size=request.batch_size, device=device)
    except EGRMError:
        raise
    except Exception as error:  # whatever Transformers, safetensors or tokenizers raise
        raise ModelError(
            f"The reward model {request.place!r} cannot be loaded: {type(error).__name__}: "
            f"{str(error).strip().partition(chr(10))[0]}",
            "Check whether its folder holds weights and tokenizer.",
        ) from error


def _space(request: JudgeRequest, judge: Any) -> dict[str, Any] | None:
    limits = {name: value for name in ("low", "high") if (value := getattr(request, name)) is not None}
    own = judge.processor.task().space.to_dict()
    space = own if request.space in (None, own["kind"]) else {"kind": request.space}
    if limits and space["kind"] != "pointwise":
        raise ConfigError(
            f"--low and --high belong to a pointwise space, got a {space['kind']} one.", "Leave them out."
        )
    return space | limits


def _without_space(request: JudgeRequest, judge: Judge) -> Judge:
    given = [name for name in ("space", "low", "high", "rubric") if getattr(request, name) is not None]
    given += [] if request.guard else ["no_guard"]
    if given or request.options:
        words = [f"--{name.replace('_', '-')}" for name in (*given, *request.options) if name != "seed"]
        if words:
            raise ConfigError(f"{', '.join(words)} belong to EGRM judges, {judge.name} is none.", "Leave them out.")
    return judge


def _is_scalar(place: str) -> bool:
    config = Path(place) / "config.json"
    if not config.is_file():
        return False
    values = json.loads(config.read_text("utf-8"))
    named = any(name.endswith("ForSequenceClassification") for name in values.get("architectures") or ())
    return named and values.get("model_type") != "egrm_reward"


__all__ = ["JudgeRequest", "load_in_processes", "load_judge", "load_rivals"]
