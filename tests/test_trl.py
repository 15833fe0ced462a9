"""The judge as TRL's reward: the same numbers by every door, whole groups, None where there is no verdict, no stopped run."""

import asyncio
import inspect
import logging
import multiprocessing
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from accelerate import PartialState
from datasets import Dataset
from engine_fixtures import counted_tokens
from tiny import tiny_generator, tiny_tokenizer
from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, _AsyncRolloutLoop
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import get_callable_name, is_async_callable

from transformers_egrm import EGRMRewardModel, RewardJudge, VerdictSpace, load_mini
from transformers_egrm.bundle import MINI_FOLDER
from transformers_egrm.calibration.audit import Audit
from transformers_egrm.data.synthetic import groups
from transformers_egrm.integrations.groups import advantages, worth_thinking
from transformers_egrm.integrations.trl import AsyncEGRMReward, EGRMReward
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.prompt_groups_egrm import common_prefix
from transformers_egrm.training.trainer import no_recomputation


# TRL asks Transformers by a name that it renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

QUICK = {"probe_vocabulary": "verdict", "max_chain_tokens": 4, "num_chains": 1}
QUESTION = "What is 2 + 3? " + "Rate the response from 0 to 10. " * 60
ANSWERS = [f"The answer is {number}. 2 + 3 = {number}." for number in range(8)]


def tiny_model(**settings: Any) -> EGRMRewardModel:
    generator = tiny_generator(max_position_embeddings=4096)
    return EGRMRewardModel.from_components(generator, tokenizer=tiny_tokenizer(), **QUICK | settings)


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return tiny_model()


@pytest.fixture(scope="module")
def mini() -> EGRMRewardModel:
    return load_mini()


def batch(questions: int, size: int = 2) -> tuple[list[str], list[str]]:
    """Easy questions of the world with a better and a worse answer each and then others, groups interleaved."""
    drawn = list(islice(groups("test", size=size, mix={1: 1.0}), questions))
    members = [group[place] for place in range(size) for group in drawn]
    return [member.prompt for member in members], [member.response for member in members]


def as_messages(prompts: list[str], completions: list[str]) -> tuple[list, list]:
    return (
        [[{"role": "user", "content": prompt}] for prompt in prompts],
        [[{"role": "assistant", "content": completion}] for completion in completions],
    )


def alone(model: EGRMRewardModel, prompts: list, completions: list) -> list[float]:
    """The definition: one record after the other, through `judge` itself."""
    pairs = zip(prompts, completions, strict=True)
    return [float(model.judge(model.processor({"prompt": p, "response": c})).rewards) for p, c in pairs]


# -- one number by every door --------------------------------------------------------------------------------------------


def make_trainer(folder: Path, rewards: Any, prompts: list, **settings: Any) -> GRPOTrainer:
    policy = tiny_generator()
    arguments = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 4, "max_steps": 1}
    config = GRPOConfig(
        output_dir=str(folder), trust_remote_code=True, report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
        dataloader_pin_memory=False, save_strategy="no", **no_recomputation(), **arguments | settings,
    )  # fmt: skip
    return GRPOTrainer(
        policy, reward_funcs=rewards, args=config, train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]),
        processing_class=tiny_tokenizer(),
    )  # fmt: skip


def test_function_path_and_module_give_what_judge_gives(mini, tmp_path):
    prompts, completions = batch(2)
    expected = alone(mini, prompts, completions)
    assert len(set(expected)) > 1, "rewards that are all alike prove nothing"
    for prompts_given, completions_given in ((prompts, completions), as_messages(prompts, completions)):
        reward = EGRMReward(mini)
        assert reward(prompts=prompts_given, completions=completions_given, completion_ids=[[1]] * 4) == expected
    assert EGRMReward("egrm-mini")(prompts, completions) == expected
    assert asyncio.run(AsyncEGRMReward(mini)(prompts, completions)) == expected

    talks = as_messages(prompts, completions)
    rewards = [EGRMReward(mini), AsyncEGRMReward(mini), str(MINI_FOLDER), load_mini()]
    trainer = make_trainer(tmp_path, rewards, talks[0])
    told = trainer._calculate_rewards([{"prompt": prompt} for prompt in talks[0]], *talks, [[1]] * 4)
    assert told.T.tolist() == [expected] * 4
    assert trainer.reward_func_names == ["EGRMReward", "AsyncEGRMReward", "egrm-mini", "egrm-mini"]


