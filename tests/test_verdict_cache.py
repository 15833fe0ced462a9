"""Past verdicts: the same as those that are judged, never a stale one, and no forward pass."""

import json
import multiprocessing
import os
import pickle
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_tools import build_checkpoint, egrm, read_jsonl, stating_generator, write_jsonl
from completion_engine import CompletionEngine
from serve_tools import served
from tiny import CHAT_TEMPLATE, tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, RewardJudge, load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.integrations.comparisons import Comparisons
from transformers_egrm.integrations.trl import EGRMReward
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError, UnsupportedModelError
from transformers_egrm.modeling.judge_certificate_egrm import fingerprint, weights_digest
from transformers_egrm.modeling.judge_results_egrm import Entry, JudgeResult
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.policy.cache import LEAST_BYTES, VerdictCache
from transformers_egrm.policy.past import JudgePast
from transformers_egrm.serving import ServeOptions


SPENT = ("stage", "tokens", "draft_rounds", "draft_tokens", "draft_kept", "account")
QUESTION = "What is 2 + 3?"
RECORDS = [{"id": number, "prompt": QUESTION, "response": f"The answer is {number}."} for number in range(4)]
NOWHERE = SimpleNamespace()


def tiny_model(**settings: Any) -> EGRMRewardModel:
    return EGRMRewardModel.from_components(  # its verdicts parse, and both paths are taken
        stating_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(),
        **{"probe_vocabulary": "verdict", "max_chain_tokens": 4, "num_chains": 2, "temperatures": (1.0, 3.0)} | settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def mini() -> EGRMRewardModel:
    return load_mini()


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return tiny_model()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[VerdictCache]:
    store = VerdictCache(tmp_path / "verdicts.db")
    yield store
    store.close()


@contextmanager
def forward_calls(model: EGRMRewardModel) -> Iterator[list[str]]:
    """Names of the modules that ran: generator, scorer."""
    calls: list[str] = []
    parts = {"generator": model.generator, "scorer": model.scorer}
    hooks = [
        part.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
        for name, part in parts.items()
        if part is not None
    ]
    # Stages may run a part of the generator by itself.
    inner = model.generator.get_decoder() if hasattr(model.generator, "get_decoder") else None
    hooks += [] if inner is None else [inner.register_forward_pre_hook(lambda *_: calls.append("decoder"))]
    yield calls
    for hook in hooks:
        hook.remove()


def same_but_for_the_cost(told: JudgeResult, judged: JudgeResult) -> bool:
    names = [field.name for field in fields(JudgeResult) if field.name not in SPENT]
    return [getattr(told, name) for name in names] == [getattr(judged, name) for name in names]


def stages(results: list[JudgeResult]) -> set[str | None]:
    return {result.stage for result in results}


def world(count: int) -> list[dict[str, Any]]:
    drawn = islice(examples("calibration", 0), count)
    return [{"id": f"w{number}", **example.record()} for number, example in enumerate(drawn)]


# -- the same verdict ---------------------------------------------------------------------------------------------------


def test_a_told_verdict_is_the_judged_one_field_by_field_and_costs_no_forward_pass(mini, cache):
    records = world(12)
    judged = RewardJudge(mini)(records)
    assert RewardJudge(mini, cache=cache)(records) == judged  # a cache changes nothing where it knows nothing
    assert {result.stage for result in judged} == {"probes", "chains"}
    with forward_calls(mini) as calls:
        told = RewardJudge(mini, cache=cache)(records)
    assert calls == []
    assert all(map(same_but_for_the_cost, told, judged))
    assert {(result.stage, result.tokens) for result in told} == {("cache", 0)}
    assert (cache.hits, cache.misses, cache.entries) == (12, 12, 12)


@pytest.mark.parametrize(
    ("space", "texts"),
    [
        ({"kind": "pairwise"}, {"response_a": "It is 5.", "response_b": "It is 6."}),
        ({"kind": "binary"}, {"response": "It is 5."}),
        ({"kind": "listwise", "num_candidates": 3}, {"responses": ["5", "6", "7"]}),
        ({"kind": "free"}, {"reference": "5"}),
    ],
)
def test_every_verdict_space_is_told_as_it_was_judged(model, cache, space, texts):
    asked = {
        "space": space,
        "return_rationale": True,
        "probe_vocabulary": "full" if space["kind"] == "free" else "verdict",
    }
    records = [{"id": number, "prompt": f"What is 2 + {number}?", **texts} for number in range(2)]
    judged = RewardJudge(model, **asked)(records)
    told = [RewardJudge(model, cache=cache, **asked)(records) for _ in range(2)][1]
    assert all(map(same_but_for_the_cost, told, judged))
    assert cache.hits == 2


def test_an_account_tells_what_it_had_cost_and_that_nothing_was_spent(mini, cache):
    records = world(8)
    judge = RewardJudge(mini, cache=cache, explain=True)
    judged, told = judge(records), judge(records)
    for own, before in zip(told, judged, strict=True):
        account, earlier = own.account, before.account
        assert account is not None
        assert earlier is not None
        assert (account.stage, account.flops, account.new_tokens, account.prefill_tokens) == ("cache", 0.0, 0, 0)
        spent = {name: getattr(earlier, name) for name in ("stage", "flops", "new_tokens", "prefill_tokens")}
        assert repr(replace(account, **spent)) == repr(earlier)  # as text, for NaN is no number, not even itself
        assert account.probe_flops > 0


def test_id_seed_and_truncation_are_the_records_own(model, cache):
    judge = RewardJudge(model, cache=cache, seed_by="text")
    (first,), (other,) = judge([RECORDS[0]]), judge([RECORDS[0] | {"id": "another"}])
    assert (first.id, other.id, other.stage) == (0, "another", "cache")
    own = model.processor
    cutting = EGRMProcessor(own.tokenizer, own.scorer_tokenizer, truncation="keep_ends", max_prompt_tokens=400)
    cut = RewardJudge(model, cutting, cache=cache)
    shorter, longer = ({"prompt": QUESTION, "response": f"start {'five ' * times}end"} for times in (300, 301))
    judged, told = [*cut([shorter]), *cut([longer])]
    assert (judged.stage == "cache", told.stage) == (False, "cache")  # both were cut to one prompt
    assert (judged.truncated, told.truncated) == (True, True)
    assert judged.truncated_tokens < told.truncated_tokens


# -- never a stale one --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.generator.lm_head.weight[7].mul_(1.5),
        lambda model: (
            model.generator.get_input_embeddings().weight.data[3, 5].add_(1e-3)
        ),  # no sample of a fingerprint
        lambda model: model.scorer.score_head.weight.add_(0.1),
        lambda model: model.config.set_judging(num_chains=3),
        lambda model: setattr(model.generator.config, "rms_norm_eps", 1e-2),
    ],
)
def test_a_changed_judge_is_asked_anew(cache, change):
    first, second = tiny_model(), tiny_model()
    RewardJudge(first, cache=cache)(RECORDS)
    assert stages(RewardJudge(second, cache=cache)(RECORDS)) == {"cache"}  # equal judges share
    with torch.no_grad():
        change(second)
    told = RewardJudge(second, cache=cache)(RECORDS)
    assert "cache" not in stages(told)
    assert told == RewardJudge(second)(RECORDS)
    assert stages(RewardJudge(first, cache=cache)(RECORDS)) == {
        "cache"
    }  # what others ask does not change what is kept


