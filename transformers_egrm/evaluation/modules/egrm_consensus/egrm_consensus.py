"""How far repeated verdicts agree, as a measurement of the library `evaluate`."""

from typing import Any

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
How far the verdicts of repeated short decodes agree: the most frequent verdict of each item and its share.
"""

_INPUTS = """
Args:
    data: Per item, a list of verdicts as text; None or the empty text is a decode without a verdict, which counts among
        the decodes and never as agreement.
    threshold: Consensus at or above which an item would take the short path, in [0, 1].
Returns:
    verdicts (None where there is none), consensus, mean_consensus, short_share.
"""

_CITATION = """
@article{xue2026reason,
  title = {Reason Only When Needed: Efficient Generative Reward Modeling via Model-Internal Uncertainty},
  author = {Xue, Chao and Wang, Yao and others},
  year = {2026},
  journal = {arXiv preprint arXiv:2604.10072}
}
"""


class EGRMConsensus(evaluate.Measurement):
    """Agreement of verdicts; see `transformers_egrm.evaluation.metrics.consensus`."""

    def _info(self) -> evaluate.MeasurementInfo:
        return evaluate.MeasurementInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(data=datasets.List(datasets.Value("string"))),
            reference_urls=["https://huggingface.co/papers/2604.10072"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, data: list[list[str | None]], threshold: float = 0.8
    ) -> dict[str, Any]:
        votes = metrics.consensus([[verdict or None for verdict in probes] for probes in data])
        return {
            "verdicts": list(votes.verdicts),
            "consensus": votes.agreement.tolist(),
            "mean_consensus": float(votes.agreement.mean()),
            "short_share": float(metrics.takes_short(votes.agreement, threshold).mean()),
        }
