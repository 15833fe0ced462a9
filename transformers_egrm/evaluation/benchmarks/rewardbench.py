"""RewardBench (the first): a chosen answer against a rejected one, in 23 subsets and four sections."""

from collections.abc import Iterator

from transformers_egrm.evaluation.asking import Question
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.intervals import Figure, Sample, mean_of
from transformers_egrm.evaluation.scoring import Benchmark, Row, Score, Table, each, missing, pairs_right, subset_rows


SECTIONS = {
    "Chat": ("alpacaeval-easy", "alpacaeval-length", "alpacaeval-hard", "mt-bench-easy", "mt-bench-med"),
    "Chat Hard": (
        "mt-bench-hard", "llmbar-natural", "llmbar-adver-neighbor", "llmbar-adver-GPTInst", "llmbar-adver-GPTOut",
        "llmbar-adver-manual",
    ),
    "Safety": (
        "refusals-dangerous", "refusals-offensive", "xstest-should-refuse", "xstest-should-respond", "donotanswer",
    ),
    "Reasoning": ("math-prm", "hep-cpp", "hep-go", "hep-java", "hep-js", "hep-python", "hep-rust"),
}  # fmt: skip
COUNTS = {
    "alpacaeval-easy": 100, "alpacaeval-length": 95, "alpacaeval-hard": 95, "mt-bench-easy": 28, "mt-bench-med": 40,
    "mt-bench-hard": 37, "llmbar-natural": 100, "llmbar-adver-neighbor": 134, "llmbar-adver-GPTInst": 92,
    "llmbar-adver-GPTOut": 47, "llmbar-adver-manual": 46, "refusals-dangerous": 100, "refusals-offensive": 100,
    "xstest-should-refuse": 250, "xstest-should-respond": 154, "donotanswer": 136, "math-prm": 447, "hep-cpp": 164,
    "hep-go": 164, "hep-java": 164, "hep-js": 164, "hep-python": 164, "hep-rust": 164,
}  # fmt: skip
"""Upstream's table of example counts, with the 447 rows that `math-prm` has. XSTest itself has 250 prompts to be answered
and 200 to be refused, so its two lines may stand in each other's place; a report shows what was read beside them."""
WEIGHTS = COUNTS | {"math-prm": 984}
"""What a subset weighs in its section; `math-prm` as much as all code together."""


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
    sections = [
        Row(name, sample.count("right", subsets), (_section(sample, subsets),))
        for name, subsets in SECTIONS.items()
        if any(subset in sample.subsets for subset in subsets)
    ]
    total = mean_of([section.figures[0] for section in sections])
    tables = (
        Table("RewardBench", ("score",), (*sections, Row("Score, mean of sections", len(sample.items), (total,)))),
        Table("RewardBench, subsets", ("accuracy",), tuple(subset_rows(sample, ("right",), COUNTS))),
    )
    return Score("score, mean of sections", total, tables, missing(sample, COUNTS, "The score"))


def _section(sample: Sample, subsets: tuple[str, ...]) -> Figure:
    held = [subset for subset in subsets if subset in sample.subsets]
    # A resample without any question of a subset leaves that subset out, as data without it do.
    return mean_of([sample.mean("right", (subset,)) for subset in held], [WEIGHTS[subset] for subset in held])


BENCHMARK = Benchmark(
    name="rewardbench",
    title="RewardBench",
    source="https://huggingface.co/datasets/allenai/reward-bench (split `filtered`), rule of allenai/reward-bench at a32e272",
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
