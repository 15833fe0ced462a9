"""RewardBench 2: the best of four answers, and a subset of questions with many right answers."""

from collections.abc import Iterator, Sequence

from transformers_egrm.evaluation.asking import Judged, Question
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.metrics import mean_of, shared_credit
from transformers_egrm.evaluation.metrics.leaderboards import (
    TIES,
    TIES_PARTS,
    spread_of,
    ties_by_question,
    ties_score,
)
from transformers_egrm.evaluation.scoring import Benchmark, Cells, Row, Score, Table, missing


COUNTS = {"Factuality": 475, "Precise IF": 160, "Math": 183, "Safety": 450, "Focus": 495, TIES: 102}


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
            # In Ties, scores themselves are compared; elsewhere the first answer is the one to pick.
            pairs=() if subset == TIES else tuple((0, other) for other in range(1, len(chosen) + len(rejected))),
        )


def cells(judged: Sequence[Judged]) -> list[Cells]:
    """`credit` of a choice, and in Ties the parts of its score; a tied question also holds what its reference adds."""
    ties = [one for one in judged if one.question.subset == TIES]
    spreads = [spread_of(one.scores, int(sum(one.question.truths))) for one in ties]
    parts = iter(ties_by_question([one.question.id.removeprefix(f"{TIES}/") for one in ties], spreads))
    found: list[Cells] = []
    for one in judged:
        if one.question.subset == TIES:
            cell = next(parts)
            found.append(cell | {"right": cell.get("tied accuracy", cell.get("ref accuracy", 0.0))})
        else:
            credit = shared_credit([one.beats(*pair) for pair in one.question.pairs])
            found.append({"credit": credit, "right": float(credit == 1)})
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
        parts = [Row(cell, sample.count(cell), (sample.mean(cell),)) for cell in TIES_PARTS]
        score = ties_score({cell: sample.mean(cell) for cell in TIES_PARTS})
        rows.append(Row(TIES, sample.count("right", (TIES,)), (score,)))
    total = mean_of([row.figures[0] for row in rows])
    tables = [Table("RewardBench 2", ("score",), (*rows, Row("Score, mean of subsets", len(sample.items), (total,))))]
    if parts:
        tables.append(Table("RewardBench 2, parts of Ties", ("value",), tuple(parts)))
    return Score("score, mean of subsets", total, tuple(tables), missing(sample, COUNTS, "The score"))


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
