"""The recipe on real solutions: splits by question, scorers and losses of the library, figures by hand; on its own tiny data."""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import tiny_scorer, tiny_scorer_tokenizer


sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "train"))

import gsm8k_scorer as recipe  # pyright: ignore[reportMissingImports]

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.candidates import Candidate, Group
from transformers_egrm.training.loss import hybrid_loss


MODELS = ("large", "medium", "small", "tiny")


def write_data(path: Path, count: int = 40) -> Path:
    """Sums with two right and two wrong solutions, by models that take turns; every fourth question has no wrong one."""
    rows = []
    for number in range(count):
        a, b = number + 20, 3
        row = {
            "question": f"Ann has {a} eggs and buys {b} more. How many eggs has she?",
            "ground_truth": f"A: {a + b}",
        }
        for place, name in enumerate(MODELS):
            right = number % 4 == 0 or (place + number) % 2 == 0
            other = b if right else 90 + place
            row[name] = {
                "is_correct": right,
                "solution": f"She has {a} + {other} = <<{a}+{other}={a + other}>>{a + other} eggs.\nA: {a + other}",
            }
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> list[recipe.Question]:
    return recipe.read_questions(write_data(tmp_path_factory.mktemp("gsm8k") / "solutions.jsonl"))


def test_only_questions_with_something_to_choose_are_read(questions):
    assert len(questions) == 30
    assert all(question.group.is_mixed and len(question.group.candidates) == 4 for question in questions)
    for question in questions:
        for column, candidate in zip(question.columns, question.group.candidates, strict=True):
            right = (MODELS.index(column) + int(question.group.question_id) - 1) % 2 == 0
            assert candidate.quality == right


def test_the_order_of_candidates_tells_nothing_and_is_repeatable(questions, tmp_path):
    firsts = Counter(question.columns[0] for question in questions)
    assert set(firsts) == set(MODELS)
    assert recipe.read_questions(write_data(tmp_path / "again.jsonl")) == questions


