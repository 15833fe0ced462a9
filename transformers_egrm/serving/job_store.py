"""The jobs of one server: what they are, and how long they are kept."""

import asyncio
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.serving.options import CALLBACK_VARIABLE, ServeOptions
from transformers_egrm.serving.work import Item, RefusedError, result_dict


CANCELLED = "The job was cancelled, or the server stopped."


@dataclass(eq=False)
class Job:
    """Records, and what came of them so far."""

    items: list[Item]
    callback: str | None
    rationale: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    state: str = "queued"
    results: list[JudgeResult] = field(default_factory=list)
    error: str | None = None
    ended: float | None = None
    task: "asyncio.Task[None] | None" = None

    def about(self) -> dict[str, Any]:
        """Where it stands, as `JobAnswer` says it."""
        return {"id": self.id, "state": self.state, "records": len(self.items), "finished": len(self.results),
                "error": self.error}  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Where it stands, with its results."""
        return {**self.about(), "results": [result_dict(result, rationale=self.rationale) for result in self.results]}


class Jobs:
    """The jobs of one server.

    Args:
        options: How many are kept, and how long.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.options, self.secret = options, os.environ.get(CALLBACK_VARIABLE, "").encode()
        self._jobs: dict[str, Job] = {}

    def add(self, job: Job) -> None:
        """Keep a job, in the place of one that has ended if need be.

        Raises:
            RefusedError: Too many jobs run.
        """
        now = time.monotonic()
        for old in [job for job in self._jobs.values() if job.ended is not None]:
            if now - (old.ended or now) > self.options.job_kept_s or len(self._jobs) >= self.options.jobs_kept:
                del self._jobs[old.id]
        if len(self._jobs) >= self.options.jobs_kept:
            raise RefusedError(429, "too_many_jobs", f"{len(self._jobs)} jobs run already.", 60)
        self._jobs[job.id] = job

    def get(self, job_id: str) -> Job:
        """The job of that id.

        Raises:
            RefusedError: There is none.
        """
        if (job := self._jobs.get(job_id)) is None:
            raise RefusedError(404, "no_such_job", "There is no job of this id; results are kept for a time only.")
        return job

    async def end(self, *jobs: Job) -> None:
        """End jobs; what they have judged so far is kept.

        Args:
            *jobs: Of this server; by default all.
        """
        running = [job for job in jobs or self._jobs.values() if job.ended is None]
        tasks = [job.task for job in running if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in running:
            if job.ended is None:  # it had not begun
                job.state, job.error, job.ended = "cancelled", CANCELLED, time.monotonic()


__all__ = ["CANCELLED", "Job", "Jobs"]
