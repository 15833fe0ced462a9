"""Accuracy of pairs that were shown in both orders, as a metric of the library `evaluate`."""

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
What a judge of pairs is worth when every pair is shown in both orders: accuracy of both orders together, the order sum of
JudgeBench, the mean of the orders and their agreement of LLMBar, ties and failures.
"""

_INPUTS = """
Args:
    first: Decision in one order: 1 where the better answer is preferred, -1 where the worse one is, 0 for a tie. NaN is
        no verdict.
    second: Decision in the other order, likewise.
Returns:
    both, order_sum, order_mean, orders_agree, tied and failed, all shares in [0, 1].
"""

_CITATION = """
@article{tan2024judgebench,
  title = {JudgeBench: A Benchmark for Evaluating LLM-based Judges},
  author = {Tan, Sijun and others},
  year = {2024},
  journal = {arXiv preprint arXiv:2410.12784}
}
"""


class OrderAccuracy(evaluate.Metric):
    """Both orders; see `transformers_egrm.evaluation.metrics.order_accuracy`."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(first=number, second=number),
            reference_urls=["https://arxiv.org/abs/2410.12784", "https://arxiv.org/abs/2310.07641"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, first: list[float], second: list[float]
    ) -> dict[str, float]:
        return metrics.order_accuracy(first, second)
