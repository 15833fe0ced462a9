"""MATH-500: whether a solution is right, which of several to choose, or the answer itself."""

from collections.abc import Iterator
from typing import Any

from transformers_egrm.evaluation.asking import Judged, Question
from transformers_egrm.evaluation.benchmarks.answers import same_mathematics
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.scoring import Benchmark, Cells, Score, each
from transformers_egrm.evaluation.verification import solution_cells, solution_score


COUNTS = {"test": 500}
_STEPS = "Please reason step by step"
"""Some copies of the data end every prompt with such a request; a short verdict must not be asked for steps."""


def read(data: Data) -> Iterator[Question]:
    """Questions with `answer` and `prompt` (or `problem`); with `responses` they are verified, without the judge answers."""
    for fields in data.records():
        problem = fields.text("prompt" if "prompt" in fields else "problem").partition(_STEPS)[0].strip()
        answer = fields.text("answer")
        common: dict[str, Any] = {
            "id": f"test/{fields.number}",
            "question_id": problem,
            "subset": "test",
            "prompt": problem,
        }
        if "responses" in fields:
            responses = fields.texts("responses")
            truths = tuple(float(same_mathematics(answer, text)) for text in responses)
            yield Question(**common, responses=responses, truths=truths)
        else:
            yield Question(**common, answer=answer)


def cells(judged: Judged) -> Cells:
    """Cells of several solutions; or whether the judge's own answer equals the true one by value."""
    if judged.question.answer is None:
        return solution_cells(judged)
    said = judged.judgements[0].verdict
    return {"right": float(said is not None and same_mathematics(judged.question.answer, said))}


def score(sample: Sample) -> Score:
    """See `verification.solution_score`."""
    return solution_score("MATH-500", sample)


BENCHMARK = Benchmark(
    name="math500",
    title="MATH-500",
    source="https://huggingface.co/datasets/HuggingFaceH4/MATH-500; prompts with a request for steps as in jianzhnie/LLMEval at 66572ad",
    rule=(
        "An answer is right where it equals the true one by value, within three seconds. Figures as for GSM8K. The data "
        "hold no solutions: bring your own as `responses`, or let the judge answer. Checked on hand-made records only."
    ),
    read=read,
    cells=each(cells),
    score=score,
    counts=COUNTS,
)
