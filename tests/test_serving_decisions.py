"""`/v1/systemone`: the answers of Transformers' own endpoint, thinking as asked, and what is refused."""

import json
import threading

import pytest
from serve_tools import PacedModel, listening, record, served, until, worker_of
from starlette.testclient import TestClient

from transformers_egrm.bundle import load_mini
from transformers_egrm.integrations.client import Client, ServerError
from transformers_egrm.serving import ServeOptions
from transformers_egrm.serving.decisions import Decided, decider_of


pytest.importorskip("transformers", minversion="5.23", reason="the Decision API came with 5.23")
pytestmark = pytest.mark.filterwarnings("ignore::transformers_egrm.modeling.errors_egrm.UnfamiliarTextWarning")

STATE = {"prompt": "Mia has 7 books, gets 5. How many books now?", "response": "It is 12."}
QUESTIONS = {
    "right": {"type": "noul"},
    "quality": {"type": "score", "criteria": [str(level) for level in range(11)]},
    "tone": {"type": "choice", "instructions": "What is it?", "criteria": {"a sum": "Of numbers", "a poem": None}},
}
REQUEST = {"model": "egrm-mini", "state": STATE, "questions": QUESTIONS}


@pytest.fixture(scope="module")
def model():
    return load_mini()


@pytest.fixture(scope="module")
def client(model):
    with served(model, ServeOptions(), judging={"max_chain_tokens": 24}) as client:
        yield client


