"""Batches of unequal length: how much of what is run is padding, by hand and as it is run."""

import json
import random

import pytest
from cli_tools import egrm, write_jsonl
from engine_fixtures import counted_tokens
from test_judge import ScriptedModel, rewards_by_hand
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, RewardJudge
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_packing_egrm import (
    PADDED_SHARE,
    PASS_TOKENS,
    PromptLoad,
    count_fitting,
    count_within,
    load_of,
)
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler


def prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple(range(start, start + length))


def ragged(count: int, seed: int = 0) -> list[dict]:
    """Records of different questions, the longest some twenty times the shortest, in no order."""
    numbers = random.Random(seed)
    return [
        {"id": n, "prompt": f"{'abcdefghij'[n % 10] * 12} {n}?", "response": "5 " * numbers.randint(1, 400)}
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return EGRMRewardModel.from_components(
        tiny_generator(max_position_embeddings=4096), tokenizer=tiny_tokenizer(), probe_vocabulary="verdict",
        max_chain_tokens=4, num_chains=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompts", "groups", "padded", "run"),
    [
        ([[prompt(10)], [prompt(6)]], [0, 1], 4, 20 + 2 * 3),  # a suffix of three tokens after each
        ([[prompt(10)]], [0], 0, 13),
        # Eight tokens are common and run once; after them 2 + 3 and 4 + 3 of their own.
        ([[prompt(10)], [prompt(8) + prompt(4, 90)]], [0, 0], 2, 8 + 2 * 7),
        # Both orders of a pair share five tokens; the stranger is run apart.
        ([[(*prompt(5), 1), (*prompt(5), 2)], [prompt(40, 50)]], [0, 1], 0, 5 + 2 * 4 + 43),
    ],
)
def test_what_a_batch_runs_by_hand(prompts, groups, padded, run):
    assert load_of(prompts, groups, 3) == PromptLoad(padded, run)


def test_a_record_joins_while_a_tenth_of_what_is_run_is_padding():
    # 100 and 89: 11 of 200 are padding. 100, 89, 85: 26 of 300. 100, 89, 85, 84: 42 of 400, more than a tenth.
    lengths = (100, 89, 85, 84)
    assert count_fitting([[prompt(length, length)] for length in lengths], range(4)) == 3


def test_an_answer_joins_its_question_though_it_is_much_longer():
    # 200 tokens are common. Beside tails of 10, a tail of 60 runs 50 of padding for each: less than 200 once more.
    answers = [[prompt(200) + prompt(length, 1000 * length)] for length in (10, 11, 60)]
    assert count_fitting(answers, [0, 0, 0]) == 3
    assert load_of(answers, [0, 0, 0]).padded_tokens == 50 + 49
    assert count_fitting(answers, [0, 1, 2]) == 2


def test_on_a_processor_a_pass_ends_after_a_thousand_tokens_but_not_within_a_question():
    strangers = [[prompt(100, 1000 * n)] for n in range(16)]
    assert count_fitting(strangers, range(16), device="cpu") == PASS_TOKENS["cpu"] // 100 == 10
    assert count_fitting(strangers, range(16), device="cuda") == 16
    # Sixteen answers of one question: its 90 tokens are run once, so each of them costs less here than in a pass of its own.
    answers = [[prompt(90) + prompt(80, 1000 * n)] for n in range(1, 17)]
    assert load_of(answers, [0] * 16).run_tokens == 90 + 16 * 80 > PASS_TOKENS["cpu"]
    assert count_fitting(answers, [0] * 16, device="cpu") == 16
    assert count_fitting([[prompt(5000)]], [0], device="cpu") == 1  # one that is longer is run alone


def test_a_limit_in_tokens_bounds_prompts_times_the_longest():
    same = [[prompt(50, start)] for start in (0, 100, 200, 300)]
    assert count_fitting(same, range(4), most_tokens=199) == 3
    assert count_fitting(same, range(4), most_tokens=200) == 4
    assert count_fitting(same, range(4), most_tokens=10) == 1  # one that is longer is run alone
    assert (count_within([40, 50, 60], 120), count_within([40, 50, 60], None), count_within([99], 1)) == (2, 3, 1)


@pytest.mark.parametrize("batch_size", [4, 16, 32])
def test_padding_is_at_most_a_tenth_of_what_is_run_and_order_stays(batch_size):
    model, records = ScriptedModel(), ragged(96)
    judge = RewardJudge(model, batch_size=batch_size, reorder_window=96)
    results = judge(records)
    assert [result.reward for result in results] == rewards_by_hand(range(96))
    for inputs in model.inputs:
        assert len(inputs.item_ids) <= batch_size
        run = inputs.attention_mask.numel() + len(inputs.item_ids) * len(inputs.task.short_suffix_ids)
        assert int((inputs.attention_mask == 0).sum()) <= PADDED_SHARE * run
    assert judge.load.padded_share is not None
    assert 0 < judge.load.padded_share <= PADDED_SHARE
    assert len(model.probed) < 96  # records of similar length are still run together


def test_no_batch_that_probes_or_thinks_exceeds_the_limit_in_tokens():
    model, records = ScriptedModel(), ragged(48)
    lengths = {r["id"]: len(model.processor.encode(r).prompts[0]) for r in records}
    limit = 1000
    RewardJudge(model, batch_size=16, reorder_window=48, batch_tokens=limit)(records)
    batches = [*model.probed, *model.deliberated]
    assert max(map(len, batches)) > 1
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[item] for item in batch) <= limit
    assert sorted(item for batch in model.deliberated for item in batch) == list(range(0, 48, 3))


def test_a_limit_that_is_no_count_is_refused():
    for wrong in (0, -1, 1.5, True, "512"):
        with pytest.raises(ConfigError, match="batch_tokens"):
            RewardJudge(ScriptedModel(), batch_tokens=wrong)
        with pytest.raises(ConfigError, match="batch_tokens"):
            Scheduler(ScriptedModel(), batch_tokens=wrong)


def test_the_counted_load_is_what_the_generator_runs(model):
    records = [
        *ragged(12),
        *({"id": 50 + n, "prompt": "One question? " * 60, "response": "5 " * (n + 1)} for n in range(4)),
    ]
    judge = RewardJudge(model, batch_size=8, path="short")
    with counted_tokens(model.backbone) as shapes:
        results = judge(records)
    # A step after the prompts runs one token of each row.
    assert sum(rows * tokens for rows, tokens in shapes if tokens > 1) == judge.load.run_tokens
    alone = RewardJudge(model, batch_size=1, path="short")
    assert [result.reward for result in alone(records)] == [result.reward for result in results]
    assert alone.load.padded_tokens == 0


def test_the_summary_tells_the_padded_share(model, tmp_path, capsys):
    model.save_pretrained(tmp_path / "judge")
    source, summary = write_jsonl(tmp_path / "in.jsonl", ragged(12)), tmp_path / "summary.json"
    asked = ("-o", tmp_path / "out.jsonl", "--path", "short", "--summary", summary)
    assert egrm("score", tmp_path / "judge", source, *asked, "--batch-tokens", 2000) == 0
    share, said = json.loads(summary.read_text("utf-8"))["padded_share"], capsys.readouterr().err.replace("│", " ")
    assert 0 <= share <= PADDED_SHARE
    assert f"padding {100 * share:.1f} % of the prompt tokens run" in " ".join(said.split())
