"""Training on one's own labels: the page runs as it stands, and what would end a run late ends it early."""

import json
import random
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cli_tools import egrm, one_thread, read_jsonl, stating_generator, write_jsonl
from test_docs import commands_of
from tiny import tiny_tokenizer

from transformers_egrm import EGRMRewardModel
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError
from transformers_egrm.modeling.judge_options_egrm import NEVER_SHORT
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.training import own_chains
from transformers_egrm.training.config import DataConfig, read_config
from transformers_egrm.training.defaults import complete
from transformers_egrm.training.items import ItemEncoder
from transformers_egrm.training.labelled import read_labels, read_split, split_labels, verdict_of_score
from transformers_egrm.training.own_chains import right_thoughts, thought_of, with_own_chains, write_chains
from transformers_egrm.training.run import Run
from transformers_egrm.training.sft import with_chains
from transformers_egrm.training.stages import touched


PAGE = "docs/train_your_own.md"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with one_thread():
        yield


def graded(count: int = 200) -> list[dict[str, Any]]:
    """Sums with points from 1 to 5, a few of them by chance."""
    rng, rows = random.Random(0), []
    for number in range(count):
        error = rng.choice([0, 0, 1, 2, 4])
        score = 5 - error if rng.random() < 0.8 else rng.randint(1, 5)
        rows.append({"prompt": f"What is {number} + 1?", "response": f"It is {number + 1 + error}.", "score": score})
    return rows


def preferences(count: int = 200) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {n} + 1?", "chosen": f"{n + 1}", "rejected": f"{n + 2}"} for n in range(count)]


def yes_no(count: int = 200) -> list[dict[str, Any]]:
    return [
        {"question": f"{n} + 1?", "answer": f"{n + 1 + n % 2}", "ok": "no" if n % 2 else "yes"} for n in range(count)
    ]


def save_base_model(folder: Path) -> None:
    stating_generator().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def quick(path: Path, **changes: Any) -> Path:
    """A configuration of a few steps and short chains."""
    values: dict[str, Any] = {
        "sft": {"bootstrap_steps": 4, "round_steps": 2, "logging_steps": 2, "save_steps": 2},
        "judge": {"options": {"max_chain_tokens": 6, "num_chains": 2, "probe_vocabulary": "verdict"}},
        "scorer": {"epochs": 1, "logging_steps": 2, "save_steps": 2, "threshold": 1.0},
        "evaluation": {"examples": 20},
    }
    for section, settings in changes.items():
        values[section] = values.get(section, {}) | settings
    path.write_text(yaml.safe_dump(values), "utf-8")
    return path


# -- the page -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_page_runs_from_labels_to_an_accuracy_with_its_interval(tmp_path: Path, is_quick: bool):
    write_jsonl(tmp_path / "labelled.jsonl", graded())
    save_base_model(tmp_path / "base-model")
    commands = [shlex.split(command)[1:] for command in commands_of(PAGE)[:3]]
    assert [words[0] for words in commands] == ["train", "calibrate", "bench"]
    if is_quick:
        commands[0] += ["--config", str(quick(tmp_path / "quick.yaml"))]
    for words in commands:
        assert egrm(*words) == 0, words
    trained = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    assert (trained["judge"]["low"], trained["judge"]["high"]) == (1, 5)
    assert trained["sft"]["lora"]["rank"] == 16
    config = EGRMRewardModel.from_pretrained(tmp_path / "judge").config
    assert config.certificate is not None or config.judge_options().consensus_threshold == NEVER_SHORT
    assert (tmp_path / "calibrated.md").read_text("utf-8")
    results = json.loads((tmp_path / "tested" / "results.json").read_text("utf-8"))
    (table,) = results["tables"]
    column = table["columns"].index("true verdicts")
    share = table["rows"][-1]["values"][column]
    assert share["low"] <= share["value"] <= share["high"]
    # No question was seen by two of the three commands.
    asked = [{row["question_id"] for row in read_jsonl(tmp_path / "run" / "data" / f"{split}.jsonl")}
             for split in ("train", "calibration", "test")]  # fmt: skip
    assert list(map(len, asked)) == [100, 60, 40]
    assert len(set.union(*asked)) == 200


@pytest.mark.slow
def test_pairs_and_yes_and_no_become_judges_of_their_own_space(tmp_path: Path):
    save_base_model(tmp_path / "lm")
    config = quick(tmp_path / "quick.yaml", generator={"path": "lm"})
    for name, rows, words in (
        ("pairwise", preferences(40), ()),
        ("binary", yes_no(40), ("--map", "prompt=question", "--map", "response=answer", "--label", "ok")),
    ):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        assert egrm("train", "all", "-c", config, "--data", f"{name}.jsonl", *words, "-o", name) == 0
        model = EGRMRewardModel.from_pretrained(tmp_path / name / "checkpoint")
        assert model.processor.space.kind == name
        assert egrm("bench", "own", "--data", f"{name}/data/test.jsonl", f"{name}/checkpoint", "--path", "short") == 0


