"""`RewardJudge`: order, full batches, flat memory, and failures that stay with their record."""

import csv
import itertools
import json
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm.bundle import MINI_FOLDER, load_mini
from transformers_egrm.data.writers import write_rows
from transformers_egrm.judge import RewardJudge
from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler
from transformers_egrm.modeling.judge_values_egrm import EGRMOutput, JudgeInputs, LongItems, Status
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.verdict_consensus_egrm import Route


@cache
def tiny_processor() -> EGRMProcessor:
    return EGRMProcessor(tiny_tokenizer())


@dataclass(frozen=True, eq=False)
class ScriptedItem:
    """As much of a `LongItem` as the judge touches."""

    item_id: int
    deadline: float = math.inf


@dataclass
class ScriptedModel:
    """Decides by item id: multiples of three think, and every reward is the id modulo 11."""

    fault: Callable[[str, Sequence[int]], None] = lambda stage, ids: None
    """Called before each stage with its name and the ids of its batch; may raise."""
    processor: EGRMProcessor = field(default_factory=tiny_processor)
    config: EGRMConfig = field(default_factory=EGRMConfig)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    probed: list[list[int]] = field(default_factory=list)
    deliberated: list[list[int]] = field(default_factory=list)
    inputs: list[JudgeInputs] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    alive: weakref.WeakSet = field(default_factory=weakref.WeakSet)

    def probe(self, inputs: JudgeInputs, **options: object) -> "ScriptedStage":
        ids = inputs.item_ids.tolist()
        self.fault("probe", ids)
        self.probed.append(ids)
        self.inputs.append(inputs)
        long_index = tuple(row for row, item_id in enumerate(ids) if item_id % 3 == 0)
        deadline = time.monotonic() + (options.get("timeout_s") or math.inf)  # pyright: ignore
        items = LongItems(ScriptedItem(ids[row], deadline) for row in long_index)  # pyright: ignore[reportArgumentType]
        self.alive.update(items)
        return ScriptedStage(scripted_output(ids), items, long_index)

    def deliberate(self, items: LongItems, return_texts: bool = False, **options: object) -> EGRMOutput:
        ids = [item.item_id for item in items]
        self.fault("deliberate", ids)
        self.deliberated.append(ids)
        self.deadlines += [item.deadline for item in items]
        return scripted_output(ids)

    def judge(self, inputs: JudgeInputs, return_texts: bool = False, **options: object) -> EGRMOutput:
        ids = inputs.item_ids.tolist()
        self.fault("judge", ids)
        return scripted_output(ids)


@dataclass(frozen=True)
class ScriptedStage:
    output: EGRMOutput
    waiting: LongItems
    long_index: tuple[int, ...]

    def long_items(self) -> LongItems:
        return self.waiting


def scripted_output(ids: Sequence[int]) -> EGRMOutput:
    count = len(ids)
    return EGRMOutput(
        rewards=torch.tensor([float(item_id % 11) for item_id in ids]),
        consensus=torch.ones(count),
        consensus_is_bound=torch.zeros(count, dtype=torch.bool),
        routes=torch.tensor([int(Route.SHORT if item_id % 3 else Route.LONG) for item_id in ids]),
        statuses=torch.full((count,), int(Status.OK)),
        new_tokens=torch.ones(count, dtype=torch.int64),
        verdict_texts=[str(item_id % 11) for item_id in ids],
    )


def record(item_id: int, length: int = 1) -> dict[str, object]:
    return {"id": item_id, "prompt": "What is 2 + 3?", "response": "5" * length}


def rewards_by_hand(ids: Sequence[int]) -> list[float]:
    return [float(item_id % 11) for item_id in ids]


# -- scheduling -----------------------------------------------------------------------------------------------------------


