"""The scorer's training: it sees what it will judge, its targets are the truth, and its choice is measured by hand."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm import EGRMRewardModel
from transformers_egrm.data.synthetic import examples
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.candidates import (
    Candidate,
    Group,
    quality_of,
    read_candidate_file,
    read_groups,
    sample_groups,
    write_groups,
)
from transformers_egrm.training.choice import encode_groups, measure_choice, pairs_of, score_groups
from transformers_egrm.training.components import judge_items, make_judge, make_processor
from transformers_egrm.training.config import read_config
from transformers_egrm.training.items import ItemEncoder, TrainingItem
from transformers_egrm.training.loss import hybrid_loss
from transformers_egrm.training.scorer import (
    GroupCollator,
    ScorerTrainee,
    group_order,
    make_encoder,
    pair_tokenizer,
)


OPTIONS = {"max_chain_tokens": 6, "num_chains": 3, "probe_vocabulary": "verdict", "max_probe_tokens": 4}


def bench(kind: str) -> tuple[EGRMRewardModel, list[TrainingItem], list[str]]:
    generator = tiny_generator()
    config = read_config({"judge": {"rubric": "Judge.", "options": OPTIONS}})
    extra: dict[str, Any] = {"scorer_kind": "generator_state"}
    if kind == "encoder":
        extra = {"scorer": tiny_scorer()}
    tokenizer = tiny_scorer_tokenizer() if kind == "encoder" else None
    processor = make_processor(generator, tiny_tokenizer(), config.judge, tokenizer)
    model = make_judge(generator, processor, config.judge, **extra)
    drawn = list(islice(examples("train", mix={1: 1.0}), 12))
    return model, ItemEncoder(processor).encode_all(drawn), [example.question_id for example in drawn]


@pytest.mark.parametrize("kind", ["generator_state", "encoder"])
def test_the_scorer_is_trained_on_what_judging_shows_it(kind: str, monkeypatch: pytest.MonkeyPatch):
    model, items, ids = bench(kind)
    groups = sample_groups(
        model, items, ids, pooling=model.state_pooling, quality="exact", batch_size=5, seed=3
    )  # fmt: skip
    shown: list[tuple[list[str], list[str], Any]] = []
    score = EGRMRewardModel.score_candidates

    def watch(self: Any, prompts: list[str], texts: list[str], states: Any, strict: bool) -> Any:
        shown.append((list(prompts), list(texts), states))
        return score(self, prompts, texts, states, strict)

    monkeypatch.setattr(EGRMRewardModel, "score_candidates", watch)
    results = judge_items(model, items, 5, seed=3, selection="scorer")
    assert len(groups) == len(shown) == sum(result.route == "long" for result in results) > 3
    by_texts = {tuple(texts): (prompts, states) for prompts, texts, states in shown}
    for group in groups:
        prompts, states = by_texts[tuple(c.text for c in group.candidates)]
        if kind == "encoder":
            assert prompts == [group.prompt] * len(prompts)
            assert "Judge." not in group.prompt
        else:
            torch.testing.assert_close(torch.stack([c.state for c in group.candidates]), states.float())
    # And it scores them as judging does.
    for own, group in zip(score_groups(model, groups), groups, strict=True):
        prompts, states = by_texts[tuple(c.text for c in group.candidates)]
        judged, _ = score(model, prompts, [c.text for c in group.candidates], states, False)
        assert own == pytest.approx(judged.tolist(), abs=1e-5)


def test_quality_is_the_truth_of_the_candidates_verdict():
    model, items, ids = bench("generator_state")
    groups = sample_groups(model, items, ids, pooling="mean", quality="exact", batch_size=12, seed=3)
    truth = {question: item.verdict for question, item in zip(ids, items, strict=True)}
    labels = model.task.space.labels
    seen = [
        (c.text, c.quality, labels[truth[group.question_id]])
        for group in groups
        for c in group.candidates
        if not c.is_chain
    ]
    assert len(seen) > 20
    assert all(quality == float(text == label) for text, quality, label in seen)
    assert {quality for _, quality, _ in seen} == {0.0, 1.0}


def test_sampling_does_not_depend_on_the_batch():
    model, items, ids = bench("generator_state")
    settings: dict[str, Any] = {"pooling": None, "quality": "graded", "seed": 3}
    assert sample_groups(model, items, ids, batch_size=12, **settings) == sample_groups(
        model, items, ids, batch_size=5, **settings
    )


def test_a_higher_threshold_gives_more_groups():
    model, items, ids = bench("generator_state")
    settings: dict[str, Any] = {"pooling": None, "quality": "exact", "seed": 3, "batch_size": 12}
    few, all_but_unanimous = (len(sample_groups(model, items, ids, threshold=tau, **settings)) for tau in (0.4, 1.0))
    assert few < len(sample_groups(model, items, ids, **settings)) <= all_but_unanimous


def test_qualities_by_hand():
    assert quality_of(4, 4, 11, "exact") == quality_of(4, 4, 11, "graded") == 1.0
    assert quality_of(5, 4, 11, "exact") == 0.0
    assert quality_of(0, 10, 11, "graded") == 0.0
    assert quality_of(3, 8, 11, "graded") == 0.5


def test_a_chain_is_never_paired_with_a_probe():
    model, _, _ = bench("generator_state")
    kinds = ((False, 1.0), (False, 0.0), (True, 0.0), (True, 1.0))
    mixed = Group("q", "", tuple(Candidate("t", kind, quality, torch.zeros(32)) for kind, quality in kinds))
    lonely = Group("r", "", mixed.candidates[:3])  # one chain: nothing to compare it with
    batch = GroupCollator(model, 8, 0)([(0, mixed), (1, lonely)])
    assert (batch["better"].tolist(), batch["worse"].tolist()) == ([3], [2])
    alone = GroupCollator(model, 8, 0)([(0, lonely)])
    loss = ScorerTrainee(model)(**alone)["loss"]
    assert len(alone["better"]) == 0
    assert bool(loss.isfinite())


def test_pairs_stay_inside_their_group():
    assert pairs_of([1.0, 0.0, 0.5]) == [(0, 1), (0, 2), (2, 1)]
    assert pairs_of([0.0, 0.0]) == []
    model, _, _ = bench("generator_state")

    def group(*qualities: float) -> Group:
        return Group("q", "", tuple(Candidate("t", True, q, torch.full((32,), q)) for q in qualities))

    rows = [(0, group(1.0, 0.0)), (1, group(0.0, 0.0)), (2, group(0.0, 1.0, 1.0))]
    batch = GroupCollator(model, 8, 0)(rows)
    assert batch["targets"].tolist() == [1, 0, 0, 0, 0, 1, 1]
    assert list(zip(batch["better"].tolist(), batch["worse"].tolist(), strict=True)) == [(0, 1), (5, 4), (6, 4)]
    assert len(GroupCollator(model, 1, 0)(rows)["better"]) == 2
    trainee = ScorerTrainee(model)
    model.config.regression_weight = 0.5
    scores = model.scorer.score_states(batch["states"])
    expected = hybrid_loss(
        scores,
        batch["targets"],
        batch["better"],
        batch["worse"],
        regression_weight=0.5,
        huber_delta=0.1,
        hinge_margin=0.1,
    )
    out = trainee(**batch)
    assert out["loss"].item() == pytest.approx(expected.item())
    assert out["scores"].tolist() == scores.tolist()


def test_every_group_comes_once_before_any_comes_again():
    groups = [Group(str(number), "", (Candidate("t", True, 1.0),)) for number in range(7)]
    order = [group.question_id for group in group_order(groups, 5, 3, seed=1)]
    assert len(order) == 15
    assert sorted(order[:7]) == sorted(order[7:14]) == [str(number) for number in range(7)]
    assert order[:7] != order[7:14]
    assert [group.question_id for group in group_order(groups, 5, 3, seed=1)] == order


def test_choice_by_hand():
    def group(*candidates: tuple[str, float]) -> Group:
        return Group("q", "p", tuple(Candidate(text, True, quality) for text, quality in candidates))

    groups = [
        group(("aa", 0.0), ("b", 1.0)),
        group(("a", 1.0), ("bb", 0.0), ("c", 0.0)),
        group(("a", 1.0), ("b", 1.0)),
    ]
    found = measure_choice([[0.2, 0.9], [0.4, 0.6, 0.1], [0.5, 0.5]], groups)
    assert (found["groups"], found["mixed_groups"], found["pairs"]) == (3, 2, 3)
    assert found["pick_accuracy"] == 0.5
    assert found["random_accuracy"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found["first_accuracy"] == 0.5
    assert found["longest_accuracy"] == 0.0
    assert found["pair_accuracy"] == pytest.approx(2 / 3)
    assert (found["right_chain_groups"], found["right_chain_pick_accuracy"]) == (2, 0.5)
    assert measure_choice([[0.5, 0.5]], groups[2:])["mixed_groups"] == 0


def test_groups_whose_only_right_candidate_is_a_probe_are_counted_apart():
    by_probe = Group("q", "p", (Candidate("a", False, 1.0), Candidate("b", True, 0.0)))
    by_chain = Group("r", "p", (Candidate("a", False, 0.0), Candidate("b", True, 1.0), Candidate("c", True, 0.0)))
    found = measure_choice([[0.1, 0.9], [0.1, 0.9, 0.2]], [by_probe, by_chain])
    assert found["pick_accuracy"] == 0.5
    assert (found["right_chain_groups"], found["right_chain_pick_accuracy"]) == (1, 1.0)
    assert found["right_chain_random_accuracy"] == 0.5
    assert (found["mixed_chains_groups"], found["mixed_chains_pick_accuracy"]) == (1, 1.0)
    assert found["mixed_chains_random_accuracy"] == 0.5
    assert "right_chain_groups" not in measure_choice([[0.1, 0.9]], [by_probe])


def test_a_pair_tokenizer_keeps_the_generators_tokens():
    tokenizer = tiny_tokenizer()
    pairs = pair_tokenizer(tokenizer, 64)
    encoded = pairs("1 + 1", "2", return_token_type_ids=True)
    own = tokenizer("1 + 1", add_special_tokens=False)["input_ids"]
    assert pairs.convert_ids_to_tokens(encoded["input_ids"])[0] == "[CLS]"
    assert encoded["input_ids"][1 : 1 + len(own)] == own
    assert encoded["token_type_ids"] == [0] * (len(own) + 2) + [1, 1]
    assert pairs.model_max_length == 64
    encoder, same = make_encoder(read_config({"scorer": {"kind": "encoder"}}).scorer, tokenizer)
    assert encoder.config.vocab_size == len(same) == len(tokenizer) + 3


def test_groups_survive_their_files(tmp_path: Path):
    states = torch.randn(3, 4)
    groups = [
        Group("q1", "", (Candidate("7", False, 0.0, states[0]), Candidate("a\nVerdict: 3", True, 1.0, states[1]))),
        Group("q2", "", (Candidate("1", True, 0.5, states[2]),)),
    ]
    write_groups(tmp_path, groups)
    for read, written in zip(read_groups(tmp_path), groups, strict=True):
        assert (read.question_id, len(read.candidates)) == (written.question_id, len(written.candidates))
        for got, put in zip(read.candidates, written.candidates, strict=True):
            assert (got.text, got.is_chain, got.quality) == (put.text, put.is_chain, put.quality)
            assert got.state.equal(put.state)


def test_candidates_with_a_given_quality_come_from_files(tmp_path: Path):
    rows = [{"question_id": q, "prompt": "p", "text": text, "quality": quality} for q, text, quality in
            (("a", "x", 1), ("b", "y", 0.25), ("a", "z", 0))]  # fmt: skip
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = read_candidate_file(str(path))
    assert [(group.question_id, [c.quality for c in group.candidates]) for group in groups] == [
        ("a", [1.0, 0.0]),
        ("b", [0.25]),
    ]
    assert groups[0].is_mixed
    assert not groups[1].is_mixed
    for line, problem in ((json.dumps({**rows[0], "quality": 2}), r"Line 1 of .* must have a quality in \[0, 1\], got 2"),
                          (json.dumps({"question_id": "a"}), "must have the texts"), ("[", "must be a readable JSONL")):  # fmt: skip
        path.write_text(line)
        with pytest.raises(ConfigError, match=problem):
            read_candidate_file(str(path))


def test_states_are_what_a_state_scorer_is_given():
    model, _, _ = bench("generator_state")
    group = Group("q", "", (Candidate("1", True, 1.0, torch.ones(32)), Candidate("2", True, 0.0, torch.zeros(32))))
    assert encode_groups(model, [group])["states"].tolist() == [[1.0] * 32, [0.0] * 32]


def test_a_worlds_options_are_refused_where_files_give_the_examples():
    with pytest.raises(ConfigError, match=r"`scorer\.data_options` must be left out where files give"):
        read_config({"data": {"files": {"train": "x.jsonl"}}, "scorer": {"data_options": {"mix": {2: 1.0}}}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "bert"}, r"`scorer\.kind` must be generator_state or encoder, got 'bert'"),
        ({"quality": "good"}, "exact or graded"),
        ({"pooling": "max"}, r"`scorer\.pooling` must be last or mean, got 'max'"),
        ({"threshold": 2}, r"`scorer\.threshold` must be a share in \[0, 1\], or none"),
        ({"regression_weight": 2}, r"a weight in \[0, 1\]"),
        ({"files": {"train": "x"}, "kind": "encoder"}, "both, train and test"),
        ({"files": {"train": "x", "test": "y"}}, "encoder where candidates come from files"),
        ({"save_steps": 30}, r"`scorer\.save_steps` must be a multiple of logging_steps"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(values: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        read_config({"scorer": values})