def test_weights_that_change_while_records_are_in_flight_leave_no_stale_verdict(cache):
    model = tiny_model()
    scheduler = Scheduler(model, cache=cache)
    scheduler.submit(RECORDS[0])
    scheduler.drain()
    scheduler.submit(RECORDS[1])
    with torch.no_grad():
        model.generator.lm_head.weight[7].mul_(1.5)
    assert "cache" not in stages(scheduler.drain())
    assert cache.entries == 1  # it was asked of one state of the judge, and answered by another
    for expected in ("chains", "cache"):
        scheduler.submit(RECORDS[0], options={"path": "long"})
        assert stages(scheduler.drain()) == {expected}


def keys_of(model: Any, record: dict[str, Any], processor: Any = None, space: Any = None, rubric: Any = None,
            explain: bool = False, return_rationale: bool = False, **options: Any) -> set[bytes]:  # fmt: skip
    """Where the verdict of a record is looked for."""
    asked = {"explain": explain, "return_texts": return_rationale}
    item = (processor or model.processor).encode(record, space=space, rubric=rubric)
    question = JudgePast(NOWHERE, model, {name: value for name, value in asked.items() if value}).question(
        Entry(None, item), options
    )
    assert question is not None
    return {key for key in (question.key, question.undrawn) if key is not None}


