"""JudgeBench: pairs of answers of one model, one of them objectively right."""

from collections.abc import Iterator

from transformers_egrm.evaluation.asking import Judged, Question
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.metrics import order_figures
from transformers_egrm.evaluation.scoring import Benchmark, Cells, Score, Table, each, missing, row, subset_rows


_SECTIONS = {
    "mmlu-pro": "Knowledge",
    "livebench-reasoning": "Reasoning",
    "livebench-math": "Math",
    "livecodebench": "Coding",
}
COUNTS = {"Knowledge": 154, "Reasoning": 98, "Math": 56, "Coding": 42}


def read(data: Data) -> Iterator[Question]:
    """Questions of a file of pairs, of either response model."""
    for fields in data.records():
        source = fields.text("source")
        section = next((section for name, section in _SECTIONS.items() if source.startswith(name)), None)
        if section is None:
            raise fields.error("source", f"a name that starts with {', '.join(_SECTIONS)}")
        better = fields.one_of("label", {"A>B": 0, "B>A": 1})
        prompt = fields.text("question")
        yield Question(
            id=fields.word("pair_id"),
            question_id=prompt,
            subset=section,
            prompt=prompt,
            responses=(fields.text("response_A"), fields.text("response_B")),
            truths=(1.0 - better, float(better)),
            pairs=((better, 1 - better),),
        )


def cells(judged: Judged) -> Cells:
    """The order sum: 1 for each order that prefers the right answer, -1 for the wrong one, else 0; right above 0.

    An order without a verdict adds nothing, as upstream: a pair may be right by the other order alone. The report counts
    such pairs apart.
    """
    ((better, worse),) = judged.question.pairs
    return {"right": order_figures(judged.decisions(better, worse))["order_sum"]}


def score(sample: Sample) -> Score:
    """One row for each section, and all pairs, which is the leaderboard's figure."""
    rows = (*subset_rows(sample, ("right",), COUNTS), row(sample, "Overall", ("right",)))
    table = Table("JudgeBench", ("accuracy",), rows)
    return Score("accuracy, overall", sample.mean("right"), (table,), missing(sample, COUNTS, "Overall"))


BENCHMARK = Benchmark(
    name="judgebench",
    title="JudgeBench",
    source="https://github.com/ScalerLab/JudgeBench at e2c52c2; counts are of the GPT-4o pairs",
    rule=(
        "Both orders, 1 for the right answer and -1 for the wrong one; right where the sum is above 0. A judge of single "
        "answers has one order. Checked on the official GPT-4o pairs and against the rule of utils/metrics.py."
    ),
    read=read,
    cells=each(cells),
    score=score,
    counts=COUNTS,
)
