"""Records as tables and scripts hand them over: ids of any spelling, missing values, arrays, and texts far too long."""

import time
import tracemalloc
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm.judge import RewardJudge
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError, PromptTooLongError
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.prompt_records_egrm import draw_key, read_id, read_record
from transformers_egrm.modeling.prompt_truncation_egrm import most_chars_per_token
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


POINTWISE = VerdictSpace.pointwise()
RECORD = {"prompt": "What is 2 + 3?", "response": "5"}
NAN = float("nan")


@pytest.fixture(scope="module")
def processor() -> EGRMProcessor:
    return EGRMProcessor(tiny_tokenizer(), max_prompt_tokens=400)


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return EGRMRewardModel.from_components(
        tiny_generator(), None, tiny_tokenizer(), probe_vocabulary="verdict", max_chain_tokens=4
    )


# --- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["7", 7, 7.0, "7.0", np.int64(7), np.float32(7), Decimal(7), Decimal("7.0")])
def test_an_id_draws_alike_however_it_is_spelled(processor, key):
    assert processor.encode(RECORD | {"id": key}).item_id == 7


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_integer_that_a_table_has_as_text_draws_as_the_integer(number):
    assert draw_key(str(number)) == number


@pytest.mark.parametrize("name", ["007", "+7", " 7", "7 ", "-0", "7.5", "1e3", "\u0667", "", "x7"])
def test_a_name_that_only_looks_like_a_number_stays_a_name(name):
    assert draw_key(name) == name


def test_an_id_is_told_again_as_it_came():
    assert [read_id(key) for key in ("7", 7, 7.0, 1.5, "x")] == ["7", 7, 7, "1.5", "x"]
    assert [read_id(key) for key in (True, None, NAN, float("inf"), [7])] == [None] * 5


# --- fields ----------------------------------------------------------------------------------------------------------


def test_a_missing_value_of_any_library_is_absent():
    class NAType:
        """As pandas calls the class of its missing value."""

    for missing in (None, NAN, np.nan, np.float32("nan"), Decimal("nan"), NAType()):
        read = read_record(RECORD | dict.fromkeys(("id", "system", "rubric", "reference"), missing), POINTWISE)
        assert (read.key, read.rubric, read.reference, len(read.messages)) == (None, None, None, 1)
        with pytest.raises(InputError, match="`response` is missing"):
            read_record({"prompt": "Q", "response": missing}, POINTWISE)


@pytest.mark.parametrize(("value", "text"), [(12, "12"), (12.0, "12"), (0.5, "0.5"), (np.int64(3), "3"), ("x", "x")])
def test_a_reference_may_be_a_number(processor, value, text):
    assert read_record(RECORD | {"reference": value}, POINTWISE).reference == text
    assert processor.encode(RECORD | {"reference": value}).reference == text


def test_a_column_that_is_no_key_is_left_alone_and_a_misspelled_key_is_not():
    assert read_record(RECORD | {"label": 1, "source": "web"}, POINTWISE) == read_record(RECORD, POINTWISE)
    for key, meant in (("refrence", "reference"), ("sytem", "system"), ("Rubric", "rubric")):
        with pytest.raises(InputError, match=f"Unknown key {key}.*is it `{meant}`"):
            read_record(RECORD | {key: "x"}, POINTWISE)
    with pytest.raises(InputError, match="Unknown keys response_a"):
        read_record(RECORD | {"response_a": "x"}, POINTWISE)


def test_arrays_of_messages_and_of_answers_are_lists():
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "R"}]
    as_array = np.array(messages, dtype=object)
    assert read_record({"messages": as_array}, POINTWISE) == read_record({"messages": messages}, POINTWISE)
    record = {"prompt": as_array[:1], "responses": np.array(["a", "b"])}
    assert read_record(record, VerdictSpace.listwise(2)).responses == ("a", "b")


def test_a_value_nested_without_end_or_very_long_is_refused_in_few_words():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, ["x" * 10**7]):
        with pytest.raises(InputError, match="`response` must be text") as refused:
            read_record({"prompt": "Q", "response": value}, POINTWISE)
        assert len(str(refused.value)) < 300


# --- length ----------------------------------------------------------------------------------------------------------


def peak_megabytes(call) -> tuple[float, float]:
    tracemalloc.start()
    started = time.process_time()
    call()
    seconds, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak, seconds


def test_a_text_of_millions_of_characters_is_too_long_before_it_is_tokenised(processor, monkeypatch):
    text = "word " * 3_200_000

    def refused() -> None:
        with pytest.raises(PromptTooLongError, match="16,000,014 characters, more than the limit of 400 tokens"):
            processor.encode({"prompt": "Q?", "response": text + "a last word."})

    refused()
    peak, seconds = peak_megabytes(refused)
    assert peak < 100
    assert seconds < 2


def test_no_text_that_fits_is_refused_by_its_characters():
    tokenizer = tiny_tokenizer()
    longest = max((token for token in tokenizer.get_vocab() if "<" not in token), key=len)
    assert most_chars_per_token(tokenizer.get_vocab()) == 64 >= len(longest)
    assert most_chars_per_token(["a" * 200, "b"]) == 200
    # The text that has the most characters for its tokens, right below the limit, still fits.
    limited = EGRMProcessor(tokenizer, max_prompt_tokens=400)
    fits = limited.encode({"prompt": "Q", "response": longest.replace("Ġ", " ").strip() * 20})
    assert fits.truncated_tokens == 0
    # Blanks around a text are the template's to take away.
    with pytest.raises(PromptTooLongError, match=r"has \d+ tokens"):
        limited.encode({"prompt": "Q", "response": " " * 30_000 + "5"})