@pytest.mark.parametrize(
    "asked",
    [
        {"seed": 1}, {"num_chains": 1}, {"consensus_threshold": 1.0}, {"temperatures": (1.0, 2.0)}, {"path": "long"},
        {"path": "short"}, {"reward": "expected"}, {"selection": "scorer"}, {"reuse_probes": False}, {"strict": True},
        {"consensus": "exact"}, {"abstain_below": 0.9}, {"max_chain_tokens": 3}, {"explain": True}, {"num_probes": 1},
        {"return_rationale": True}, {"space": {"kind": "pointwise", "high": 9}}, {"space": {"kind": "binary"}},
        {"rubric": "Be strict."}, {"space": {"kind": "pointwise", "verdict_format": "boxed"}}, {"audit_share": 1.0},
    ],
)  # fmt: skip
def test_other_options_space_or_rubric_are_another_question(model, asked):
    assert keys_of(model, RECORDS[0]).isdisjoint(keys_of(model, RECORDS[0], **asked))


@pytest.mark.parametrize("asked", [{"timeout_s": 9.0}, {"audit_share": 1e-9}, {"selection": "vote"}, {"seed": 0}])
def test_what_decides_nothing_is_the_same_question(model, asked):
    assert keys_of(model, RECORDS[0]) == keys_of(model, RECORDS[0], **asked)


@pytest.mark.parametrize("change", [{"response": "The answer is 5!"}, {"prompt": "What is 2 + 4?"}, {"id": 99},
                                    {"id": None}, {"system": "Be kind."}, {"rubric": "Be strict."}, {"reference": "5"}])  # fmt: skip
def test_another_text_or_id_is_another_question(model, change):
    assert keys_of(model, RECORDS[0]).isdisjoint(keys_of(model, RECORDS[0] | change))


def test_the_order_of_a_pair_and_a_reference_that_no_prompt_shows_are_part_of_the_question(model):
    pair = {"id": 1, "prompt": QUESTION, "response_a": "5", "response_b": "6"}
    swapped = pair | {"response_a": "6", "response_b": "5"}
    space = {"kind": "pairwise"}
    assert keys_of(model, pair, space=space).isdisjoint(keys_of(model, swapped, space=space))
    free = {"id": 1, "prompt": QUESTION}
    asked = [keys_of(model, free | {"reference": truth}, space={"kind": "free"}) for truth in ("5", "6")]
    assert asked[0].isdisjoint(asked[1])


def test_another_template_or_tokenizer_is_another_question(model):
    template = CHAT_TEMPLATE.replace("+ message['content'] +", "+ '.' + message['content'] +")
    tokenizer = pickle.loads(pickle.dumps(tiny_tokenizer()))
    tokenizer.chat_template = template
    assert keys_of(model, RECORDS[0]).isdisjoint(keys_of(model, RECORDS[0], EGRMProcessor(tokenizer)))
    other = tiny_model()
    other.processor = EGRMProcessor(tiny_tokenizer(), tiny_scorer_tokenizer(vocab_size=290))
    assert keys_of(model, RECORDS[0]) == keys_of(tiny_model(), RECORDS[0])
    assert keys_of(model, RECORDS[0]).isdisjoint(keys_of(other, RECORDS[0]))


