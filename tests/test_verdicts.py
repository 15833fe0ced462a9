import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.prompt_task_egrm import JudgeTask
from transformers_egrm.modeling.prompt_thoughts_egrm import thought_marks
from transformers_egrm.modeling.verdict_answers_egrm import normalise_answer
from transformers_egrm.modeling.verdict_masks_egrm import closing_of, open_thought, strip_thinking
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


POINTWISE, PAIRWISE, TIED = VerdictSpace.pointwise(), VerdictSpace.pairwise(), VerdictSpace.pairwise(allow_tie=True)
BINARY, LISTWISE, FREE = VerdictSpace.binary(), VerdictSpace.listwise(4), VerdictSpace.free()
SPACES = (POINTWISE, VerdictSpace.pointwise(-2, 2), VerdictSpace.pointwise(0, 100), PAIRWISE, TIED, BINARY, LISTWISE)


def test_every_space_names_its_verdicts_and_their_rewards():
    assert POINTWISE.labels == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10")
    assert POINTWISE.rewards == tuple(float(score) for score in range(11))
    assert VerdictSpace.pointwise(-2, 2).rewards == (-2.0, -1.0, 0.0, 1.0, 2.0)
    assert (PAIRWISE.labels, PAIRWISE.rewards) == (("A", "B"), (1.0, 0.0))
    assert (TIED.labels, TIED.rewards) == (("A", "B", "tie"), (1.0, 0.0, 0.5))
    assert (BINARY.labels, BINARY.rewards) == (("incorrect", "correct"), (0.0, 1.0))
    assert (LISTWISE.labels, LISTWISE.rewards) == (("1", "2", "3", "4"), (0.0, 1.0, 2.0, 3.0))
    assert (FREE.labels, FREE.rewards, FREE.num_verdicts, FREE.enumerable) == ((), (), 0, False)
    assert [space.ordinal for space in (POINTWISE, PAIRWISE, BINARY, LISTWISE, FREE)] == [True, *[False] * 4]


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"kind": "stars"}, "one of pointwise"),
        ({"kind": "pointwise", "low": 5, "high": 5}, "2 to 1001 verdicts"),
        ({"kind": "pointwise", "low": 0, "high": 10**9}, "2 to 1001 verdicts"),
        ({"kind": "pointwise", "high": 1.5}, "`high`"),
        ({"kind": "pointwise", "low": True}, "`low`"),
        ({"kind": "listwise", "num_candidates": 1}, "at least two candidates"),
        ({"kind": "pairwise", "allow_tie": "no"}, "`allow_tie`"),
        ({"kind": "pairwise", "labels": ["x"]}, "Unknown keys"),
    ],
)
def test_a_space_with_one_label_or_a_wrong_field_is_refused(values, part):
    with pytest.raises(ConfigError, match=part):
        VerdictSpace.from_dict(values)


@pytest.mark.parametrize("space", [*SPACES, FREE])
def test_a_space_survives_json_and_swapping_twice_changes_nothing(space):
    assert VerdictSpace.from_dict(json.loads(json.dumps(space.to_dict()))) == space
    assert [space.swap(space.swap(i)) for i in range(space.num_verdicts)] == list(range(space.num_verdicts))


def test_swapping_exchanges_the_candidates_and_keeps_the_tie():
    assert TIED.swap_ids == (1, 0, 2)
    assert LISTWISE.swap_ids == (3, 2, 1, 0)
    assert POINTWISE.swap(7) == 7


@pytest.mark.parametrize("text", [
    "7", " 7", " 7\n", "7.", "7.0", "**7**", "\"7\"", "[[7]]", "\\boxed{7}", "$\\boxed{\\text{7}}$", "7/10", "7 / 10",
    "**7**/10", "7 out of 10", "7 (solid)", "7, because it is short", "7 because", "7<|im_end|>", "7</s>",
    "Verdict: 7", "**Verdict:** 7", "\uff17", "Verdict\uff1a\uff17", "<think>\n\n</think>\n\n7", " 7 The response is good",
])  # fmt: skip
def test_a_short_verdict_is_read_through_its_decoration(text):
    assert POINTWISE.parse(text) == 7