@given(
    ids=st.lists(st.integers(0, 99), max_size=30),
    batch_size=st.integers(1, 5),
    reorder_window=st.integers(1, 12),
)
def test_results_come_in_input_order_whatever_the_batch_size_and_window(ids, batch_size, reorder_window):
    judge = RewardJudge(ScriptedModel(), batch_size=batch_size, reorder_window=reorder_window)
    results = judge(record(item_id, 1 + item_id % 7) for item_id in ids)
    assert [result.id for result in results] == ids
    assert [result.reward for result in results] == rewards_by_hand(ids)


def test_long_items_wait_for_a_full_batch_and_every_item_is_computed_once():
    model = ScriptedModel()
    ids = list(range(24))  # eight of them think
    RewardJudge(model, batch_size=4)([record(item_id) for item_id in ids])
    assert [len(batch) for batch in model.probed] == [4] * 6
    assert [len(batch) for batch in model.deliberated] == [4, 4]
    assert sorted(itertools.chain(*model.probed)) == ids
    assert sorted(itertools.chain(*model.deliberated)) == ids[::3]


def test_a_long_item_waits_no_longer_than_the_reorder_window():
    model, read = ScriptedModel(), 0

    def source():
        nonlocal read
        for item_id in itertools.chain([0], itertools.repeat(1)):  # one that thinks, then none ever again
            read += 1
            yield record(item_id)

    stream = RewardJudge(model, batch_size=2, reorder_window=6).stream(source())
    assert next(stream).id == 0
    assert read == 6
    assert model.deliberated == [[0]]


def test_records_of_similar_length_are_batched():
    model = ScriptedModel()
    lengths = [90, 1, 60, 30, 91, 2, 61, 31]
    records = [record(index + 1, length) for index, length in enumerate(lengths)]
    RewardJudge(model, batch_size=2)(records)
    batches = sorted(sorted(lengths[item_id - 1] for item_id in batch) for batch in model.probed)
    assert batches == [[1, 2], [30, 31], [60, 61], [90, 91]]


def test_an_endless_stream_holds_no_more_than_its_window():
    model, read = ScriptedModel(), 0

    def source():
        nonlocal read
        for item_id in itertools.count():
            read += 1
            yield record(item_id)

    stream = RewardJudge(model, batch_size=4, reorder_window=16).stream(source())
    for delivered, _ in enumerate(itertools.islice(stream, 1000)):
        assert read - delivered <= 16
        assert len(model.alive) < 8  # kept prefixes: less than two batches
    assert stream.counts == {"ok": 1000}


def test_one_record_instead_of_a_list_is_refused():
    with pytest.raises(TypeError, match="Put it in a list"):
        RewardJudge(ScriptedModel()).stream(record(1))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_threads_that_read_one_stream_share_its_results(batch_size):
    def slowly():
        for item_id in range(60):
            time.sleep(0.0005)  # so that the threads meet inside the stream
            yield record(item_id)

    stream, taken = RewardJudge(ScriptedModel(), batch_size=batch_size).stream(slowly()), [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(stream), daemon=True) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a reader spins for ever"
    for mine in taken:
        assert [result.id for result in mine] == sorted(result.id for result in mine)
    results = sorted((result for mine in taken for result in mine), key=lambda result: result.id)
    assert results == RewardJudge(ScriptedModel())([record(item_id) for item_id in range(60)])
    assert stream.counts == {"ok": 60}


def test_a_source_that_reads_its_own_stream_is_refused():
    streams = []

    def source():
        yield record(1)
        next(streams[0])

    streams.append(RewardJudge(ScriptedModel()).stream(source()))
    assert next(streams[0]).id == 1
    with pytest.raises(ConfigError, match="by the iterator that gives it its records"):
        next(streams[0])


def test_no_records_give_no_results():
    assert RewardJudge(ScriptedModel())([]) == []


def test_time_in_the_pool_does_not_count_against_the_deadline(monkeypatch):
    clock = itertools.count(step=10)  # ten seconds pass between any two looks at it
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    model = ScriptedModel()
    RewardJudge(model, batch_size=1, reorder_window=1, timeout_s=25)([record(0)])
    # Started at 0 with a deadline at 25; in the pool at 10 with 15 seconds left; out of it at 20.
    assert model.deadlines == [35.0]


