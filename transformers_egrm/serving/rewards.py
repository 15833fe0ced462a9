"""The server's own endpoints: `/v1/reward`, `/v1/rewards/group`, `/feedback`."""

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from transformers_egrm.judge import ranking_of
from transformers_egrm.modeling.errors_egrm import DataError, InputError
from transformers_egrm.serving.asking import Answer, items_of, judge, question_of, service_of
from transformers_egrm.serving.schemas import FeedbackRequest, GroupAnswer, GroupRequest, RewardAnswer, RewardRequest
from transformers_egrm.serving.work import RefusedError


router = APIRouter()


@router.post("/v1/reward", response_model=RewardAnswer)
async def reward(body: RewardRequest, request: Request) -> Answer:
    """Judge records. One that cannot be judged gives a result whose `status` and `error` say why."""
    service = service_of(request)
    items = items_of(service, [record.plain() for record in body.records], body, waits=body.coalesce)
    judged = await judge(request, items, body.timeout_s)
    return Answer(judged.to_dict(service, request, rationale=body.rationale))


@router.post("/v1/rewards/group", response_model=GroupAnswer)
async def group(body: GroupRequest, request: Request) -> Answer:
    """Judge all completions of one prompt, which is run once, and rank them."""
    service = service_of(request)
    shared = {name: getattr(body, name) for name in ("prompt", "system", "reference", "tools")}
    records = [
        {name: value for name, value in {**shared, "response": response}.items() if value is not None}
        for response in body.responses
    ]
    judged = await judge(request, items_of(service, records, body), body.timeout_s)
    ranking = ranking_of(judged.results)
    answer = judged.to_dict(service, request, rationale=body.rationale)
    rewards = [result.reward for result in judged.results]
    return Answer({**answer, "rewards": rewards, "order": list(ranking.order), "tied": list(ranking.tied)})


@router.post("/feedback", status_code=201)
async def feedback(body: FeedbackRequest, request: Request) -> Answer:
    """Keep what is right about a record, as a label for calibration."""
    service = service_of(request)
    if service.store is None:
        raise RefusedError(501, "no_store", "This server keeps no corrections; it was started without --feedback.")
    record = body.record.plain()
    try:
        case = await run_in_threadpool(service.store.add, record, body.result, body.truth)
    except InputError as error:
        raise RefusedError(400, "bad_request", str(error)) from error
    except DataError as error:
        raise RefusedError(503, "store", "The store of corrections cannot be written.", 5) from error
    right = body.result.verdict == case.truth
    service.metrics.corrected(body.result.route, right)
    if service.worker.policy.has_arms:
        service.comparison.add(service.worker.policy.arm(question_of(record)), float(right))
    return Answer({"kind": case.kind, "counts": await run_in_threadpool(service.store.counts)}, status_code=201)


__all__ = ["router"]
