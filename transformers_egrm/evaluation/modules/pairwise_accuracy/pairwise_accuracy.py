"""Whether better responses get higher rewards, as a metric of the library `evaluate`."""

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
Share of pairs whose better response has the higher reward; a tie counts half.
"""

_INPUTS = """
Args:
    chosen: Rewards of the better responses; NaN where there is none, which loses the pair.
    rejected: Rewards of the worse ones.
Returns:
    pairwise_accuracy, in [0, 1]; 0.5 is chance.
"""

_CITATION = """
@article{lambert2024rewardbench,
  title = {RewardBench: Evaluating Reward Models for Language Modeling},
  author = {Lambert, Nathan and others},
  year = {2024},
  journal = {arXiv preprint arXiv:2403.13787}
}
"""


class PairwiseAccuracy(evaluate.Metric):
    """Order of rewards; see `transformers_egrm.evaluation.metrics.pairwise_accuracy`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(chosen=datasets.Value("float64"), rejected=datasets.Value("float64")),
            reference_urls=["https://arxiv.org/abs/2403.13787"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, chosen: list[float], rejected: list[float]
    ) -> dict[str, float]:
        return {"pairwise_accuracy": metrics.pairwise_accuracy(chosen, rejected)}
