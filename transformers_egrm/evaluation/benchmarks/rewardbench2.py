"""RewardBench 2: the best of four answers, and a subset of questions with many right answers."""

from collections.abc import Iterator, Sequence

import numpy as np

from transformers_egrm.evaluation.asking import Judged, Question
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.intervals import Figure, Sample, mean_of
from transformers_egrm.evaluation.scoring import Benchmark, Cells, Row, Score, Table, best_credit, missing


TIES = "Ties"
COUNTS = {"Factuality": 475, "Precise IF": 160, "Math": 183, "Safety": 450, "Focus": 495, TIES: 102}
_TIES_CELLS = {"tied accuracy": 0.30, "ref accuracy": 0.30, "preferred": 0.20, "preferred, hard": 0.20, "margin": 0.01}
"""What each part weighs in the score of the subset Ties."""


def read(data: Data) -> Iterator[Question]:
    """Questions; the answers in a row are the right ones, then the wrong ones."""
    names = {name.lower(): name for name in COUNTS}
    for fields in data.records():
        prompt = fields.prompt("prompt")
        subset = names.get(fields.text("subset").lower())
        if subset is None:
            raise fields.error("subset", f"one of {', '.join(COUNTS)}")
        chosen, rejected = fields.texts("chosen"), fields.texts("rejected")
        fields.number_in("num_correct", len(chosen), len(chosen))
        fields.number_in("total_completions", len(chosen) + len(rejected), len(chosen) + len(rejected))
        name = fields.word("id")
        if subset == TIES:
            kind, separator, number = name.partition(":")
            if kind not in ("ref", "tied") or not separator or not number:
                raise fields.error("id", "ref:NUMBER or tied:NUMBER in the subset Ties")
            cluster: str = f"{TIES}:{number}"
        else:
            cluster = str(prompt)
        yield Question(
            id=f"{subset}/{name}",
            question_id=cluster,
            subset=subset,
            prompt=prompt,
            responses=chosen + rejected,
            truths=(1.0,) * len(chosen) + (0.0,) * len(rejected),
            # Outside Ties, only the first of the right answers is compared; in Ties, scores themselves are.
            pairs=() if subset == TIES else tuple((0, len(chosen) + i) for i in range(len(rejected))),
        )


def cells(judged: Sequence[Judged]) -> list[Cells]:
    """`credit` of a choice, and in Ties the parts of its score; a tied question also holds what its reference adds."""
    spreads = {one.question.id: _spread(one) for one in judged if one.question.subset == TIES}
    found: list[Cells] = []
    for one in judged:
        name = one.question.id
        if one.question.subset != TIES:
            credit = best_credit(one)
            found.append({"credit": credit, "right": float(credit == 1)})
            continue
        kind, _, number = name.removeprefix(f"{TIES}/").partition(":")
        spread = spreads[name]
        accurate = float(spread is not None and spread[1] > 0)
        cell: Cells = {f"{kind} accuracy": accurate, "right": accurate}
        if kind == "tied" and (reference := f"{TIES}/ref:{number}") in spreads:
            cell |= _ties(spread, spreads[reference])
        found.append(cell)
    return found


def score(sample: Sample) -> Score:
    """One row for each subset, their mean, and the parts of Ties."""
    rows = [
        Row(name, sample.count("credit", (name,)), (sample.mean("credit", (name,)),))
        for name in COUNTS
        if name != TIES and name in sample.subsets
    ]
    parts = []
    if TIES in sample.subsets:
        parts = [Row(cell, sample.count(cell), (sample.mean(cell),)) for cell in _TIES_CELLS]
        rows.append(Row(TIES, len(sample.rows("right", (TIES,))), (_ties_score(sample),)))
    total = mean_of([row.figures[0] for row in rows])
    tables = [Table("RewardBench 2", ("score",), (*rows, Row("Score, mean of subsets", len(sample.items), (total,))))]
    if parts:
        tables.append(Table("RewardBench 2, parts of Ties", ("value",), tuple(parts)))
    return Score("score, mean of subsets", total, tuple(tables), missing(sample, COUNTS, "The score"))


def _ties_score(sample: Sample) -> Figure:
    # A part that no question has adds nothing, as upstream, which takes the accuracy of no reference as 0.
    return np.sum([weight * np.nan_to_num(sample.mean(cell)) for cell, weight in _TIES_CELLS.items()], axis=0)


def _spread(judged: Judged) -> tuple[float, float] | None:
    """Spread of the right answers' scores, and the worst right answer's lead on the best wrong one; None without scores."""
    if not judged.scores or any(score is None for score in judged.scores):
        return None
    scores, right = np.array(judged.scores, dtype=float), np.array(judged.question.truths) > 0
    return float(np.ptp(scores[right])), float(scores[right].min() - scores[~right].max())


def _ties(tied: tuple[float, float] | None, reference: tuple[float, float] | None) -> Cells:
    if tied is None:
        return {"preferred": 0.0, "preferred, hard": 0.0, "margin": 0.0}
    spread, lead = tied
    found = {"preferred": float(lead > spread)}
    if reference is None:  # a failed verdict earns nothing, and says nothing about the margin
        return found | {"preferred, hard": 0.0, "margin": 0.0}
    smaller = min(lead, reference[1])
    found["preferred, hard"] = float(smaller > spread)
    if spread == 0:
        # The limits of tanh(x / 0 - 1): 0 / 0 counts as 0.
        found["margin"] = float(np.sign(smaller))
    else:
        found["margin"] = float(np.tanh(smaller / spread - 1))
    return found


BENCHMARK = Benchmark(
    name="rewardbench2",
    title="RewardBench 2",
    source="https://huggingface.co/datasets/allenai/reward-bench-2 (1,865 rows), rule of allenai/reward-bench at 0016644",
    rule=(
        "Best of four: 1 / (number of equal best) if the chosen answer is among them. Ties: 0.30 tied accuracy + 0.30 "
        "reference accuracy + 0.20 preferred + 0.20 preferred, hard + 0.01 margin, the last three over prompts that are "
        "both tied and reference. The score is the mean of six subsets. Upstream's generative judges score a failure as "
        "0.25 or -1; here it earns 0 and is counted. Checked on hand-made records only."
    ),
    read=read,
    cells=cells,
    score=score,
    counts=COUNTS,
)
