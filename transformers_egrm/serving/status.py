"""How the server is: `/health`, `/ready`, `/metrics`, `/v1/models`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.serving.asking import Answer, service_of
from transformers_egrm.serving.work import RefusedError


router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Answer:
    """Whether the thread that judges is alive; no token is needed."""
    if not service_of(request).worker.is_alive:
        raise RefusedError(503, "dead", "The thread that judges has ended. Start the server again.")
    return Answer({"status": "ok"})


@router.get("/ready")
async def ready(request: Request) -> Answer:
    """Whether requests are taken in; no token is needed."""
    if not service_of(request).worker.is_ready:
        raise RefusedError(503, "stopping", "The server is stopping and takes no new requests.", 5)
    return Answer({"status": "ready"})


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Counts, in Prometheus' text form."""
    service = service_of(request)
    return Response(service.metrics.render(service.worker), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/models")
async def models(request: Request) -> Answer:
    """The one model of this server, in OpenAI's form, with its verdict space."""
    service = service_of(request)
    about = {"id": service.name, "object": "model", "owned_by": "egrm", "space": service.space.to_dict()}
    return Answer({"object": "list", "data": [about]})


@router.get("/v1/comparison")
async def comparison(request: Request) -> Answer:
    """The two arms of the policy: corrections of each, and what the difference of their accuracies may be."""
    service = service_of(request)
    try:
        low, high = service.comparison.interval
    except ConfigError as error:
        raise RefusedError(409, "no_difference", str(error)) from error
    counts, better = service.comparison.counts, service.comparison.better
    return Answer({"counts": counts, "b_minus_a": {"low": low, "high": high}, "better": better})


__all__ = ["router"]
