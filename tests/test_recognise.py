"""Files of known data sets are read as they are, and the reader says as what."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from cli_tools import egrm, read_jsonl, write_jsonl

from transformers_egrm.bundle import MINI_NAME
from transformers_egrm.data.fields import FieldMap
from transformers_egrm.data.recognise import recognise, turns_of


ONE, PAIR, RANK = (
    (("prompt", "response"), ("messages",)),
    (("prompt", "response_a", "response_b"),),
    (("prompt", "responses"),),
)
USER, GOOD, BAD = ({"role": "user", "content": "Q"}, {"role": "assistant", "content": "good"},
                   {"role": "assistant", "content": "bad"})  # fmt: skip
TALK = [USER, {"role": "assistant", "content": "Which?"}, {"role": "user", "content": "That one."}]


def picked(values: dict, needs: tuple, *assignments: str) -> dict:
    fields, problem = FieldMap.parse(assignments, needs).pick(values)
    assert problem is None
    return fields


def problem_of(values: dict, needs: tuple, *assignments: str) -> str:
    problem = FieldMap.parse(assignments, needs).pick(values)[1]
    assert problem is not None
    return problem


# Preference pairs


@pytest.mark.parametrize(("values", "prompt"), [
    ({"prompt": "Q", "chosen": "good", "rejected": "bad"}, "Q"),  # RewardBench 1
    ({"prompt": "Q", "chosen": ["good"], "rejected": ["bad"]}, "Q"),
    ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, [USER]),
    ({"chosen": [*TALK, GOOD], "rejected": [*TALK, BAD]}, TALK),
    ({"prompt": "Q", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, [USER]),  # UltraFeedback, binarised
    ({"prompt": TALK, "chosen": [GOOD], "rejected": [BAD]}, TALK),  # TRL, with a question of its own
    ({"prompt": "Q", "chosen": GOOD, "rejected": BAD}, "Q"),
    ({"prompt": "Q", "chosen": json.dumps([GOOD]), "rejected": json.dumps([BAD])}, "Q"),  # a table's cell
    ({"chosen": "\n\nHuman: Q\n\nAssistant: good", "rejected": "\n\nHuman: Q\n\nAssistant: bad"}, [USER]),
    ({"chosen": "\n\nHuman: Q\n\nAssistant: Which?\n\nHuman: That one.\n\nAssistant: good",
      "rejected": "\n\nHuman: Q\n\nAssistant: Which?\n\nHuman: That one.\n\nAssistant: bad"}, TALK),
    ({"prompt": "\n\nHuman: Q\n\nAssistant:", "chosen": " good", "rejected": " bad"}, [USER]),
    ({"instruction": "Q", "input": "", "chosen": "good", "rejected": "bad"}, "Q"),
    ({"conversations": [{"from": "human", "value": "Q"}], "chosen": {"from": "gpt", "value": "good"},
      "rejected": {"from": "gpt", "value": "bad"}}, [USER]),
])  # fmt: skip
def test_a_preference_record_is_a_pair_whose_first_answer_is_the_chosen_one(values, prompt):
    fields = picked({"id": 3, **values}, PAIR)
    assert fields["id"] == 3
    assert fields["prompt"] == prompt
    assert [fields["response_a"].strip(), fields["response_b"].strip()] == ["good", "bad"]
    ranked = picked(values, RANK)
    assert [text.strip() for text in ranked["responses"]] == ["good", "bad"]
    # A judged record has one answer: which of two it is, is not for the reader to guess.
    assert "must hold one answer, it has 2" in problem_of(values, ONE)
    assert "`egrm compare`" in problem_of(values, ONE)


@pytest.mark.parametrize(("chosen", "rejected"), [
    (["good"], ["bad", "worse", "worst"]),  # RewardBench 2
    (["short", "plain", "long"], ["bad", "worse", "worst"]),  # RM-Bench
])  # fmt: skip
def test_lists_of_answers_are_ranked_with_the_chosen_ones_first(chosen, rejected, capsys):
    values = {"prompt": "Q", "chosen": chosen, "rejected": rejected, "subset": "Math"}
    assert picked(values, RANK)["responses"] == [*chosen, *rejected]
    assert f"the first {len(chosen)} of {len(chosen) + 3} responses are chosen" in capsys.readouterr().err
    assert f"must hold two answers, it has {len(chosen) + 3}" in problem_of(values, PAIR)
    named = picked(values, PAIR, "response_a=chosen.0", "response_b=rejected.-1")
    assert (named["response_a"], named["response_b"]) == (chosen[0], "worst")


def test_answers_to_two_questions_are_no_pair():
    values = {"chosen": [*TALK, GOOD], "rejected": [USER, BAD]}
    assert "differ from turn 2 on, of 4 and 2" in problem_of(values, PAIR)


def test_answers_that_call_tools_keep_their_calls():
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    assert picked({"chosen": [USER, call], "rejected": [USER, BAD]}, PAIR)["response_a"] == call


def test_completions_of_one_instruction_are_ranked():
    completions = [{"model": "m", "response": "good", "overall_score": 8}, {"model": "n", "response": "bad"}]
    values = {"source": "s", "instruction": "Q", "completions": completions, "correct_answers": ["None"]}
    assert picked(values, RANK) == {"prompt": "Q", "responses": ["good", "bad"]}
    assert picked(values, PAIR)["response_b"] == "bad"


# Single answers


def test_a_conversation_of_from_and_value_is_messages(capsys):
    talk = [{"from": "system", "value": "S"}, {"from": "human", "value": "Q"}, {"from": "gpt", "value": "good"}]
    messages = [{"role": "system", "content": "S"}, USER, GOOD]
    assert picked({"conversations": talk}, ONE) == {"messages": messages}
    assert picked({"messages": talk}, ONE) == {"messages": messages}
    assert "messages of another spelling" in capsys.readouterr().err


def test_calls_and_observations_of_a_conversation_are_tool_turns():
    call = {"name": "add", "arguments": {"a": 2}}
    talk = [{"from": "human", "value": "Q"}, {"from": "function_call", "value": json.dumps(call)},
            {"from": "observation", "value": "5"}, {"from": "gpt", "value": "good"}]  # fmt: skip
    assert picked({"conversations": talk, "tools": "[]"}, ONE)["messages"] == [
        USER, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "5"}, GOOD,
    ]  # fmt: skip


@pytest.mark.parametrize(("values", "prompt"), [
    ({"instruction": "Add.", "input": "2, 3", "output": "5"}, "Add.\n\n2, 3"),
    ({"instruction": "Add 2, 3.", "input": "", "output": "5"}, "Add 2, 3."),
    ({"instruction": "Add 2, 3.", "input": None, "output": "5"}, "Add 2, 3."),
])  # fmt: skip
def test_an_instruction_with_its_input_is_the_question(values, prompt):
    assert picked(values, ONE) == {"prompt": prompt, "response": "5"}


# What is not touched


def test_a_record_that_has_the_fields_is_read_as_before(capsys):
    values = {"prompt": "Q", "response": "R", "chosen": "good", "rejected": "bad", "instruction": "I", "output": "O"}
    assert picked(values, ONE) == {"prompt": "Q", "response": "R"}
    assert picked({"messages": [USER, GOOD]}, ONE) == {"messages": [USER, GOOD]}
    assert capsys.readouterr().err == ""


def test_who_maps_a_needed_field_decides_alone():
    values = {"prompt": "Q", "chosen": "good", "rejected": "bad"}
    assert "`good`" in problem_of(values, PAIR, "response_a=good")
    assert picked(values, PAIR, "id=chosen")["id"] == "good", "an optional field decides nothing"


@pytest.mark.parametrize("values", [
    {}, {"chosen": "good", "rejected": "bad"}, {"prompt": "Q", "chosen": "good"}, {"prompt": "Q", "chosen": 1, "rejected": 2},
    {"prompt": "Q", "chosen": [], "rejected": []}, {"completions": ["a"]}, {"instruction": "Q"}, {"conversations": "talk"},
    {"instruction": "Q", "output": 5}, {"chosen": "[1", "rejected": "{", "prompt": None},
], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    "needed", [{"prompt", "response", "messages"}, {"prompt", "response_a", "response_b"}, {"prompt", "responses"}]
)
def test_what_is_of_no_known_form_stays_unknown(values, needed):
    assert recognise(values, needed) is None


def test_text_is_no_conversation():
    for text in ("[1, 2]", '{"a": 1}', "[", "Assistant: hello", "", "human", '["Human:"]'):
        assert turns_of(text) is None


# Paths


@pytest.mark.parametrize(("source", "value"), [
    ("chosen.-1.content", "good"), ("chosen.0.content", "Q"), ("deep.0.1", "x"), ("chosen.0", USER),
])  # fmt: skip
def test_a_path_counts_in_lists_from_either_end(source, value):
    values = {"prompt": "P", "chosen": [USER, GOOD], "deep": [["w", "x"]]}
    assert picked(values, ONE, f"response={source}")["response"] == value


@pytest.mark.parametrize("source", ["chosen.2.content", "chosen.-3.content", "chosen.last", "prompt.0", "chosen.0.0"])
def test_a_path_that_leads_nowhere_is_a_problem(source):
    values = {"prompt": "P", "chosen": [USER, GOOD]}
    assert f"`{source}` (as response)" in problem_of(values, ONE, f"response={source}")


# The command line


PAIRS = [{"chosen": [{"role": "user", "content": f"What is {n} + 3?"}, {"role": "assistant", "content": str(n + 3)}],
          "rejected": [{"role": "user", "content": f"What is {n} + 3?"}, {"role": "assistant", "content": "1"}],
          "score": 0.5} for n in range(2)]  # fmt: skip


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_the_command_line_reads_a_preference_file_and_says_so(tmp_path, capsys, extension):
    source = tmp_path / f"in.{extension}"
    if extension == "jsonl":
        write_jsonl(source, PAIRS)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(PAIRS), source)
    words = [MINI_NAME, source, "-o", tmp_path / "out.jsonl", "--path", "short", "--keep", "score"]
    assert egrm("compare", *words) == 0
    said = capsys.readouterr().err
    assert said.count("Recognised: chosen and rejected conversations; response_a is the chosen one.") == 1
    rows = read_jsonl(tmp_path / "out.jsonl")
    assert [(row["status"], row["score"], row["order"]) for row in rows] == [("ok", 0.5, ["ab", "ba"])] * 2
    assert egrm("score", *words, "--restart") == 1
    assert "must hold one answer" in capsys.readouterr().err.replace("\n", " ")