def test_trl_sees_what_kind_of_function_it_is(model):
    assert not is_async_callable(EGRMReward(model))
    assert is_async_callable(AsyncEGRMReward(model))
    assert inspect.iscoroutinefunction(AsyncEGRMReward(model).__call__)
    assert get_callable_name(EGRMReward(model, name="correctness")) == "correctness"


def test_a_real_step_has_the_judges_columns_and_metrics(model, tmp_path, caplog):
    reward = EGRMReward(model, path="short")
    talks, _ = as_messages(["What is 2 + 3?", "Is it so?"], ["", ""])
    trainer = make_trainer(tmp_path, reward, talks, logging_steps=1)
    with caplog.at_level(logging.ERROR):
        trainer.train()
    (row,) = [row for row in trainer.state.log_history if "reward" in row]
    assert {"egrm/short_share", "egrm/consensus", "egrm/tokens", "egrm/none_share"} <= row.keys()
    columns = trainer._logs["extra"]
    assert set(columns) == {
        f"egrm_{name}" for name in ("route", "consensus", "stage", "status", "tokens", "error", "audit_verdict")
    }
    assert {len(values) for values in columns.values()} == {4}
    assert set(columns["egrm_stage"]) <= {"probes", None}


# -- groups --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["in a row", "spread over the batch"])
def test_a_group_of_eight_runs_its_question_once(model, order):
    strangers = [f"{n} is odd? {'yes or no? ' * 150}" for n in range(8)]
    prompts, completions = [QUESTION] * 8 + strangers, ANSWERS + ["5"] * 8
    if order == "spread over the batch":
        rows = [row for pair in zip(range(8), range(8, 16), strict=True) for row in pair]
        prompts, completions = [prompts[row] for row in rows], [completions[row] for row in rows]
    reward = EGRMReward(model, path="short", batch_size=8)

    def prefilled(prompts: list[str], completions: list[str]) -> tuple[int, list]:
        with counted_tokens(model.backbone) as shapes:
            told = reward(prompts, completions)
        return sum(rows * tokens for rows, tokens in shapes if tokens > 1), told

    records = [model.processor.encode({"prompt": QUESTION, "response": answer}).prompts[0] for answer in ANSWERS]
    shared, suffix = common_prefix(records), len(model.task.short_suffix_ids)
    ideal = shared + len(records) * (max(map(len, records)) - shared + suffix)
    others, _ = prefilled(strangers, ["5"] * 8)
    tokens, told = prefilled(prompts, completions)
    assert tokens <= 1.05 * ideal + others
    group, _ = prefilled([QUESTION] * 8, ANSWERS)
    assert group <= 1.05 * ideal
    by_row = {pair: value for *pair, value in zip(prompts, completions, told, strict=True) for pair in [tuple(pair)]}
    assert [by_row[QUESTION, answer] for answer in ANSWERS] == reward([QUESTION] * 8, ANSWERS)


def test_equal_completions_are_judged_once_and_others_are_not(model):
    reward = EGRMReward(model, rubric=None, columns={"rubric": "how"}, path="short")
    with counted_tokens(model.backbone) as once:
        reward(["Is it so?"] * 2, ["yes", "no"], how=["a", "a"])
    with counted_tokens(model.backbone) as thrice:
        results = reward.judge(["Is it so?"] * 6, ["yes", "no"] * 3, how=["a"] * 6)
    assert sum(r * t for r, t in once) == sum(r * t for r, t in thrice)
    assert results[0] is results[2]
    other = reward.judge(["Is it so?"] * 2, ["yes", "yes"], how=["a", "b"])
    assert other[0] is not other[1]


def test_advantages_by_hand_and_as_trl_has_them():
    assert advantages([1.0, 3.0]) == pytest.approx([-1 / (2**0.5 + 1e-4), 1 / (2**0.5 + 1e-4)])
    assert advantages([1.0, None, 3.0], by_spread=False) == [-1.0, 0.0, 1.0]
    assert advantages([None, None]) == [0.0, 0.0]
    assert advantages([4.0, 4.0, 4.0]) == [0.0, 0.0, 0.0]