# -- draws that do not matter -------------------------------------------------------------------------------------------


def test_exact_consensus_needs_no_id_and_no_seed_on_its_short_path_alone(cache):
    model = tiny_model(consensus="exact")
    others = [record | {"id": f"other {record['id']}"} for record in RECORDS]
    asked = {"path": "short"}
    RewardJudge(model, cache=cache, **asked)(RECORDS)
    judge = RewardJudge(model, cache=cache, seed=7, **asked)
    told = judge(others)
    assert {result.stage for result in told} == {"cache"}
    assert all(map(same_but_for_the_cost, told, RewardJudge(model, seed=7, **asked)(others)))
    # Chains are drawn, so that an undecided record depends on its id again.
    judge = RewardJudge(model, cache=cache, consensus_threshold=1.0)
    assert stages(judge(RECORDS)) == stages(judge(others)) == {"chains"}
    assert stages(judge(RECORDS)) == {"cache"}


def test_records_keyed_by_text_share_a_verdict_with_those_that_have_no_id(cache):
    model = tiny_model()
    nameless = [{name: value for name, value in record.items() if name != "id"} for record in RECORDS]
    RewardJudge(model, cache=cache)(nameless)
    told = RewardJudge(model, cache=cache, seed_by="text")(RECORDS)
    assert {result.stage for result in told} == {"cache"}
    assert all(map(same_but_for_the_cost, told, RewardJudge(model, seed_by="text")(RECORDS)))


def test_an_audit_is_told_with_its_verdict_and_only_to_those_it_was_drawn_for(cache):
    model = tiny_model(consensus="exact", consensus_threshold=0.1)
    plain = RewardJudge(model, cache=cache)(RECORDS)
    assert {result.route for result in plain} == {"short"}
    audited = RewardJudge(model, cache=cache, audit_share=1.0, strict=True)
    first, second = audited(RECORDS), audited(RECORDS)
    assert all(result.audited and result.stage == "probes" for result in first)
    assert all(map(same_but_for_the_cost, second, first))
    with_verdict = sum(result.audit_verdict is not None for result in first)
    assert sum(result.stage == "cache" for result in second) == with_verdict > 0


# -- what is kept -------------------------------------------------------------------------------------------------------


def test_what_is_of_the_moment_is_not_kept(cache):
    model = tiny_model()
    late = RewardJudge(model, cache=cache, timeout_s=1e-9, path="long")(RECORDS)
    assert {result.status for result in late} == {"timeout"}
    unfit = RewardJudge(model, cache=cache)([{"prompt": QUESTION}, {"prompt": QUESTION, "response": "5 " * 4000}])
    assert [result.status for result in unfit] == ["error", "too_long"]
    with torch.no_grad():
        model.generator.lm_head.weight.fill_(torch.nan)
    broken = RewardJudge(model, cache=cache)(RECORDS)
    assert {result.status for result in broken} == {"error"}
    assert cache.entries == 0


def test_records_without_a_verdict_and_abstentions_are_kept(cache):
    silent = EGRMRewardModel.from_components(
        tiny_generator(), tokenizer=tiny_tokenizer(), max_chain_tokens=2, max_probe_tokens=1, num_chains=1
    )
    unsure = tiny_model(abstain_below=1.0)
    for model, status in ((silent, "no_verdict"), (unsure, "abstained")):
        judged, told = (RewardJudge(model, cache=cache)(RECORDS) for _ in range(2))
        assert status in {result.status for result in judged}
        assert {result.stage for result in told} == {"cache"}
        assert all(map(same_but_for_the_cost, told, judged))


def test_a_deadline_does_not_decide_what_is_told_to_others(cache):
    model = tiny_model()
    RewardJudge(model, cache=cache, timeout_s=60.0)(RECORDS)
    told = RewardJudge(model, cache=cache)(RECORDS)
    assert {result.stage for result in told} == {"cache"}
    # Without early stopping, probes are left unread by a deadline alone.
    past, entry = JudgePast(cache, model, {}), Entry(None, model.processor.encode(RECORDS[0]))
    question = past.question(entry, {"early_stop": False})
    assert question is not None
    entries = cache.entries
    question.keep(replace(told[0], consensus_is_bound=True))
    assert cache.entries == entries
    question.keep(replace(told[0], consensus_is_bound=False))
    assert cache.entries == entries + 1


