"""RM-Bench's difficulties from rewards, as a metric of the library `evaluate`."""

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
RM-Bench's difficulties: three styles of a right answer against three styles of a wrong one. Hard is a plainer right
answer against a fancier wrong one, normal the same style, easy the reverse. A tie loses the comparison.
"""

_INPUTS = """
Args:
    chosen: Per prompt, three rewards of the right answer: concise, detailed, detailed in Markdown. NaN is none.
    rejected: Likewise, of the wrong answer.
    domains: chat, math, code, safety-refuse or safety-response; the last two are pooled.
Returns:
    "DOMAIN hard", normal, easy and average for each domain that is there, and "total ...", their mean; all in [0, 1].
"""

_CITATION = """
@article{liu2024rm,
  title = {RM-Bench: Benchmarking Reward Models of Language Models with Subtlety and Style},
  author = {Liu, Yantao and Yao, Zijun and Min, Rui and Cao, Yixin and Hou, Lei and Li, Juanzi},
  year = {2024},
  journal = {arXiv preprint arXiv:2410.16184}
}
"""


class RMBench(evaluate.Metric):
    """Styles against styles; see `transformers_egrm.evaluation.metrics.rm_bench`."""

    def _info(self) -> evaluate.MetricInfo:
        number, text = datasets.Value("float64"), datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(chosen=datasets.List(number), rejected=datasets.List(number), domains=text),
            reference_urls=["https://arxiv.org/abs/2410.16184"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, chosen: list[list[float]], rejected: list[list[float]], domains: list[str]
    ) -> dict[str, float]:
        return metrics.rm_bench(chosen, rejected, domains)
