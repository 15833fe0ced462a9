"""What a judge is worth on examples it never saw: both paths, and the route between them."""

from collections.abc import Sequence
from typing import Any

import torch
from tqdm.auto import tqdm

from transformers_egrm.modeling.chains_egrm import join_outputs
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.outputs_egrm import EGRMOutput, Route, Status
from transformers_egrm.training.items import TrainingItem
from transformers_egrm.training.judge import batches


def measure_judge(
    model: EGRMRewardModel, items: Sequence[TrainingItem], batch_size: int, *, seed: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Accuracy and cost of a judge: routed, short path only, long path only.

    Args:
        model: The judge.
        items: Encoded examples.
        batch_size: Examples judged at once.
        seed: Of all draws.
        progress: Whether to show a progress bar.

    Returns:
        Per path: accuracy, mean absolute error in verdicts, share of readable verdicts, new tokens and operations per
        example; for the routed one also share and precision of its short path.
    """
    truth = torch.tensor([item.verdict for item in items])
    measured: dict[str, Any] = {"examples": len(items)}
    for path in ("auto", "short", "long"):
        output, order = _judge(model, items, batch_size, path, seed, progress)
        measured["routed" if path == "auto" else path] = _figures(output, truth[order], path == "auto")
    return measured


def _judge(
    model: EGRMRewardModel, items: Sequence[TrainingItem], batch_size: int, path: str, seed: int, progress: bool
) -> tuple[EGRMOutput, list[int]]:
    outputs, order = [], []
    with tqdm(total=len(items), unit="example", desc=f"judging, {path} path", disable=not progress) as bar:
        for chosen, inputs in batches(model.processor, items, batch_size):
            output = model.judge(inputs, path=path, seed=seed)
            outputs.append(EGRMOutput(**{name: output[name] for name in _NEEDED}))
            order += chosen
            bar.update(len(chosen))
    return join_outputs(outputs), order


_NEEDED = ("verdicts", "statuses", "routes", "new_tokens", "flops")


def _figures(output: EGRMOutput, truth: torch.Tensor, routed: bool) -> dict[str, Any]:
    read = output["statuses"].cpu() == int(Status.OK)
    verdicts = output["verdicts"].cpu()
    right = (verdicts == truth) & read
    figures = {
        "accuracy": _mean(right),
        "mean_absolute_error": _mean((verdicts - truth).abs()[read]),
        "readable": _mean(read),
        "new_tokens": _mean(output["new_tokens"]),
        "gflops": _mean(output["flops"] / 1e9),
    }
    if routed:
        short = output["routes"].cpu() == int(Route.SHORT)
        figures |= {"short_share": _mean(short), "short_precision": _mean(right[short])}
    return figures


def _mean(values: torch.Tensor) -> float | None:
    return round(values.double().mean().item(), 6) if len(values) else None


__all__ = ["measure_judge"]
