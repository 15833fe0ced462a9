"""A judge whose generator runs on a server: the same verdicts as at home, and a status where the server fails."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_tools import build_checkpoint, egrm, one_thread, read_jsonl, stating_generator, write_jsonl
from engine_fixtures import talkative_generator
from fake_engines import FakeServer, fake_server, garbled, hung_up, refused_with, stalled, trickling
from http_engines import SERVERS, bodies, fake_engine
from serve_tools import served
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from transformers_egrm import EGRMRewardModel, RewardJudge
from transformers_egrm.cli.loading import load_model
from transformers_egrm.engines import Address, connect, load_without_generator
from transformers_egrm.engines.components import write_components
from transformers_egrm.engines.dialects import DIALECTS, Ask, Row
from transformers_egrm.engines.engine import MOST_PATHS
from transformers_egrm.engines.wire import Client, Failure, Post
from transformers_egrm.modeling.engine_protocol_egrm import PromptRows
from transformers_egrm.modeling.engine_vocabulary_egrm import VerdictTrie
from transformers_egrm.modeling.errors_egrm import ConfigError, EngineError, UnsupportedModelError


RECORDS = [{"id": number, "prompt": f"What is 2 + {number}?", "response": str(number)} for number in range(4)]
PAIRS = [{"id": n, "prompt": "Which?", "response_a": f"It is {n}.", "response_b": "No."} for n in range(4)]
READERS = ("vllm", "sglang")  # that tell log-probabilities of named tokens


@pytest.fixture(autouse=True)
def _no_server_is_left():
    yield
    while SERVERS:
        SERVERS.pop().kill()


def judge_model(**settings: Any) -> EGRMRewardModel:
    generator = talkative_generator({"7": 6.0, "1": 5.5, "\n": 6.0, "": 6.0})
    return EGRMRewardModel.from_components(
        generator, tokenizer=tiny_tokenizer(), **{"max_chain_tokens": 6, "selection": "vote", **settings}
    )


def serve_elsewhere(model: EGRMRewardModel, kind: str, **settings: Any) -> FakeServer:
    """Put the model's generator on a server of this kind."""
    model.engine = fake_engine(kind, model.generator, model.backbone.cost, tiny_tokenizer(), **settings)
    return SERVERS[-1]


# -- the same judge ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("space", [{"kind": "pointwise"}, {"kind": "pairwise", "allow_tie": True}], ids=str)
def test_exact_consensus_is_that_of_the_engine_in_this_process(kind, space):
    model, records = judge_model(), PAIRS if space["kind"] == "pairwise" else RECORDS
    options = {"consensus": "exact", "explain": True, "space": space, "path": "short"}
    own = RewardJudge(model, **options)(records)
    server = serve_elsewhere(model, kind)
    results = RewardJudge(model, **options)(records)
    for result, expected in zip(results, own, strict=True):
        ours, theirs = (torch.tensor(one.account.verdict_probs) for one in (result, expected))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        assert (result.verdict, result.route, result.status) == (expected.verdict, expected.route, "ok")
    paths = 1 if space["kind"] == "pairwise" else 2  # "1" and "10" begin alike
    prompts = 2 * len(PAIRS) if space["kind"] == "pairwise" else len(RECORDS)
    assert len(server.asked) == paths * prompts  # re-tempered here: the ladder costs no further request


@pytest.mark.parametrize("kind", READERS)
def test_probes_of_a_list_of_verdicts_are_the_very_draws_of_the_engine_in_this_process(kind):
    model = judge_model(consensus="sampled", probe_vocabulary="verdict")
    own = RewardJudge(model, path="short", explain=True)(RECORDS)
    serve_elsewhere(model, kind)
    for result, expected in zip(RewardJudge(model, path="short", explain=True)(RECORDS), own, strict=True):
        assert [probe.verdict for probe in result.account.probes] == [p.verdict for p in expected.account.probes]
        assert result.consensus == expected.consensus