def test_a_progress_bar_is_shown_only_where_asked_for(capsys):
    RewardJudge(ScriptedModel())([record(1)])
    assert capsys.readouterr() == ("", "")
    RewardJudge(ScriptedModel(), progress=True)([record(1)])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1/1" in shown.err


# -- failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["probe", "deliberate"])
def test_a_batch_that_fails_costs_only_the_record_that_made_it_fail(stage):
    def fault(_, ids):
        if 6 in ids:
            raise RuntimeError("out of memory")

    def fault_of_a_crowd(current, ids):
        if current == stage and len(ids) > 1:
            raise RuntimeError("out of memory")

    ids = list(range(12))
    results = RewardJudge(ScriptedModel(fault), batch_size=4)([record(item_id) for item_id in ids])
    assert [result.status for result in results] == ["ok"] * 6 + ["error"] + ["ok"] * 5
    assert results[6].error == "RuntimeError: out of memory"
    assert (results[6].id, results[6].reward, results[6].verdict) == (6, None, None)
    assert [result.reward for result in results if result.status == "ok"] == rewards_by_hand(
        [*range(6), *range(7, 12)]
    )

    results = RewardJudge(ScriptedModel(fault_of_a_crowd), batch_size=4)([record(item_id) for item_id in ids])
    assert [result.reward for result in results] == rewards_by_hand(ids)


@pytest.mark.parametrize("stage", ["probe", "deliberate", "judge"])
def test_an_interrupt_passes_and_the_stream_can_go_on(stage):
    struck = []

    def fault(current, ids):
        if current == "probe" and stage == "judge":
            raise RuntimeError("so that every record is judged alone")
        if current == stage and not struck:
            struck.append(ids)
            raise KeyboardInterrupt

    stream = RewardJudge(ScriptedModel(fault), batch_size=2).stream(record(item_id) for item_id in range(6))
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    rest = [result.id for result in stream]
    assert rest == list(range(6))[-len(rest) :]
    assert stream.counts == {"ok": 6}


def test_a_mistake_of_the_program_is_raised_and_not_turned_into_statuses():
    def fault(*_):
        raise ConfigError("no such decoder")

    with pytest.raises(ConfigError, match="no such decoder"):
        RewardJudge(ScriptedModel(fault))([record(1)])


BAD_RECORDS = {
    "not a mapping": 7,
    "nothing": None,
    "text": "2 + 3 = 5",
    "no response": {"prompt": "What is 2 + 3?"},
    "an empty field": {"prompt": "What is 2 + 3?", "response": " "},
    "a number for a text": {"prompt": "What is 2 + 3?", "response": 5},
    "a wrong key": {"prompt": "What is 2 + 3?", "respnse": "5"},
    "an id of another type": {"id": [1], "prompt": "What is 2 + 3?", "response": "5"},
    "a conversation without an answer": [{"role": "user", "content": "What is 2 + 3?"}],
    "an empty conversation": [],
}


