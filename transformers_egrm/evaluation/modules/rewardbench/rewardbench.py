"""RewardBench's score from rewards, as a metric of the library `evaluate`."""

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
RewardBench's score: accuracy by subset, subsets weighted by their official number of examples inside four sections, and
the mean of the sections. A tie loses the pair.
"""

_INPUTS = """
Args:
    chosen: Rewards of the chosen answers; NaN where there is none, which loses the pair.
    rejected: Rewards of the rejected ones.
    subsets: Official name of each pair's subset.
Returns:
    score, each section that is there and each subset, all in [0, 1].
"""

_CITATION = """
@article{lambert2024rewardbench,
  title = {RewardBench: Evaluating Reward Models for Language Modeling},
  author = {Lambert, Nathan and others},
  year = {2024},
  journal = {arXiv preprint arXiv:2403.13787}
}
"""


class RewardBench(evaluate.Metric):
    """Weighted sections; see `transformers_egrm.evaluation.metrics.rewardbench`."""

    def _info(self) -> evaluate.MetricInfo:
        number, text = datasets.Value("float64"), datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(chosen=number, rejected=number, subsets=text),
            reference_urls=["https://arxiv.org/abs/2403.13787"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, chosen: list[float], rejected: list[float], subsets: list[str]
    ) -> dict[str, float]:
        return metrics.rewardbench(chosen, rejected, subsets)
