"""The promise that an owner's labels allow a judge, and what it is bound to.

A certificate is plain data in `config.json`. It holds for the weights, the judging task and the options that it was made
with; under others it says nothing. It is made outside, and read here. The digests of weights and of a task are here too.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from .errors_egrm import ConfigError, UnsupportedModelError, is_count, is_finite
from .judge_options_egrm import JudgeOptions
from .prompt_task_egrm import JudgeTask


KEYS = (
    "promise", "aim", "level", "delta", "threshold", "questions", "tested_questions", "items", "test", "p_value",
    "short_share", "observed", "data", "date", "covers", "breaks", "weights", "task", "options",
)  # fmt: skip
SHORT_OPTIONS = (
    "temperatures", "top_ps", "num_probes", "max_probe_tokens", "probe_vocabulary", "consensus", "consensus_threshold",
)  # fmt: skip
LONG_OPTIONS = (
    "num_chains",
    "chain_temperature",
    "chain_top_p",
    "max_chain_tokens",
    "reuse_probes",
    "selection",
)  # what the aims that compare with chains depend on too
_SAMPLES = 64  # of each tensor
_WORDS = 1 << 20  # summed at once


def bind(model: Any, options: JudgeOptions, *, chains: bool) -> dict[str, Any]:
    """What a certificate is bound to, as its fields `weights`, `task` and `options`.

    Args:
        model: The judge.
        options: How it judges, resolved.
        chains: Whether the promise speaks of chains too.
    """
    names = SHORT_OPTIONS + (LONG_OPTIONS if chains else ())
    return {
        "weights": fingerprint(model),
        "task": task_digest(model.task),
        "options": {name: _plain(getattr(options, name)) for name in names},
    }


def fingerprint(model: Any) -> str:
    """Sixteen hexadecimal digits that training, merging, quantising or another number format changes.

    Args:
        model: With `generator` and, or None, `scorer`. Of each weight 64 numbers are read, so that large models take no longer
            than small ones; a change to other numbers alone is not seen.

    Returns:
        The digits; `unread` where the weights are not in this process.
    """
    digest = hashlib.sha256()
    for part in ("generator", "scorer"):
        module: nn.Module | None = getattr(model, part)
        for name, weight in sorted(module.named_parameters()) if module is not None else ():
            if weight.is_meta:
                return "unread"
            flat = weight.detach().reshape(-1)
            picked = flat[:: max(1, flat.numel() // _SAMPLES)].cpu().contiguous()
            digest.update(f"{part}.{name} {tuple(weight.shape)} {weight.dtype}\0".encode())
            digest.update(bytes(picked.view(torch.uint8).tolist()))
    return digest.hexdigest()[:16]


def weights_digest(model: nn.Module) -> str:
    """Thirty-two hexadecimal digits that a change to any number of any weight changes; `fingerprint` reads fewer of them.

    Args:
        model: Of any parts. They are summed where they lie: 0.2 s for 400 MB on one CPU core.

    Raises:
        UnsupportedModelError: A weight is not in this process, or keeps its numbers where they cannot be read.
    """
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if not isinstance(value, torch.Tensor):  # what a module adds to its weights
            digest.update(f"{name} {value!r}\0".encode())
            continue
        try:
            sums = _sums(value)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise UnsupportedModelError(
                f"The weights have to be read, but {name} of type {type(value).__name__} on {value.device} cannot: {error}",
                "Load the model into this process, in a number format of PyTorch's own.",
            ) from error
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {sums}\0".encode())
    return digest.hexdigest()[:32]


def _sums(weight: torch.Tensor) -> list[int]:
    # Words of eight bytes, each times an odd number of its own, modulo 2 ** 64: no single change leaves a sum as it was.
    words = weight.detach().contiguous().flatten().view(torch.uint8)
    if len(words) % 8 or words.storage_offset() % 8:
        words = torch.nn.functional.pad(words, (0, -len(words) % 8))
    words = words.view(torch.int64)
    odd = torch.arange(1, 2 * min(_WORDS, len(words)) + 1, 2, device=words.device)
    return torch.stack([(chunk * odd[: len(chunk)]).sum() for chunk in words.split(_WORDS)]).tolist()


@lru_cache(maxsize=32)
def task_digest(task: JudgeTask) -> str:
    """Sixteen hexadecimal digits of verdict space, prompts and rubric as token ids.

    Args:
        task: The judging task.
    """
    return hashlib.sha256(json.dumps(task.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def differences(
    certificate: Mapping[str, Any], weights: str, task: JudgeTask | None, options: JudgeOptions
) -> list[str]:
    """Why a certificate says nothing about a call; empty where it does.

    Args:
        certificate: As `EGRMConfig.certificate` holds it.
        weights: The model's fingerprint.
        task: What is judged; None: the checkpoint's own.
        options: How, resolved.
    """
    found = []
    if weights != certificate["weights"]:
        found.append("the weights are not those that were certified")
    if task is not None and task_digest(task) != certificate["task"]:
        found.append("verdict space, rubric or prompt are not those that were certified")
    if options.path == "short":
        found.append("path is 'short', so that the threshold decides nothing")
    floor = options.abstain_below
    if floor is not None and floor > options.consensus_threshold and options.path != "long":
        found.append(f"abstain_below is {floor}, above the threshold: only a part of the short verdicts has a reward")
    for name, certified in certificate["options"].items():
        own = _plain(getattr(options, name))
        if own != certified and options.path != "long":
            found.append(f"{name} is {own}, certified {certified}")
    return found


def check_certificate(certificate: Any) -> None:
    """Refuse what is no certificate.

    Args:
        certificate: Plain data, or None.

    Raises:
        ConfigError: A key is missing or unknown, or a value of the wrong kind.
    """
    if certificate is None:
        return
    if not isinstance(certificate, Mapping) or set(certificate) != set(KEYS):
        names = sorted(set(certificate) ^ set(KEYS)) if isinstance(certificate, Mapping) else certificate
        raise ConfigError(f"`certificate` must be None, or hold exactly {', '.join(KEYS)}; it differs in {names!r:.300}.",
                          "Make one with `egrm calibrate`.")  # fmt: skip
    numbers = ("level", "delta", "threshold", "p_value", "short_share")
    wrong = [name for name in numbers if not is_finite(certificate[name])]
    wrong += [name for name in ("questions", "tested_questions", "items") if not is_count(certificate[name])]
    texts = ("promise", "aim", "test", "data", "date", "weights", "task")
    wrong += [name for name in texts if not isinstance(certificate[name], str)]
    wrong += [name for name in ("covers", "breaks") if not isinstance(certificate[name], list)]
    wrong += [] if isinstance(certificate["options"], Mapping) else ["options"]
    if wrong:
        raise ConfigError(f"`certificate` has values of the wrong kind: {', '.join(wrong)}.",
                          "Make one with `egrm calibrate`.")  # fmt: skip


def certificate_lines(certificate: Mapping[str, Any]) -> list[str]:
    """The certificate as lines of Markdown, for the model card.

    Args:
        certificate: As `EGRMConfig.certificate` holds it.
    """
    rows = {
        "threshold": f"{certificate['threshold']:g}",
        "aim": f"{certificate['aim']} = {certificate['level']:g}, delta = {certificate['delta']:g}",
        "questions": f"{certificate['questions']:,}, of which {certificate['tested_questions']:,} tested the threshold "
        f"({certificate['items']:,} items)",
        "test": f"{certificate['test']}, p = {certificate['p_value']:.2g}",
        "on the tested questions": f"short share {certificate['short_share']:.3f}, {_observed(certificate)}",
        "data": f"`{certificate['data']}`, {certificate['date']}",
        "weights, task": f"`{certificate['weights']}`, `{certificate['task']}`",
    }
    return [
        f"**{certificate['promise']}.**", "",
        "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), "",
        "It covers:", "", *(f"- {text}" for text in certificate["covers"]), "",
        "It no longer holds where:", "", *(f"- {text}" for text in certificate["breaks"]),
    ]  # fmt: skip


def _observed(certificate: Mapping[str, Any]) -> str:
    value = certificate["observed"]
    return f"{certificate['aim']} not seen" if value is None else f"{certificate['aim']} {value:.4f}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


__all__ = [
    "KEYS",
    "LONG_OPTIONS",
    "SHORT_OPTIONS",
    "bind",
    "certificate_lines",
    "check_certificate",
    "differences",
    "fingerprint",
    "task_digest",
    "weights_digest",
]
