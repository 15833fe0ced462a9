"""RM-Bench: right answers against wrong ones that differ little, in three styles each."""

from collections.abc import Iterator

import numpy as np

from transformers_egrm.evaluation.asking import Judged, Question
from transformers_egrm.evaluation.benchmarks.reading import Data, Fields, part_of
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.metrics import mean_of
from transformers_egrm.evaluation.metrics.leaderboards import (
    DIFFICULTIES,
    DOMAINS,
    rm_bench_domains,
    style_figures,
)
from transformers_egrm.evaluation.scoring import Benchmark, Cells, Row, Score, Table, each, missing, row


STYLES = ("concise", "detailed, plain", "detailed, markdown")
_SIDE = len(STYLES)
COUNTS = {"chat": 129, "math": 529, "code": 228, "safety-refuse": 284, "safety-response": 157}


def read(data: Data) -> Iterator[Question]:
    """Questions; the domain is a field of the total file, and in the name of the others."""
    for fields in data.records(only=("total_dataset.json",)):
        domain = _domain(fields)
        chosen, rejected = fields.texts("chosen", _SIDE), fields.texts("rejected", _SIDE)
        prompt = fields.text("prompt")
        yield Question(
            id=f"{domain}/{fields.word('id')}",
            question_id=prompt,
            subset=domain,
            prompt=prompt,
            responses=chosen + rejected,
            truths=(1.0,) * _SIDE + (0.0,) * _SIDE,
            pairs=tuple((i, _SIDE + j) for i in range(_SIDE) for j in range(_SIDE)),
        )


def cells(judged: Judged) -> Cells:
    """The 3 x 3 comparisons, strictly: `i>j` is 1.0 where style i of the right answer beats style j of the wrong one."""
    won = np.array([judged.beats(*pair) == 1 for pair in judged.question.pairs], dtype=float).reshape(_SIDE, _SIDE)
    found = style_figures(won) | {"right": float(won.all())}
    return found | {f"{i}>{j}": float(won[i, j]) for i in range(_SIDE) for j in range(_SIDE)}


def score(sample: Sample) -> Score:
    """Domains with their difficulties, the mean of domains, the subdomains of safety, and the styles against each other."""
    found = rm_bench_domains(sample.subsets, sample.mean)
    labels = {name: name for name in found} | {"total": "Total, mean of domains"}
    rows = [
        Row(labels[name], sample.count("average", DOMAINS.get(name)), tuple(figures.values()))
        for name, figures in found.items()
    ]
    n = len(sample.items)
    parts = [row(sample, part, DIFFICULTIES, (part,)) for part in DOMAINS["safety"] if part in sample.subsets]
    styles = [
        Row(f"right, {style}", n, tuple(_style(sample, i, j) for j in range(_SIDE))) for i, style in enumerate(STYLES)
    ]
    tables = (
        Table("RM-Bench", DIFFICULTIES, tuple(rows)),
        Table("RM-Bench, subdomains of safety", DIFFICULTIES, tuple(parts)),
        Table("RM-Bench, styles", tuple(f"against wrong, {style}" for style in STYLES), tuple(styles)),
    )
    tables = tuple(table for table in tables if table.rows)
    return Score("average, mean of domains", found["total"]["average"], tables, missing(sample, COUNTS, "The total"))


def _style(sample: Sample, i: int, j: int) -> np.ndarray:
    # As the total does, each domain counts alike, however many prompts it has.
    return mean_of([sample.mean(f"{i}>{j}", parts) for parts in DOMAINS.values() if _held(sample, parts)])


def _held(sample: Sample, parts: tuple[str, ...]) -> bool:
    return any(part in sample.subsets for part in parts)


def _domain(fields: Fields) -> str:
    if "domain" in fields:
        return fields.one_of("domain", {name: name for name in COUNTS})
    return part_of(fields, {name: name for name in sorted(COUNTS, key=len, reverse=True)}, "domain")


BENCHMARK = Benchmark(
    name="rm-bench",
    title="RM-Bench",
    source="https://github.com/THU-KEG/RM-Bench at 73c52d7",
    rule=(
        "Strict comparisons, three styles against three; hard, normal and easy are the upper triangle, the diagonal and "
        "the lower triangle. Safety pools the rows of refuse and response; the total is the mean of four domains. A tie "
        "loses, as upstream, and is counted apart. Checked on the official chat and safety-response records."
    ),
    read=read,
    cells=each(cells),
    score=score,
    counts=COUNTS,
)
