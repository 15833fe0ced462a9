"""PPE, correctness: which of many answers to a question is right, and how well scores tell right from wrong."""

from collections.abc import Iterator

from transformers_egrm.evaluation.asking import Question
from transformers_egrm.evaluation.benchmarks.reading import Data, Fields, part_of
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.metrics import mean_of
from transformers_egrm.evaluation.scoring import Benchmark, Row, Score, Table, each, group_cells, missing, row


_PARTS = {"mmlu": "MMLU-Pro", "math": "MATH", "gpqa": "GPQA", "mbpp": "MBPP-Plus", "ifeval": "IFEval"}
COUNTS = {"MMLU-Pro": 512, "MATH": 512, "GPQA": 512, "MBPP-Plus": 507, "IFEval": 512}
_CELLS = ("pick", "auc", "chance", "best")
_COLUMNS = ("correctness of the pick", "AUC within a question", "of a blind pick", "of a perfect pick")


def read(data: Data) -> Iterator[Question]:
    """Questions of the best-of-K sets; which one it is stands in the file's name or the data set's id."""
    for fields in data.records():
        subset = part_of(fields, _PARTS, "set")
        truths = _truths(fields)
        responses = tuple(fields.text(f"response_{number}") for number in range(1, len(truths) + 1))
        prompt = fields.prompt("prompt")
        yield Question(
            id=f"{subset}/{fields.word('question_id', str(fields.number))}",
            question_id=str(prompt),
            subset=subset,
            prompt=prompt,
            responses=responses,
            truths=truths,
        )


def score(sample: Sample) -> Score:
    """One row for each set, and the mean of sets."""
    rows = [row(sample, subset, _CELLS, (subset,)) for subset in COUNTS if subset in sample.subsets]
    total = tuple(mean_of([one.figures[i] for one in rows]) for i in range(len(_CELLS)))
    table = Table("PPE, correctness", _COLUMNS, (*rows, Row("Mean of sets", len(sample.items), total)))
    return Score("correctness of the pick, mean of sets", total[0], (table,), missing(sample, COUNTS, "The mean"))


def _truths(fields: Fields) -> tuple[float, ...]:
    value = fields.values.get("scores")
    if not isinstance(value, list) or not value or not all(isinstance(one, bool) for one in value):
        raise fields.error("scores", "a list of true and false, one for each response")
    return tuple(float(one) for one in value)


BENCHMARK = Benchmark(
    name="ppe",
    title="PPE, correctness",
    source="https://huggingface.co/lmarena-ai (PPE-*-Best-of-K), https://github.com/lmarena/PPE, arXiv:2410.14872",
    rule=(
        "Correctness of the answer with the highest score, equal best shared; area under the ROC curve of the scores "
        "within a question, over questions that have right and wrong answers. Checked on hand-made records only."
    ),
    read=read,
    cells=each(group_cells),
    score=score,
    counts=COUNTS,
)