@pytest.mark.parametrize("kind", sorted(DIALECTS))
def test_greedy_probes_and_chains_take_the_same_routes_to_the_same_verdicts(kind):
    model = judge_model(temperatures=(0.0,) * 3, top_ps=(1.0,) * 3, consensus="sampled", chain_temperature=0.0)
    own = RewardJudge(model, return_rationale=True)(RECORDS)
    serve_elsewhere(model, kind)
    results = RewardJudge(model, return_rationale=True)(RECORDS)
    assert [(r.verdict, r.route, r.status, r.rationale) for r in results] == [
        (r.verdict, r.route, r.status, r.rationale) for r in own
    ]


@pytest.mark.parametrize("kind", sorted(set(DIALECTS) - set(READERS)))
@pytest.mark.parametrize("options", [{"consensus": "exact"}, {"probe_vocabulary": "verdict"}], ids=str)
def test_a_server_that_tells_no_log_probabilities_is_refused_before_it_is_asked(kind, options):
    model = judge_model(consensus="sampled")
    server = serve_elsewhere(model, kind)
    with pytest.raises(UnsupportedModelError, match="It can: "):
        RewardJudge(model, **options)(RECORDS)
    assert not server.asked


def test_a_ladder_is_a_request_for_each_rung_or_one_list_of_parameters():
    model = judge_model(temperatures=(0.6, 0.8, 1.0), top_ps=(0.9,) * 3, consensus="sampled")
    server = serve_elsewhere(model, "vllm")
    RewardJudge(model, path="short")(RECORDS[:1])
    assert {(body["temperature"], body["top_p"]) for body in bodies(server)} == {(0.6, 0.9), (0.8, 0.9), (1.0, 0.9)}
    assert len({body["seed"] for body in bodies(server)}) == len(server.asked)
    server = serve_elsewhere(model, "sglang")
    RewardJudge(model, path="short")(RECORDS[:1])
    assert [row["temperature"] for row in bodies(server)[0]["sampling_params"]] == [0.6, 0.8, 1.0]


def test_a_row_that_a_late_stop_token_ended_at_once_goes_on_after_it():
    generator = talkative_generator({"\n": 30.0})
    (newline,) = tiny_tokenizer()("\n", add_special_tokens=False).input_ids
    engine = fake_engine("vllm", generator, None)
    ask = Ask((5, 6), (Row(0.0, 1.0, 1),), 4, (newline,))
    ((written,),) = engine.draw([ask])
    assert (written.tokens, written.stopped) == ([newline], True)
    model = judge_model()
    model.generator = generator
    server = serve_elsewhere(model, "vllm")
    RewardJudge(model, consensus="sampled", path="short")(RECORDS[:1])
    again = [body for body in bodies(server) if body["prompt"][-1] == newline]
    assert len(again) == len(server.asked) // 2
    assert {body["seed"] for body in again}.isdisjoint({body["seed"] for body in bodies(server) if body not in again})


