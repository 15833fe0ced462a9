"""The assessor's training: what is observed, labels made from it, the fit, and thresholds that keep a promise."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, RewardJudge, load_mini
from transformers_egrm.cli import main
from transformers_egrm.data.synthetic.world import examples
from transformers_egrm.evaluation.metrics import auroc
from transformers_egrm.evaluation.outcomes import label
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.assessor import (
    FitOptions,
    Observed,
    ask,
    calibrate,
    fit,
    known_labels,
    new_assessor,
    observe,
    pseudo_labels,
    set_thresholds,
)


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return load_mini()


@pytest.fixture(scope="module")
def items(model):
    return list(label(model.processor, islice(examples("calibration", 1), 12), 1))


@pytest.fixture(scope="module")
def seen(model, items) -> Observed:
    return observe(model, items, 5, signals=True)


# -- what is observed -----------------------------------------------------------------------------------------------------


def test_probabilities_are_those_of_exact_consensus_and_states_those_of_the_engine(model, items, seen):
    inputs = model.processor.collate([item.item for item in items])
    judged = model.judge(inputs, consensus="exact", path="short")
    torch.testing.assert_close(seen.probs.float(), judged["verdict_probs"], atol=1e-5, rtol=1e-4)
    assert seen.right.tolist() == [int(v) == item.truth for v, item in zip(judged["verdicts"], items, strict=True)]
    with torch.no_grad():
        states = model.engine.start(inputs, model.task.short_suffix_ids).states
    torch.testing.assert_close(seen.states, states, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_signals_are_what_they_are_called(model, items, seen):
    ids = torch.tensor([[*items[3].item.prompts[0], *model.task.short_suffix_ids]])
    before = model.generator.config._attn_implementation
    model.generator.set_attn_implementation("eager")
    shown = model.generator(ids, output_attentions=True, output_hidden_states=True)
    model.generator.set_attn_implementation(before)
    entropies = [
        -sum(float(p) * np.log(float(p)) for p in head if p > 0)
        for layer in shown.attentions
        for head in layer[0, :, -1]
    ]
    assert float(seen.signals["attention"][3]) == pytest.approx(
        1 - np.mean(entropies) / np.log(ids.shape[1]), abs=1e-4
    )
    columns = [first for first, *_ in model.task.verdict_token_ids]
    head = model.generator.get_output_embeddings()
    said = [
        int(head(model.generator.model.norm(layer[0, -1]))[columns].argmax()) for layer in shown.hidden_states[1:-1]
    ]
    last = int(shown.logits[0, -1][columns].argmax())
    assert float(seen.signals["exits"][3]) == pytest.approx(np.mean([own == last for own in said]))
    assert float(seen.signals["right"][3]) == pytest.approx(float(seen.probs[3, items[3].truth]))
    assert float(seen.signals["consensus"][3]) == pytest.approx(float(seen.probs[3].max()))


def test_pairs_and_open_answers_are_refused(model):
    pairwise = EGRMRewardModel.from_components(tiny_generator(), tokenizer=tiny_tokenizer())
    pairwise.processor = type(pairwise.processor)(pairwise.processor.tokenizer, space={"kind": "free"})
    with pytest.raises(ConfigError, match="verdicts that can be listed"):
        observe(pairwise, [])


# -- labels and fit -------------------------------------------------------------------------------------------------------


def test_labels_are_weighted_means_and_known_difficulty_falls(seen):
    fused = pseudo_labels(seen, {"right": 3.0, "exits": 1.0})
    torch.testing.assert_close(fused, 0.75 * seen.signals["right"] + 0.25 * seen.signals["exits"])
    known = known_labels(replace(seen, difficulty=torch.tensor([1, 3, 5])))
    assert known.tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("weights", [{}, {"right": 0.0}, {"luck": 1.0}, {"right": 2.0, "exits": -1.0}], ids=str)
def test_weights_that_make_no_label_are_refused(weights):
    with pytest.raises(ConfigError, match="Weights are numbers"):
        FitOptions(weights=weights)


def made_up(count: int, seed: int, hidden: int) -> Observed:
    """Items whose first number tells whether the short path is right, and whose second one is the verdict."""
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn(count, hidden, generator=draw)
    truth, right = (states[:, 1] > 0).long() * 10, states[:, 0] > -0.5
    said = torch.where(right, truth, 10 - truth)
    probs = torch.full((count, 11), 0.01, dtype=torch.float64)
    probs[torch.arange(count), said] = 0.9
    signals = {"right": right.float(), "consensus": probs.amax(-1).float()}
    names, ids = tuple(map(str, range(count))), ((1, 2, 3),) * count
    return Observed(names, ids, ("a b c",) * count, truth, torch.ones(count), states, probs, signals)


def test_a_head_learns_calibrates_and_decides_only_what_it_can_promise(model):
    hidden = model.generator.config.hidden_size
    assessor = new_assessor(model, "state")
    fit(assessor, made_up(2000, 0, hidden), FitOptions(weights={"right": 1.0}, known_steps=5, steps=150))
    calibration, test = made_up(1500, 1, hidden), made_up(1500, 2, hidden)
    calibrate(assessor, calibration)
    said = ask(assessor, test)
    told = auroc(said.sure, test.right)
    assert told is not None
    assert said.support is not None
    assert told > 0.95
    found = set_thresholds(assessor, calibration, tau=0.95, risk=0.1, waste=0.05)
    assert found["direct"].promised
    direct = (said.sure >= assessor.settings.direct_above) & (said.support >= assessor.settings.direct_floor)
    assert direct.mean() > 0.1
    assert (said.verdicts != test.truth.numpy())[direct].mean() < 0.1
    assert assessor.settings.think_below > 0  # nobody reaches tau: to think at once wastes nothing


def test_where_nothing_can_be_promised_it_decides_nothing(model):
    hidden = model.generator.config.hidden_size
    assessor, seen = new_assessor(model, "state"), made_up(300, 1, hidden)
    found = set_thresholds(assessor, seen, tau=0.5, risk=0.01, waste=0.01)
    assert not any(choice.promised for choice in found.values())
    assert not assessor.settings.decides_on("auto")


def test_one_training_twice_is_one_assessor_and_leaves_the_global_seed_alone(model, seen):
    state = torch.random.get_rng_state()
    options = FitOptions(known_steps=2, steps=2, batch_size=4)
    made = []
    for _ in range(2):
        assessor = new_assessor(model, "encoder")
        fit(assessor, seen, options)
        made.append(assessor.state_dict())
    assert all(torch.equal(value, made[1][name]) for name, value in made[0].items())
    assert torch.equal(state, torch.random.get_rng_state())


# -- the command ----------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_judge_with_an_assessor(tmp_path, capsys):
    asked = ["--examples", "24", "--calibration-examples", "60", "--steps", "3", "--output", str(tmp_path / "judge")]
    with pytest.raises(SystemExit) as ended:
        main(["train", "assessor", "egrm-mini", *asked])
    assert ended.value.code == 0
    assert "nothing can be promised" in " ".join(capsys.readouterr().err.split())
    model = RewardJudge(str(tmp_path / "judge")).model
    assert model.assessor is not None
    assert model.config.assessor["calibration"]["method"] in ("isotonic", "platt", "temperature")
    assert not model.assessor.settings.decides_on("auto")


def test_training_and_calibration_files_come_together(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "assessor", "egrm-mini", "--train", "x.jsonl", "--output", str(tmp_path)])
    assert ended.value.code == 1
    assert "come together" in " ".join(capsys.readouterr().err.split())