@pytest.mark.parametrize("bad", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_a_bad_record_gets_a_status_and_its_neighbours_a_reward(bad):
    good = [record(1), record(2)]
    results = RewardJudge(ScriptedModel())([good[0], bad, good[1]])
    assert [result.status for result in results] == ["ok", "error", "ok"]
    assert results[1].error
    assert results[1].reward is None
    assert [results[0].reward, results[2].reward] == [1.0, 2.0]


def test_a_prompt_that_is_too_long_has_a_status_of_its_own():
    processor = EGRMProcessor(tiny_tokenizer(), max_prompt_tokens=400)
    (result,) = RewardJudge(ScriptedModel(), processor)([record(1, length=1000)])
    assert result.status == "too_long"
    assert "limit is 400" in str(result.error)


def test_a_prompt_that_was_cut_says_how_much():
    processor = EGRMProcessor(tiny_tokenizer(), max_prompt_tokens=600, truncation="keep_ends")
    whole, cut = RewardJudge(ScriptedModel(), processor)([record(1), record(2, length=1000)])
    assert (whole.truncated, whole.truncated_tokens) == (False, 0)
    assert cut.truncated
    assert cut.truncated_tokens > 400


def test_a_source_that_breaks_delivers_what_it_gave_before():
    def source():
        yield from (record(item_id) for item_id in range(3))
        raise OSError("the disk is gone")

    delivered = []
    with pytest.raises(OSError, match="the disk is gone"):
        delivered.extend(RewardJudge(ScriptedModel()).stream(source()))
    assert [result.id for result in delivered] == [0, 1, 2]


@pytest.mark.parametrize(
    "settings",
    [{"num_chain": 4}, {"num_chains": 0}, {"consensus_threshold": 1.1}, {"temperatures": ()}, {"batch_size": 0},
     {"reorder_window": 0}, {"timeout_s": 0}, {"space": {"kind": "pointwise", "low": 3, "high": 3}}, {"space": 5},
     {"rubric": 5}, {"batch_size": None}, {"batch_size": "8"}, {"batch_size": True}, {"batch_size": 2.0},
     {"reorder_window": "all"}, {"reorder_window": True}, {"return_rationale": "no"}, {"explain": 1}, {"progress": None},
     {"seed": None}, {"strict": "no"}, {"temperatures": 0.7}],
    ids=str,
)  # fmt: skip
def test_a_wrong_setting_is_refused_at_once(settings):
    with pytest.raises(ConfigError):
        RewardJudge(ScriptedModel(), **settings)


@pytest.mark.parametrize(
    "settings",
    [{"batch_size": None}, {"batch_size": True}, {"batch_size": 0}, {"return_texts": "no"}, {"explain": None},
     {"states": "first"}, {"seed": None}, {"strict": "no"}, {"temperatures": 0.7}, {"num_chain": 4}],
    ids=str,
)  # fmt: skip
def test_a_scheduler_refuses_a_wrong_setting_when_it_is_made(settings):
    with pytest.raises(ConfigError):
        Scheduler(ScriptedModel(), **settings)


@pytest.mark.parametrize("model", [None, 5, object(), tiny_generator()], ids=lambda model: type(model).__name__)
def test_what_cannot_judge_is_refused_at_every_door(model):
    for door in (RewardJudge, Scheduler):
        with pytest.raises(ConfigError, match="judged by an EGRMRewardModel, got"):
            door(model)


def test_a_judge_is_loaded_where_its_name_is_given():
    by_name, by_folder = RewardJudge("egrm-mini"), RewardJudge(MINI_FOLDER)
    assert type(by_name.model) is type(by_folder.model) is EGRMRewardModel
    assert by_name.model.config.name_or_path == str(MINI_FOLDER)
    record = {"id": 1, "prompt": "What is 3 + 4?", "response": "7"}
    assert by_name([record]) == RewardJudge(load_mini())([record])


# -- the real thing -------------------------------------------------------------------------------------------------------


# Verdicts come from the verdict space alone, so that a random model states some, on both routes.
OPTIONS = {"max_chain_tokens": 4, "num_chains": 2, "seed": 3, "probe_vocabulary": "verdict"}
RECORDS = [
    {"id": number, "prompt": f"What is {number} + 3?", "response": f"It is {number + 3}" + "." * (number * 5 % 7)}
    for number in range(8)
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return EGRMRewardModel.from_components(tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer())


@pytest.fixture(scope="module")
def alone(model: EGRMRewardModel) -> list[JudgeResult]:
    judge = RewardJudge(model, batch_size=1, **OPTIONS)
    return [result for one in RECORDS for result in judge([one])]


def test_a_result_is_what_the_model_says_about_the_record_alone(model, alone):
    assert {result.route for result in alone} == {"short", "long"}
    for one, result in zip(RECORDS, alone, strict=True):
        output = model.judge(model.processor(one), **OPTIONS)
        assert (result.reward, result.verdict) == (output.rewards.item(), output.verdict_texts[0])
        assert (result.consensus, result.tokens) == (output.consensus.item(), output.new_tokens.item())
        assert (result.id, result.seed, result.status, result.error) == (one["id"], 3, "ok", None)


@pytest.mark.parametrize(("batch_size", "reorder_window"), [(2, 2), (3, 8), (8, 64), (4, 1)])
def test_batch_size_and_window_and_neighbours_change_no_result(model, alone, batch_size, reorder_window):
    judge = RewardJudge(model, batch_size=batch_size, reorder_window=reorder_window, **OPTIONS)
    assert judge(RECORDS) == alone
    assert judge(RECORDS[::-1]) == alone[::-1]
    assert judge([None, *RECORDS[5:], RECORDS[0]])[1:] == [*alone[5:], alone[0]]


def test_strict_results_are_the_same_in_every_batch(model):
    strict = {"strict": True, "return_rationale": True, **OPTIONS}
    results = RewardJudge(model, batch_size=8, **strict)(RECORDS[:4])
    assert results == RewardJudge(model, batch_size=1, **strict)(RECORDS[:4])
    assert [isinstance(result.rationale, str) for result in results] == [r.route == "long" for r in results]


def test_the_scorer_may_choose_whatever_batches_were_pooled(model):
    options = {**OPTIONS, "selection": "scorer", "consensus_threshold": 1.0}
    results = RewardJudge(model, batch_size=3, **options)(RECORDS[:5])
    assert results == [result for one in RECORDS[:5] for result in RewardJudge(model, batch_size=1, **options)([one])]


def test_a_missed_deadline_is_a_status(model):
    results = RewardJudge(model, timeout_s=1e-9, **OPTIONS)(RECORDS[:2])
    assert [(result.status, result.reward) for result in results] == [("timeout", None)] * 2
    assert all("timeout_s" in str(result.error) for result in results)


def test_records_with_rubrics_of_their_own_share_a_batch(model):
    records = [{**RECORDS[0], "rubric": "Judge the arithmetic only."}, RECORDS[1], {**RECORDS[2], "reference": "5"}]
    results = RewardJudge(model, batch_size=3, **OPTIONS)(records)
    assert [result.status for result in results] == ["ok"] * 3
    assert results == [result for one in records for result in RewardJudge(model, batch_size=1, **OPTIONS)([one])]


def test_results_are_plain_data(model):
    (result,) = RewardJudge(model, **OPTIONS)([RECORDS[0]])
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == result.to_dict()


@pytest.mark.parametrize(
    "options",
    [{"seed": None}, {"strict": "no"}, {"temperatures": 0.7}, {"num_chains": True}, {"explain": "no"},
     {"return_texts": 1}, {"states": "first"}, {"timeout_s": "1"}],
    ids=str,
)  # fmt: skip
def test_a_call_of_the_model_refuses_a_wrong_type_before_anything_is_run(model, options):
    with pytest.raises(ConfigError, match=f"`{next(iter(options))}` must be"):
        model.judge(model.processor(RECORDS[0]), **options)


@pytest.mark.parametrize(
    "inputs", [None, "text", RECORDS[0], RECORDS, torch.arange(5)[None]], ids=lambda v: type(v).__name__
)
def test_a_call_of_the_model_reads_what_a_processor_makes(model, inputs):
    with pytest.raises(ConfigError, match="reads the JudgeInputs that a processor makes"):
        model.judge(inputs)


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet"])
def test_a_consensus_is_an_exact_quotient_in_every_format(model, extension, tmp_path):
    ladder = {"temperatures": [1.5] * 10, "top_ps": [1.0] * 10, "early_stop": False}
    results = RewardJudge(model, **OPTIONS | ladder)(RECORDS)
    shares = [result.consensus for result in results]
    tenths = [votes / 10 for votes in range(11)]
    assert all(share in tenths for share in shares), shares
    assert any(share != float(np.float32(share)) for share in shares), "or float32 would do"
    rows = [result.to_dict() for result in results]
    write_rows(lambda: iter(rows), str(tmp_path / f"out.{extension}"), {})
    kept = [float(row["consensus"]) for row in read_back(tmp_path / f"out.{extension}")]
    assert kept == shares


def read_back(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream)) if path.suffix == ".csv" else [json.loads(line) for line in stream]


def test_a_comparison_shows_both_orders_and_ties_only_where_allowed(model):
    judge = RewardJudge(model, **OPTIONS)
    result = judge.compare("What is 2 + 3?", "It is 5.", "It is 6.")
    assert result.order == ("ab", "ba")
    assert {"A": 1.0, "B": 0.0}[str(result.verdict)] == result.reward
    tied = RewardJudge(model, space={"kind": "pairwise", "allow_tie": True}, **OPTIONS)
    assert {"A": 1.0, "B": 0.0, "tie": 0.5}[str(tied.compare("What is 2 + 3?", "5", "5").verdict)] is not None


def test_a_ranking_puts_the_best_first_and_failures_last(model):
    judge = RewardJudge(model, **OPTIONS)
    responses = ["It is 5.", "", "It is 6.", "It is 7."]
    ranking = judge.rank("What is 2 + 3?", responses)
    rewards = [ranking.results[index].reward or 0.0 for index in ranking.order]
    assert sorted(ranking.order) == [0, 1, 2, 3]
    assert ranking.order[-1] == 1
    assert ranking.results[1].status == "error"
    assert rewards[:3] == sorted(rewards[:3], reverse=True)
    assert list(ranking.results) == judge({"prompt": "What is 2 + 3?", "response": text} for text in responses)


def test_candidates_of_one_question_share_its_prefill(model):
    # Short path from the prompt's last logits only, so that every token the generator embeds is a prompt's.
    judge = RewardJudge(model, consensus_threshold=0.0, **OPTIONS)
    question, responses = "What is 2 + 3? " * 20, ["It is 5.", "It is 6.", "It is 7."]
    embedded = Counter()
    embeddings = model.generator.get_input_embeddings()
    hook = embeddings.register_forward_pre_hook(lambda _, args: embedded.update(tokens=args[0].numel()))
    try:
        ranking = judge.rank(question, responses)
    finally:
        hook.remove()
    items = [model.processor.encode({"prompt": question, "response": response}) for response in responses]
    prompts = [item.prompts[0] for item in items]
    shared = next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    suffix = len(items[0].task.short_suffix_ids)
    assert {result.route for result in ranking.results} == {"short"}
    assert embedded["tokens"] == shared + sum(len(prompt) - shared + suffix for prompt in prompts)


def test_one_text_is_judged_alike_under_every_id_if_draws_are_seeded_by_text(model):
    text = {"prompt": "What is 2 + 3?", "response": "Five, I think."}
    records = [{**text, "id": key} for key in range(6)] + [text]
    options = {**OPTIONS, "path": "short", "consensus": "sampled"}

    def draws(**more: object) -> list[object]:
        results = RewardJudge(model, explain=True, **options, **more)(records)
        return [[probe.text for probe in result.account.probes] for result in results if result.account]

    by_id, by_text = draws(), draws(seed_by="text")
    assert len({str(texts) for texts in by_id}) > 1, "the default: another id, other draws"
    assert by_text == [by_id[-1]] * 7, "the record without an id has always drawn by its text"
    pair = {"prompt": "Q", "response_a": "a", "response_b": "b"}
    space = {"kind": "pairwise"}
    judge = RewardJudge(model, path="long", seed_by="text", max_chain_tokens=8, space=space, return_rationale=True)
    first, second = judge([{**pair, "id": 1}, {**pair, "id": 2}])
    assert first.to_dict() == second.to_dict() | {"id": 1}


def test_what_draws_are_seeded_by_is_checked(model):
    with pytest.raises(ConfigError, match="`seed_by` must be one of"):
        RewardJudge(model, seed_by="record")