@pytest.mark.parametrize("text", [
    "", " ", ":", "seven", "7.5", "7,5", "-3", "\u22123", "\u20133", "11", "100", "1e3", "007", "07", "7th", "7k", "v7", "7²",
    "7½", "7%", "7:30", "1,000", "10,000", "10 000", "7-8", "7\u20138", "7 or 8", "7/8", "7/100", "7 out of 5", "7/10.5",
    "0x7", "7+", "7+2", "7^2", "7 errors", "7-point", "between 7 and 8", "nan", "None", "[[7]] or [[8]]", "7 and 3",
    "<think>7", "not 7",
])  # fmt: skip
def test_anything_but_one_whole_number_in_range_is_no_verdict(text):
    assert POINTWISE.parse(text) is None


def test_ten_is_never_read_as_one():
    assert POINTWISE.parse("10") == 10
    assert POINTWISE.parse("Reward: 10", reasoning=True) == 10
    assert POINTWISE.parse("Verdict: 10.", reasoning=True) == 10


def test_a_scale_from_0_to_100_reads_percents_and_its_own_fraction():
    percent = VerdictSpace.pointwise(0, 100)
    assert [percent.parse(text) for text in ("85", "85%", "85/100", "100")] == [85, 85, 85, 100]
    assert percent.parse("85/10") is percent.parse("101") is None


def test_a_scale_below_zero_reads_the_sign():
    assert VerdictSpace.pointwise(-2, 2).parse("-2") == 0
    assert VerdictSpace.pointwise(-2, 2).parse("\u22121") == 1
    assert VerdictSpace.pointwise(-2, 2).parse("-3") is None


@pytest.mark.parametrize(("text", "label"), [
    ("A", "A"), (" B.", "B"), ("**B**", "B"), ("[[A]]", "A"), ("Response B", "B"), ("A is better", "A"), ("A\nIt is", "A"),
    ("A, because B is wrong", "A"), ("A. B is wrong", "A"), ("tie", "tie"), ("Tie.", "tie"),
    ("a", None), ("A good answer is B", None), ("A is worse", None), ("A or B", None), ("A/B", None), ("A, B", None),
    ("A > B", "A"), ("[[A>B]]", "A"), ("A<<B", "B"), ("A = B", "tie"), ("A >= B", None), ("AB", None), ("both", None), ("neither", None), ("A's", None),
])  # fmt: skip
def test_a_pairwise_verdict_is_one_letter_or_the_tie(text, label):
    assert TIED.parse(text) == (None if label is None else TIED.labels.index(label))
    assert PAIRWISE.parse("tie") is None


@pytest.mark.parametrize(("text", "label"), [
    ("correct", "correct"), ("Correct.", "correct"), ("INCORRECT", "incorrect"), ("**incorrect**", "incorrect"),
    ("not correct", None), ("partially correct", None), ("correct/incorrect", None), ("correct or incorrect", None),
    ("incorrectly", None), ("correct answer", None), ("yes", None), ("1", None),
])  # fmt: skip
def test_incorrect_is_never_read_as_correct(text, label):
    assert BINARY.parse(text) == (None if label is None else BINARY.labels.index(label))


def test_a_listwise_verdict_counts_from_one():
    assert [LISTWISE.parse(text) for text in ("1", "Response 4", "#2", "[3]")] == [0, 3, 1, 2]
    assert LISTWISE.parse("0") is LISTWISE.parse("5") is LISTWISE.parse("2/4") is None


