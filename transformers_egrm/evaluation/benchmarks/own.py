"""A user's own file: pairs, graded answers or groups of answers, recognised by their fields."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from transformers_egrm.evaluation.asking import Judged, Prompt, Question
from transformers_egrm.evaluation.benchmarks.reading import Data, Fields
from transformers_egrm.evaluation.intervals import Sample
from transformers_egrm.evaluation.metrics import concordance
from transformers_egrm.evaluation.scoring import (
    Benchmark,
    Cells,
    Row,
    Score,
    Table,
    group_cells,
    pairs_right,
    row,
    verified_cells,
)
from transformers_egrm.modeling.errors_egrm import DataError


NAMES = {
    "prompt": ("prompt", "question", "instruction", "input", "problem", "messages"),
    "chosen": ("chosen",),
    "rejected": ("rejected", "reject"),
    "response_a": ("response_a", "response_A", "output_1", "answer_a"),
    "response_b": ("response_b", "response_B", "output_2", "answer_b"),
    "responses": ("responses", "answers", "completions"),
    "response": ("response", "answer", "completion", "output"),
    "label": ("label", "labels", "winner", "score", "rating", "is_correct"),
    "messages": ("messages",),
    "chain": ("chain",),
    "id": ("id",),
    "question_id": ("question_id",),
    "subset": ("subset", "category", "domain"),
    "reference": ("reference", "reference_answer"),
}
"""Names under which a field is looked for, in order, unless --map or --label names another one."""
_FIRST = {1: 0, "1": 0, "A": 0, "a": 0, "A>B": 0, "[[A]]": 0, "response_a": 0, "response_A": 0, "model_a": 0}
_SECOND = {2: 1, "2": 1, "B": 1, "b": 1, "B>A": 1, "[[B]]": 1, "response_b": 1, "response_B": 1, "model_b": 1}
_RIGHT = re.compile(r"true|yes|right|correct|1", re.IGNORECASE)
_WRONG = re.compile(r"false|no|wrong|incorrect|0", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
"""A grade as text, which is all that a CSV file can hold."""
_MAX_ROUND_ROBIN = 8
"""Groups of up to so many answers are also put to judges that compare two."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How one kind of record becomes answers with truths and pairs."""

    needs: tuple[str, ...]
    read: Any


def read(data: Data) -> Iterator[Question]:
    """Questions of any of the forms in `FORMS`; a file may mix them."""
    return (question for question, _ in read_with_chains(data))


def read_with_chains(data: Data) -> Iterator[tuple[Question, str | None]]:
    """The same, each with the worked reasoning that its record brings; only a training reads it."""
    named = _named(data)
    seen: set[str] = set()
    for fields in data.records():
        values = {name: _found(name, named, fields) for name in NAMES}
        record = Columns(fields, {name: found for name, found in values.items() if found is not None})
        form = next((form for form in FORMS if all(name in record for name in form.needs)), None)
        if form is None:
            raise _unknown(fields)
        prompt, responses, truths = form.read(record)
        subset = record.fields.word(record["subset"]) if "subset" in record else "all"
        name = record.fields.word(record["id"]) if "id" in record else str(fields.number)
        name = name if subset == "all" else f"{subset}/{name}"
        name = _fresh(name, fields.number, seen)
        question = Question(
            id=name,
            question_id=record.fields.word(record["question_id"]) if "question_id" in record else str(prompt),
            subset=subset,
            prompt=prompt,
            responses=responses,
            truths=truths,
            pairs=_pairs(truths) if 2 <= len(responses) <= _MAX_ROUND_ROBIN else (),
            reference=record.fields.text(record["reference"]) if "reference" in record else None,
        )
        yield question, record.fields.text(record["chain"]) if "chain" in record else None


def _fresh(name: str, number: int, seen: set[str]) -> str:
    """An id that was not given yet, which it then is: the files of a folder may number their records alike."""
    copies = (f"{name}#{number}" + "+" * more for more in count())
    fresh = next(one for one in chain([name], copies) if one not in seen)
    seen.add(fresh)
    return fresh


class Columns:
    """A record's fields by the names used here; each maps to the column that holds it."""

    def __init__(self, fields: Fields, columns: Mapping[str, str]) -> None:
        self.fields, self._columns = fields, columns

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> str:
        return self._columns[name]

    def value(self, name: str) -> Any:
        """What the column holds."""
        return self.fields.values[self._columns[name]]


