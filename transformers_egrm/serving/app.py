"""The application: one judge, its endpoints, and what goes wrong told in one form."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from transformers_egrm.calibration.comparison import Comparison
from transformers_egrm.calibration.feedback import FeedbackStore
from transformers_egrm.modeling.judge_scheduler_egrm import need_model
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.serving import decisions, dialects, jobs, rewards, status
from transformers_egrm.serving.asking import Answer
from transformers_egrm.serving.guard import Guard
from transformers_egrm.serving.job_store import Jobs
from transformers_egrm.serving.metrics import Metrics
from transformers_egrm.serving.options import ServeOptions
from transformers_egrm.serving.policy import Policy
from transformers_egrm.serving.schemas import Problem
from transformers_egrm.serving.service import Service
from transformers_egrm.serving.work import RefusedError
from transformers_egrm.serving.worker import Worker


def build_app(
    model: Any, options: ServeOptions, *, token: str | None, name: str, judging: Mapping[str, Any] | None
) -> FastAPI:
    """See `transformers_egrm.serving.create_app`."""
    need_model(model)
    metrics = Metrics()
    tau = model.config.judge_options(**(judging or {})).consensus_threshold
    policy = Policy(options.policy, getattr(model.config, "certificate", None), tau)
    worker = Worker(model, options, judging or {}, policy, metrics)
    fallback = options.fallback if options.fallback is not None else getattr(model.config, "no_verdict_reward", None)
    service = Service(
        name=name, options=options, space=VerdictSpace.read(model.processor.space), fallback=fallback,
        label=str((getattr(model.config, "id2label", None) or {}).get(0, "reward")),
        decider=decisions.decider_of(model), judging=judging or {}, worker=worker, metrics=metrics, jobs=Jobs(options),
        store=None if options.feedback is None else FeedbackStore(options.feedback), comparison=Comparison(),
    )  # fmt: skip

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.drain()
        await service.jobs.end()
        await run_in_threadpool(worker.stop, options.drain_s)

    app = FastAPI(
        title="EGRM", summary="A generative reward model that reasons only when it has to.", lifespan=lifespan,
        default_response_class=Answer, responses={code: {"model": Problem} for code in (400, 401, 403, 413, 422, 429, 503)},
        docs_url=None, redoc_url=None,  # their pages would load scripts from elsewhere
    )  # fmt: skip
    app.state.service = service
    app.add_middleware(Guard, token=token, max_body_bytes=options.max_body_bytes, metrics=metrics)
    for part in (rewards, dialects, decisions, jobs, status):
        app.include_router(part.router)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    return app


async def _refused(request: Request, error: Any) -> Answer:
    headers = None if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return _problem(error.status, error.kind, error.message, headers=headers)


async def _invalid(request: Request, error: Any) -> Answer:
    # What was sent is not sent back: it may be megabytes, or what JSON cannot hold.
    details = [
        {"at": [str(part)[:80] for part in fault["loc"]], "problem": fault["msg"]} for fault in error.errors()[:20]
    ]
    return _problem(422, "invalid", "The body does not have the form that the endpoint takes.", details=details)


async def _http_error(request: Request, error: Any) -> Answer:
    return _problem(error.status_code, "http", str(error.detail), headers=error.headers)


def _problem(status: int, kind: str, message: str, **more: Any) -> Answer:
    headers, details = more.get("headers"), more.get("details")
    error = {"type": kind, "message": message} | ({} if details is None else {"details": details})
    return Answer({"error": error}, status_code=status, headers=headers)


__all__ = ["build_app"]