# -- reading ------------------------------------------------------------------------------------------------------------


def labels_of(path: Path, rows: list[dict[str, Any]], **settings: Any) -> Any:
    return read_labels(DataConfig(labelled=str(write_jsonl(path, rows)), **settings))


def filled(path: Path, rows: list[dict[str, Any]], **sections: Any) -> Any:
    """The configuration that labels lead to, with a judge's checkpoint that is not looked at."""
    write_jsonl(path, rows)
    data = {"labelled": str(path), **sections.pop("data", {})}
    return read_config(complete({"data": data, "generator": {"path": "egrm-mini"}, **sections}))


def test_the_space_is_the_labels_own(tmp_path: Path):
    path = tmp_path / "labels.jsonl"
    assert labels_of(path, graded()).judge() == {"space": "pointwise", "low": 1, "high": 5}
    assert labels_of(path, preferences()).judge() == {"space": "pairwise"}
    named = {"map": ["prompt=question", "response=answer"], "label": "ok"}
    assert labels_of(path, yes_no(), **named).judge() == {"space": "binary"}
    judge = filled(path, graded(), judge={"low": 0, "high": 10}).judge
    assert (judge.low, judge.high) == (0, 10), "what is said stays"


def test_real_scores_are_binned_to_the_space(tmp_path: Path):
    rows = [{"prompt": f"{n}?", "response": "a", "score": n / 8} for n in range(9)]
    config = filled(tmp_path / "real.jsonl", rows)
    assert config.data.score_range == [0.0, 1.0]
    assert (config.judge.low, config.judge.high) == (0, 10)
    splits = split_labels(read_labels(config.data), config.data, VerdictSpace.pointwise(), 0)
    binned = {row["prompt"]: row["label"] for own in splits.values() for row in own}
    assert [binned[f"{n}?"] for n in range(9)] == [0, 1, 3, 4, 5, 6, 8, 9, 10]
    with pytest.raises(ConfigError, match="The record x has the score 2, but scores go from 0 to 1"):
        verdict_of_score(2.0, [0, 1], VerdictSpace.pointwise(), "x")
    with pytest.raises(ConfigError, match=r"has the label 0\.5.*data\.score_range"):
        verdict_of_score(0.5, None, VerdictSpace.pointwise(), "x")


def test_a_conversation_and_a_chain_are_read(tmp_path: Path):
    talk = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    rows = [{"messages": talk, "score": 3, "chain": "2 + 2 = 4."},
            {"messages": talk[:1], "response": "5", "score": 1}]  # fmt: skip
    (first, _), (second, _) = [(q, q.responses) for q in labels_of(tmp_path / "talk.jsonl", rows).questions]
    assert (first.prompt, first.responses) == (talk[:1], ("4",))
    assert (second.prompt, second.responses) == (talk[:1], ("5",))
    (path,) = [write_jsonl(tmp_path / "split.jsonl", [{**rows[0], "label": 3}])]
    (example,) = read_split(path)
    item = ItemEncoder(EGRMProcessor(tiny_tokenizer())).encode(example)
    assert item.has_chain
    assert (example.chain, example.prompt, example.response) == ("2 + 2 = 4.", "2 + 2?", "4")


def test_a_pair_is_learnt_in_both_orders():
    encoder = ItemEncoder(EGRMProcessor(tiny_tokenizer(), space={"kind": "pairwise"}))
    write_jsonl(Path("pairs.jsonl"), [{"prompt": "?", "response_a": "x", "response_b": "y", "label": "B"}])
    item = encoder.encode(read_split(Path("pairs.jsonl"))[0])
    given, reverse = (encoder.sequence(item, is_short=True, swapped=swapped) for swapped in (False, True))
    text = encoder.processor.tokenizer.decode
    assert text(given.input_ids).index("x") < text(given.input_ids).index("y\n")
    told = [text([i for i, m in zip(s.input_ids, s.verdict_mask, strict=True) if m]).strip() for s in (given, reverse)]
    assert told == ["B", "A"]
    assert given.input_ids[: len(item.prompt_ids)] == list(item.prompt_ids)
    assert reverse.input_ids[: len(item.swapped_ids)] == list(item.swapped_ids)


def test_neither_answer_comes_first_more_often(tmp_path: Path):
    labels = labels_of(tmp_path / "p.jsonl", preferences())
    splits = split_labels(labels, DataConfig(labelled="p.jsonl"), VerdictSpace.pairwise(), 0)
    first = [row["label"] for own in splits.values() for row in own]
    assert 70 < first.count("A") < 130
    assert splits == split_labels(labels, DataConfig(labelled="p.jsonl"), VerdictSpace.pairwise(), 0)


