"""The synthetic world: its truth is true, its chains lead there, and its splits share nothing."""

import re
from fractions import Fraction
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformers_egrm.data.synthetic import examples, groups, train_tokenizer
from transformers_egrm.data.synthetic.tasks import DAYS, DOMAINS, MONTHS
from transformers_egrm.data.synthetic.world import BADLY_PUT, KINDS, LEVELS, MIX, STYLES
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.training.config import DataConfig
from transformers_egrm.training.world import draw_examples


SOME = list(islice(examples("train", 3), 2000))
PARTS = re.compile(r"(?:^|\n)(?:[a-d]\) )?Work: (.+)\. So (.+) right, (.+) (right|wrong)\.")


def solve(question: str) -> str:
    """The answer to one task, worked out from the words alone."""
    if words := re.fullmatch(r"Repeat (.*)\.", question):
        return words[1]
    if words := re.fullmatch(r"What is ([\d+\- ]+)\?", question):
        return str(eval(words[1]))  # digits and signs only
    if words := re.fullmatch(r"\w+ has (\d+) (\w+), (.*)\. How many \2 now\?", question):
        moves = [move.split() for move in words[3].split(" then ")]
        return str(int(words[1]) + sum(int(n) if verb == "gets" else -int(n) for verb, n in moves))
    if words := re.fullmatch(r"Which is the (largest|smallest): (.*)\?", question):
        numbers = [int(number) for number in words[2].split(", ")]
        return str(max(numbers) if words[1] == "largest" else min(numbers))
    if words := re.fullmatch(r"How many of (.*) are (vowels|even)\?", question):
        things = words[1].split(", ")
        assert len(set(things)) == len(things)
        return str(sum(thing in "aeiou" if words[2] == "vowels" else int(thing) % 2 == 0 for thing in things))
    if words := re.fullmatch(r"Which letter of (.*) is (?:last|number (\d+) from the end)\?", question):
        return words[1].split()[-int(words[2] or 1)]
    words = re.search(r"(\d+) (day|month)s? (after|before|later|earlier)", question)
    assert words is not None, question
    names = DAYS if words[2] == "day" else MONTHS
    (start,) = [name for name in names if name in question.split() or f"{name}?" in question.split()]
    sign = 1 if words[3] in ("after", "later") else -1
    return names[(names.index(start) + sign * int(words[1])) % len(names)]


def tasks_of(prompt: str) -> list[str]:
    """The single questions of a prompt."""
    return [part for part in re.split(r"(?:^| )[a-d]\) ", prompt) if part]


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(0, 4))
def test_every_answer_is_right_every_wrong_answer_wrong_and_the_working_ends_in_it(domain, seed, steps):
    task = DOMAINS[domain](Random(seed), steps)
    assert solve(task.question) == task.answer
    assert task.working[-1].rpartition(" = ")[2] == task.answer
    assert len(task.working) >= steps
    assert task.wrong
    assert task.answer not in [answer for answer, _ in task.wrong]
    assert all(step.rpartition("= ")[2] == answer for answer, step in task.wrong)


def test_the_truth_counts_the_right_parts_as_a_stranger_would_count_them():
    for example in SOME:
        said = PARTS.findall(example.chain)
        asked = tasks_of(example.prompt)
        assert len(said) == len(asked) == LEVELS[example.difficulty][0]
        right = 0
        for question, (_, worked, claimed, judged) in zip(asked, said, strict=True):
            assert solve(question) == worked
            assert claimed in example.response
            assert judged == ("right" if claimed == worked else "wrong")
            right += claimed == worked
        points = int(Fraction(10 * right, len(asked)) + Fraction(1, 2)) - BADLY_PUT * (
            example.kind == "badly_presented"
        )
        assert example.verdict == points
        assert (f"\n{right} of {len(asked)} right." in example.chain) == (len(asked) > 1)
        assert example.chain.endswith("\nBadly put.") == (example.kind == "badly_presented")
        assert ("wrong" in example.kind) == (right < len(asked))


def test_a_stream_is_the_same_every_time_and_another_seed_is_another_stream():
    assert list(islice(examples("train", 3), 50)) == SOME[:50]
    assert list(islice(examples("train", 4), 50)) != SOME[:50]


def test_no_question_is_in_two_splits_and_a_question_has_one_id():
    seen = {}
    for split in ("train", "calibration", "test"):
        for seed in range(3):
            for example in islice(examples(split, seed), 3000):
                assert seen.setdefault(example.prompt, split) == split
    ids = {}
    for example in SOME:
        assert ids.setdefault(example.question_id, example.prompt) == example.prompt
    assert len(set(ids.values())) == len(ids)


