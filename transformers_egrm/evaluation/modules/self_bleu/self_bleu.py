"""How much texts repeat each other, as a measurement of the library `evaluate`."""

from typing import Any

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
Self-BLEU of several texts about the same item: mean BLEU of each against all others. High where they say the same in the
same words.
"""

_INPUTS = """
Args:
    data: Per item, a list of two or more texts.
    max_order: Longest n-gram.
    tokenize: sacrebleu's name of a tokenizer; "char" for texts of a few characters.
Returns:
    self_bleu, the mean over all items, and self_bleus, one per item, all in [0, 1].
"""

_CITATION = """
@inproceedings{zhu2018texygen,
  title = {Texygen: A Benchmarking Platform for Text Generation Models},
  author = {Zhu, Yaoming and Lu, Sidi and Zheng, Lei and Guo, Jiaxian and Zhang, Weinan and Wang, Jun and Yu, Yong},
  booktitle = {SIGIR},
  year = {2018}
}
"""


class SelfBLEU(evaluate.Measurement):
    """Repetition among texts; see `transformers_egrm.evaluation.metrics.self_bleu`."""

    def _info(self) -> evaluate.MeasurementInfo:
        return evaluate.MeasurementInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(data=datasets.List(datasets.Value("string"))),
            reference_urls=["https://arxiv.org/abs/1802.01886", "https://arxiv.org/abs/1804.08771"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, data: list[list[str]], max_order: int = 4, tokenize: str = "13a"
    ) -> dict[str, Any]:
        scores = [metrics.self_bleu(texts, max_order, tokenize) for texts in data]
        return {"self_bleu": sum(scores) / len(scores), "self_bleus": scores}
