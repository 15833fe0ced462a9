"""Whether a confidence means what it says, as a metric of the library `evaluate`."""

import datasets
import evaluate

from transformers_egrm.evaluation import metrics


_DESCRIPTION = """
Whether predicted probabilities mean what they say: expected calibration error with bins of equal width and of equal mass,
and Brier score.
"""

_INPUTS = """
Args:
    predictions: Probabilities of being right, in [0, 1].
    references: 1 for right, 0 for wrong.
    num_bins: Number of bins of the calibration error.
Returns:
    ece_equal_width, ece_equal_mass, brier; all in [0, 1], lower is better.
"""

_CITATION = """
@inproceedings{guo2017calibration,
  title = {On Calibration of Modern Neural Networks},
  author = {Guo, Chuan and Pleiss, Geoff and Sun, Yu and Weinberger, Kilian Q.},
  booktitle = {ICML},
  year = {2017}
}
"""


class CalibrationError(evaluate.Metric):
    """Calibration of probabilities; see `transformers_egrm.evaluation.metrics`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(predictions=datasets.Value("float64"), references=datasets.Value("int64")),
            reference_urls=["https://arxiv.org/abs/1706.04599", "https://arxiv.org/abs/1904.01685"],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride] (inputs are named, as in every module)
        self, predictions: list[float], references: list[int], num_bins: int = 10
    ) -> dict[str, float]:
        errors = {
            f"ece_{binning}": metrics.calibration_error(predictions, references, num_bins, binning)
            for binning in metrics.BINNINGS
        }
        return {**errors, "brier": metrics.brier(predictions, references)}