def test_chains_of_pairs_that_all_prefer_the_first_are_refused(tmp_path: Path):
    rows = [{**row, "chain": "The first is right."} for row in preferences(20)]
    with pytest.raises(ConfigError, match=r"`response_a`, `response_b` and `label`"):
        split_labels(labels_of(tmp_path / "p.jsonl", rows), DataConfig(labelled="p.jsonl"), VerdictSpace.pairwise(), 0)


# -- chains of the model's own ------------------------------------------------------------------------------------------


def test_a_thought_is_what_stands_before_the_verdict():
    assert thought_of("2 + 2 = 4.\nVerdict: 5") == "2 + 2 = 4."
    assert thought_of("Is it?\n</think>\n\nVerdict: 5") == "Is it?"
    assert thought_of("2 + 2 = 4.\nScore: 5") == "2 + 2 = 4."
    assert thought_of("7") == ""


def test_only_right_chains_of_the_given_order_are_learnt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def chain(text: str, verdict: int, prompt: int = 0, is_chain: bool = True) -> Any:
        return SimpleNamespace(text=text, verdict=verdict, prompt=prompt, is_chain=is_chain)

    accounts = [
        [chain("x\nVerdict: A", 0), chain("wrong\nVerdict: B", 1, prompt=1), chain("right\nVerdict: B", 1)],
        [chain("probe", 0, is_chain=False), chain("x\nVerdict: B", 1)],
    ]
    results = [SimpleNamespace(account=SimpleNamespace(candidates=own)) for own in accounts]
    monkeypatch.setattr(own_chains, "judge_items", lambda *_, **__: [*results, SimpleNamespace(account=None)])
    items: Any = [SimpleNamespace(verdict=1), SimpleNamespace(verdict=0), SimpleNamespace(verdict=0)]
    thoughts = right_thoughts(None, items, 4, seed=0)
    assert thoughts == ["right", "", ""]
    write_jsonl(tmp_path / "split.jsonl", [{"prompt": f"{n}?", "response": "x", "label": n} for n in range(2)])
    write_chains(tmp_path, {1: "thought"})
    assert [example.chain for example in with_own_chains(read_split(tmp_path / "split.jsonl"), tmp_path)] == [
        "",
        "thought",
    ]


def test_a_handful_of_chains_is_not_learnt_by_heart():
    items: Any = [SimpleNamespace(has_chain=number < 2) for number in range(20)]
    assert with_chains(items) == [0, 1]
    assert with_chains([*items, SimpleNamespace(has_chain=False)]) == list(range(21))


# -- seen before the first step -----------------------------------------------------------------------------------------


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, **__: Any) -> None:
        raise AssertionError("the first step was reached")

    monkeypatch.setattr("transformers_egrm.training.sft.fine_tune", train)


