"""Endpoints in the wire formats of others: OpenRLHF, vLLM, SGLang and OpenAI's chat.

All of them know numbers only. Where there is no verdict they get the fallback that the server was told, and without one the
request fails with a reason: a number is never made up. What came too late, or failed for a reason of the server's own, fails
in any case, so that the client tries again.
"""

import base64
import struct
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from transformers_egrm.judge import ranking_of
from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.verdict_forms_egrm import FORMS
from transformers_egrm.serving.asking import Answer, Judged, check_size, judge, need_answers, question_of, service_of
from transformers_egrm.serving.rendered import read_rendered, split_query
from transformers_egrm.serving.schemas import Closed, Seed
from transformers_egrm.serving.service import Service
from transformers_egrm.serving.work import Item, RefusedError, result_dict


router = APIRouter()

Texts = str | Annotated[list[str], Field(min_length=1)]
_ONE_RESPONSE = ("pointwise", "binary")


class _Asking(Closed):
    model: str | None = Field(None, description="Not read: a server has one model.")
    user: str | None = Field(None, description="Not read.")


# Records, and numbers of results


def _item(service: Service, record: dict[str, Any], options: dict[str, Any] | None = None) -> Item:
    # A contract that judges one response is asked in a space of one: the server's own, or points from 0 to 10. Its clients
    # cannot say whether more is to come, so that what comes alone waits.
    space = None if service.space.kind in _ONE_RESPONSE else {"kind": "pointwise"}
    return Item(record, space, options=options or {}, question=question_of(record), waits=True)


def _rewards_range(service: Service) -> tuple[float, float]:
    rewards = service.space.rewards if service.space.kind in _ONE_RESPONSE else (0.0, 10.0)
    return min(rewards), max(rewards)


def _numbers(service: Service, judged: Judged) -> list[float]:
    need_answers(service, judged)
    return [_number(service, result) for result in judged.results]


def _number(service: Service, result: JudgeResult) -> float:
    if result.reward is not None:
        return result.reward
    if service.fallback is None:
        reason = f"There is no verdict (status {result.status}: {result.error}). Start the server with --fallback to answer a number."  # fmt: skip
        raise RefusedError(422, "no_verdict", reason)
    return service.fallback


def _head(service: Service, request: Request, kind: str) -> dict[str, Any]:
    about = {"object": "list", "created": int(time.time()), "model": service.name}
    return {"id": f"{kind}-{request.scope['egrm']['id']}", **about}


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


# OpenRLHF


class RemoteRewardRequest(Closed):
    """OpenRLHF's remote reward: prompts with their continuations, as its policy's tokenizer renders them."""

    query: list[str]
    prompts: list[str | None] | None = None
    labels: list[str | None] | None = None


@router.post("/get_reward")
async def get_reward(body: RemoteRewardRequest, request: Request) -> Answer:
    """Judge the continuations. Single queries of one prompt wait for each other for some milliseconds."""
    service, count = service_of(request), len(body.query)
    prompts, labels = body.prompts or [None] * count, body.labels or [None] * count
    if len(prompts) != count or len(labels) != count:
        raise RefusedError(422, "lengths", f"`prompts` and `labels` need one entry per query ({count}).")
    if not count:
        return Answer({"rewards": [], "scores": [], "extra_logs": {}})
    check_size(service, list(zip(body.query, prompts, labels, strict=True)))
    items = []
    for query, prompt, label in zip(body.query, prompts, labels, strict=True):
        if (split := split_query(query, prompt)) is None:
            raise RefusedError(
                422, "no_question", "Each query must begin with its prompt, or show the turns of a chat template."
            )
        record: dict[str, Any] = {"prompt": split[0], "response": split[1]}
        if label and label.strip() and service.options.labels == "reference":
            record["reference"] = label
        items.append(_item(service, record))
    judged = await judge(request, items)
    rewards, (low, high) = _numbers(service, judged), _rewards_range(service)
    logs = {
        "consensus": [result.consensus or 0.0 for result in judged.results],
        "long_path": [float(result.route == "long") for result in judged.results],
        "judge_tokens": [float(result.tokens) for result in judged.results],
        "parse_failed": [float(result.reward is None) for result in judged.results],
    }
    scores = [min(max((reward - low) / (high - low), 0.0), 1.0) for reward in rewards]
    return Answer({"rewards": rewards, "scores": scores, "extra_logs": logs})


