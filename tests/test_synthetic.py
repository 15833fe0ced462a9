"""The synthetic world: its truth is true, its chains lead there, and its splits share nothing."""

import re
from fractions import Fraction
from itertools import combinations, islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformers_egrm.data.synthetic import (
    SPLITS,
    STREAMS,
    Census,
    census,
    examples,
    groups,
    tasks,
    train_tokenizer,
    world,
)
from transformers_egrm.data.synthetic.splits import TRAINING_LEVEL, membership
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
    unit, place, row = calendar_words(question)
    return sorted(row, key=(DAYS if unit == "week" else MONTHS).index)[0 if place == "first" else -1]


def calendar_words(question: str) -> tuple[str, str, list[str]]:
    """Span, place and names of a question about the calendar."""
    if words := re.fullmatch(r"Which (?:day|month) is (first|last) in the (week|year): (.*)\?", question):
        return words[2], words[1], words[3].split(", ")
    words = re.fullmatch(r"\w+ works (?:on|in) (.*)\. Which is (first|last) in the (week|year)\?", question)
    assert words is not None, question
    return words[3], words[2], words[1].split(", ")


def worked(question: str) -> tuple[str, ...]:
    """What is worked out, read from the words alone: names, things, wording and an order that is of no account left out."""
    if words := re.fullmatch(r"What is (\d+)((?: [+-] \d+)+)\?", question):
        return "sum", *sorted([f"+ {words[1]}", *re.findall(r"[+-] \d+", words[2])])
    if words := re.fullmatch(r"\w+ has (\d+) (\w+), (.*)\. How many \2 now\?", question):
        moves = words[3].replace("gets", "+").replace("loses", "-").split(" then ")
        return "sum", *sorted([f"+ {words[1]}", *moves])
    if words := re.fullmatch(r"Which is the (largest|smallest): (.*)\?", question):
        return words[1], *sorted(words[2].split(", "))
    if words := re.fullmatch(r"How many of (.*) are (vowels|even)\?", question):
        return words[2], *sorted(words[1].split(", "))
    if question.startswith(("Which letter", "Repeat")):
        return (question,)
    unit, place, row = calendar_words(question)
    return unit, place, *sorted(row)


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


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_identity_is_what_a_reader_of_the_words_finds_to_be_worked_out(domain):
    drawn = [DOMAINS[domain](Random(seed), seed % 4) for seed in range(4000)]
    by_identity = {task.identity: worked(task.question) for task in drawn}
    by_words = {worked(task.question): task.identity for task in drawn}
    assert all(by_identity[task.identity] == worked(task.question) for task in drawn)
    assert all(by_words[worked(task.question)] == task.identity for task in drawn)
    assert len(by_words) < len({task.question for task in drawn}) or domain == "strings"


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


def works_of(drawn) -> set[tuple[str, ...]]:
    """All that is worked out in some examples."""
    return {worked(task) for example in drawn for task in tasks_of(example.prompt)}


def test_no_task_is_in_two_splits_nor_in_two_streams_as_a_question_or_a_part_of_one():
    hard = dict.fromkeys(MIX, 0.2)
    places = {"train": works_of(islice(examples("train", 3, mix={0: 0.1, **hard}), 6000))}
    for split in ("calibration", "test", "sealed"):
        for stream in (0, STREAMS - 1):
            places[f"{split} {stream}"] = works_of(islice(examples(split, stream, mix=hard), 150))
    assert all(len(works) > 200 for works in places.values())
    for (one, works), (other, others) in combinations(places.items(), 2):
        assert not works & others, (one, other)


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_a_task_belongs_to_training_or_to_one_stream(identity):
    streams = [(split, stream) for split in SPLITS if split != "train" for stream in range(STREAMS)]
    found = [membership(*stream)(identity) for stream in [*streams, ("train", 0)]]
    assert found.count(True) == 1
    assert membership("train", 17)(identity) == found[-1]


def test_every_stream_has_tasks_of_every_kind():
    for domain, solver in DOMAINS.items():
        for steps in (1, 2, 3):
            drawn = {solver(Random(seed), steps).identity for seed in range(1500)}
            for split in ("calibration", "test", "sealed"):
                for stream in range(STREAMS):
                    belongs = membership(split, stream)
                    assert sum(map(belongs, drawn)) > 3, (domain, steps, split, stream)


def test_a_held_out_stream_asks_nothing_twice_and_ends_where_it_has_no_more(monkeypatch):
    prompts = [example.prompt for example in islice(examples("test", 1), 300)]
    assert len(set(prompts)) == len(prompts)
    monkeypatch.setattr(tasks, "NAMES", ("Ann",))
    monkeypatch.setattr(tasks, "THINGS", ("pens",))
    monkeypatch.setattr(world, "MOST_DRAWS", 20)
    stream, asked = examples("sealed", 0, mix={1: 1.0}, domains=["sums"]), []
    with pytest.raises(
        ConfigError, match=r"Stream 0 of the sealed split has no more questions of difficulty 1 in sums"
    ):
        asked.extend(example.prompt for example in stream)
    assert len(set(asked)) == len(asked)


def test_a_question_has_one_id_whatever_names_words_and_order_it_comes_in():
    ids = {}
    for example in SOME:
        works = tuple(sorted(worked(task) for task in tasks_of(example.prompt)))
        assert ids.setdefault(example.question_id, works) == works
    assert len(set(ids.values())) == len(ids)
    assert len(ids) < len({example.prompt for example in SOME})


def test_a_census_counts_answers_prompts_and_questions():
    first, second = SOME[0], next(example for example in SOME if example.difficulty != SOME[0].difficulty)
    assert census([first, first, second]) == {
        level: Census(count, 1, 1) for level, count in sorted({first.difficulty: 2, second.difficulty: 1}.items())
    }
    assert census([]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("split", ["test", "sealed"])
def test_twelve_thousand_answers_are_to_thousands_of_easy_questions(split):
    streams = [list(islice(examples(split, stream), 2400)) for stream in range(STREAMS)]
    counts = census(example for stream in streams for example in stream)
    assert sum(count.answers for count in counts.values()) == 12_000
    assert all(count.prompts == count.answers for count in counts.values())
    assert counts[1].prompts > 6500
    assert counts[1].questions > 2500
    for one, other in combinations([{example.question_id for example in stream} for stream in streams], 2):
        assert not one & other


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
        ({"split": "test", "mix": {6: 1.0}}, "Unknown difficulty of test 6"),
        ({"split": "test", "domains": []}, "Unknown domain none"),
    ],
)
def test_an_unknown_part_of_the_world_is_named(arguments, named):
    with pytest.raises(ConfigError, match=named):
        next(examples(**arguments))


def test_drills_are_for_training_alone():
    drills = list(islice(examples("train", mix={TRAINING_LEVEL: 1.0}), 200))
    assert {example.difficulty for example in drills} == {TRAINING_LEVEL}
    assert any(example.prompt.startswith("Repeat") for example in drills)
    assert any(len(worked(example.prompt)) == 3 for example in drills), "single sums"
    with pytest.raises(ConfigError, match="Unknown difficulty of test 0"):
        next(examples("test", mix={TRAINING_LEVEL: 1.0}))


@pytest.mark.parametrize("seed", [-1, STREAMS])
def test_a_held_out_split_has_so_many_streams_and_training_any_number(seed):
    with pytest.raises(ConfigError, match=rf"test split has streams 0 to {STREAMS - 1}, got seed={seed}"):
        next(examples("test", seed))
    assert next(examples("train", seed))


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