def error_of(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert egrm("train", "all", "-o", "run", *words) == 1
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("no_training")
def test_what_would_end_a_run_late_ends_it_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    save_base_model(tmp_path / "lm")
    write_jsonl(tmp_path / "labels.jsonl", graded(60))
    own = ("--data", "labels.jsonl", "--generator", "lm")
    for number, (changes, problem) in enumerate((
        ({"scorer": {"groups_per_step": 3, "encoder": "no-such-encoder", "kind": "encoder"}}, "`scorer.encoder`"),
        ({"judge": {"options": {"max_chain_tokens": 4096}}}, "a chain alone may take 4096"),
        ({"data": {"score_range": [2, 5]}}, "has the score 1, but scores go from 2 to 5"),
        ({"scorer": {"files": {"train": "no.jsonl", "test": "no.jsonl"}, "kind": "encoder"}}, "The candidates no.jsonl"),
    )):  # fmt: skip
        config = quick(tmp_path / f"{number}.yaml", **changes)
        assert problem in error_of(capsys, *own, "-c", config, "--restart")
    write_jsonl(tmp_path / "labels.jsonl", [*graded(60), {"prompt": "?", "response": "word " * 5000, "score": 1}])
    assert "An answer to '?'" in error_of(capsys, *own, "-c", quick(tmp_path / "q.yaml"), "--restart").replace(
        "an a", "An a"
    )
    assert "A training needs --config FILE.yaml, or --data LABELLED" in error_of(capsys)
    assert "`generator.path` must hold a causal LM" in error_of(capsys, "--data", "labels.jsonl", "-g", "no-model")
    write_jsonl(tmp_path / "labels.jsonl", [row | {"score": 1} for row in graded(60)])
    assert "All labels of labels.jsonl are 1" in error_of(capsys, *own)
    write_jsonl(
        tmp_path / "labels.jsonl", [row | {"score": score} for row, score in zip(graded(2), (1, 5), strict=True)]
    )
    assert "2 questions are too few" in error_of(capsys, *own, "--restart")


@pytest.mark.usefixtures("no_training")
def test_options_that_no_world_knows_are_refused_before_the_first_step(capsys: pytest.CaptureFixture[str]):
    for section, key in (("data", "held_out_options"), ("scorer", "data_options")):
        Path("world.yaml").write_text(yaml.safe_dump({section: {key: {"mixture": {1: 1.0}}}}))
        assert "must fit transformers_egrm.data.synthetic" in error_of(capsys, "-c", "world.yaml", "--restart")


def test_a_file_that_the_default_would_use_up_leaves_the_scorer_a_part(tmp_path: Path):
    from transformers_egrm.training.sft import Workshop

    row = {"prompt": "?", "response": "4", "verdict": 10, "chain": "."}
    path = write_jsonl(tmp_path / "train.jsonl", [{**row, "question_id": str(n // 2)} for n in range(40)])
    files = {"files": {"train": str(path), "calibration": str(path)}}
    for number, (train, expected) in enumerate(((60_000, 30), (40, 30), (33, 33))):
        run = Run(tmp_path / f"run{number}", read_config({"data": {**files, "train_examples": train}}))
        shop = Workshop(run)
        assert (len(shop.train_examples), len(shop.fresh_examples)) == (expected, 40 - expected)
        seen = {example.question_id for example in shop.train_examples}
        assert train == 33 or not seen & {example.question_id for example in shop.fresh_examples}


def test_the_bundled_judge_is_a_start_and_brings_its_rubric(tmp_path: Path):
    config = filled(tmp_path / "l.jsonl", graded(), judge={"low": 0, "high": 10})
    assert config.judge.rubric is not None
    assert config.judge.rubric.startswith("Ten points if every part is right")
    assert config.judge.options["temperatures"] == [1.0, 1.25, 1.5, 1.75, 2.0]
    assert config.sft.lora is None
    assert filled(tmp_path / "l.jsonl", graded()).judge.rubric is None, "points from 1 to 5 are another rubric's"


def test_labels_that_changed_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "transformers_egrm.training.sft.fine_tune", lambda *_, **__: (_ for _ in ()).throw(DataError("stop"))
    )
    save_base_model(tmp_path / "lm")
    rows = graded(60)
    write_jsonl(tmp_path / "labels.jsonl", rows)
    words = ("--data", "labels.jsonl", "-g", "lm", "-c", quick(tmp_path / "quick.yaml"))
    assert "stop" in error_of(capsys, *words)
    write_jsonl(tmp_path / "labels.jsonl", [{**rows[0], "response": "other"}, *rows[1:]])
    assert "holds other labels than run was begun with" in error_of(capsys, *words)


# -- a changed configuration --------------------------------------------------------------------------------------------


def test_a_change_that_decides_no_finished_stage_keeps_them(tmp_path: Path):
    run = Run(tmp_path / "run", read_config({}))
    for stage in ("start", "sft-0", "sft"):
        run.finish(stage, {})
        (run.folder / stage).mkdir()
    later = {"scorer": {"epochs": 3}, "grpo": {"steps": 0}}
    assert Run(tmp_path / "run", read_config(later)).is_done("sft")
    run.finish("scorer-fit", {})
    with pytest.raises(
        ConfigError, match=r"scorer\.epochs \(3, now 4\), which decides the stages scorer-fit\..*--redo"
    ):
        Run(tmp_path / "run", read_config(later | {"scorer": {"epochs": 4}}))
    again = Run(tmp_path / "run", read_config(later | {"scorer": {"epochs": 4}}), redo=True)
    assert again.is_done("sft")
    assert not again.is_done("scorer-fit")
    with pytest.raises(ConfigError, match=r"evaluation\.examples .* stages sft\."):
        Run(tmp_path / "run", read_config(later | {"scorer": {"epochs": 4}, "evaluation": {"examples": 9}}))


def test_which_stages_a_key_touches():
    stages = [
        "data",
        "start",
        "chains",
        "sft-0",
        "route-1",
        "sft-1",
        "sft",
        "candidates",
        "scorer-fit",
        "scorer",
        "grpo",
    ]
    for key, first in (
        ("seed", "data"), ("judge.low", "data"), ("judge.options.num_chains", "chains"), ("sft.learning_rate", "sft-0"),
        ("sft.round_steps", "route-1"), ("sft.rounds", "sft"), ("evaluation.examples", "sft"),
        ("scorer.threshold", "candidates"), ("scorer.learning_rate", "scorer-fit"), ("grpo.steps", "grpo"),
    ):  # fmt: skip
        kept = stages[: stages.index(first)]
        assert set(touched([key], stages)) == set(stages) - set(kept), key
    assert touched([], stages) == []