# Classification and embeddings of whole conversations


class ClassifyRequest(_Asking):
    """A rendered conversation that ends with the judged response: as `input` or `messages` (vLLM), or as `text` (SGLang)."""

    input: Texts | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=2)] | None = None
    text: Texts | None = None
    use_activation: bool | None = Field(None, description="Not read: a reward is no logit.")
    activation: bool | None = Field(None, description="Likewise.")
    add_special_tokens: bool | None = Field(None, description="Not read: text is rendered anew.")
    priority: int | None = Field(None, description="Not read.")
    rid: str | list[str] | None = Field(None, description="Not read.")


class EmbeddingRequest(_Asking):
    """Rendered conversations whose rewards are asked for as embeddings of one number."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"


def _conversations(service: Service, texts: Sequence[str]) -> list[Item]:
    check_size(service, texts)
    items = []
    for text in texts:
        turns = read_rendered(text)
        if len(turns) < 2 or turns[-1]["role"] != "assistant":
            raise RefusedError(422, "no_conversation", "Text must be a conversation as a chat template renders it, which ends with "
                               "the judged response.")  # fmt: skip
        record = {"prompt": turns[:-1], "response": turns[-1]["content"]}
        items.append(_item(service, record))
    return items


@router.post("/classify")
async def classify(body: ClassifyRequest, request: Request) -> Answer:
    """Rewards as class probabilities of one class (`input`, `messages`), or as embeddings (`text`)."""
    given = [name for name in ("input", "messages", "text") if getattr(body, name) is not None]
    if len(given) != 1:
        raise RefusedError(422, "no_input", "Exactly one of `input`, `messages` and `text` is needed.")
    return await (_native(body, request) if given == ["text"] else v1_classify(body, request))


@router.post("/v1/classify")
async def v1_classify(body: ClassifyRequest, request: Request) -> Answer:
    """Rewards as class probabilities of one class."""
    service = service_of(request)
    if body.text is not None or (body.input is None) == (body.messages is None):
        raise RefusedError(422, "no_input", "Exactly one of `input` and `messages` is needed.")
    if body.messages is not None:
        check_size(service, [body.messages])
        items = [_item(service, {"messages": body.messages})]
    else:
        items = _conversations(service, _texts(body.input or ""))
    rewards = _numbers(service, await judge(request, items))
    data = [
        {"index": place, "label": service.label, "probs": [reward], "num_classes": 1}
        for place, reward in enumerate(rewards)
    ]
    return Answer({**_head(service, request, "classify"), "data": data})


async def _native(body: ClassifyRequest, request: Request) -> Answer:
    service = service_of(request)
    judged = await judge(request, _conversations(service, _texts(body.text or "")))
    rows = [
        {"embedding": [reward], "meta_info": {"id": request.scope["egrm"]["id"], "completion_tokens": result.tokens,
                                              "route": result.route, "consensus": result.consensus}}
        for reward, result in zip(_numbers(service, judged), judged.results, strict=True)
    ]  # fmt: skip
    return Answer(rows[0] if isinstance(body.text, str) else rows)


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingRequest, request: Request) -> Answer:
    """Rewards as embeddings of one number."""
    service = service_of(request)
    rewards = _numbers(service, await judge(request, _conversations(service, _texts(body.input))))
    as_text = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": place, "embedding": _packed(reward) if as_text else [reward]}
        for place, reward in enumerate(rewards)
    ]
    return Answer({**_head(service, request, "embd"), "data": data})


def _packed(reward: float) -> str:
    return base64.b64encode(struct.pack("<f", reward)).decode()


# Scores of pairs, and rankings


class ScoreRequest(_Asking):
    """Questions and answers: `text_1` and `text_2`, `data_1` and `data_2`, or `queries` and `documents` or `items`."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    use_activation: bool | None = Field(None, description="Not read: a reward is no logit.")


