"""LLMBar: which of two answers follows the instruction."""

from collections.abc import Iterator

from transformers_egrm.evaluation.asking import Judged, Question
from transformers_egrm.evaluation.benchmarks.reading import Data, part_of
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.metrics import mean_of, order_figures
from transformers_egrm.evaluation.scoring import Benchmark, Cells, Row, Score, Table, each, missing, row


_PARTS = {"natural": "Natural", "neighbor": "Neighbor", "gptinst": "GPTInst", "gptout": "GPTOut", "manual": "Manual"}
COUNTS = {"Natural": 100, "Neighbor": 134, "GPTInst": 92, "GPTOut": 47, "Manual": 46}
_ADVERSARIAL = tuple(COUNTS)[1:]
_CELLS = {"accuracy": "right", "mean of both orders": "order_mean", "orders agree": "orders_agree"}


def read(data: Data) -> Iterator[Question]:
    """Questions; the subset is in the file's path only, official (`Adversarial/Manual/dataset.json`) or flat."""
    for fields in data.records():
        subset = part_of(fields, _PARTS, "subset")
        better = fields.one_of("label", {1: 0, 2: 1})
        prompt = fields.text("input")
        yield Question(
            id=f"{subset}/{fields.number}",
            question_id=prompt,
            subset=subset,
            prompt=prompt,
            responses=(fields.text("output_1"), fields.text("output_2")),
            truths=(1.0 - better, float(better)),
            pairs=((better, 1 - better),),
        )


def cells(judged: Judged) -> Cells:
    """`right` over both orders; `order_mean` and `orders_agree` as the paper's Acc. and Agr."""
    ((better, worse),) = judged.question.pairs
    found = order_figures(judged.decisions(better, worse))
    return {"right": found["both"]} | {cell: found[cell] for cell in _CELLS.values() if cell in found}


def score(sample: Sample) -> Score:
    """One row for each subset, the mean of the four adversarial ones, and all pairs."""
    columns = {column: cell for column, cell in _CELLS.items() if sample.count(cell)}
    cells = tuple(columns.values())
    rows = [row(sample, subset, cells, (subset,)) for subset in COUNTS if subset in sample.subsets]
    adversarial = [one for one in rows if one.label in _ADVERSARIAL]
    if adversarial:
        figures = tuple(mean_of([one.figures[i] for one in adversarial]) for i in range(len(cells)))
        rows.append(Row("Adversarial, mean of subsets", sum(one.n for one in adversarial), figures))
    rows.append(row(sample, "All pairs", cells))
    table = Table("LLMBar", tuple(columns), tuple(rows))
    return Score("accuracy, all pairs", sample.mean("right"), (table,), missing(sample, COUNTS, "All pairs"))


BENCHMARK = Benchmark(
    name="llmbar",
    title="LLMBar",
    source="https://github.com/princeton-nlp/LLMBar at 900616b",
    rule=(
        "Accuracy counts a pair as right where both orders together prefer the better answer. The paper's accuracy, the "
        "mean of the two orders, and their agreement stand beside it. Checked on the official records."
    ),
    read=read,
    cells=each(cells),
    score=score,
    counts=COUNTS,
)