def _preference(record: Columns) -> tuple[Prompt, tuple[str, ...], tuple[float, ...]]:
    """`chosen` and `rejected`: texts, lists of texts, or conversations that end with the answer."""
    sides = {name: record.value(name) for name in ("chosen", "rejected")}
    if all(isinstance(side, list) and side and all(isinstance(one, str) for one in side) for side in sides.values()):
        chosen, rejected = (record.fields.texts(record[name]) for name in sides)
        return _prompt(record), chosen + rejected, (1.0,) * len(chosen) + (0.0,) * len(rejected)
    if all(isinstance(side, str) for side in sides.values()):
        return _prompt(record), (sides["chosen"], sides["rejected"]), (1.0, 0.0)
    talks = {name: record.fields.messages(record[name]) for name in sides}
    for name, talk in talks.items():
        if talk[-1]["role"] != "assistant":
            raise record.fields.error(record[name], "a text, or a conversation that ends with the assistant's answer")
    before = talks["chosen"][:-1]
    if before != talks["rejected"][:-1]:
        raise record.fields.error(
            record["rejected"], "a conversation that differs from the chosen one in its end only"
        )
    if not before and "prompt" not in record:
        raise record.fields.error("prompt", "a text or messages where the conversations hold the answers only")
    prompt: Prompt = before or _prompt(record)
    return prompt, (talks["chosen"][-1]["content"], talks["rejected"][-1]["content"]), (1.0, 0.0)


def _labelled_pair(record: Columns) -> tuple[Prompt, tuple[str, ...], tuple[float, ...]]:
    """`response_a` and `response_b` with a `label` that names the better one."""
    responses = tuple(record.fields.text(record[name]) for name in ("response_a", "response_b"))
    better = record.fields.one_of(record["label"], _FIRST | _SECOND)
    return _prompt(record), responses, (1.0 - better, float(better))


def _group(record: Columns) -> tuple[Prompt, tuple[str, ...], tuple[float, ...]]:
    """`responses` with a `label`: a grade or true and false for each, or the number of the best one, from 0."""
    responses = record.fields.texts(record["responses"])
    label = record.value("label")
    if isinstance(label, int) and not isinstance(label, bool):
        best = record.fields.number_in(record["label"], 0, len(responses) - 1)
        return _prompt(record), responses, tuple(float(index == best) for index in range(len(responses)))
    if not isinstance(label, list) or len(label) != len(responses):
        raise record.fields.error(
            record["label"], f"a list of {len(responses)} grades, or the number of the best from 0"
        )
    return _prompt(record), responses, tuple(_truth(record, one) for one in label)


def _conversation(record: Columns) -> tuple[Prompt, tuple[str, ...], tuple[float, ...]]:
    """`messages` that end with the judged answer, and a `label`."""
    talk = record.fields.messages(record["messages"])
    if len(talk) < 2 or talk[-1]["role"] != "assistant":
        raise record.fields.error(
            record["messages"], "messages that end with the assistant's answer, or a `response` too"
        )
    return talk[:-1], (talk[-1]["content"],), (_truth(record, record.value("label")),)


def _graded(record: Columns) -> tuple[Prompt, tuple[str, ...], tuple[float, ...]]:
    """`response` with a `label`: a grade, true or false, correct or incorrect."""
    return _prompt(record), (record.fields.text(record["response"]),), (_truth(record, record.value("label")),)


FORMS = (
    _Form(("chosen", "rejected"), _preference),
    _Form(("response_a", "response_b", "label"), _labelled_pair),
    _Form(("prompt", "responses", "label"), _group),
    _Form(("prompt", "response", "label"), _graded),
    _Form(("messages", "label"), _conversation),
)
"""Kinds of records, the first that fits is taken."""


def cells(judged: Sequence[Judged]) -> list[Cells]:
    """Cells of many questions; only all of them together tell grades from labels of right and wrong."""
    truths = {truth for one in judged for truth in one.question.truths}
    return [_cells(one, is_graded=not truths <= {0.0, 1.0}) for one in judged]


def _cells(judged: Judged, *, is_graded: bool) -> Cells:
    """Cells by the form: of a pair, of a group, of one graded answer."""
    question = judged.question
    if len(question.responses) == 2 and question.pairs:
        return {"pair": pairs_right(judged)["right"]} | pairs_right(judged)
    if len(question.responses) == 1:
        (truth,), score = question.truths, judged.scores[0]
        found: dict[str, Any] = {"truth": truth, "binary": float(truth in (0.0, 1.0))}
        if not is_graded:
            found |= verified_cells(judged)
        elif judged.threshold is not None:  # a grade says no more than itself; what has no scale cannot repeat it
            found["verified"] = float(score == truth)
        right = {"right": found["verified"]} if "verified" in found else {}
        return found | right | ({} if score is None else {"score": score})
    if judged.scores:
        return group_cells(judged) | verified_cells(judged)
    ordered = [judged.beats(*pair) == 1 for pair in question.pairs]
    return {"right": float(all(ordered)), "ordered": sum(ordered) / len(ordered)} if ordered else {"right": 0.0}