def test_who_is_worth_thinking_by_hand():
    # Two known members ten points apart, and one that is 4 or 6: its advantage moves by about (2/3) 1 / 5.
    means, variances = [0.0, 10.0, 5.0], [0.0, 0.0, 1.0]
    moves = (2 / 3) / (((25 + 25) + 2 / 3) / 2) ** 0.5
    assert worth_thinking(means, variances, moves - 0.01) == [False, False, True]
    assert worth_thinking(means, variances, moves + 0.01) == [False, False, False]
    # Where all others are alike the same doubt is all there is.
    assert worth_thinking([5.0, 5.0, 5.0], variances, 0.5) == [False, False, True]
    assert worth_thinking([5.0], [4.0], 0.0) == [False], "alone, its advantage is 0"
    with pytest.raises(ConfigError, match="`bound` must be"):
        worth_thinking(means, variances, -1.0)


def test_a_group_thinks_only_where_an_advantage_could_change(model):
    prompts, completions = (
        ["Is it so?"] * 4 + ["What is 2 + 3?"] * 4,
        [f"{number} " * number for number in range(1, 9)],
    )
    options = {"consensus_threshold": 0.999, "consensus": "exact", "num_chains": 2}
    plain = EGRMReward(model, reward="expected", **options)
    thought = plain.judge(prompts, completions)
    assert {result.route for result in thought} == {"long"}
    assert EGRMReward(model, least_change=0.0, **options).judge(prompts, completions) == thought
    never = EGRMReward(model, least_change=1e6, **options).judge(prompts, completions)
    assert {result.route for result in never} == {"short"}
    short = EGRMReward(model, reward="expected", path="short", **options).judge(prompts, completions)
    assert [(r.reward, r.verdict) for r in never] == [(r.reward_mean, r.verdict) for r in short]
    spreads = [
        worth_thinking([r.reward_mean for r in part], [r.reward_variance for r in part], 0.0)
        for part in (short[:4], short[4:])
    ]
    assert all(map(all, spreads))
    bound = 0.9
    flags = [
        flag
        for part in (short[:4], short[4:])
        for flag in worth_thinking([r.reward_mean for r in part], [r.reward_variance for r in part], bound)
    ]
    some = EGRMReward(model, least_change=bound, **options).judge(prompts, completions)
    assert [result.route == "long" for result in some] == flags
    assert [r.reward for r in some] == [
        (a if flag else b).reward for flag, a, b in zip(flags, thought, never, strict=True)
    ]


# -- what a trainer gets -------------------------------------------------------------------------------------------------


def test_scale_clip_and_bounds(mini):
    prompts, completions = batch(1)
    plain = EGRMReward(mini)
    rewards = plain(prompts, completions)
    assert plain.bounds == (0.0, 10.0)
    tenth = EGRMReward(mini, scale=-0.1)
    assert tenth.bounds == (-1.0, 0.0)
    assert tenth(prompts, completions) == pytest.approx([-0.1 * value for value in rewards])
    clipped = EGRMReward(mini, scale=2.0, clip=(3.0, 12.0))
    assert clipped.bounds == (3.0, 12.0)
    assert clipped(prompts, completions) == [min(max(2.0 * value, 3.0), 12.0) for value in rewards]


def halved_if_sure(result: JudgeResult) -> float | None:
    return result.reward / 2 if result.reward is not None and result.consensus == 1.0 else None


def test_value_decides_and_may_abstain(model, caplog):
    (result,) = EGRMReward(model, path="short").judge(["Is it so?"], ["yes"])
    results = [replace(result, reward=8.0, consensus=share) for share in (1.0, 0.4)]
    reward = EGRMReward(model, value=halved_if_sure, scale=0.1)
    assert reward.rewards(results) == [pytest.approx(0.4), None]
    assert "1 of 2 completions have no reward: 1 x abstained" in caplog.text
    assert reward.bounds is None
    assert EGRMReward(model, value=lambda result: 1 / 0).rewards(results) == [None, None]
    assert "ZeroDivisionError" in caplog.text
    assert EGRMReward(model, value=lambda result: float("inf")).rewards(results) == [None, None]


def test_no_verdict_is_none_with_a_reason_and_never_a_number(caplog):
    model = tiny_model(probe_vocabulary="full")  # random words state no verdict
    extra: dict[str, list] = {}
    rewards = EGRMReward(model)(["Is it so?"] * 2, ["yes", "no"], log_extra=extra.__setitem__)
    assert rewards == [None, None]
    assert extra["egrm_status"] == ["no_verdict"] * 2
    assert "2 of 2 completions have no reward: 2 x no_verdict: Neither a probe nor a chain" in caplog.text