def post(client: TestClient, body: object, status: int = 200) -> dict:
    answer = client.post("/v1/systemone", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_answers_are_those_of_transformers_serve(client, model):
    from transformers.pipelines import DecisionPipeline

    decider = decider_of(model)
    assert decider is not None
    decider.config.judging["max_chain_tokens"] = 24
    try:
        # The steps of its handler, and the answer that it makes of them.
        pipe = DecisionPipeline(model=decider, tokenizer=model.processor.tokenizer, processor=model.processor)
        inputs = pipe.preprocess({"state": STATE, "questions": QUESTIONS, "assets": {}})
        answers = pipe.postprocess(pipe.forward(inputs))
    finally:
        del decider.config.judging["max_chain_tokens"]
    tokens = sum(prompt["input_ids"].shape[-1] for prompt, _ in inputs["prompts"])
    told = post(client, REQUEST | {"assets": {}})
    written = told["usage"].pop("output_tokens")  # theirs is always 0: they write nothing
    assert json.dumps(told) == json.dumps(
        {"model": "egrm-mini", "answers": answers, "usage": {"input_tokens": tokens}}
    )
    assert written > 0
    assert {answer["route"] for answer in told["answers"].values()} <= {"short", "long"}


@pytest.mark.parametrize(("think", "route"), [("never", "short"), ("always", "long")])
def test_a_request_says_whether_to_think(client, think, route):
    told = post(client, {**REQUEST, "think": think})
    assert [answer["route"] for answer in told["answers"].values()] == [route] * 3
    assert (told["usage"]["output_tokens"] > 0) == (think == "always")
    # Probabilities are those of the prefill in any case.
    assert told["answers"]["right"]["noul"] == post(client, REQUEST)["answers"]["right"]["noul"]


@pytest.mark.parametrize(("body", "status"), [
    ({"state": STATE}, 422), ({**REQUEST, "think": "maybe"}, 422), ({**REQUEST, "questions": {}}, 422),
    ({**REQUEST, "temperature": 1}, 422), ({**REQUEST, "state": 5}, 422), ({**REQUEST, "assets": {"i": {}}}, 422),
    ({**REQUEST, "questions": {str(n): {"type": "noul"} for n in range(65)}}, 422),
    ({**REQUEST, "questions": {"q": {"type": "rank"}}}, 400), ({**REQUEST, "state": " "}, 400),
    ({**REQUEST, "questions": {"q" * 5000: {"type": "choice", "criteria": {}}}}, 400),
    ({**REQUEST, "questions": {"q": {"type": "score", "criteria": ["one"]}}}, 400),
    ({**REQUEST, "state": "word " * 5000}, 400),
])  # fmt: skip
def test_what_cannot_be_answered_is_refused_with_a_reason(client, body, status):
    answer = client.post("/v1/systemone", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    assert len(answer.content) < 2000
    assert worker_of(client).failures == 0


def test_deep_states_break_nothing(client):
    deciding = json.dumps({**REQUEST, "state": "DEEP", "think": "never"})
    judging = json.dumps({"records": [{"messages": [{"role": "user", "content": "DEEP"}], "tools": [{"a": "DEEP"}]}]})
    for depth in (50, 400, 700, 900, 950, 980, 5000):
        for path, body in (("/v1/systemone", deciding), ("/v1/reward", judging)):
            text = body.replace('"DEEP"', "[" * depth + "]" * depth)
            answer = client.post(path, content=text, headers={"content-type": "application/json"})
            assert answer.status_code < 500, (path, depth, answer.text)
    assert client.get("/health").status_code == 200


def test_records_and_questions_take_turns(client, model):
    order = []
    worker = worker_of(client)
    stepped, decided = worker.watcher.stepped, worker.watcher.decided
    worker.watcher.stepped = lambda kind, *rest: (order.append(kind), stepped(kind, *rest))[1]
    worker.watcher.decided = lambda result: (order.append("answer"), decided(result))[1]
    try:
        questions = {str(n): {"type": "noul", "instructions": f"Is it {n}?"} for n in range(20)}
        body = {"state": STATE, "questions": questions, "think": "never"}
        asking = threading.Thread(target=post, args=(client, body))
        asking.start()
        until(lambda: "decide" in order)
        told = client.post("/v1/reward", json={"records": [STATE], "options": {"path": "short"}})
        asking.join(20)
    finally:
        worker.watcher.stepped, worker.watcher.decided = stepped, decided
    assert told.status_code == 200
    assert order.count("decide") == 20
    assert "probe" in order[: order.index("answer")]  # it did not wait for all the questions


def test_answers_are_counted(client):
    post(client, {**REQUEST, "think": "never"})
    text = client.get("/metrics").text
    assert 'egrm_decisions_total{route="short"' in text
    assert 'egrm_queue_records{queue="decide"} 0.0' in text


def test_time_that_is_up_leaves_the_probabilities_or_nothing(model):
    with served(model, ServeOptions(timeout_s=0.05), judging={"max_chain_tokens": 200, "num_chains": 16}) as client:
        answer = client.post("/v1/systemone", json={**REQUEST, "think": "always"})
        if answer.status_code == 200:
            assert "timeout" in {answer["status"] for answer in answer.json()["answers"].values()}
        else:
            assert answer.status_code == 504
        until(lambda: worker_of(client).in_flight == 0)


def test_a_judge_that_fails_is_told_and_the_server_goes_on(client, monkeypatch, caplog):
    service = client.app.state.service
    with monkeypatch.context() as patch:
        patch.setattr(
            service.decider, "decide_each", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("the secret"))
        )
        assert post(client, REQUEST, 500)["error"]["type"] == "internal"
    assert "the secret" not in caplog.text
    worker_of(client).failures = 0
    post(client, {**REQUEST, "think": "never"})


def test_a_client_that_goes_away_ends_the_questions(model):
    with listening(model) as (url, service):
        questions = {str(n): {"type": "noul", "instructions": f"Is it {n}?"} for n in range(64)}
        with Client(url, timeout_s=0.3, retries=0) as client, pytest.raises(ServerError):
            client.post("/v1/systemone", {"state": STATE, "questions": questions, "think": "always"})
        until(lambda: service.worker.in_flight == 0)
        until(lambda: service.worker.queues["decide"] == 0)


def test_a_judge_without_an_engine_of_its_own_says_so():
    with served(PacedModel()) as client:
        assert post(client, REQUEST, 501)["error"]["type"] == "no_decisions"
        assert client.post("/v1/reward", json={"records": [record(1)]}).status_code == 200


def test_the_route_of_a_request_is_long_where_one_answer_is():
    short, long = {"route": "short"}, {"route": "long"}
    assert Decided({"a": short}, 1, 0).route == "short"
    assert Decided({"a": short, "b": long}, 1, 0).route == "long"
