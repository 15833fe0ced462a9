"""How well a judge decides who has to think, as a metric of the library `evaluate`."""

from dataclasses import asdict

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
How well a judge with a short and a long path routes its items: accuracy, share and precision of the short path,
routing accuracy, and how well the consensus of its probes foretells a right short verdict.
"""

_INPUTS = """
Args:
    predictions: Final verdicts as text; the empty text is no verdict and never right.
    references: True verdicts as text.
    short_predictions: Most frequent verdict of each item's probes, also of those that took the long path.
    routes: "short" or "long".
    consensus: Share of the probes behind that verdict, in [0, 1].
Returns:
    accuracy, short_share, short_precision, routing_accuracy, auroc; a figure that does not exist is None.
"""

_CITATION = """
@article{xue2026reason,
  title = {Reason Only When Needed: Efficient Generative Reward Modeling via Model-Internal Uncertainty},
  author = {Xue, Chao and Wang, Yao and others},
  year = {2026},
  journal = {arXiv preprint arXiv:2604.10072}
}
"""


class EGRMRouting(evaluate.Metric):
    """Accuracy of verdicts and of routes; see `transformers_egrm.evaluation.metrics.routing`."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                predictions=text,
                references=text,
                short_predictions=text,
                routes=text,
                consensus=datasets.Value("float64"),
            ),
            reference_urls=["https://huggingface.co/papers/2604.10072"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self,
        predictions: list[str],
        references: list[str],
        short_predictions: list[str],
        routes: list[str],
        consensus: list[float],
    ) -> dict[str, float | None]:
        if unknown := sorted(set(routes) - {"short", "long"}):
            raise ValueError(f"Routes are 'short' or 'long', got {unknown}.")
        return asdict(
            metrics.routing(
                correct=_are_right(predictions, references),
                short_correct=_are_right(short_predictions, references),
                took_short=[route == "short" for route in routes],
                agreement=consensus,
            )
        )


def _are_right(verdicts: list[str], truths: list[str]) -> list[bool]:
    return [bool(verdict) and verdict == truth for verdict, truth in zip(verdicts, truths, strict=True)]