def test_an_empty_completion_has_no_reward_unless_it_is_given_one(model, caplog):
    empty = ["", "  ", [{"role": "assistant", "content": ""}]]
    assert EGRMReward(model)(["Is it so?"] * 3, empty) == [None] * 3
    assert "must not be empty" in caplog.text
    metrics: dict[str, float] = {}
    reward = EGRMReward(model, empty_reward=-1.0, scale=0.1, path="short")
    told = reward(["Is it so?"] * 4, [*empty, "yes"], log_metric=metrics.__setitem__)
    assert told[:3] == [-1.0] * 3
    assert 0.0 <= told[3] <= 1.0
    assert metrics["egrm/none_share"] == 0.0


@pytest.mark.parametrize("always", [True, False], ids=["the judge fails again", "the second try succeeds"])
def test_a_crash_in_one_batch_costs_its_rows_and_never_the_run(model, monkeypatch, caplog, always):
    reward = EGRMReward(model, path="short", batch_size=4)
    prompts, completions = ["Is it so?"] * 4 + ["What is 2 + 3?"] * 4, [str(n) for n in range(8)]
    expected, probe, failed = reward(prompts, completions), model.probe, []
    assert None not in expected

    def crash(inputs, **options):
        if "2 + 3" in model.decode_tokens(inputs.input_ids.tolist())[-1] and (always or inputs.num_items > 1):
            failed.append(inputs.num_items)
            raise RuntimeError("out of memory")
        return probe(inputs, **options)

    monkeypatch.setattr(model, "probe", crash)
    told = reward(prompts, completions)
    assert failed
    assert told[:4] == expected[:4]
    if always:
        assert told[4:] == [None] * 4
        assert "4 of 8 completions have no reward: 4 x error: RuntimeError: out of memory" in caplog.text
    else:
        assert told[4:] == expected[4:]
        assert "no reward" not in caplog.text


def test_a_run_goes_on_when_the_judge_crashes(model, tmp_path, monkeypatch):
    def crash(inputs, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "probe", crash)
    talks, _ = as_messages(["What is 2 + 3?"], [""])
    trainer = make_trainer(tmp_path, EGRMReward(model), talks, logging_steps=1, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
    assert [row["egrm/none_share"] for row in trainer.state.log_history if "reward" in row] == [1.0, 1.0]
    assert set(trainer._logs["advantages"]) == {0.0}


@pytest.mark.filterwarnings("ignore::transformers_egrm.modeling.errors_egrm.UnfamiliarTextWarning")
def test_tool_turns_and_thoughts_of_a_completion_are_judged_with_it(mini):
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}]
    completion = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "name": "add", "content": "5"},
        {"role": "assistant", "content": "It is 5."},
    ]
    prompt = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 2 + 3?"}]
    (result,) = EGRMReward(mini, empty_reward=0.0).judge([prompt], [completion])
    (expected,) = RewardJudge(mini)([{"messages": [*prompt, *completion]}])
    assert (result.status, result.reward) == (expected.status, expected.reward)


def test_an_alarm_of_the_audit_is_logged_and_stops_nothing(model, caplog):
    (result,) = EGRMReward(model, path="short").judge(["Is it so?"], ["yes"])
    agrees = replace(result, reward=8.0, verdict="8", consensus=1.0, audited=True, audit_verdict="8")
    metrics: dict[str, float] = {}
    reward = EGRMReward(model, audit=Audit(1, 100, threshold=0.8))
    assert reward.rewards([replace(agrees) for _ in range(4)], log_metric=metrics.__setitem__) == [8.0] * 4
    assert (metrics["egrm/audit_disagreement"], metrics["egrm/audit_alarm"]) == (0.0, 0.0)
    told = [replace(agrees, audit_verdict="0") for _ in range(20)]
    extra: dict[str, list] = {}
    assert reward.rewards([*told, None], log_metric=metrics.__setitem__, log_extra=extra.__setitem__) == [8.0] * 20 + [
        None
    ]
    assert (metrics["egrm/audit_disagreement"], metrics["egrm/audit_alarm"]) == (1.0, 1.0)
    assert metrics["egrm/audit_wealth"] >= 20
    assert extra["egrm_audit_verdict"] == ["0"] * 20 + [None]
    assert caplog.text.count("Short and long verdicts disagree more often") == 1


