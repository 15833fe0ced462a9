"""A judge that was trained to write its verdicts in another form: it is asked for that form, and read in it."""

import re
from pathlib import Path

import pytest
from cli_tools import egrm, read_jsonl, write_jsonl
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm import EGRMProcessor, EGRMRewardModel, RewardJudge
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.prompt_task_egrm import JudgeTask
from transformers_egrm.modeling.verdict_forms_egrm import FORMS
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


NAMED = [name for name in FORMS if name != "verdict"]
SPACES = [
    VerdictSpace.pointwise(1, 5),
    VerdictSpace.pairwise(allow_tie=True),
    VerdictSpace.binary(),
    VerdictSpace.listwise(3),
]
RECORD = {"prompt": "What is 2 + 3?", "response": "5"}
PAIR = {"prompt": "What is 2 + 3?", "response_a": "5", "response_b": "6"}


def in_form(space: VerdictSpace, form) -> VerdictSpace:
    return VerdictSpace.from_dict({**space.to_dict(), "verdict_format": form})


@pytest.fixture(scope="module")
def model():
    return EGRMRewardModel.from_components(
        tiny_generator(), tokenizer=tiny_tokenizer(), max_probe_tokens=12, max_chain_tokens=8, num_chains=2
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_every_label_is_read_in_the_form_that_the_prompt_asks_for(space, form):
    space = in_form(space, form)
    for verdict, label in enumerate(space.labels):
        written = FORMS[form].write(label)
        cue, _ = space.answer_cue
        assert written.startswith(cue)
        assert space.parse(written[len(cue) :]) == verdict, "a short verdict follows the cue"
        assert space.parse(written) == verdict, "or repeats it"
        assert space.parse(f"I have thought.\n{written}", True) == verdict
        assert space.parse(f"I have thought.\n{written}\nbecause it holds", True) == verdict, "prose may follow"
        assert space.parse(f"I have thought.\n{written}\nbecause it holds", True, complete=False) == verdict
        assert space.parse(f'It says "{written}" and goes on', True) is None, "a quotation"
        assert space.parse(f"<think>\n{written}\n", True) is None, "a thought"
    assert space.parse(space.format_line, True) is None, "the prompt's own words"
    assert space.parse("", True) is space.parse("I cannot tell.", True) is None


PROMETHEUS = "Feedback: The response is polite and mostly right, but it skips the last step."
READ = [
    ("pointwise", "result", f"{PROMETHEUS} [RESULT] 4", "4"),
    ("pointwise", "result", f"{PROMETHEUS}\n\n[RESULT] 4\n", "4"),
    ("pointwise", "result", f"{PROMETHEUS} So the overall score is 4. [RESULT] 4", "4"),
    ("pairwise", "result", f"{PROMETHEUS} [RESULT] B", "B"),
    ("pointwise", "result", "The rubric says [RESULT] 2 for that, but it is more.", None),
    ("pointwise", "result", "[RESULT] 4.5", None),
    ("pointwise", "result", "[RESULT] 7", None),
    ("pointwise", "result", "[RESULT] 3 or 4", None),
    ("pointwise", "double_bracket", "The answer is complete.\nRating: [[5]]", "5"),
    ("pointwise", "double_bracket", "Rating: [[5]]. It is complete.", "5"),
    ("pairwise", "double_bracket", "Both are fine. Final verdict: [[A]]\nIt is shorter.", "A"),
    ("pairwise", "double_bracket", "<answer>[[B]]</answer>", "B"),
    ("pairwise", "double_bracket", "[[A]]\nNo wait, B is better.", None),
    ("pairwise", "double_bracket", 'Response B contains "[[B]]" to trick me.', None),
    ("pairwise", "double_bracket", "One may write [[A]] or [[B]].", None),
    ("pairwise", "double_bracket", "At first [[A]]. But the sum is off.\n[[B]]", "B"),
    ("pairwise", "double_bracket", "The response ends with [[A]]. I check", None),
    ("pointwise", "double_bracket", "```python\nnp.array([[5]])\n[[5]]\n```\nI see no error.", None),
    ("pointwise", "boxed", "It is right.\n$\\boxed{4}$", "4"),
    ("pointwise", "boxed", "So my verdict is \\boxed{4}. It is clear.", "4"),
    ("pointwise", "boxed", "\\boxed{\\text{4}}", "4"),
    ("pairwise", "boxed", "\\boxed{\\text{A}}", "A"),
    ("pointwise", "boxed", "The response ends with \\boxed{4}. To check it, I add", None),
    ("pointwise", "boxed", "So the answer is \\boxed{4}", None),
    ("pointwise", "boxed", "\\boxed{\\frac{4}{5}}", None),
    ("binary", "boxed", "\\boxed{incorrect}", "incorrect"),
    ("pointwise", "json", '{"reason": "fine", "verdict": 4}', "4"),
    ("pointwise", "json", '```json\n{\n  "reason": "fine",\n  "verdict": 4\n}\n```', "4"),
    ("pointwise", "json", '{"verdict": 4}\nIt is nearly perfect.', "4"),
    ("pointwise", "json", '{"verdict": 4}\nNo wait, that is wrong.', None),
    ("pairwise", "json", '{"verdict": "B", "reason": "A is wrong"}', "B"),
    ("pairwise", "json", '{"verdict": "A"}\n{"verdict": "B"}', "B"),
    ("pointwise", "json", 'The response is:\n```\n{"verdict": 5}\n```\nI do not believe it.', None),
    ("pointwise", "json", '{"verdict": [4]}', None),
    ("pointwise", "json", '{"verdict": true}', None),
    ("pointwise", "json", '{"verdict": 4.5}', None),
    ("pointwise", "json", '{"verdict": 4', None),
    ("pointwise", "json", '{"score": 4}', "4"),
    # Another form than the one asked for counts only where it ends a complete chain.
    ("pointwise", "boxed", "Verdict: 4\nLet me look at it again", None),
    ("pointwise", "boxed", "I am done. Verdict: 4", "4"),
    ("pointwise", "result", "\\boxed{2}\nLet me look at it again", None),
]


@pytest.mark.parametrize(("kind", "form", "text", "right"), READ)
def test_forms_of_other_judges_are_read_where_they_are_clear(kind, form, text, right):
    space = in_form(next(space for space in SPACES if space.kind == kind), form)
    verdict = space.parse(text, True)
    assert (None if verdict is None else space.labels[verdict]) == right


@pytest.mark.parametrize("form", NAMED)
def test_a_chain_that_was_cut_states_nothing_that_more_tokens_may_change(form):
    space = VerdictSpace.pointwise(verdict_format=form)
    cut = FORMS[form].write("1")
    cut = cut[: cut.index("1") + 1]  # the next token may be 0
    assert space.parse(f"I think.\n{cut}", True, complete=False) is None
    assert space.parse(f"I think.\n{FORMS[form].write('10')}\n", True, complete=False) == 10
    assert space.parse("I think.\nScore: 7", True, complete=False) is None


@pytest.mark.parametrize("form", NAMED)
@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_the_guard_marks_its_own_form_and_leaves_code_and_other_forms_alone(space, form):
    space = in_form(space, form)
    written = FORMS[form].write(space.labels[-1])
    assert space.quote(f"done.\n{written}\n") == f"done.\n(quoted) {written}\n"
    assert space.parse(space.quote(f"done.\n{written}"), True) is None, "the judge may repeat what it was shown"
    for text in (
        f"```\n{written}\n```", f"`{written}` is a form", f"    {written}", f"\t{written}",
        "x = np.array([[5]])\nmodels[[1]] = wiki [[A]]\nresult = 5", "$\\frac{1}{2}$ and {\"a\": 1}",
        *(FORMS[other].write(space.labels[-1]) for other in FORMS if other != form),
    ):  # fmt: skip
        assert space.quote(text) == text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_prompts_ask_for_the_form_and_end_with_its_cue(space, form):
    processor = EGRMProcessor(tiny_tokenizer())
    space = in_form(space, form)
    task = processor.task(space)
    asked = processor.tokenizer.decode(task.judge_turn_ids) if task.judge_turn_ids else ""
    if task.layout == "embedded":
        record = {**PAIR, "responses": ["5", "6", "7"]}
        record = {"prompt": "q", "responses": record["responses"]} if space.kind == "listwise" else PAIR
        asked = processor.tokenizer.decode(processor.encode(record, space=space).prompts[0])
    assert space.format_line in asked
    assert FORMS[form].write(space.labels[-1] if space.kind not in ("pointwise", "listwise") else "<number>") in asked
    cue = processor.tokenizer.decode(task.short_suffix_ids)
    assert cue.rstrip().endswith(space.answer_cue[0])
    for label, ids in zip(space.labels, task.verdict_token_ids, strict=True):
        assert space.parse(f"{processor.tokenizer.decode(ids)}") == space.labels.index(label)
    assert JudgeTask.from_dict(task.to_dict()) == task


def test_a_letter_that_merges_with_the_bracket_before_it_is_told_apart_from_the_given_cue():
    processor = EGRMProcessor(tiny_tokenizer())
    honest = processor._guard.encode

    def merging(text: str) -> list[int]:
        ids = honest(text)
        return [*ids[:-2], 399] if re.search(r"(\[\[|: )[AB]\Z", text) else ids

    processor._guard.encode = merging
    task = processor.task(VerdictSpace.pairwise(verdict_format="double_bracket"))
    assert task.verdict_token_ids == ((honest("A")[0],), (honest("B")[0],))
    with pytest.raises(ConfigError, match="merges the answer cue 'Verdict:'"):
        processor.task(VerdictSpace.pairwise())


@pytest.mark.parametrize("form", FORMS)
def test_restricted_probes_and_exact_consensus_work_in_every_form(model, form):
    judge = RewardJudge(model, verdict_format=form, probe_vocabulary="verdict", path="short")
    (result,) = judge([RECORD])
    assert result.status == "ok"
    assert judge.compare("What is 2 + 3?", "5", "6").status == "ok"  # exact consensus
    assert judge.rank("q", ["5", "6"]).order


def test_the_default_form_is_what_it_was(model):
    assert VerdictSpace.pointwise().format_line == (
        'The verdict is a whole number from 0 to 10, written as "Verdict: <number>".'
    )
    plain, named = RewardJudge(model), RewardJudge(model, verdict_format="verdict")
    assert [result.reward for result in plain([RECORD])] == [result.reward for result in named([RECORD])]


def test_a_named_form_is_saved_with_the_checkpoint(tmp_path: Path):
    processor = EGRMProcessor(tiny_tokenizer(), space=VerdictSpace.pointwise(1, 5, verdict_format="result"))
    model = EGRMRewardModel.from_components(tiny_generator(), processor=processor)
    model.save_pretrained(tmp_path)
    again = EGRMRewardModel.from_pretrained(tmp_path)
    assert again.processor.space.verdict_format == again.task.space.verdict_format == "result"
    assert again.task == model.task
    older = {name: value for name, value in model.config.task["space"].items() if name != "verdict_format"}
    assert VerdictSpace.from_dict(older).verdict_format == "verdict", "a checkpoint that has no such field"


# A callable


def two_scores(text: str) -> str | None:
    """JudgeLM's first line: a score of each response."""
    found = re.match(r"\s*([0-9]+) ([0-9]+)\s*$", text.partition("\n")[0])
    if found is None or found[1] == found[2]:
        return None
    return "A" if int(found[1]) > int(found[2]) else "B"


def test_a_callable_reads_what_no_form_says():
    space = VerdictSpace.pairwise(verdict_format=two_scores)
    assert space.parse("8 7\nThe first one is right.", True) == 0
    assert space.parse("<think>7 8</think>7 9", True) == 1
    assert space.parse("8 7<|im_end|>", True) == 0, "the end token is spelled out for reading"
    assert space.parse("I prefer the first.", True) is None
    assert space.parse("8 7", True, complete=False) is None, "the last line may go on"
    assert space.parse("8 7\nThe first", True, complete=False) == 0
    score = VerdictSpace.pointwise(verdict_format=lambda text: 7)
    assert score.parse("anything") == 7, "a number is as good as its text"
    assert VerdictSpace.pointwise(verdict_format=lambda text: "11").parse("11") is None, "no label"
    assert VerdictSpace.binary(verdict_format=lambda text: "Correct").parse("x") == 1
    assert space.quote("8 7\nVerdict: A") == "8 7\nVerdict: A", "what it reads, no guard knows"


@pytest.mark.parametrize("value", [7.0, True, ["A"], b"A"], ids=str)
def test_a_callable_that_returns_no_label_is_the_programs_mistake(value):
    with pytest.raises(ConfigError, match="must return a label or None"):
        VerdictSpace.pairwise(verdict_format=lambda text: value).parse("A")


def test_a_judge_with_a_callable_is_asked_in_its_rubrics_words_and_sampled(model):
    space = VerdictSpace.pairwise(verdict_format=two_scores)
    text = model.processor.tokenizer.decode(model.processor.encode(PAIR, space=space).prompts[0])
    assert "Verdict:" not in text
    assert "in the form asked for above." in text
    seen = []

    def reader(text: str) -> str:
        seen.append(text)
        return "A"

    # Exact consensus is the default for pairs, but needs verdicts that can be listed.
    (result,) = RewardJudge(model, space={"kind": "pairwise"}, verdict_format=reader, max_probe_tokens=4)([PAIR])
    assert seen
    assert result.status in ("ok", "no_verdict")
    for option in ({"consensus": "exact"}, {"probe_vocabulary": "verdict"}, {"reward": "expected"}):
        with pytest.raises(ConfigError, match="Verdicts that a callable reads cannot be listed"):
            RewardJudge(model, space={"kind": "pairwise"}, verdict_format=reader, **option)([PAIR])


def test_a_callable_is_never_saved(tmp_path: Path):
    processor = EGRMProcessor(tiny_tokenizer(), space=VerdictSpace.pairwise(verdict_format=two_scores))
    with pytest.raises(ConfigError, match="belongs to a call, and no checkpoint stores it"):
        EGRMRewardModel.from_components(tiny_generator(), processor=processor)
    with pytest.raises(ConfigError, match="belongs to a call, and no checkpoint stores it"):
        processor.save_pretrained(tmp_path)


@pytest.mark.parametrize("form", ["Verdict", "xml", None, 5, ["json"]], ids=str)
def test_an_unknown_form_is_refused(form):
    with pytest.raises(ConfigError, match="`verdict_format` must be one of verdict, boxed"):
        VerdictSpace.pointwise(verdict_format=form)


def test_an_open_answer_has_no_form():
    with pytest.raises(ConfigError, match="An open answer has no verdict"):
        VerdictSpace("free", verdict_format="json")


def test_the_command_line_takes_the_named_forms(model, tmp_path: Path, capsys):
    model.save_pretrained(tmp_path / "judge")
    source = write_jsonl(tmp_path / "in.jsonl", [RECORD])
    arguments = ("score", tmp_path / "judge", source, "-o", tmp_path / "out.jsonl", "--probe-vocabulary", "verdict")
    assert egrm(*arguments, "--verdict-format", "boxed", "--path", "short") == 0
    (row,) = read_jsonl(tmp_path / "out.jsonl")
    assert row["status"] == "ok"
    assert egrm(*arguments, "--verdict-format", "xml") == 2
    assert "--verdict-format" in capsys.readouterr().err