def test_what_no_cache_can_answer_for_is_refused(cache):
    model = tiny_model()
    with pytest.raises(ConfigError, match="states"):
        Scheduler(model, cache=cache, explain=True, states="mean")
    with pytest.raises(ConfigError, match="VerdictCache"):
        RewardJudge(model, cache=7)
    model.engine = CompletionEngine(lambda asked: [], model.engine.cost)
    with pytest.raises(ConfigError, match="CompletionEngine writes in the generator's place"):
        RewardJudge(model, cache=cache)(RECORDS)
    with pytest.raises(UnsupportedModelError, match="on meta cannot"):
        weights_digest(torch.nn.Linear(2, 2, device="meta"))


def test_a_callable_that_reads_verdicts_has_no_key(cache):
    model = tiny_model()
    judge = RewardJudge(
        model, cache=cache, verdict_format=lambda text: "7", consensus="sampled", probe_vocabulary="full"
    )
    assert [result.stage == "cache" for _ in range(2) for result in judge(RECORDS[:2])] == [False] * 4
    assert cache.entries == 0


def test_a_digest_sees_what_a_fingerprint_does_not():
    model = tiny_generator()
    shell = SimpleNamespace(generator=model, scorer=None)
    before = weights_digest(model), fingerprint(shell)
    with torch.no_grad():
        model.lm_head.weight[3, 5] += 1e-3
    after = weights_digest(model), fingerprint(shell)
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)
    with torch.no_grad():  # two numbers change places
        pair = model.lm_head.weight[3, [5, 6]].clone()
        model.lm_head.weight[3, [6, 5]] = pair
    assert weights_digest(model) not in (before[0], after[0])
    assert weights_digest(model.to(torch.bfloat16)) != after[0]


# -- records in flight --------------------------------------------------------------------------------------------------


def test_equal_records_in_flight_are_judged_once(mini, cache):
    records = [record for record in world(6) for _ in range(4)]
    judge = RewardJudge(mini, cache=cache, strict=True)
    told = judge(records)
    judged = RewardJudge(mini, strict=True)(records)
    assert all(map(same_but_for_the_cost, told, judged))
    assert sum(result.stage != "cache" for result in told) == 6
    assert [result.id for result in told] == [record["id"] for record in records]


def test_who_waits_for_a_record_that_fails_or_is_withdrawn_is_judged_itself(cache):
    model = tiny_model()
    (expected,) = RewardJudge(model)([RECORDS[0]])
    scheduler = Scheduler(model, cache=cache)
    late = scheduler.submit(RECORDS[0], deadline=time.monotonic() - 1)
    twin = scheduler.submit(RECORDS[0])
    assert (scheduler.in_flight, scheduler.queues["probe"]) == (2, 1)
    assert scheduler.step(flush=True, urgent=twin)
    while scheduler.step(flush=True):
        pass
    results = dict(scheduler.take())
    assert (results[late].status, results[twin]) == ("timeout", expected)

    tickets = [scheduler.submit(RECORDS[1]) for _ in range(4)]
    assert scheduler.withdraw([tickets[0], tickets[2]]) == 2
    assert scheduler.in_flight == 2
    while scheduler.step(flush=True):
        pass
    results = dict(scheduler.take())
    assert sorted(results) == [tickets[1], tickets[3]]
    assert [results[ticket].stage == "cache" for ticket in sorted(results)] == [False, True]
    assert scheduler.in_flight == 0


# -- the file -----------------------------------------------------------------------------------------------------------


