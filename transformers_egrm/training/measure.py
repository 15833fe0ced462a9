"""What a judge is worth on examples it never saw: both paths, and the route between them."""

from collections.abc import Sequence
from typing import Any

import torch
from tqdm.auto import tqdm

from transformers_egrm.modeling.chains_egrm import join_outputs
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.outputs_egrm import EGRMOutput, Route, Status
from transformers_egrm.training.components import batches
from transformers_egrm.training.items import TrainingItem


def measure_judge(
    model: EGRMRewardModel, items: Sequence[TrainingItem], batch_size: int, *, seed: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Accuracy and cost of a judge: routed, short path only, long path only; with a scorer, also without asking it.

    Args:
        model: The judge.
        items: Encoded examples.
        batch_size: Examples judged at once.
        seed: Of all draws.
        progress: Whether to show a progress bar.

    Returns:
        Per path: accuracy, mean absolute error in verdicts, share of readable verdicts, new tokens and operations per
        example; for the routed one also share and precision of its short path. Where a scorer chooses, `routed_by_vote`
        and `long_by_vote` beside them, and `scorer_cost_share`: what the scorer adds to the operations of the long path.
    """
    truth = torch.tensor([item.verdict for item in items])
    measured: dict[str, Any] = {"examples": len(items)}
    has_scorer = model.config.judge_options().selection == "scorer"
    for selection in (None, "vote") if has_scorer else (None,):
        for path in ("auto", "short", "long"):
            if path == "short" and selection is not None:
                continue  # nobody chooses there
            output, order = _judge(model, items, batch_size, path, selection, seed, progress)
            name = ("routed" if path == "auto" else path) + (f"_by_{selection}" if selection else "")
            measured[name] = _figures(output, truth[order], path == "auto")
    if has_scorer:
        measured["scorer_cost_share"] = round(measured["long"]["gflops"] / measured["long_by_vote"]["gflops"] - 1, 6)
    return measured


def _judge(
    model: EGRMRewardModel,
    items: Sequence[TrainingItem],
    batch_size: int,
    path: str,
    selection: str | None,
    seed: int,
    progress: bool,
) -> tuple[EGRMOutput, list[int]]:
    options: dict[str, Any] = {"path": path, "seed": seed} | ({"selection": selection} if selection else {})
    outputs, order = [], []
    with tqdm(total=len(items), unit="example", desc=f"judging, {path} path", disable=not progress) as bar:
        for chosen, inputs in batches(model.processor, items, batch_size):
            output = model.judge(inputs, **options)
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
        "gflops": _mean(output["flops"] / 1e9, 9),
    }
    if routed:
        short = output["routes"].cpu() == int(Route.SHORT)
        figures |= {"short_share": _mean(short), "short_precision": _mean(right[short])}
    return figures


def _mean(values: torch.Tensor, digits: int = 6) -> float | None:
    return round(values.double().mean().item(), digits) if len(values) else None


__all__ = ["measure_judge"]