def test_all_domains_difficulties_styles_and_kinds_occur_as_often_as_asked():
    for field, wanted in (
        ("domain", dict.fromkeys(DOMAINS, 0.2)), ("difficulty", MIX), ("style", dict.fromkeys(STYLES, 1 / 3)),
        ("kind", dict(zip(KINDS, (0.35, 0.3, 0.2, 0.15), strict=True))),
    ):  # fmt: skip
        for value, share in wanted.items():
            found = sum(getattr(example, field) == value for example in SOME) / len(SOME)
            assert found == pytest.approx(share, abs=0.05), (field, value)
    only = list(islice(examples("test", mix={4: 1.0}, domains=["order"]), 20))
    assert {(example.difficulty, example.domain) for example in only} == {(4, "order")}


def test_a_group_shares_its_question_and_starts_with_a_better_and_a_worse_response():
    for group in islice(groups("test", size=3), 50):
        assert len(group) == 3
        assert len({example.question_id for example in group}) == 1
        assert group[0].verdict > group[1].verdict


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"split": "dev"}, "Unknown split dev"),
        ({"split": "test", "mix": {6: 1.0}}, "Unknown difficulty 6"),
        ({"split": "test", "domains": []}, "Unknown domain none"),
    ],
)
def test_an_unknown_part_of_the_world_is_named(arguments, named):
    with pytest.raises(ConfigError, match=named):
        next(examples(**arguments))


def test_every_split_has_copies_to_ask_for_and_what_a_split_lacks_is_said():
    for split in ("train", "calibration", "test"):
        assert {example.difficulty for example in islice(examples(split, mix={0: 1.0}), 50)} == {0}
    lacking = []
    for split in ("calibration", "test"):
        try:
            next(examples(split, mix={0: 1.0}, domains=["counting"]))
        except ConfigError as error:
            lacking.append(str(error))
    assert lacking, "nine questions in all: one of the splits has none"
    assert all("No question of difficulty 0 in counting belongs to" in message for message in lacking)


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match="size=1"):
        next(groups("test", size=1))


def test_a_run_may_measure_on_another_mix_than_it_learns_from():
    data = DataConfig(options={"mix": {0: 1.0}}, held_out_options={"mix": {2: 1.0}})
    assert {example.difficulty for example in draw_examples(data, "train", 20, 0)} == {0}
    assert {example.difficulty for example in draw_examples(data, "calibration", 20, 0)} == {2}
    same = DataConfig(options={"mix": {3: 1.0}})
    assert {example.difficulty for example in draw_examples(same, "test", 20, 0)} == {3}


# -- the tokenizer ------------------------------------------------------------------------------------------------------

PHRASE = "Reply with that line only."


@pytest.fixture(scope="module")
def tokenizer():
    texts = [text for example in SOME[:300] for text in (example.prompt, example.response, example.chain)]
    return train_tokenizer(texts, vocab_size=700, phrases=[PHRASE])


def test_any_text_comes_back_as_it_was(tokenizer):
    for text in ("Zażółć gęślą jaźń 🙂\n\n\tx = 1,234.5", SOME[0].prompt, SOME[1].chain, "  two  spaces "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_number_is_read_in_pairs_of_digits(tokenizer):
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("1234567 and 12, 7")["input_ids"])
    assert [piece for piece in pieces if piece.strip("Ġ").isdigit()][-2:] == ["Ġ12", "Ġ7"]
    assert all(len(piece.strip("Ġ")) <= 2 for piece in pieces if piece.strip("Ġ").isdigit())


def test_an_answer_is_the_same_token_in_question_response_and_chain(tokenizer):
    for example in SOME[:300]:
        for answer in PARTS.findall(example.chain)[0][1:3]:
            ids = tokenizer(f" {answer}")["input_ids"]
            if len(ids) == 1 and re.search(rf" {answer}\b", example.response):
                assert ids[0] in tokenizer(example.response)["input_ids"]
                assert ids[0] in tokenizer(example.chain)["input_ids"]


def test_a_phrase_is_one_token(tokenizer):
    assert len(tokenizer(PHRASE)["input_ids"]) == 1


def test_the_processor_reads_the_truth_from_chain_and_verdict_and_a_prompt_never_shows_it(tokenizer):
    processor = EGRMProcessor(tokenizer)
    task = processor.task()
    assert task.space == VerdictSpace.pointwise()
    for example in SOME[:50]:
        assert task.parse(f"{example.chain}\nVerdict: {example.verdict}", reasoning=True) == example.verdict
        twin = {**example.record()}
        assert set(twin) == {"prompt", "response"}
        shown = tokenizer.decode(processor.encode(example.record()).prompts[0])
        assert example.chain not in shown
        assert f"Verdict: {example.verdict}" not in shown