def test_a_full_file_forgets_what_was_not_asked_for(tmp_path: Path, monkeypatch):
    clock = iter(range(10**9))
    monkeypatch.setattr("transformers_egrm.policy.cache.time", SimpleNamespace(time=lambda: next(clock)))
    store = VerdictCache(tmp_path / "small.db", max_bytes=LEAST_BYTES)
    text = "x" * 1000
    for number in range(4000):
        store.keep(number.to_bytes(16, "little"), text)
        assert store.find([(5).to_bytes(16, "little")]) == text or number < 5  # asked for all along
    assert store.entries < 1200
    assert store.find([(0).to_bytes(16, "little")]) is None
    assert store.find([(3999).to_bytes(16, "little")]) == text
    store.close()
    assert (tmp_path / "small.db").stat().st_size < 1.3 * LEAST_BYTES


def test_other_files_are_refused_and_a_file_that_fails_stops_nothing(tmp_path: Path, caplog):
    with closing(sqlite3.connect(tmp_path / "other.db")) as base:
        base.execute("CREATE TABLE t (x)")
    other = (tmp_path / "other.db").read_bytes()
    (tmp_path / "text.db").write_text("no database" * 100)
    for path in (tmp_path / "other.db", tmp_path / "text.db", tmp_path / "no" / "folder.db", tmp_path):
        with pytest.raises(DataError, match="cache of verdicts"):
            VerdictCache(path)
    assert (tmp_path / "other.db").read_bytes() == other
    with pytest.raises(ConfigError, match="max_bytes"):
        VerdictCache(tmp_path / "v.db", max_bytes=10)
    model, store = tiny_model(), VerdictCache(tmp_path / "v.db")
    judge = RewardJudge(model, cache=store)
    judged = judge(RECORDS)
    with closing(sqlite3.connect(store.path)) as base:
        base.execute("UPDATE verdicts SET result = '{\"reward\": 1'")
        base.commit()
    assert judge(RECORDS) == judged  # what is no text of ours is judged
    with closing(sqlite3.connect(store.path)) as base:
        base.execute("DROP TABLE verdicts")
        base.commit()
    assert judge(RECORDS) == judged
    assert caplog.text.count("so that everything is judged") <= 1