def test_keep_ends_keeps_both_ends_of_a_text_of_millions_of_characters_and_counts_what_it_removed():
    tokenizer = tiny_tokenizer()
    processor = EGRMProcessor(tokenizer, max_prompt_tokens=400, truncation="keep_ends")
    text = "start " + "x" * 1_000_000 + " end."
    item = processor.encode({"prompt": "Q", "response": text})
    shown = tokenizer.decode(item.prompts[0])
    assert "start " in shown
    assert " end." in shown
    tokens = len(tokenizer(text, add_special_tokens=False).input_ids)
    assert item.truncated_tokens == pytest.approx(tokens - 250, rel=0.001)


def test_a_reference_that_is_too_long_by_itself_is_refused_under_every_policy():
    processor = EGRMProcessor(tiny_tokenizer(), max_prompt_tokens=400, truncation="keep_ends")
    with pytest.raises(PromptTooLongError, match="characters"):
        processor.encode(RECORD | {"reference": "x" * 100_000})


# --- what is no record -----------------------------------------------------------------------------------------------


class Frame:
    """As much of a data frame as tells it from a list of records."""

    columns = ("prompt", "response")
    shape = (1, 2)

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (Frame(), r'the table Frame, whose parts are its columns.*to_dict\("records"\)'),
        ([1, 2, 3], "the numbers of list.*input_ids"),
        (torch.tensor([1, 2, 3]), "the numbers of Tensor"),
        (np.array([[1, 2], [3, 4]]), "the numbers of ndarray"),
        ([{"role": "user", "content": "Q"}], "the messages of one conversation.*Put it in a list"),
    ],
)
def test_what_iterates_over_no_records_is_refused(model, records, said):
    with pytest.raises(InputError, match=said):
        RewardJudge(model)(records)


def test_an_array_of_records_is_judged(model):
    results = RewardJudge(model)(np.array([RECORD, RECORD], dtype=object))
    assert [result.status for result in results] == ["ok", "ok"]


@pytest.mark.parametrize("answers", ["abc", b"abc", {"a": "b"}])
def test_one_text_is_no_list_of_answers(model, answers):
    with pytest.raises(InputError, match="`responses` must be a list of answers"):
        RewardJudge(model).rank("Q", answers)


def test_token_ids_of_one_conversation_are_refused_with_the_shape_they_need(model):
    with pytest.raises(ConfigError, match=r"must be of shape \[B, T\].*got \(5,\).*input_ids\[None\]"):
        model(torch.tensor([1, 5, 6, 7, 8]))


# --- ties ------------------------------------------------------------------------------------------------------------


def test_a_tie_has_no_best_answer_and_its_place_in_the_list_decides_nothing(model):
    judge = RewardJudge(model, path="short", consensus="sampled")
    ranking = judge.rank("What is 2 + 3?", ["5", "5", "5"])  # one prompt, one hash, one verdict
    assert ranking.best is None
    assert ranking.tied == (0, 1, 2)
    alone = judge.rank("What is 2 + 3?", ["5"])
    assert (alone.best, alone.tied) == (0, ())
    failed = judge.rank("What is 2 + 3?", ["", " "])
    assert (failed.best, failed.tied) == (None, ())


def test_equal_rewards_are_told_apart_by_the_expected_reward_where_the_distribution_is_known(model):
    judge = RewardJudge(model, space={"kind": "binary"}, path="short")
    answers = [f"It is {number}." for number in range(2, 9)]
    ranking = judge.rank("What is 2 + 3?", answers)
    told = RewardJudge(model, space={"kind": "binary"}, path="short", explain=True).rank("What is 2 + 3?", answers)
    worths = judge.processor.task({"kind": "binary"}).space.rewards
    expected = []
    for result in told.results:
        rungs = result.account.verdict_probs
        expected.append(sum(p * worth for rung in rungs for p, worth in zip(rung, worths, strict=True)) / len(rungs))
    by_hand = sorted(range(7), key=lambda index: (-(told.results[index].reward or 0.0), -expected[index]))
    assert len({result.reward for result in ranking.results}) < 7
    assert list(ranking.order) == by_hand
    assert ranking.best == by_hand[0]
    assert ranking.results == tuple(replace(result, account=None) for result in told.results)
    backwards = judge.rank("What is 2 + 3?", answers[::-1])
    assert backwards.best == 6 - by_hand[0]


# --- what was said ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["short", "long", "auto"])
def test_what_the_judge_wrote_is_kept_where_it_stated_no_verdict(path):
    silent = EGRMRewardModel.from_components(tiny_generator(), None, tiny_tokenizer(), max_chain_tokens=4)
    records = [RECORD | {"id": number, "response": f"It is {number}."} for number in range(12)]
    results = RewardJudge(silent, path=path, batch_size=4, max_probe_tokens=3, return_rationale=False)(records)
    unread = [result for result in results if result.status == "no_verdict"]
    assert unread, "a random model should fail to state a verdict now and then"
    assert all(isinstance(result.said, str) for result in unread)
    assert any(result.said for result in unread)
    assert all(result.said is None for result in results if result.status == "ok")
    assert unread[0].to_dict()["said"] == unread[0].said