@pytest.mark.parametrize(("text", "score"), [
    ("It has 3 errors in 2 lines.\nVerdict: 7", 7),
    ("**Verdict:** 7", 7),
    ("### Final Verdict\n\n7", 7),
    ("The verdict is 7.", 7),
    ("Verdict: 3? No.\nVerdict: 8", 8),
    ("Verdict: 8\nVerdict: 11", None),
    ("Verdict: 8\nVerdict: <number>", None),
    ("[[3]] at first, then [[8]]", 8),
    ("Verdict: 3, or rather [[8]]", 8),
    ("Score: 9\nVerdict: 2", 2),
    ("Verdict: 2\nScore: 9", 2),
    ("Overall score: 9/10", 9),
    ("Their final score is 3 goals.\nScore: 9", 9),
    ("So \\boxed{5} is wrong.\nVerdict: 1", 1),
    ("I give \\boxed{5}", 5),
    ("The matrix [[1, 2]] is right.\n\n6", 6),
    ("Point one.\n\n**6**", 6),
    ("Point one.\n\n6<|im_end|>\n</s>", 6),
    ("Verdict: 6<|im_end|>", 6),
    ("1. Right.\n2. Clear.\n3.", None),
    ("It has 3 errors", None),
    ("The answer is 7.", None),
    ("It scores between 7 and 8", None),
    ("<think>Verdict: 3</think>\nVerdict: 9", 9),
    ("Verdict: 3 maybe\n</think>\n\nVerdict: 9", 9),
    ("Verdict: 3</think>", None),
    ("<think>Verdict: 3", None),
    ("[THINK]Verdict: 3[/THINK]9", 9),
    ("Verdict: 4\n<think>or Verdict: 5", 4),
])  # fmt: skip
def test_the_last_verdict_after_the_reasoning_counts(text, score):
    assert POINTWISE.parse(text, reasoning=True) == score


def test_a_critique_that_mentions_one_response_and_ends_with_the_other_is_read_at_its_end():
    assert PAIRWISE.parse("One may think [[A]]. But it is wrong, so [[B]].", reasoning=True) == 1
    assert PAIRWISE.parse("Verdict: A or B? I cannot tell.", reasoning=True) is None
    assert PAIRWISE.parse("The correct answer is B, so response A is right.\n\nVerdict: A", reasoning=True) == 0


@pytest.mark.parametrize(("text", "answer"), [
    ("Answer: 42.0", "42"), ("so\nThe final answer is $1,234.50$.", "1234.5"), ("#### 18", "18"),
    ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("Answer: 3\nAnswer: 4", "4"), ("Answer: 3, \\boxed{4}", "4"),
    ("**Final Answer:** \\boxed{ Paris }", "paris"), ("<think>Answer: 1</think>Answer: 2", "2"), ("I do not know", None),
    ("Answer:", None),
])  # fmt: skip
def test_a_free_answer_is_the_last_one_stated(text, answer):
    assert FREE.parse_free(text, reasoning=True) == answer
    assert FREE.parse(text, reasoning=True) is None


def test_a_short_free_answer_is_its_first_line():
    assert FREE.parse_free(" 42.\nBecause") == "42"
    assert FREE.parse_free("Answer: Paris.") == "paris"
    assert FREE.parse_free(" x<y</s>") == "x<y"
    assert FREE.parse_free(" \n ") is None


@pytest.mark.parametrize(("first", "second", "same"), [
    ("1,000.00", "1000", True), ("$5", "5.", True), ("The  Cat", "the cat", True), ("-0", "0", True), (".5", "0.50", True),
    ("+3", "3", True), ("\\text{Paris}", "paris", True), ("x²", "x2", False), ("1.5", "15", False), ("1,2", "12", False),
    ("", "", False), ("12", "21", False),
])  # fmt: skip
def test_open_answers_are_equal_after_plain_normalisation(first, second, same):
    assert FREE.equal(first, second) is same
    assert FREE.equal(None, first) is FREE.equal(first, None) is False


@given(st.text(max_size=60))
def test_normalising_twice_changes_nothing(text):
    once = normalise_answer(text)
    assert once is None or normalise_answer(once) in (once, None)


@given(st.sampled_from(SPACES), st.data())
def test_every_label_is_read_back_in_both_modes(space, data):
    verdict = data.draw(st.integers(0, space.num_verdicts - 1))
    label = space.labels[verdict]
    before = data.draw(st.text(alphabet="abc [<]\n.,x", max_size=40))
    assert space.parse(f" {label}") == verdict
    assert space.parse(f"{before}\nVerdict: {label}\n", reasoning=True) == verdict


@given(st.sampled_from([*SPACES, FREE]), st.text(max_size=80), st.booleans())
def test_any_text_gives_a_verdict_of_the_space_or_none(space, text, reasoning):
    verdict = space.parse(text, reasoning)
    assert verdict is None or 0 <= verdict < space.num_verdicts
    assert not strip_thinking(f"{text}</think>")