class _Document(Closed):
    text: str


class RerankRequest(_Asking):
    """Answers to one question, to be sorted."""

    query: str
    documents: Annotated[list[str | _Document], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=0)] | None = Field(None, description="How many are told; 0 or none: all.")
    return_documents: bool = True
    use_activation: bool | None = Field(None, description="Not read: a reward is no logit.")


@router.post("/score")
@router.post("/v1/score")
async def score(body: ScoreRequest, request: Request) -> Answer:
    """Rewards of answers. One question may have several answers."""
    service = service_of(request)
    pairs = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
    names = {name for pair in pairs for name in pair if getattr(body, name) is not None}
    pair = next((pair for pair in pairs if set(pair) == names), None)
    if pair is None:
        raise RefusedError(
            422,
            "no_input",
            "One pair is needed: text_1 and text_2, data_1 and data_2, or queries and documents or items.",
        )
    questions, answers = (_texts(getattr(body, name)) for name in pair)
    questions = questions * len(answers) if len(questions) == 1 else questions
    if len(questions) != len(answers):
        raise RefusedError(
            422, "lengths", f"There must be one question, or one per answer, got {len(questions)} and {len(answers)}."
        )
    rewards = _numbers(service, await _pairs(request, questions, answers))
    data = [{"index": place, "object": "score", "score": reward} for place, reward in enumerate(rewards)]
    return Answer({**_head(service, request, "score"), "data": data})


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(body: RerankRequest, request: Request) -> Answer:
    """Answers to one question, best first; equals in the order given."""
    service = service_of(request)
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    judged = await _pairs(request, [body.query] * len(texts), texts)
    rewards = _numbers(service, judged)
    order = list(ranking_of(judged.results).order)
    order.sort(key=lambda place: -rewards[place])  # keeps the order of equals; fallbacks find their place
    results: list[dict[str, Any]] = [{"index": place, "relevance_score": rewards[place]} for place in order]
    if body.return_documents:
        results = [{**result, "document": {"text": texts[result["index"]]}} for result in results]
    head = _head(service, request, "rerank")
    return Answer({"id": head["id"], "model": head["model"], "results": results[: body.top_n or None]})


async def _pairs(request: Request, questions: Sequence[str], answers: Sequence[str]) -> Judged:
    service = service_of(request)
    records = [{"prompt": question, "response": answer} for question, answer in zip(questions, answers, strict=True)]
    check_size(service, records)
    return await judge(request, [_item(service, record) for record in records])


# A judge as a chat model


class ChatRequest(_Asking):
    """A conversation that ends with the judged response, as OpenAI's clients send it."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=2)]
    tools: list[dict[str, Any]] | None = None
    seed: Seed | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    stream: Literal[False] | None = None


@router.post("/v1/chat/completions")
async def chat(body: ChatRequest, request: Request) -> Answer:
    """Judge the last turn. The answer is the chain that was believed, or the verdict alone; `egrm` holds the whole result."""
    service = service_of(request)
    record: dict[str, Any] = {"messages": body.messages} | ({} if body.tools is None else {"tools": body.tools})
    check_size(service, [record])
    options = {} if body.seed is None else {"seed": body.seed}
    judged = await judge(request, [_item(service, record, options)])
    (result,) = judged.results
    if result.verdict is None:
        _numbers(service, judged)  # what is no verdict is told as for the others
    form = service.space.verdict_format if isinstance(service.space.verdict_format, str) else "verdict"
    text = result.rationale or (FORMS[form].write(result.verdict) if result.verdict is not None else "")
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    head = _head(service, request, "chatcmpl") | {"object": "chat.completion", "choices": [choice]}
    return Answer({**head, "egrm": result_dict(result, rationale=False)})


__all__ = ["router"]