def test_a_long_list_of_columns_is_read_in_parts_and_a_long_list_of_paths_is_refused():
    generator = tiny_generator()
    engine = fake_engine("vllm", generator, None)
    columns = list(range(5, 305))
    read = engine.read([(7, 8, 9)], columns, [math.inf])
    assert len(SERVERS[-1].asked) == 3
    with torch.no_grad():
        expected = generator(input_ids=torch.tensor([[7, 8, 9]])).logits[0, -1].log_softmax(-1)[columns]
    torch.testing.assert_close(read[0], expected, atol=1e-5, rtol=0)
    trie = VerdictTrie([(10 + number // 10, 300 + number % 10) for number in range(10 * MOST_PATHS)], (4,))
    prompts = engine.start(PromptRows.of(torch.tensor([[7, 8]]), torch.ones(1, 2, dtype=torch.int64)), ())
    with pytest.raises(UnsupportedModelError, match=f"at most {MOST_PATHS}"):
        prompts.read(trie.paths, trie.columns)


# -- a server that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [refused_with(503, Retry_After="0"), refused_with(429, Retry_After="0"), hung_up])
def test_what_fails_on_the_way_is_sent_again(fault):
    model = judge_model(consensus="sampled")
    server = serve_elsewhere(model, "vllm")
    expected = RewardJudge(model, path="short")(RECORDS)
    server.faults = [fault] * 2  # all tries of a request but its last
    assert RewardJudge(model, path="short")(RECORDS) == expected


@pytest.mark.parametrize("fault", [refused_with(400), garbled])
def test_a_request_that_fails_for_good_costs_its_own_record_only(fault):
    model = judge_model(consensus="sampled")
    server = serve_elsewhere(model, "vllm")
    expected = RewardJudge(model, path="short")(RECORDS)
    server.faults = [fault]
    results = RewardJudge(model, path="short")(RECORDS)
    assert sorted(result.status for result in results) == ["error", *["ok"] * (len(RECORDS) - 1)]
    assert sum(result == own for result, own in zip(results, expected, strict=True)) == len(RECORDS) - 1


@pytest.mark.parametrize("fault", [stalled, trickling])
@pytest.mark.parametrize("options", [{"consensus": "exact"}, {"consensus": "sampled"}, {"path": "long"}], ids=str)
def test_a_server_that_hangs_costs_no_more_than_the_deadline(fault, options):
    model = judge_model(max_chain_tokens=4)
    server = serve_elsewhere(model, "vllm")
    server.faults = [fault]
    started = time.monotonic()
    results = RewardJudge(model, timeout_s=0.4, **options)(RECORDS[:2])
    assert time.monotonic() - started < 3
    assert "timeout" in {result.status for result in results} <= {"timeout", "ok"}


def test_without_a_deadline_the_engine_has_its_own():
    model = judge_model(consensus="sampled")
    server = serve_elsewhere(model, "vllm", timeout_s=0.3)
    server.faults = [stalled] * 5
    started = time.monotonic()
    (result,) = RewardJudge(model, path="short")(RECORDS[:1])
    assert (result.status, time.monotonic() - started < 3) == ("timeout", True)


def test_a_dead_server_gives_statuses_with_the_reason_and_is_found_when_it_is_back():
    model = judge_model(consensus="sampled")
    server = serve_elsewhere(model, "vllm", tries=2)
    expected = RewardJudge(model, path="short")(RECORDS)
    server.kill()
    started = time.monotonic()
    results = RewardJudge(model)(RECORDS)
    assert time.monotonic() - started < 5
    assert {result.status for result in results} == {"error"}
    assert all("did not answer: ConnectionRefusedError" in result.error for result in results)
    server.start()
    assert RewardJudge(model, path="short")(RECORDS) == expected


def test_the_client_keeps_its_connections_and_asks_no_more_than_so_many_at_a_time():
    with fake_server("openai", tiny_generator(), tiny_tokenizer()) as server:
        client, most, seen = Client(server.url, concurrency=3), 0, []

        def count(handler: Any) -> bool:
            nonlocal most
            seen.append(handler.client_address)
            time.sleep(0.02)
            most = max(most, len(server.connections))
            return True

        server.faults = [count] * 12
        body = {"model": "judge", "prompt": [5, 6], "max_tokens": 1, "temperature": 0.0, "top_p": 1.0, "seed": 1}
        answers = client.post([Post("/v1/completions", body)] * 12)
        assert not any(isinstance(answer, Failure) for answer in answers)
        assert (most, len(set(seen))) == (3, 3)


def test_killing_the_server_in_the_middle_gives_statuses_and_the_run_resumes_when_it_is_back(tmp_path):
    with one_thread():
        checkpoint = build_checkpoint(tmp_path)
    answers, out = write_jsonl(tmp_path / "answers.jsonl", RECORDS * 4), tmp_path / "scores.jsonl"
    own = tmp_path / "own.jsonl"
    words = ("--probe-vocabulary", "full", "--consensus", "exact", "--path", "short", "--batch-size", 4)
    with one_thread(), fake_server("vllm", stating_generator(), tiny_tokenizer()) as server:
        assert egrm("score", checkpoint, answers, "-o", own, *words) == 0
        engine = ("--engine", f"{server.url}?tries=1")

        def dies(handler: Any) -> bool:
            server.kill()
            return False

        server.faults = [lambda handler: True] * 20 + [dies]
        assert egrm("score", checkpoint, answers, "-o", out, *words, *engine) == 0
        statuses = [row["status"] for row in read_jsonl(out)]
        assert set(statuses) == {"ok", "error"}
        assert statuses[-1] == "error"
        server.start()
        assert egrm("score", checkpoint, answers, "-o", out, *words, *engine, "--retry-failed") == 0
    rows, expected = read_jsonl(out), read_jsonl(own)
    assert {row["status"] for row in rows} == {"ok"}
    for row, home in zip(rows, expected, strict=True):
        assert (row["id"], row["verdict"], row["route"]) == (home["id"], home["verdict"], home["route"])


# -- what a server is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(DIALECTS))
def test_a_server_is_known_by_what_it_says_of_itself_and_tried_out(kind):
    model = judge_model()
    with fake_server(kind, model.generator, tiny_tokenizer()) as server:
        engine = connect(server.url, model.processor, model.backbone.cost)
    assert (engine.dialect.name, engine.can, engine.repeats) == (kind, DIALECTS[kind].can, True)


def test_an_ability_that_an_answer_does_not_bear_out_is_not_believed():
    model = judge_model()
    with fake_server("vllm", model.generator, tiny_tokenizer()) as server:
        answer = server._vllm

        def older(body: dict[str, Any]) -> dict[str, Any]:
            return answer({name: value for name, value in body.items() if name != "logprob_token_ids"})

        server._vllm = older  # ignores a field that it does not know
        assert connect(server.url, model.processor, model.backbone.cost).can == frozenset()

        def tempered(body: dict[str, Any]) -> dict[str, Any]:
            told = answer(body)
            logprobs = told["choices"][0]["logprobs"]
            if logprobs is not None:  # --logprobs-mode processed_logprobs
                logprobs["token_logprobs"] = [value / body["temperature"] for value in logprobs["token_logprobs"]]
            return told

        server._vllm = tempered
        assert connect(server.url, model.processor, model.backbone.cost).can == {"logits", "restrict"}

        def unseeded(body: dict[str, Any]) -> dict[str, Any]:
            return answer(body | {"seed": None})

        server._vllm = unseeded
        assert not connect(server.url, model.processor, model.backbone.cost).repeats


def test_a_server_that_ignores_the_temperature_is_refused():
    model = judge_model()
    with fake_server("transformers", model.generator, tiny_tokenizer()) as server:
        answer, first = server._transformers, []

        def batching(body: dict[str, Any]) -> dict[str, Any]:
            first.append(body["generation_config"])  # continuous batching keeps the first request's settings
            return answer(body | {"generation_config": first[0]})

        server._transformers = batching
        with pytest.raises(EngineError, match="--continuous-batching"):
            connect(server.url, model.processor, model.backbone.cost)


def test_a_server_that_reads_another_prompt_than_was_sent_is_found_out():
    model = judge_model()
    with fake_server("vllm", model.generator, tiny_tokenizer()) as server:
        answer = server._vllm
        server._vllm = lambda body: answer(body | {"prompt": [0, *body["prompt"]]})  # a start token of its own
        with pytest.raises(EngineError, match="the server counted"):
            connect(server.url, model.processor, model.backbone.cost)


@pytest.mark.parametrize("kind", sorted(DIALECTS))
def test_seeds_may_be_left_out(kind):
    model = judge_model()
    with fake_server(kind, model.generator, tiny_tokenizer()) as server:
        assert not connect(f"{server.url}?seeds=no", model.processor, model.backbone.cost).repeats
        assert '"seed"' not in (asked := json.dumps(bodies(server)))
        assert "sampling_seed" not in asked


@pytest.mark.parametrize("kind", sorted(DIALECTS))
def test_what_a_kind_cannot_read_is_refused_with_a_reason(kind):
    dialect = DIALECTS[kind]("judge", str, lambda text: [])
    if "logits" in dialect.can:
        assert dialect.reading([1, 2], [3]).body
    else:
        for ask in (lambda: dialect.reading([1, 2], [3]), lambda: dialect.log_probs({}, [3])):
            with pytest.raises(UnsupportedModelError, match=f"kind {kind} tells no log-probabilities"):
                ask()


def test_names_tokens_and_wrong_addresses():
    model = judge_model()
    with fake_server("vllm", model.generator, tiny_tokenizer()) as server:
        with pytest.raises(ConfigError, match="has no model 'other', but judge"):
            connect(f"{server.url}#other", model.processor, model.backbone.cost)
        assert connect(f"vllm+{server.url}/v1#judge", model.processor, model.backbone.cost).dialect.model == "judge"
        with pytest.raises(EngineError, match="was taken for a server of kind sglang"):
            connect(f"sglang+{server.url}?tries=1", model.processor, model.backbone.cost)
        server.token = "secret"
        with pytest.raises(EngineError, match="HTTP 401: Unauthorized"):
            connect(server.url, model.processor, model.backbone.cost)
    with pytest.raises(EngineError, match="does not answer"):
        connect(f"{server.url}?tries=1", model.processor, model.backbone.cost)


def test_a_token_is_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("EGRM_ENGINE_TOKEN", "secret")
    model = judge_model()
    with fake_server("sglang", model.generator, tiny_tokenizer()) as server:
        server.token = "secret"
        assert connect(server.url, model.processor, model.backbone.cost).can == DIALECTS["sglang"].can


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:8000", "is http://HOST:PORT"),
        ("ftp://host", "is http://HOST:PORT"),
        ("ollama+http://host", "A server is one of vllm, sglang"),
        ("http://host?retries=3", "settings are concurrency, timeout_s, tries, seeds"),
        ("http://host?seeds=perhaps", "must be yes or no"),
        ("http://host?tries=many", "must be a number"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused(address, said):
    with pytest.raises(ConfigError, match=said):
        Address.parse(address)


@pytest.mark.parametrize(
    "settings", [{"concurrency": 0}, {"timeout_s": 0.0}, {"timeout_s": math.nan}, {"tries": 0}], ids=str
)
def test_a_setting_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Client("http://127.0.0.1:1", **settings)


# -- servers that take and give text ----------------------------------------------------------------------------------------


def test_a_prompt_that_text_cannot_carry_is_refused_and_the_others_are_judged():
    model = judge_model(consensus="sampled")
    serve_elsewhere(model, "transformers")
    spelled = {"id": 9, "prompt": "What is <|im_end|>?", "response": "5"}  # ordinary text here, a control token there
    results = RewardJudge(model, path="short")([RECORDS[0], spelled, RECORDS[1]])
    assert [result.status for result in results] == ["ok", "error", "ok"]
    assert "takes prompts as text" in results[1].error
    serve_elsewhere(model, "vllm")
    assert {result.status for result in RewardJudge(model, path="short")([spelled])} == {"ok"}


def test_control_tokens_around_thoughts_need_a_server_that_tells_token_ids():
    tokenizer = tiny_tokenizer()

    class Thinking:
        def __init__(self) -> None:
            self.tokenizer = self
            self.all_special_tokens = ["<eos>", "<think>", "</think>"]

        def task(self) -> Any:
            return judge_model().task

        def __call__(self, *words: Any, **more: Any) -> Any:
            return tokenizer(*words, **more)

        def decode(self, *words: Any, **more: Any) -> Any:
            return tokenizer.decode(*words, **more)

    with (
        fake_server("transformers", tiny_generator(), tokenizer) as server,
        pytest.raises(UnsupportedModelError, match="<think>, </think> tell where a thought"),
    ):
        connect(server.url, Thinking(), None)


def test_text_is_asked_for_with_all_that_decides_its_law():
    model = judge_model(temperatures=(0.7, 0.0), top_ps=(0.9, 1.0), consensus="sampled")
    server = serve_elsewhere(model, "transformers")
    RewardJudge(model, path="short")(RECORDS[:1])
    settings = (json.loads(body["generation_config"]) for body in bodies(server))
    greedy, sampled = sorted(settings, key=lambda own: own["do_sample"])
    assert (sampled["do_sample"], sampled["temperature"], sampled["top_p"], sampled["top_k"]) == (True, 0.7, 0.9, 0)
    assert greedy["do_sample"] is False


# -- a judge without its generator -----------------------------------------------------------------------------------------


def test_a_judge_is_loaded_without_its_generator_and_scores_chains_as_before(tmp_path: Path):
    model = EGRMRewardModel.from_components(
        talkative_generator({"7": 8.0, "\n": 8.0, "": 8.0}), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(),
        max_chain_tokens=12, selection="scorer", chain_temperature=0.0,
    )  # fmt: skip
    model.save_pretrained(tmp_path / "judge")
    own = RewardJudge(model, path="long", explain=True)(RECORDS)
    away = load_without_generator(str(tmp_path / "judge"))
    assert all(parameter.is_meta for parameter in away.generator.parameters())
    with fake_server("tensorrt_llm", model.generator, tiny_tokenizer()) as server:
        away.engine = connect(server.url, away.processor, away.backbone.cost)
        results = RewardJudge(away, path="long", explain=True)(RECORDS)
    for result, expected in zip(results, own, strict=True):
        assert (result.verdict, result.status) == (expected.verdict, expected.status)
        ours, theirs = ([c.score for c in one.account.candidates] for one in (result, expected))
        assert ours == pytest.approx(theirs, abs=1e-5, nan_ok=True)


def test_a_server_of_rewards_has_its_generator_on_another_server(tmp_path):
    model = judge_model()
    model.save_pretrained(tmp_path / "judge")
    expected = RewardJudge(model, consensus="exact", path="short")(RECORDS)
    with fake_server("vllm", model.generator, tiny_tokenizer()) as server:
        away = load_model(str(tmp_path / "judge"), engine=server.url)
        with served(away, judging={"consensus": "exact", "path": "short"}) as client:
            answer = client.post("/v1/reward", json={"records": RECORDS}).json()
    assert [(row["verdict"], row["status"]) for row in answer["results"]] == [(r.verdict, "ok") for r in expected]


def test_an_engine_excludes_what_it_replaces(tmp_path, capsys):
    answers = write_jsonl(tmp_path / "answers.jsonl", RECORDS)
    for words in (("--url", "http://127.0.0.1:1"), ("--draft", "lm")):
        assert egrm("score", "egrm-mini", answers, "--engine", "http://127.0.0.1:1", *words) == 1
        assert "--engine says where the generator runs" in " ".join(capsys.readouterr().err.split())


# -- export ------------------------------------------------------------------------------------------------------------


def test_exported_folders_load_without_this_library_and_compute_the_same(tmp_path):
    model = judge_model()
    scored = EGRMRewardModel.from_components(
        stating_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), selection="vote"
    )
    scored.save_pretrained(tmp_path / "judge")
    assert egrm("export", tmp_path / "judge", "-o", tmp_path / "parts") == 0
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "parts" / "generator", trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "parts" / "generator", trust_remote_code=False)
    ids = tokenizer("What is 2 + 3?", return_tensors="pt").input_ids
    assert ids[0].tolist() == model.processor.tokenizer("What is 2 + 3?").input_ids
    with torch.no_grad():
        torch.testing.assert_close(plain(input_ids=ids).logits, scored.generator(input_ids=ids).logits)
    scorer = AutoModelForTokenClassification.from_pretrained(tmp_path / "parts" / "scorer", trust_remote_code=False)
    reader = AutoTokenizer.from_pretrained(tmp_path / "parts" / "scorer", trust_remote_code=False)
    pair = reader("a question", "it is 7", return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        logits = scorer(**pair).logits
    expected = scored.scorer.score_texts(["a question"], ["it is 7"], tiny_scorer_tokenizer())
    torch.testing.assert_close(logits[0, 0].sigmoid(), expected, atol=1e-5, rtol=0)
    assert egrm("export", tmp_path / "judge", "-o", tmp_path / "parts") == 1  # it holds something


def test_a_scorer_that_no_plain_class_computes_is_refused(tmp_path):
    model = EGRMRewardModel.from_components(
        stating_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), selection="vote"
    )
    model.scorer.score_head.register_forward_hook(lambda module, given, out: out + 1)
    with pytest.raises(ConfigError, match="--no-scorer"):
        write_components(model, tmp_path / "parts")
    assert set(write_components(model, tmp_path / "alone", scorer=False)) == {"generator"}