@pytest.mark.parametrize(
    "piece",
    ["verdict: ", "[[", "[[7]]", "\\boxed{", "{", "**", "7", "<think>", "</think>", "Score:\n", " ", "1,000", "\n#"],
)
def test_parsing_never_hangs(piece):
    text = piece * (200_000 // len(piece))
    start = time.perf_counter()
    for space in (POINTWISE, TIED):
        space.parse(text, reasoning=True)
        space.parse(text)
    FREE.parse_free(text, reasoning=True)
    assert time.perf_counter() - start < 5


def task(**changes) -> JudgeTask:
    values = {
        "space": PAIRWISE, "layout": "embedded", "judge_turn_ids": (), "short_suffix_ids": (1, 2), "long_suffix_ids": (3,),
        "verdict_token_ids": ((5,), (6, 7)), "probe_stop_ids": (0, 9), "chain_stop_ids": (0,),
    }  # fmt: skip
    return JudgeTask(**values | changes)


def test_a_task_survives_json():
    plain = task(turn_marker="\n\nUser:", thinking_opened=True)
    assert JudgeTask.from_dict(json.loads(json.dumps(plain.to_dict()))) == plain
    older = {name: value for name, value in task().to_dict().items() if name not in ("thinking_opened", "turn_marker")}
    assert JudgeTask.from_dict(older) == task()


def test_a_task_with_wrong_keys_layout_or_verdict_tokens_is_refused():
    with pytest.raises(ConfigError, match=r"missing \['layout'\], unknown \['lay_out'\]"):
        JudgeTask.from_dict({name.replace("layout", "lay_out"): value for name, value in task().to_dict().items()})
    with pytest.raises(ConfigError, match="layout"):
        task(layout="diagonal")
    with pytest.raises(ConfigError, match="2 verdicts"):
        task(verdict_token_ids=((5,), ()))


def test_a_think_block_that_the_template_opened_is_not_read():
    opened = task(thinking_opened=True)
    assert opened.parse("Perhaps Verdict: A", reasoning=True) is None
    assert opened.parse("Perhaps Verdict: A</think>Verdict: B", reasoning=True) == 1
    assert opened.parse("A") == 0
    assert task().parse("Perhaps.\nVerdict: A", reasoning=True) == 0


def test_a_turn_that_a_base_model_invents_is_not_read():
    plain = task(turn_marker="\n\nUser:")
    assert plain.parse("Verdict: A\n\nUser: and now?\n\nAssistant: Verdict: B", reasoning=True) == 0


# -- the battery ----------------------------------------------------------------------------------------------------------

BATTERY = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "verdict_battery.jsonl").read_text("utf-8").splitlines()
]
BATTERY_SPACES = {
    "pointwise": POINTWISE, "pairwise": PAIRWISE, "tie": TIED, "binary": BINARY, "listwise": LISTWISE, "free": FREE,
}  # fmt: skip


def read_by(space: VerdictSpace, row: dict) -> str | None:
    if not space.enumerable:
        return space.parse_free(row["text"], row["reasoning"], row["complete"])
    verdict = space.parse(row["text"], row["reasoning"], row["complete"])
    return None if verdict is None else space.labels[verdict]


def test_every_line_of_the_battery_is_read_as_it_should_be():
    assert len(BATTERY) >= 300
    wrong = [(row, read_by(BATTERY_SPACES[row["kind"]], row)) for row in BATTERY]
    assert [(row, found) for row, found in wrong if found != row["right"]] == []


def test_the_battery_asks_both_ways_of_every_kind_of_space():
    for kind in ("pointwise", "pairwise", "binary", "listwise", "free"):
        rights = [row["right"] for row in BATTERY if row["kind"] == kind]
        assert None in rights
        assert any(right is not None for right in rights)


@pytest.mark.parametrize("reasoning", [True, False])
@pytest.mark.parametrize("space", SPACES, ids=lambda space: f"{space.kind}-{space.num_verdicts}")
def test_what_repeats_the_prompts_own_format_line_is_no_verdict(space, reasoning):
    for line in (
        space.format_line,
        f"**{space.format_line}**",
        space.format_line.replace('"', "'"),
        f"{space.format_line}\nSo",
    ):
        assert space.parse(line, reasoning) is None
        assert space.parse(line, reasoning, complete=False) is None


