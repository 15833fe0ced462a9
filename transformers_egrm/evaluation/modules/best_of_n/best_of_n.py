"""Choosing one of several answers by rewards, as a metric of the library `evaluate`."""

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
What rewards are worth for choosing one of several answers: truth of the highest-rewarded one, whether the best beats all
others, and the area under the ROC curve within a question.
"""

_INPUTS = """
Args:
    scores: Per question, rewards of its answers; NaN where there is none, which leaves the question without a pick.
    truths: Per question, 1 for a right answer and 0 for a wrong one, or a grade.
Returns:
    pick, right, beats_all, auc, chance and best, each a mean over the questions that have it; None where none has.
"""

_CITATION = """
@article{frick2024ppe,
  title = {How to Evaluate Reward Models for RLHF},
  author = {Frick, Evan and others},
  year = {2024},
  journal = {arXiv preprint arXiv:2410.14872}
}
"""


class BestOfN(evaluate.Metric):
    """Choices; see `transformers_egrm.evaluation.metrics.best_of_n`."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(scores=datasets.List(number), truths=datasets.List(number)),
            reference_urls=["https://arxiv.org/abs/2410.14872", "https://arxiv.org/abs/2410.09893"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, scores: list[list[float]], truths: list[list[float]]
    ) -> dict[str, float | None]:
        return metrics.best_of_n(scores, truths)
