"""GSM8K: whether a solution is right, which of several to choose, or the answer itself."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers_egrm.evaluation.asking import Judged, Question
from transformers_egrm.evaluation.benchmarks.answers import final_number, same_number
from transformers_egrm.evaluation.benchmarks.reading import Data, Fields
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.scoring import Benchmark, Cells, Score, each
from transformers_egrm.evaluation.verification import solution_cells, solution_score


SOLVERS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
COUNTS = {"test": 1319}


def read(data: Data) -> Iterator[Question]:
    """Questions of one of three forms.

    The official `example_model_solutions.jsonl` has four solutions with their truth. A file with `question`, `answer`
    ("... #### N") and `responses` has solutions whose truth is told by their final number. The official `test.jsonl` has
    `question` and `answer` alone: the judge is to answer itself.
    """
    for fields in data.records():
        question = fields.text("question")
        common: dict[str, Any] = {
            "id": f"test/{fields.number}",
            "question_id": question,
            "subset": "test",
            "prompt": question,
        }
        if all(solver in fields for solver in SOLVERS):
            told = [_told(fields, solver) for solver in SOLVERS]
            yield Question(
                **common,
                responses=tuple(fields.inner(solver, "solution") for solver in SOLVERS),
                truths=tuple(map(float, told)),
            )
            continue
        truth = final_number(fields.text("answer"))
        if truth is None:
            raise fields.error("answer", 'a solution that ends with "#### NUMBER"')
        if "responses" in fields:
            responses = fields.texts("responses")
            truths = tuple(float(same_number(final_number(text), truth)) for text in responses)
            yield Question(**common, responses=responses, truths=truths)
        else:
            yield Question(**common, answer=truth)


def cells(judged: Judged) -> Cells:
    """Cells of several solutions; or whether the judge's own answer is the number."""
    if judged.question.answer is None:
        return solution_cells(judged)
    said = judged.judgements[0].verdict
    number = None if said is None else final_number(f"#### {said}")
    return {"right": float(same_number(number, judged.question.answer))}


def score(sample: Sample) -> Score:
    """See `verification.solution_score`."""
    return solution_score("GSM8K", sample)


def _told(fields: Fields, solver: str) -> bool:
    value = fields.values[solver]
    if not isinstance(value, Mapping) or not isinstance(value.get("is_correct"), bool):
        raise fields.error(solver, "an object with a text `solution` and true or false as `is_correct`")
    return value["is_correct"]


BENCHMARK = Benchmark(
    name="gsm8k",
    title="GSM8K",
    source="https://github.com/openai/grade-school-math at 3101c7d",
    rule=(
        "A solution is right where its final number is the true one. Choosing: truth of the solution with the highest "
        "score, equal best shared. Verifying: area under the ROC curve over all solutions, and the share of true verdicts "
        "for judges that say right or wrong. Answering: exact number. Checked on the official records."
    ),
    read=read,
    cells=each(cells),
    score=score,
    counts=COUNTS,
)