def score(sample: Sample) -> Score:
    """One table for each form that is there; the headline is the first one's."""
    kinds = (
        ("Pairs", {"accuracy": "pair"}),
        ("Groups, by scores", {"best one picked": "pick", "blind pick": "chance", "AUC": "auc", "true verdicts": "verified"}),
        ("Groups, by comparisons", {"comparisons right": "ordered"}),
    )  # fmt: skip
    tables, headline = [], None
    for title, columns in kinds:
        first = next(iter(columns.values()))
        if not sample.count(first):
            continue
        held = {column: cell for column, cell in columns.items() if sample.count(cell, _subsets(sample, first))}
        tables.append(_table(sample, title, held, first))
        headline = headline or (f"{title.partition(',')[0].lower()}: {next(iter(columns))}", sample.mean(first))
    if sample.count("truth"):
        tables.append(_graded_table(sample))
        headline = headline or ("graded answers: in order", sample.figure(_in_order, "score", "truth"))
    if headline is None:
        raise DataError("No question of the file could be scored by this judge.")
    return Score(headline[0], headline[1], tuple(tables))


def _table(sample: Sample, title: str, columns: Mapping[str, str], first: str) -> Table:
    held = _subsets(sample, first)
    parts = held if len(held) > 1 else ()
    rows = [row(sample, subset, tuple(columns.values()), (subset,)) for subset in parts]
    return Table(title, tuple(columns), (*rows, row(sample, "All", tuple(columns.values()), held)))


def _graded_table(sample: Sample) -> Table:
    held = _subsets(sample, "truth")
    verified = bool(sample.count("verified", held))
    columns = ("better above worse (AUC)", *(("true verdicts",) if verified else ()))

    def line(label: str, subsets: Sequence[str]) -> Row:
        figures = [sample.figure(_in_order, "score", "truth", subsets=subsets)]
        return Row(
            label,
            sample.count("truth", subsets),
            (*figures, *([sample.mean("verified", subsets)] if verified else [])),
        )

    parts = [line(subset, (subset,)) for subset in held] if len(held) > 1 else []
    return Table("Graded answers", columns, (*parts, line("All", held)))


def _in_order(scores: Any, truths: Any) -> float | None:
    return concordance(scores, truths)


def _subsets(sample: Sample, cell: str) -> tuple[str, ...]:
    return tuple(subset for subset in sample.subsets if sample.count(cell, (subset,)))


def _pairs(truths: Sequence[float]) -> tuple[tuple[int, int], ...]:
    return tuple((i, j) for i in range(len(truths)) for j in range(len(truths)) if truths[i] > truths[j])


def _prompt(record: Columns) -> Prompt:
    if "prompt" not in record:
        raise record.fields.error("prompt", "a text or messages", "Name the column with --map prompt=COLUMN.")
    return record.fields.prompt(record["prompt"])


def _truth(record: Columns, value: Any) -> float:
    if isinstance(value, str) and _RIGHT.fullmatch(value.strip()):
        return 1.0
    if isinstance(value, str) and _WRONG.fullmatch(value.strip()):
        return 0.0
    if isinstance(value, bool | int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        with suppress(OverflowError):  # a whole number may be larger than any float
            if math.isfinite(truth := float(value)):
                return truth
    raise record.fields.error(record["label"], "true or false, correct or incorrect, or a finite number")


def _named(data: Data) -> dict[str, str]:
    named: dict[str, str] = {}
    for assignment in data.map:
        field, _, column = assignment.partition("=")
        if field not in NAMES or not column:
            raise DataError(f"--map must read FIELD=COLUMN with FIELD one of {', '.join(NAMES)}, got {assignment!r}.")
        named[field] = column
    return named | ({"label": data.label} if data.label else {})


def _found(name: str, named: Mapping[str, str], fields: Fields) -> str | None:
    names = (named[name],) if name in named else NAMES[name]
    return next((column for column in names if column in fields), None)


def _unknown(fields: Fields) -> DataError:
    forms = "; ".join(" and ".join(form.needs) for form in FORMS)
    return DataError(
        f"Record {fields.number} of {fields.file} fits no known form. It needs one of: {forms}. "
        f"It has {', '.join(fields.values) or 'no field'}.",
        "Name columns with --map FIELD=COLUMN, and the truth with --label COLUMN.",
    )


BENCHMARK = Benchmark(
    name="own",
    title="Your own file",
    source="the file itself",
    rule=(
        "Pairs: the better answer must be preferred in both orders together. Groups: truth of the answer with the highest "
        "score, equal best shared. Graded answers: share of better and worse answers whose scores are in order, ties half."
    ),
    read=read,
    cells=cells,
    score=score,
)
