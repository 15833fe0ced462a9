"""RewardBench (the first): a chosen answer against a rejected one, in 23 subsets and four sections."""

from collections.abc import Iterator

from transformers_egrm.evaluation.asking import Question
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.metrics import mean_of
from transformers_egrm.evaluation.metrics.leaderboards import SECTIONS, WEIGHTS, rewardbench_sections
from transformers_egrm.evaluation.scoring import Benchmark, Row, Score, Table, each, missing, pairs_right, subset_rows


COUNTS = WEIGHTS | {"math-prm": 447}
"""How many examples each subset has."""


def read(data: Data) -> Iterator[Question]:
    """Questions of the filtered set."""
    for fields in data.records():
        prompt = fields.prompt("prompt")
        subset = fields.one_of("subset", {name: name for name in COUNTS})
        yield Question(
            id=f"{subset}/{fields.word('id', str(fields.number))}",
            question_id=str(prompt),
            subset=subset,
            prompt=prompt,
            responses=(fields.text("chosen"), fields.text("rejected")),
            truths=(1.0, 0.0),
            pairs=((0, 1),),
        )


def score(sample: Sample) -> Score:
    """The four sections and their mean, then every subset."""
    accuracies = {subset: sample.mean("right", (subset,)) for subset in sample.subsets}
    sections = [
        Row(name, sample.count("right", SECTIONS[name]), (figure,))
        for name, figure in rewardbench_sections(accuracies).items()
    ]
    total = mean_of([section.figures[0] for section in sections])
    tables = (
        Table("RewardBench", ("score",), (*sections, Row("Score, mean of sections", len(sample.items), (total,)))),
        Table("RewardBench, subsets", ("accuracy",), tuple(subset_rows(sample, ("right",), COUNTS))),
    )
    return Score("score, mean of sections", total, tables, missing(sample, COUNTS, "The score"))


BENCHMARK = Benchmark(
    name="rewardbench",
    title="RewardBench",
    source="https://huggingface.co/datasets/allenai/reward-bench (split `filtered`), rule of allenai/reward-bench at 6552e93",
    rule=(
        "The chosen answer must be preferred. Inside a section, subsets are weighted by upstream's table of example "
        "counts; the score is the mean of four sections. Upstream's own runs cut at 512 tokens in float16. Checked on "
        "hand-made records only."
    ),
    read=read,
    cells=each(pairs_right),
    score=score,
    counts=COUNTS,
)
