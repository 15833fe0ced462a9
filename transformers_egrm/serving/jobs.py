"""`/v1/jobs`: records judged while nobody waits, and a signed call when they are done.

Jobs are fed to the worker a few batches at a time, so that a job of thousands leaves room for those who wait. They live in
memory: a server that stops forgets them, and says so in their callbacks.
"""

import asyncio
import hashlib
import hmac
import http.client
import json
import logging
import time
from contextlib import suppress
from urllib.parse import urlsplit

from fastapi import APIRouter, Request

from transformers_egrm.serving.asking import Answer, items_of, new_work, service_of, wait_for
from transformers_egrm.serving.job_store import CANCELLED, Job
from transformers_egrm.serving.options import CALLBACK_VARIABLE
from transformers_egrm.serving.schemas import JobAnswer, JobRequest
from transformers_egrm.serving.service import Service
from transformers_egrm.serving.work import RefusedError, Work


logger = logging.getLogger(__name__)
router = APIRouter()

_CALLBACK_TRIES = 3
_CALLBACK_TIMEOUT_S = 10.0


async def _run(service: Service, job: Job) -> None:
    chunk = 2 * service.options.batch_size
    job.state = "running"
    try:
        for start in range(0, len(job.items), chunk):
            work = new_work(job.items[start : start + chunk], service.options.timeout_s)
            await _patiently(service, work)
            job.results += work.so_far()
        job.state = "done"
    except asyncio.CancelledError:
        job.state, job.error = "cancelled", CANCELLED
    except RefusedError as reason:
        job.state, job.error = "failed", reason.message
    except Exception as error:
        logger.error("job_failed", extra={"fields": {"id": job.id, "error": type(error).__name__}})
        job.state, job.error = "failed", "The job failed for a reason of the server's own; its log names the kind."
    job.ended = time.monotonic()
    logger.info("job_ended", extra={"fields": {"id": job.id, "state": job.state, "records": len(job.results)}})
    if job.callback is not None:
        await _call_back(service.jobs.secret, job)


async def _patiently(service: Service, work: Work) -> None:
    # Those who wait come first: a job that finds the queue full tries again.
    while True:
        try:
            await wait_for(service, work)
            return
        except RefusedError as reason:
            if reason.kind != "queue_full":
                raise
            await asyncio.sleep(reason.retry_after_s or 1)
            work.deadline = time.monotonic() + service.options.timeout_s


async def _call_back(secret: bytes, job: Job) -> None:
    body = json.dumps({**job.to_dict(), "time": int(time.time())}).encode()
    signature = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    tries = 1 if job.state == "cancelled" else _CALLBACK_TRIES  # a server that stops does not wait
    for attempt in range(tries):
        status = await asyncio.to_thread(_post, job.callback or "", body, signature)
        if status is not None and 200 <= status < 300:
            return
        logger.warning("callback_failed", extra={"fields": {"id": job.id, "attempt": attempt + 1, "status": status}})
        if attempt + 1 < tries:
            await asyncio.sleep(2**attempt)


def _post(url: str, body: bytes, signature: str) -> int | None:
    # No redirect is followed: the host that was allowed is the host that is called.
    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=_CALLBACK_TIMEOUT_S)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "X-EGRM-Signature": signature}
    try:
        connection.request("POST", path, body, headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        with suppress(OSError):
            connection.close()


def _check_callback(service: Service, url: str) -> None:
    try:
        parts = urlsplit(url)
        named = {parts.netloc, parts.hostname}
        fits = parts.scheme in ("http", "https") and url.isascii() and url.isprintable() and parts.port != 0
    except ValueError:
        named, fits = set(), False
    if not fits or "@" in url or " " in url or not named & set(service.options.callback_host):
        raise RefusedError(
            422, "callback", "The callback must be an http or https URL of a host that --callback-host allows."
        )
    if not service.jobs.secret:
        raise RefusedError(
            501, "callback", f"Callbacks are signed, and this server has no secret ({CALLBACK_VARIABLE})."
        )


@router.post("/v1/jobs", status_code=202, response_model=JobAnswer)
async def submit(body: JobRequest, request: Request) -> Answer:
    """Begin a job. Its state and results are asked for by its id."""
    service = service_of(request)
    if body.callback is not None:
        _check_callback(service, body.callback)
    records = [record.plain() for record in body.records]
    job = Job(items_of(service, records, body, most=service.options.max_job_items), body.callback, body.rationale)
    if not service.worker.is_ready:
        raise RefusedError(503, "stopping", "The server is stopping and takes no new jobs.", 5)
    service.jobs.add(job)
    job.task = asyncio.ensure_future(_run(service, job))
    return Answer(job.about(), status_code=202, headers={"Location": f"/v1/jobs/{job.id}"})


@router.get("/v1/jobs/{job_id}", response_model=JobAnswer)
async def state(job_id: str, request: Request) -> Answer:
    """Where a job stands."""
    return Answer(service_of(request).jobs.get(job_id).about())


@router.get("/v1/jobs/{job_id}/result")
async def result(job_id: str, request: Request) -> Answer:
    """The results of a job that has ended, in order; those it had where it did not end well."""
    job = service_of(request).jobs.get(job_id)
    if job.ended is None:
        raise RefusedError(409, "not_done", f"The job has judged {len(job.results)} of {len(job.items)} records.", 1)
    return Answer(job.to_dict())


@router.delete("/v1/jobs/{job_id}", response_model=JobAnswer)
async def cancel(job_id: str, request: Request) -> Answer:
    """End a job; what it has judged so far is kept."""
    jobs = service_of(request).jobs
    job = jobs.get(job_id)
    await jobs.end(job)
    return Answer(job.about())


__all__ = ["router"]