# -- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scale": 0}, "`scale` must be a number other than 0"),
        ({"clip": (1.0, 0.0)}, "`clip` must be two numbers"),
        ({"columns": {"answer": "reference"}}, "`columns` must be a mapping from"),
        ({"value": 3}, "`value` must be a function"),
        ({"least_change": -1.0}, "`least_change` must be"),
        ({"least_change": 0.1, "abstain_below": 0.5}, "`abstain_below` must be None together with `least_change`"),
        ({"empty_reward": float("nan")}, "`empty_reward` must be a number"),
        ({"num_chain": 3}, "Unknown judging option"),
        ({"consensus_threshold": 3}, "`consensus_threshold` must be"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_loaded(settings, said):
    with pytest.raises(ConfigError, match=said):
        EGRMReward("no such folder", **settings)


def test_what_cannot_judge_one_response_is_refused(model):
    with pytest.raises(ConfigError, match="`space` must be one of pointwise, binary"):
        EGRMReward(model, space=VerdictSpace.pairwise())
    with pytest.raises(ConfigError, match="Records are judged by an EGRMRewardModel"):
        EGRMReward(lambda record: 1.0)
    with pytest.raises(ConfigError, match="`columns` names how, but the batch has answer"):
        EGRMReward(model, columns={"rubric": "how"})(["Is it so?"], ["yes"], answer=["5"])
    with pytest.raises(ConfigError, match="Each completion needs its prompt"):
        EGRMReward(model)(["Is it so?"], ["yes", "no"])


# -- another process -----------------------------------------------------------------------------------------------------


def score_in_child(loop: Any, group: Any, queue: Any) -> None:
    """What AsyncGRPO's child does with its pickled reward."""
    PartialState()
    queue.put([sample.metrics["reward"] for sample in asyncio.run(_AsyncRolloutLoop._score_group(loop, group))])


@pytest.mark.parametrize("kind", [EGRMReward, AsyncEGRMReward])
def test_a_pickled_reward_holds_no_model(kind, mini):
    reward = kind("egrm-mini", scale=0.1, num_chains=2, device="cpu")
    before = len(pickle.dumps(reward))
    assert reward.model is reward.model
    sent = pickle.dumps(reward)
    assert len(sent) == before < 2000
    assert pickle.loads(sent).bounds == (0.0, 1.0)
    with pytest.raises(ConfigError, match=r"cannot be sent to another process\. Give it the model's folder"):
        pickle.dumps(kind(mini))


def test_two_rewards_in_two_threads_load_one_after_the_other(mini, monkeypatch):
    loading: list[int] = []

    def load(*args, **settings):
        loading.append(1)
        time.sleep(0.05)
        assert loading == [1]
        loading.clear()
        return mini

    monkeypatch.setattr(EGRMRewardModel, "from_pretrained", load)
    with ThreadPoolExecutor() as threads:
        told = list(
            threads.map(lambda reward: reward.model, [EGRMReward("egrm-mini", device="cpu") for _ in range(3)])
        )
    assert all(model is mini for model in told)


@pytest.mark.slow
def test_asyncgrpos_child_judges_with_a_pickled_reward(mini, monkeypatch):
    prompts, completions = as_messages(*batch(1, 3))
    group = RolloutGroup(
        group_id=0, prompts=prompts, completions=completions, completions_ids=[[1]] * 3, reward_kwargs={"answer": ["5"] * 3},
        completions_sequences=[[SimpleNamespace(input_ids=[1], completion_mask=[1], old_log_probs=[0.0])]] * 3,
        tool_call_counts=[0] * 3, tool_failure_counts=[0] * 3, model_version=0, queued_at=0.0, env_rewards=[], rollout_rewards=[],
    )  # fmt: skip
    loop = SimpleNamespace(
        reward_funcs=[EGRMReward("egrm-mini"), AsyncEGRMReward("egrm-mini", scale=0.1)], reward_func_names=["a", "b"],
        _env_reward_types=[], _provides_rollout_reward=False,
    )  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=score_in_child, args=(loop, group, queue))
    child.start()
    child.join(timeout=300)
    assert child.exitcode == 0
    told = queue.get(timeout=5)
    texts = [[turns[0]["content"] for turns in part] for part in (prompts, completions)]
    np.testing.assert_allclose(told, [1.1 * value for value in alone(mini, *texts)], rtol=1e-6)