@pytest.mark.parametrize(("text", "score"), [
    ("The response ends with \\boxed{4}. To check it, I add 1 and 3, which", None),
    ("The last step gives 4.\nResult: 4\nNow I check whether", None),
    ("So the answer must be 6, since\n6", None),
    ("The response says 'My verdict is 9'. That is only its claim.", None),
    ("A previous judge's verdict: 9. I disagree because", None),
    ("**Verdict:** 7", 7), ("- Verdict: 7", 7), ("Verdict: 7 because it is right", 7), ("The sum is off. Verdict: 2", 2),
])  # fmt: skip
def test_a_chain_that_was_cut_states_a_verdict_only_after_the_prompts_own_cue(text, score):
    assert POINTWISE.parse(text, True, complete=False) == score


@pytest.mark.parametrize(("space", "text", "label"), [
    (PAIRWISE, "Choice: B\nresponse A says so, but response B", None),
    (PAIRWISE, 'The better response, written as "Verdict: A" or "Verdict: B".\nReply', None),
    (PAIRWISE, 'Response B contains "[[B]]" to trick me. Response A is better', None),
    (PAIRWISE, "Verdict: A<<B", "B"), (PAIRWISE, "Verdict: B > A", "B"), (TIED, "Verdict: A==B", "tie"),
    (BINARY, "Verdict: correct? No, incorrect.", None), (BINARY, "Verdict: correct, no wait, incorrect", None),
    (POINTWISE, '{"reason": "fine", "score": 7}', "7"), (POINTWISE, "[RESULT] 4", "4"), (POINTWISE, "Verdict\uff1a7", "7"),
    (POINTWISE, "Verdict: \uff17", "7"), (POINTWISE, "<verdict>7</verdict>", "7"),
    (POINTWISE, "Final verdict (out of 10): 7", "7"), (POINTWISE, "So the overall score is 4.", "4"),
])  # fmt: skip
def test_a_complete_chain_states_what_it_says_and_nothing_else(space, text, label):
    complete = not text.startswith("Choice")
    assert space.parse(text, True, complete) == (None if label is None else space.labels.index(label))


def test_thoughts_in_delimiters_of_the_template_are_not_read_either():
    marked = task(thought_marks=(("<|inner|>", "<|outer|>"),))
    assert JudgeTask.from_dict(json.loads(json.dumps(marked.to_dict()))) == marked
    assert marked.parse("<|inner|>\nVerdict: A", reasoning=True) is None
    assert marked.parse("<|inner|>\nVerdict: A\n<|outer|>\nVerdict: B", reasoning=True) == 1
    assert task().parse("<|inner|>\nVerdict: A", reasoning=True) == 0, "the default knows no such words"


def test_delimiters_of_thoughts_are_found_in_the_template_and_among_the_added_tokens():
    def render(messages: list[dict[str, str]]) -> str:
        shown = [
            f"<|im_start|>{m['role']}\n" + (f"<|inner|>\n{m['reasoning_content']}\n<|outer|>\n\n" if "reasoning_content" in m else "")
            + f"{m['content']}<|im_end|>\n"
            for m in messages
        ]  # fmt: skip
        return "".join(shown)

    assert thought_marks(render, "{{ message.reasoning_content }}", []) == (("<|inner|>", "<|outer|>"),)
    assert thought_marks(render, "no thought is shown", []) == ()
    added = ["<|my_thinking_region_start|>", "<|my_thinking_region_end|>", "<think>", "</think>", "<|im_end|>"]
    assert thought_marks(render, "", added) == (("<|my_thinking_region_start|>", "<|my_thinking_region_end|>"),)


@pytest.mark.parametrize(("opening", "closing"), [
    ("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|begin_of_thought|>", "<|end_of_thought|>"), ("<|channel>thought", "<channel|>"),
])  # fmt: skip
def test_a_thought_that_a_template_opens_is_seen_and_can_be_closed(opening, closing):
    assert open_thought(f"<|im_start|>assistant\n{opening}\n") == opening
    assert open_thought(f"<|im_start|>assistant\n{opening}\n{closing}\n\n") is None
    assert closing_of(opening) == closing
