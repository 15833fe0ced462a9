"""Outcomes of labelled items against plain judgements, and the paper's tables from end to end on a random judge."""

import importlib
import json
import math
from dataclasses import fields
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from transformers import PhiConfig, PhiForCausalLM

from transformers_egrm.evaluation import metrics
from transformers_egrm.evaluation.outcomes import Outcomes, judge_labelled, label
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError
from transformers_egrm.modeling.judge_values_egrm import Status
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.verdict_consensus_egrm import Route
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
EXAMPLES = [
    SimpleNamespace(
        question_id=f"q{number // 2}",
        prompt=f"What is {number // 2} + 3?",
        response="It is " * (number % 3) + str(number // 2 + 3 + number % 2),
        verdict=(10, 0, 5)[number % 3],
        domain=("sums", "other")[number // 6],
        difficulty=1,
    )
    for number in range(12)
]


@pytest.fixture(scope="module")
def model():
    # A head with biases, so that verdicts and the ends of chains can be made likely; the rest is random.
    torch.manual_seed(0)
    generator = PhiForCausalLM(
        PhiConfig(
            vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=1024, bos_token_id=0, eos_token_id=4, pad_token_id=2, initializer_range=0.2,
            resid_pdrop=0.0,
        )
    ).eval()  # fmt: skip
    tokenizer = tiny_tokenizer()
    leanings = {"0": 7.0, "5": 7.5, "1": 6.0, "<|im_end|>": 8.0}
    for text, strength in leanings.items():
        (token,) = tokenizer(text, add_special_tokens=False).input_ids
        generator.lm_head.bias.data[token] = strength
    return EGRMRewardModel.from_components(
        generator, tiny_scorer(), processor=EGRMProcessor(tokenizer, tiny_scorer_tokenizer(), rubric="Rate it."),
        max_chain_tokens=12, num_chains=3, probe_vocabulary="verdict", scorer_trained=True, consensus_threshold=0.8,
    )  # fmt: skip


@pytest.fixture(scope="module")
def items(model):
    return list(label(model.processor, EXAMPLES))


@pytest.fixture
def paper_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("paper_tables")


# -- outcomes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"early_stop": False}, {"path": "long"}, {"path": "short"}, {"consensus": "exact"}]
)
def test_outcomes_are_those_of_plain_judgements(model, items, options):
    found, seconds = judge_labelled(model, items, batch_size=5, **options)
    inputs = model.processor.collate([item.item for item in items], groups=range(len(items)))
    output = model.judge(inputs, **options)
    truths = [item.truth for item in items]
    ok = (output.statuses == Status.OK).tolist()
    right = [fine and v == t for fine, v, t in zip(ok, output.verdicts.tolist(), truths, strict=True)]
    assert found.correct.tolist() == right
    assert found.took_short.tolist() == (output.routes == Route.SHORT).tolist()
    assert found.new_tokens.tolist() == output.new_tokens.tolist()
    assert found.flops == pytest.approx(output.flops.numpy())
    assert found.consensus == pytest.approx(output.consensus.double().numpy(), nan_ok=True)
    assert seconds > 0
    assert found.prompt_tokens.tolist() == [len(item.item.prompts[0]) for item in items]


def test_the_short_verdict_of_an_item_that_thinks_is_known_too(model, items):
    short, _ = judge_labelled(model, items, 4, path="short", early_stop=False)
    whole, _ = judge_labelled(model, items, 4, early_stop=False)
    assert 0 < whole.took_short.sum() < len(items)
    assert whole.short_correct.tolist() == short.correct.tolist()
    assert whole.short_flops == pytest.approx(short.flops)
    assert whole.short_new_tokens.tolist() == short.new_tokens.tolist()
    assert (whole.flops > whole.short_flops).tolist() == (~whole.took_short).tolist()
    by_hand = np.mean(whole.took_short == short.correct)
    assert whole.routing().routing_accuracy == pytest.approx(by_hand)


def test_outcomes_do_not_depend_on_batches_or_order(model, items):
    found, _ = judge_labelled(model, items, 12)
    for batch_size, order in ((1, range(12)), (5, reversed(range(12)))):
        order = list(order)
        again, _ = judge_labelled(model, [items[index] for index in order], batch_size)
        for field in fields(Outcomes):
            ours, theirs = getattr(found, field.name)[order], getattr(again, field.name)
            assert theirs == pytest.approx(ours, nan_ok=True), field.name
    parts = [judge_labelled(model, items[:7], 4)[0], judge_labelled(model, items[7:], 4)[0]]
    assert Outcomes.concat(parts).correct.tolist() == found.correct.tolist()
    assert len(Outcomes.concat(parts)) == 12


def test_truths_never_reach_the_prompt_and_are_verdicts_of_the_space(model):
    changed = [SimpleNamespace(**{**vars(example), "verdict": 7, "chain": "never shown"}) for example in EXAMPLES]
    ours, theirs = (list(label(model.processor, stream)) for stream in (EXAMPLES, changed))
    assert [item.item for item in ours] == [item.item for item in theirs]
    assert {item.truth for item in theirs} == {7}
    with pytest.raises(InputError, match="one of 0, 1"):
        list(label(model.processor, [SimpleNamespace(**{**vars(EXAMPLES[0]), "verdict": 11})]))
    with pytest.raises(ConfigError, match="listed"):
        list(label(EGRMProcessor(tiny_tokenizer(), space=VerdictSpace.free()), EXAMPLES))


def test_streams_of_different_seeds_have_different_random_numbers(model):
    first, second = (list(label(model.processor, EXAMPLES, seed)) for seed in (1, 2))
    assert not {item.item.item_id for item in first} & {item.item.item_id for item in second}
    assert [item.item.prompts for item in first] == [item.item.prompts for item in second]


# -- tables -------------------------------------------------------------------------------------------------------------


def bench_of(paper_tables, model, items, **settings):
    settings = {
        "batch_size": 4,
        "resamples": 10,
        "rounds": 1,
        "text_items": 5,
        "prompt_lengths": (300, 600),
        **settings,
    }
    return paper_tables.Bench(model, items, **settings)


def test_ablations_are_measured_against_the_baseline(paper_tables, model, items):
    table, runs = paper_tables.ablations(bench_of(paper_tables, model, items, batch_size=1))
    rows, full = {row["method"]: row for row in table["rows"]}, runs["full E-GRM"]
    base, _ = judge_labelled(model, items, 1, path="long", selection="vote")
    whole, _ = judge_labelled(model, items, 1)
    assert full.outcomes.correct.tolist() == whole.correct.tolist()
    assert rows["full E-GRM"]["accuracy"]["value"] == pytest.approx(whole.correct.mean())
    assert rows["full E-GRM"]["gain"]["value"] == pytest.approx(whole.correct.mean() - base.correct.mean())
    assert rows["full E-GRM"]["flops_ratio"]["value"] == pytest.approx(whole.flops.mean() / base.flops.mean())
    assert rows["baseline GRM"]["flops_ratio"] == {"value": 1, "low": 1, "high": 1}
    assert rows["baseline GRM"]["seconds_ratio"] == {"value": 1, "low": None, "high": None}  # two chunks
    assert rows["no trigger"]["flops_ratio"]["value"] > 1  # the same chains, and a scorer
    assert rows["short path only"]["flops_ratio"]["value"] < 1
    assert rows["short path only"]["short_share"]["value"] == 1
    exact, _ = judge_labelled(model, items, 1, consensus="exact")
    assert rows["exact consensus"]["accuracy"]["value"] == pytest.approx(exact.correct.mean())
    assert rows["exact consensus"]["short_share"]["value"] == pytest.approx(exact.took_short.mean())
    assert len(full.seconds) == 2  # chunks of eight batches
    cost = {row["name"]: row for row in table["cost"]["rows"]}
    assert len(cost) == 5
    for name in ("short path / baseline, FLOPs", "short / long path of items that think, FLOPs"):
        assert cost[name]["predicted"] == pytest.approx(cost[name]["measured"]["value"], rel=0.05), name
    assert table["cost"]["workload"]["chain_tokens"] == pytest.approx(base.new_tokens.mean() / 3)
    assert table["cost"]["speed"]["pass_s"] >= 0


def test_one_run_gives_every_threshold(paper_tables, model, items):
    table = paper_tables.thresholds(bench_of(paper_tables, model, items))
    *rows, base = table["rows"]
    assert [row["threshold"] for row in rows] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    baseline, _ = judge_labelled(model, items, 4, path="long", selection="vote")
    for row in rows:
        own, _ = judge_labelled(model, items, 4, consensus_threshold=row["threshold"], early_stop=False)
        assert row["accuracy"]["value"] == pytest.approx(own.correct.mean())
        assert row["short_share"]["value"] == pytest.approx(own.took_short.mean())
        assert row["short_precision"]["value"] == own.routing().short_precision
        assert row["flops_ratio"]["value"] == pytest.approx(own.flops.mean() / baseline.flops.mean())
    assert base["accuracy"]["value"] == pytest.approx(baseline.correct.mean())
    front = [row for row in table["rows"] if row["on_front"]]
    costs = [(row["flops_ratio"]["value"], row["accuracy"]["value"]) for row in table["rows"]]
    assert min(costs)[0] in [row["flops_ratio"]["value"] for row in front]
    assert max(accuracy for _, accuracy in costs) in [row["accuracy"]["value"] for row in front]


def test_probe_counts_route_as_one_call_with_that_ladder_does(paper_tables, model, items):
    bench = bench_of(paper_tables, model, items)
    assert bench.ladder(3) == pytest.approx((0.6, 0.8, 1.0))
    assert bench.ladder(1) == pytest.approx((0.8,))
    assert bench.ladder(5) == pytest.approx(list(model.config.judge_options().temperatures))
    rows = {row["num_probes"]: row for row in paper_tables.probe_counts(bench)["rows"]}
    assert list(rows) == [1, 3, 5, 7, 10]
    assert rows[1]["short_share"]["value"] == 1
    own, _ = judge_labelled(model, items, 4, temperatures=bench.ladder(7))
    assert rows[7]["routing_accuracy"]["value"] == pytest.approx(own.routing().routing_accuracy)
    assert rows[10]["flops"]["value"] > 0


def test_self_bleu_is_compared_with_the_consensus_of_the_same_items(paper_tables, model, items):
    bench = bench_of(paper_tables, model, items)
    table, probed = paper_tables.spreads(bench)
    assert probed.consensus == pytest.approx(
        judge_labelled(model, items, 4, path="short", early_stop=False)[0].consensus
    )
    ladder, fixed, nucleus = table["rows"]
    assert ladder["auroc"]["value"] == metrics.auroc(probed.consensus, probed.short_correct)
    assert ladder["auroc_gain"]["value"] == 0
    assert fixed["variant"] != nucleus["variant"]
    found = paper_tables.repetition(bench, probed)
    assert len(found["points"]) == 5
    assert [x for x, _ in found["points"]] == pytest.approx(probed.consensus[:5])
    assert all(0 <= y <= 1 for _, y in found["points"])
    again = paper_tables.repetition(bench_of(paper_tables, model, items, batch_size=2), probed)
    assert again["points"] == found["points"]  # chains belong to the item


def test_the_short_path_is_reported_by_group(paper_tables, model, items):
    full, _ = judge_labelled(model, items, 4)
    base, _ = judge_labelled(model, items, 4, path="long", selection="vote")
    bench = bench_of(paper_tables, model, items, chunk_batches=2)
    assert [len(chunk) for chunk in bench.chunks] == [8, 4]
    table = paper_tables.short_path(bench, full, base, [1] * 6 + [2] * 6)
    rows = {row["group"]: row for row in table["rows"]}
    assert set(rows) == {"all", "seed 1", "seed 2", "domain sums", "domain other"}
    assert rows["all"]["short_share"]["value"] == pytest.approx(full.took_short.mean())
    assert rows["seed 2"]["items"] == 6
    assert rows["seed 2"]["accuracy"]["value"] == pytest.approx(full.correct[6:].mean())
    difference = full.correct[6:].mean() - base.correct[6:].mean()
    assert rows["seed 2"]["gain"]["value"] == pytest.approx(difference)
    assert rows["all"]["short_precision"]["value"] == full.routing().short_precision
    assert rows["all"]["short_precision_wilson"]["value"] == full.routing().short_precision


def test_long_prompts_are_run_at_their_length(paper_tables, model, items):
    table = paper_tables.prompt_lengths(bench_of(paper_tables, model, items, prompt_lengths=(300, 600, 1100)))
    assert [row["prompt_tokens"] for row in table["rows"]] == [300, 600, 1100]
    assert [row["beyond_positions"] for row in table["rows"]] == [False, False, True]
    ratios = [row["flops_ratio"] for row in table["rows"]]
    assert all(1 <= ratio < 1.1 for ratio in ratios)


def test_all_tables_from_the_command_line(paper_tables, model, tmp_path, capsys):
    model.save_pretrained(tmp_path / "judge")
    records = tmp_path / "records.jsonl"
    records.write_text("".join(json.dumps(vars(example)) + "\n" for example in EXAMPLES), encoding="utf-8")
    folder = tmp_path / "out"
    paper_tables.main(
        [str(tmp_path / "judge"), str(tmp_path / "judge"), "--records", str(records), "--limit", "6", "--batch-size", "4",
         "--rounds", "1", "--resamples", "5", "--text-items", "4", "--prompt-lengths", "300", "--output", str(folder)]
    )  # fmt: skip
    first, second = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert list(first["tables"]) == list("abcdefgh")
    assert list(second["tables"]) == ["a"]
    assert first["num_items"] == 6
    assert first["num_questions"] == 3
    assert len(first["circumstances"]["weights_sha256"]) == 64
    assert str(tmp_path) not in (folder / "results.json").read_text(encoding="utf-8")
    estimates = [
        cell
        for table in first["tables"].values()
        for row in table["rows"]
        for cell in row.values()
        if isinstance(cell, dict) and cell["low"] is not None
    ]
    assert len(estimates) > 60
    assert all(cell["low"] <= cell["high"] and math.isfinite(cell["value"]) for cell in estimates)
    page = (folder / "tables.md").read_text(encoding="utf-8")
    assert page in capsys.readouterr().out
    for letter in "abcdefgh":
        assert f"## ({letter}) " in page
        assert (folder / f"table_{letter}.png").stat().st_size > 5000
    report = importlib.import_module("paper_report")
    assert report.to_markdown(json.loads((folder / "results.json").read_text(encoding="utf-8"))) == page


def test_items_are_drawn_from_the_synthetic_world(paper_tables, model):
    from transformers_egrm.data.synthetic import examples

    streams = paper_tables.draw(model, None, "test", [3, 4], 5)
    assert list(streams) == [3, 4]
    for seed, stream in streams.items():
        drawn = list(islice(examples("test", seed), 5))
        assert [item.question_id for item in stream] == [example.question_id for example in drawn]
        assert [item.truth for item in stream] == [example.verdict for example in drawn]
        assert [item.domain for item in stream] == [example.domain for example in drawn]
    found, _ = judge_labelled(model, streams[3], 5)
    assert len(found) == 5


def test_a_table_shows_what_does_not_exist_as_a_dash(paper_tables):
    report = importlib.import_module("paper_report")
    table = {
        "title": "T",
        "note": "N",
        "columns": [paper_tables.column("x", "x"), paper_tables.column("y", "y", "ms"), paper_tables.column("z", "z", "number")],
        "rows": [{"x": {"value": None, "low": None, "high": None}, "y": {"value": 0.5, "low": 0.25, "high": 0.75}, "z": None}],
    }  # fmt: skip
    assert "| - | 500.00 (250.00 to 750.00) | - |" in report._table(table)
    assert "| x % | y | z |" in report._table(table)


def test_nothing_is_timed_with_a_hook_in_place(paper_tables, model, items, monkeypatch):
    bench = bench_of(paper_tables, model, items[:4], rounds=3)
    hooks = []
    measuring = importlib.import_module("paper_bench")
    real = measuring.judge_labelled

    def spy(*args, **options):
        hooks.append(len(model.backbone.body._forward_pre_hooks))
        return real(*args, **options)

    monkeypatch.setattr(measuring, "judge_labelled", spy)
    before = len(model.backbone.body._forward_pre_hooks)
    bench.compare({"full": {}})
    assert set(hooks) == {before}
    speed, lengths = paper_tables.measure_speed(bench, bench.options)
    assert hooks.count(before) > hooks.count(before + 1) > 0  # counted once, timed three times
    always, _ = real(model, items[:4], 4, path="long", selection="vote")
    assert always.new_tokens.mean() / 3 <= lengths["longest_chain_tokens"] <= always.new_tokens.max()
    width = max(len(item.item.prompts[0]) for item in items[:4])
    assert lengths["padding_tokens"] == pytest.approx(
        width - np.mean([len(item.item.prompts[0]) for item in items[:4]])
    )
    assert speed.largest_error >= 0