def test_threads_and_forked_processes_share_a_file(cache):
    keys = [number.to_bytes(16, "little") for number in range(200)]

    def work(own: list[bytes]) -> None:
        for key in own:
            cache.keep(key, key.hex())
            assert cache.find([key]) == key.hex()

    threads = [threading.Thread(target=work, args=(keys[place::4],)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.entries == 200
    child = multiprocessing.get_context("fork").Process(target=work, args=([b"k" * 16],))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert cache.find([b"k" * 16]) == (b"k" * 16).hex()
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.path, copy.find([keys[0]])) == (cache.path, keys[0].hex())
    copy.close()


def _write_until_killed(path: Path, first: int, count: int) -> None:
    store = VerdictCache(path)
    for turn in range(count):
        number = (first + turn) % count
        key = number.to_bytes(16, "little")
        known = store.find([key])
        assert known is None or json.loads(known) == {"number": number, "text": "x" * (number % 700)}
        if known is None:
            store.keep(key, json.dumps({"number": number, "text": "x" * (number % 700)}))


@pytest.mark.parametrize(("entries", "kills"), [(600, 8), pytest.param(10_000, 60, marks=pytest.mark.slow)])
def test_kills_of_processes_that_write_leave_a_whole_file(tmp_path: Path, entries: int, kills: int):
    context, path = multiprocessing.get_context("fork"), tmp_path / "killed.db"

    def start(place: int) -> Any:
        process = context.Process(target=_write_until_killed, args=(path, place * entries // 4, entries))
        process.start()
        return process

    processes = [start(place) for place in range(4)]
    for turn in range(kills):
        time.sleep(0.02 + 0.01 * (turn % 3))
        place = turn % 4
        if processes[place].is_alive():
            os.kill(processes[place].pid, signal.SIGKILL)
        processes[place].join()
        assert processes[place].exitcode in (0, -signal.SIGKILL)
        processes[place] = start(place)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    with closing(sqlite3.connect(path)) as base:
        assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = base.execute("SELECT key, result FROM verdicts").fetchall()
    assert len(rows) == entries
    assert all(json.loads(text)["number"] == int.from_bytes(key, "little") for key, text in rows)


# -- who asks -----------------------------------------------------------------------------------------------------------


def test_an_epoch_of_unchanged_completions_costs_a_trainer_no_forward_pass(mini, tmp_path: Path):
    drawn = list(islice(examples("calibration", 1), 8))
    prompts = [example.record()["prompt"] for example in drawn]
    completions = [example.record()["response"] for example in drawn]
    reward = EGRMReward(mini, cache=tmp_path / "verdicts.db")
    logged: dict[str, float] = {}
    first = reward(prompts, completions, log_metric=logged.__setitem__)
    assert logged["egrm/cache_share"] == 0.0
    with forward_calls(mini) as calls:
        second = reward(prompts, completions, log_metric=logged.__setitem__)
    assert (calls, second) == ([], first)
    assert (logged["egrm/cache_share"], logged["egrm/tokens"]) == (1.0, 0.0)
    assert first == EGRMReward(mini)(prompts, completions)
    with pytest.raises(ConfigError, match="least_change"):
        EGRMReward(mini, cache=tmp_path / "verdicts.db", least_change=0.1)


def test_compared_completions_are_told_too(cache):
    model = tiny_model()
    reward = EGRMReward(model, cache=cache, compare=Comparisons())
    answers = [f"The answer is {number}." for number in range(3)]
    first = reward([QUESTION] * 3, answers)
    with forward_calls(model) as calls:
        assert reward([QUESTION] * 3, answers) == first
    assert calls == []


def test_a_reward_takes_its_cache_to_another_process(tmp_path: Path):
    reward = pickle.loads(pickle.dumps(EGRMReward("egrm-mini", cache=tmp_path / "verdicts.db")))
    assert reward.cache.path == tmp_path / "verdicts.db"


def test_the_command_line_keeps_verdicts_between_runs(tmp_path: Path, capsys):
    folder = build_checkpoint(tmp_path)
    source = write_jsonl(tmp_path / "records.jsonl", RECORDS)
    runs = []
    for name in ("a", "b"):
        words = ("--cache", tmp_path / "verdicts.db", "--summary", tmp_path / f"{name}.json")
        assert egrm("score", folder, source, "-o", tmp_path / f"{name}.jsonl", *words) == 0
        runs.append(read_jsonl(tmp_path / f"{name}.jsonl"))
    plain = [{name: value for name, value in row.items() if name not in SPENT} for row in runs[0]]
    assert plain == [{name: value for name, value in row.items() if name not in SPENT} for row in runs[1]]
    assert {row["stage"] for row in runs[1]} == {"cache"}
    summary = json.loads((tmp_path / "b.json").read_text())
    assert (summary["stages"], summary["tokens"]) == ({"cache": len(RECORDS)}, 0)
    assert "answered by" in capsys.readouterr().err
    assert egrm("score", folder, source, "-o", tmp_path / "c.jsonl", "--cache", folder / "verdicts.db") == 1
    assert "must not lie in the folder of the model" in capsys.readouterr().err
    assert not list(folder.glob("verdicts*"))


def test_a_server_tells_what_it_judged_before_it_was_started_anew(model, tmp_path: Path):
    options = ServeOptions(cache=str(tmp_path / "verdicts.db"))
    answers, counted, runs = [], "", []
    for _ in range(2):
        with served(model, options) as client, forward_calls(model) as calls:
            runs.append(calls)
            answers.append(client.post("/v1/reward", json={"records": RECORDS}).json()["results"])
            counted = client.get("/metrics").text
    first, second = answers
    assert {row["stage"] for row in second} == {"cache"}
    assert runs[0]
    assert runs[1] == []
    assert f'egrm_stages_total{{stage="cache"}} {float(len(RECORDS))}' in counted
    assert [row | dict.fromkeys(SPENT) for row in first] == [row | dict.fromkeys(SPENT) for row in second]
