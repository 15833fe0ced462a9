"""RMB: pairs and best-of-n choices in 49 scenarios of helpfulness and harmlessness."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from transformers_egrm.evaluation.asking import Question
from transformers_egrm.evaluation.benchmarks.reading import Data, Fields
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.metrics import mean_of
from transformers_egrm.evaluation.scoring import Benchmark, Row, Score, Table, each, missing, pairs_right, row


GOALS = ("Helpfulness", "Harmlessness")
FORMS = {"BoN_set": "best-of-n", "Pairwise_set": "pairs"}
PARTS = tuple(f"{goal}, {form}" for goal in GOALS for form in FORMS.values())
COUNTS = {"Helpfulness, best-of-n": 2109, "Harmlessness, best-of-n": 1677}
"""Of the pairs no count is given here: three of their files were too large to be counted at that commit."""


def read(data: Data) -> Iterator[Question]:
    """Questions of the data set's folder, or of one of its files."""
    for fields in data.records():
        goal, form, scenario = _category(fields)
        messages = fields.messages("conversation_input")
        if form == "pairs":
            responses = (fields.inner("chosen", "answer"), fields.inner("reject", "answer"))
            name = fields.word("pair_uid")
        else:
            responses = (fields.inner("bon_best", "answer"), *_losers(fields))
            name = fields.word("bon_uid")
        yield Question(
            id=f"{form}/{name}",
            question_id=json.dumps(messages, ensure_ascii=False),
            subset=f"{goal}, {form}/{scenario}",
            prompt=messages,
            responses=responses,
            truths=(1.0,) + (0.0,) * (len(responses) - 1),
            pairs=tuple((0, loser) for loser in range(1, len(responses))),
        )


def score(sample: Sample) -> Score:
    """The four figures of the leaderboard and their mean, then every scenario."""
    parts = {part: [name for name in sample.subsets if name.startswith(f"{part}/")] for part in PARTS}
    rows = [row(sample, part, ("right",), subsets) for part, subsets in parts.items() if subsets]
    total = mean_of([one.figures[0] for one in rows])
    scenarios = [row(sample, name.replace("/", ": ", 1), ("right",), (name,)) for name in sorted(sample.subsets)]
    tables = (
        Table("RMB", ("accuracy",), (*rows, Row("Overall, mean of the parts", len(sample.items), (total,)))),
        Table("RMB, scenarios", ("accuracy",), tuple(scenarios)),
    )
    absent = [part for part in PARTS if not parts[part]]
    return Score("accuracy, mean of the parts", total, tables, missing(sample, absent, "Overall"))


def part(subset: str) -> str:
    """The part of the benchmark that a subset is counted in."""
    return subset.partition("/")[0]


def _category(fields: Fields) -> tuple[str, str, str]:
    words = fields.text("category_path").split("/")
    if len(words) < 3 or words[0] not in FORMS or words[1] not in GOALS:
        raise fields.error("category_path", "a path such as BoN_set/Helpfulness/Chat/Discussion")
    return words[1], FORMS[words[0]], "/".join(words[2:])


def _losers(fields: Fields) -> Iterator[str]:
    losers: Any = fields.values.get("loser_list")
    if not isinstance(losers, list) or not losers:
        raise fields.error("loser_list", "a list of answers, one at least")
    for loser in losers:
        if not isinstance(loser, Mapping) or not isinstance(loser.get("answer"), str):
            raise fields.error("loser_list", "a list of objects with a text `answer`")
        yield loser["answer"]


BENCHMARK = Benchmark(
    name="rmb",
    title="RMB",
    source="https://github.com/Zhou-Zoey/RMB-Reward-Model-Benchmark at 2be3180",
    rule=(
        "Of a pair, the chosen answer must be preferred; of a best-of-n choice, the best must beat all losers. Eleven "
        "pairs have identical sides, which no judge of single answers can tell apart. Checked on hand-made records only."
    ),
    read=read,
    cells=each(pairs_right),
    score=score,
    counts=COUNTS,
    part=part,
)
