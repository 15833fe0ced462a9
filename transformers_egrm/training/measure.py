"""What a judge is worth on examples it never saw: both paths, and the route between them."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.training.components import judge_items
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
    truth = [item.verdict for item in items]
    measured: dict[str, Any] = {"examples": len(items)}
    has_scorer = model.config.judge_options().selection == "scorer"
    for selection in (None, "vote") if has_scorer else (None,):
        for path in ("auto", "short", "long"):
            if path == "short" and selection is not None:
                continue  # no one chooses there
            options: dict[str, Any] = {"path": path, "seed": seed} | ({"selection": selection} if selection else {})
            name = f"judging, {path} path" if progress else None
            results = judge_items(model, items, batch_size, progress=name, share=False, **options)
            name = ("routed" if path == "auto" else path) + (f"_by_{selection}" if selection else "")
            measured[name] = _figures(results, truth, path == "auto")
    if has_scorer:
        measured["scorer_cost_share"] = round(measured["long"]["gflops"] / measured["long_by_vote"]["gflops"] - 1, 6)
    return measured


def _figures(results: Sequence[JudgeResult], truth: Sequence[int], routed: bool) -> dict[str, Any]:
    accounts = [result.account for result in results if result.account is not None]
    verdicts = [
        account.labels.index(result.verdict) if result.verdict is not None else None
        for result, account in zip(results, accounts, strict=True)
    ]
    pairs = list(zip(verdicts, truth, strict=True))
    right = [verdict == true for verdict, true in pairs]
    figures = {
        "accuracy": _mean(right),
        "mean_absolute_error": _mean([abs(verdict - true) for verdict, true in pairs if verdict is not None]),
        "readable": _mean([verdict is not None for verdict in verdicts]),
        "new_tokens": _mean([account.new_tokens for account in accounts]),
        "gflops": _mean([account.flops / 1e9 for account in accounts], 9),
    }
    if routed:
        short = [result.route == "short" for result in results]
        figures |= {
            "short_share": _mean(short),
            "short_precision": _mean([own for own, is_short in zip(right, short, strict=True) if is_short]),
        }
    return figures


def _mean(values: Sequence[float], digits: int = 6) -> float | None:
    return round(fmean(values), digits) if values else None


__all__ = ["measure_judge"]
