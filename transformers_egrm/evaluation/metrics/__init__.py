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
from transformers_egrm.evaluation.metrics.choices import (
    Decision,
    all_won,
    best_of_n,
    choice_figures,
    concordance,
    decide,
    order_accuracy,
    order_figures,
    shared_credit,
    together,
)
from transformers_egrm.evaluation.metrics.intervals import Estimate, bootstrap, median, wilson
from transformers_egrm.evaluation.metrics.leaderboards import mean_of, rewardbench, rewardbench2, rm_bench
from transformers_egrm.evaluation.metrics.order import auroc, pairwise_accuracy, rank_correlation
from transformers_egrm.evaluation.metrics.repetition import self_bleu
from transformers_egrm.evaluation.metrics.routes import RoutingMetrics, Votes, consensus, routing, takes_short


__all__ = [
    "BINNINGS", "Decision", "Estimate", "ReliabilityBin", "RoutingMetrics", "Votes", "all_won", "auroc",
    "best_of_n", "bootstrap", "brier", "calibration_error", "choice_figures", "concordance", "consensus",
    "debiased_calibration_error", "decide", "mean_of", "median", "order_accuracy", "order_figures",
    "pairwise_accuracy", "rank_correlation", "reliability", "rewardbench", "rewardbench2", "rm_bench", "routing",
    "self_bleu", "shared_credit", "takes_short", "together", "wilson",
]  # fmt: skip
