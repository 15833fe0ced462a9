"""RewardBench 2's score from rewards, as a metric of the library `evaluate`."""

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
RewardBench 2's score: best of four with the credit shared among equal best, a subset of questions with many right answers
that is scored by five parts, and the mean of the subsets.
"""

_INPUTS = """
Args:
    scores: Per question, rewards of all answers, the right ones first; NaN where there is none.
    num_correct: How many of them are right.
    subsets: Official name of each question's subset.
    ids: In the subset Ties, ref:NUMBER or tied:NUMBER; elsewhere anything.
Returns:
    score, each subset that is there and the parts of Ties.
"""

_CITATION = """
@article{malik2025rewardbench2,
  title = {RewardBench 2: Advancing Reward Model Evaluation},
  author = {Malik, Saumya and others},
  year = {2025},
  journal = {arXiv preprint arXiv:2506.01937}
}
"""


class RewardBench2(evaluate.Metric):
    """Best of four and ties; see `transformers_egrm.evaluation.metrics.rewardbench2`."""

    def _info(self) -> evaluate.MetricInfo:
        number, text = datasets.Value("float64"), datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                scores=datasets.List(number), num_correct=datasets.Value("int64"), subsets=text, ids=text
            ),
            reference_urls=["https://arxiv.org/abs/2506.01937"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, scores: list[list[float]], num_correct: list[int], subsets: list[str], ids: list[str]
    ) -> dict[str, float]:
        return metrics.rewardbench2(scores, num_correct, subsets, ids)
