"""Figures of judges that verify solutions: choosing one of several, telling right from wrong, and answering."""

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.evaluation.asking import Judged
from transformers_egrm.evaluation.intervals import Figure, Sample
from transformers_egrm.evaluation.metrics import concordance
from transformers_egrm.evaluation.scoring import Cells, Row, Score, Table, group_cells, verified_cells


def solution_cells(judged: Judged) -> Cells:
    """Cells of a group of solutions; each solution's own score and truth stand beside them for figures over all."""
    cells = group_cells(judged) | verified_cells(judged)
    for index, (score, truth) in enumerate(zip(judged.scores, judged.question.truths, strict=True)):
        if score is not None:
            cells |= {f"score {index}": score, f"truth {index}": truth}
    return cells


def solution_score(title: str, sample: Sample) -> Score:
    """The tables of a benchmark of solutions, or of one where the judge answers itself.

    Args:
        title: Of the benchmark.
        sample: Items with `solution_cells`, or with `right` alone.
    """
    if not sample.count("pick"):
        table = Table(f"{title}, answers of the judge's own", ("exact",), (_row(sample, "All questions", "right"),))
        return Score("exact answers", sample.mean("right"), (table,))
    choosing = Table(
        f"{title}, choosing one of several",
        ("right",),
        (
            _row(sample, "The judge's pick", "pick"),
            _row(sample, "A blind pick", "chance"),
            _row(sample, "A perfect pick", "best"),
        ),
    )
    verifying = Table(
        f"{title}, telling right from wrong",
        ("value",),
        (
            Row("AUC over all solutions", sample.count("pick"), (over_all(sample),)),
            _row(sample, "AUC within a question", "auc"),
            *([_row(sample, "True verdicts", "verified")] if sample.count("verified") else []),
        ),
    )
    return Score("right picks", sample.mean("pick"), (choosing, verifying))


def over_all(sample: Sample) -> Figure:
    """The area under the ROC curve over all solutions of all questions, resampled by question."""
    # Questions may have different numbers of solutions: a column for each place, NaN where there is none.
    places = sorted({cell for item in sample.items for cell in item.cells if cell.startswith("score ")})
    if not places:
        return np.full_like(sample.mean("pick"), np.nan)
    columns = [
        np.array([item.cells.get(cell, np.nan) for item in sample.items], dtype=np.float64)
        for place in places
        for cell in (place, place.replace("score", "truth"))
    ]
    return sample.resample(_area, columns)


def _area(*columns: NDArray[np.float64]) -> float | None:
    scores, truths = np.concatenate(columns[::2]), np.concatenate(columns[1::2])
    known = np.isfinite(scores) & np.isfinite(truths)
    return concordance(scores[known], truths[known]) if known.any() else None


def _row(sample: Sample, label: str, cell: str) -> Row:
    return Row(label, sample.count(cell), (sample.mean(cell),))


__all__ = ["over_all", "solution_cells", "solution_score"]
