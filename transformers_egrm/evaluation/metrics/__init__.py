"""Every figure this project reports, defined once, as pure functions of plain numbers.

Columns are sequences or arrays of N numbers, one per judged item. A figure that does not exist for its input, such as
the precision of a path that no item took, is None.

scikit-learn, scipy and sacrebleu are imported where they are needed; the extra `eval` installs them.
"""

from transformers_egrm.evaluation.metrics.calibration import (
    BINNINGS,
    ReliabilityBin,
    brier,
    calibration_error,
    debiased_calibration_error,
    reliability,
)
from transformers_egrm.evaluation.metrics.intervals import Estimate, bootstrap, median, wilson
from transformers_egrm.evaluation.metrics.order import auroc, pairwise_accuracy, rank_correlation
from transformers_egrm.evaluation.metrics.repetition import self_bleu
from transformers_egrm.evaluation.metrics.routes import RoutingMetrics, Votes, consensus, routing, takes_short


__all__ = [
    "BINNINGS", "Estimate", "ReliabilityBin", "RoutingMetrics", "Votes", "auroc", "bootstrap", "brier",
    "calibration_error", "consensus", "debiased_calibration_error", "median", "pairwise_accuracy", "rank_correlation",
    "reliability", "routing", "self_bleu", "takes_short", "wilson",
]  # fmt: skip