@pytest.mark.parametrize(
    "text",
    ["no json", '{"question": "q", "a": {"solution": "s"}}', '{"a": {"solution": "s", "is_correct": true}}', "[1]"],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "other.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="example_model_solutions"):
        recipe.read_questions(path)
    with pytest.raises(ConfigError, match="absent"):
        recipe.read_questions(tmp_path / "absent.jsonl")


def test_a_file_without_choices_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nothing to choose"):
        recipe.read_questions(write_data(tmp_path / "one.jsonl", 1))


def test_every_question_is_held_out_once_and_never_learnt_from_then(questions):
    held_out: Counter[str] = Counter()
    for fold in range(recipe.NUM_FOLDS):
        split = recipe.split_of(questions, fold)
        parts = [{q.group.question_id for q in part} for part in (split.train, split.calibration, split.held_out)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(questions)
        held_out.update(parts[2])
    assert set(held_out.values()) == {1}
    assert len(held_out) == len(questions)


def test_a_question_stays_in_its_fold_whatever_the_order(questions):
    reordered = {q.group.prompt: q.fold for q in questions[::-1]}
    assert all(reordered[q.group.prompt] == q.fold for q in questions)


def question_of(number: int, columns: str, qualities: str) -> recipe.Question:
    candidates = tuple(Candidate("x" * (place + 1), True, float(mark)) for place, mark in enumerate(qualities))
    return recipe.Question(Group(str(number), f"q{number}", candidates), tuple(columns))


def test_a_score_that_only_knows_the_model_gets_one_half_without_style():
    rng = np.random.default_rng(3)
    asked = [question_of(n, "abcd", marks) for n in range(60)
             if len(set(marks := "".join(map(str, rng.integers(0, 2, 4))))) > 1]  # fmt: skip
    by_model = [[0.9, 0.5, 0.3, 0.1]] * len(asked)
    measured = recipe.measure(by_model, asked)
    assert measured["style_free_pairs"]["value"] == 0.5
    assert set(measured["auroc_within"].values()) == {0.5}
    truth = [[candidate.quality for candidate in question.group.candidates] for question in asked]
    measured = recipe.measure(truth, asked)
    assert measured["style_free_pairs"]["value"] == measured["pair_accuracy"] == measured["pick_accuracy"] == 1


def test_figures_are_those_of_a_count_by_hand():
    asked = [question_of(0, "ab", "10"), question_of(1, "ab", "01"), question_of(2, "ba", "01")]
    scores = [[0.7, 0.2], [0.6, 0.6], [0.1, 0.9]]
    won, order, owner = recipe.pair_table(scores, asked)
    assert won.tolist() == [1, 0.5, 1]
    assert order.tolist() == ["a > b", "b > a", "a > b"]
    assert owner == ["0", "1", "2"]
    assert recipe.style_free(won, order) == 0.75  # (1 + 0.5) / 2
    assert recipe.style_free(won[:1], order[:1]) is None
    measured = recipe.measure(scores, asked)
    assert measured["pick_accuracy"] == pytest.approx(2 / 3)  # the tie takes the first, which is wrong
    # random 1/2; the longest is the second, right in the second and third
    assert measured["gain_over"]["random"]["value"] == pytest.approx(1 / 6)
    assert measured["gain_over"]["longest"]["value"] == pytest.approx(0)
    assert measured["gain_over"]["first"]["value"] == pytest.approx(1 / 3)
    assert measured["auroc_within"] == {"a": 1.0, "b": 1.0}


def test_baselines_know_the_model_or_the_vote(questions):
    found = recipe.baselines(questions)
    place = next(n for n, question in enumerate(questions))
    assert found["always tiny"][place] == [float(name == "tiny") for name in questions[place].columns]
    # the two right ones agree, the wrong ones do not
    qualities = [[c.quality for c in question.group.candidates] for question in questions]
    assert found["vote"] == [[quality / 3 for quality in own] for own in qualities]


@pytest.mark.parametrize("name", list(recipe.LOSSES))
def test_losses_are_the_librarys(name):
    scores, targets = torch.tensor([0.8, 0.4, 0.3]), torch.tensor([1.0, 0.0, 1.0])
    better, worse = torch.tensor([0, 2]), torch.tensor([1, 1])
    value = recipe.loss_of(name)(scores, targets, better, worse)
    weight = recipe.LOSSES[name]
    expected = (
        -(torch.log(scores[0]) + torch.log(1 - scores[1]) + torch.log(scores[2])) / 3 if weight is None
        else hybrid_loss(scores, targets, better, worse, regression_weight=weight, huber_delta=0.1, hinge_margin=0.1)
    )  # fmt: skip
    assert value == pytest.approx(expected.item())


def test_pairs_of_a_batch_stay_within_their_question():
    groups = [question_of(0, "ab", "10").group, question_of(1, "abc", "011").group]
    targets, better, worse = recipe.targets_of(groups)
    assert targets.tolist() == [1, 0, 0, 1, 1]
    assert list(zip(better.tolist(), worse.tolist(), strict=True)) == [(0, 1), (3, 2), (4, 2)]


@pytest.mark.parametrize("loss", list(recipe.LOSSES))
@pytest.mark.parametrize("inputs", ["checks", "checks+others"])
def test_a_head_learns_what_the_checks_show(questions, inputs, loss):
    scores, _ = recipe.Recipe(questions, None, 1, 0).run(inputs, loss, 0)
    held_out = recipe.split_of(questions, 0).held_out
    measured = recipe.measure(scores, held_out)
    assert (
        measured["pair_accuracy"] == measured["pick_accuracy"] == 1
    )  # a number from nowhere gives the wrong ones away


def test_the_same_seed_gives_the_same_scores(questions):
    runs = [recipe.Recipe(questions, None, 1, seed).run("checks", "hybrid", 1)[0] for seed in (4, 4, 5)]
    assert runs[0] == runs[1] != runs[2]


def test_labels_of_held_out_questions_are_not_read(questions):
    flipped = [
        question if question.fold != 0 else recipe.Question(
            Group(question.group.question_id, question.group.prompt,
                  tuple(Candidate(c.text, True, 1 - c.quality) for c in question.group.candidates)), question.columns)
        for question in questions
    ]  # fmt: skip
    scores = [recipe.Recipe(own, None, 1, 0).run("checks+others", "hybrid", 0)[0] for own in (questions, flipped)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("inputs", ["checks", "checks+others"])
def test_a_saved_head_scores_new_solutions_as_before(questions, inputs, tmp_path):
    scores, fitted = recipe.Recipe(questions, None, 1, 0).run(inputs, "hybrid", 0)
    recipe.save_file(fitted.state_dict(), tmp_path / "head.safetensors")
    head = recipe.CheckScorer.load(tmp_path / "head.safetensors")
    for own, question in zip(scores, recipe.split_of(questions, 0).held_out, strict=True):
        again = head(question.group.prompt, [candidate.text for candidate in question.group.candidates])
        torch.testing.assert_close(again, torch.tensor(own))


@pytest.fixture
def tiny_encoder(monkeypatch):
    monkeypatch.setattr(recipe, "AutoModel", SimpleNamespace(from_pretrained=lambda *_, **__: tiny_scorer()))
    monkeypatch.setattr(recipe, "AutoTokenizer", SimpleNamespace(from_pretrained=lambda _: tiny_scorer_tokenizer()))


@pytest.mark.parametrize("inputs", [*recipe.ENCODER_INPUTS, "frozen", "frozen+checks+others"])
def test_every_input_with_an_encoder_gives_scores(questions, inputs, tiny_encoder):
    lines: list[str] = []
    scores, _ = recipe.Recipe(questions[:12], "tiny", 1, 0).run(inputs, "hybrid", 0, lines.append)
    held_out = recipe.split_of(questions[:12], 0).held_out
    assert [len(own) for own in scores] == [4] * len(held_out)
    assert all(0 <= score <= 1 for own in scores for score in own)
    assert len(lines) == (inputs in recipe.ENCODER_INPUTS)


def test_candidates_of_a_batch_are_scored_as_each_alone(questions, tiny_encoder):
    scorer, tokenizer = recipe.Recipe(questions, "tiny", 1, 0)._load_encoder()
    groups = [question.group for question in questions[:6]]
    groups[2] = Group("2", "short", (Candidate("A", True, 1.0), Candidate("B " * 40, True, 0.0)))
    together = recipe.read_texts(scorer, tokenizer, groups).read(range(6))
    alone = [
        scorer.score_texts([group.prompt], [candidate.text], tokenizer)
        for group in groups for candidate in group.candidates
    ]  # fmt: skip
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)
    assert together.requires_grad


def test_an_encoder_reads_words_instead_of_the_calculators_notes(questions):
    group = questions[0].group
    checks = recipe.checks_of(group.prompt, [candidate.text for candidate in group.candidates])
    plain, own, beside = (
        recipe.written_group(group, *options) for options in ((None, False), (checks, False), (checks, True))
    )
    for number, candidate in enumerate(group.candidates):
        assert (
            plain.candidates[number].text
            == candidate.text[: candidate.text.index("<<")] + candidate.text[candidate.text.index(">>") + 2 :]
        )
        assert own.candidates[number].text.endswith("\n" + plain.candidates[number].text)
        assert "agree" not in own.candidates[number].text
        assert "agree" in beside.candidates[number].text
    assert all(
        text.quality == before.quality for text, before in zip(beside.candidates, group.candidates, strict=True)
    )


def test_the_kept_weights_are_those_of_the_best_epoch(questions, monkeypatch):
    reached = iter([0.6, 0.9, 0.7])
    monkeypatch.setattr(recipe, "measure_choice", lambda *_: {"pair_accuracy": next(reached)})
    groups = [question.group for question in questions]
    states = [recipe.state_rows(recipe.checks_of(g.prompt, [c.text for c in g.candidates]), False) for g in groups]
    reader = recipe.read_states(recipe.state_scorer(states[0].shape[1]), states)
    seen: list[torch.Tensor] = []
    plan = recipe.Plan(epochs=3, groups_per_step=8, learning_rate=1e-2, weight_decay=0.0)
    best = recipe.fit(reader, groups, range(20), range(20, 30), "hybrid", plan, 0,
                      lambda _: seen.append(reader.scorer.score_head.weight.detach().clone()))  # fmt: skip
    assert best == 0.9
    assert torch.equal(reader.scorer.score_head.weight, seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_the_command_prints_a_table_and_writes_every_figure(tmp_path, monkeypatch, capsys):
    data, output, weights = write_data(tmp_path / "data.jsonl"), tmp_path / "out.json", tmp_path / "head.safetensors"
    monkeypatch.setattr(sys, "argv", ["gsm8k_scorer.py", "--data", str(data), "--output", str(output), "--save", str(weights),
                                      "--inputs", "checks", "--losses", "hybrid", "--folds", "0", "1"])  # fmt: skip
    recipe.main()
    printed = capsys.readouterr().out
    assert "| checks, hybrid | 100.0 % (100.0 to 100.0) |" in printed
    assert "| always tiny |" in printed
    written = json.loads(output.read_text("utf-8"))
    assert written["options"]["folds"] == [0, 1]
    assert written["results"]["checks, hybrid"]["pair_accuracy"] == 1
    assert (
        recipe.CheckScorer.load(weights)("Ann has 5 and 3.", ["<<5+3=8>>8\nA: 8", "<<5+77=82>>82\nA: 82"]).argmax()
        == 0
    )
