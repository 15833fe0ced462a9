"""What a server counts, as Prometheus reads it."""

import threading
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from transformers_egrm.calibration.audit import disagrees
from transformers_egrm.modeling.judge_packing_egrm import PromptLoad
from transformers_egrm.modeling.judge_results_egrm import JudgeResult


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 1.0)


class Metrics:
    """Counts of one server. Each has a registry of its own, so that two servers of one process do not mix.

    Attributes:
        prompt_tokens: Prompt tokens run so far, padding included.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.prompt_tokens, self._lock = 0, threading.Lock()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"egrm_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"egrm_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"egrm_{name}", text, labels, buckets=buckets, registry=self.registry)

        self._requests = counter("requests", "Requests by endpoint and HTTP status", "endpoint", "status")
        self._request_seconds = histogram("request_seconds", "Time of a request", _SECONDS, "endpoint")
        self._records = counter("records", "Records by path, status and arm", "route", "status", "arm")
        self._stages = counter("stages", "Records by what answered them", "stage")
        self._record_seconds = histogram("record_seconds", "Time of a record, waiting included", _SECONDS, "route")
        self._consensus = histogram("consensus", "Agreement of the probes", _SHARES)
        self._audits = counter("audits", "Short verdicts that chains judged too", "agrees")
        self._decisions = counter("decisions", "Answers to typed questions by path and status", "route", "status")
        self._feedback = counter("feedback", "Corrections by path", "route", "right")
        self._batches = counter("batches", "Batches by kind", "kind")
        self._batch_seconds = histogram("batch_seconds", "Time of a batch", _SECONDS, "kind")
        self._tokens = counter("tokens", "Tokens: of prompts, of padding among them, and new ones", "kind")
        self._queue = gauge("queue_records", "Records by what they wait for", "queue")
        self._threshold = gauge("threshold", "Agreement that is believed (tau)", "arm")
        self._wealth = gauge("audit_wealth", "Evidence that short verdicts have become worse; 1 is none", "arm")
        self._alarm = gauge(
            "audit_alarm", "1 where short verdicts disagree more often with chains than they did", "arm"
        )
        self._ready = gauge("ready", "1 while requests are taken in")
        self._policy = gauge("policy_reloads", "Changed policy files", "taken")

    # What the worker says

    def answered(self, result: JudgeResult, seconds: float, arm: str) -> None:
        """A record has its result.

        Args:
            result: Its result.
            seconds: Since its request came.
            arm: The policy that it was judged by.
        """
        route = result.route or "none"
        self._records.labels(route, result.status, arm).inc()
        self._stages.labels(result.stage or "none").inc()
        self._record_seconds.labels(route).observe(seconds)
        self._tokens.labels("new").inc(result.tokens)
        if result.consensus is not None:
            self._consensus.observe(result.consensus)
        if (outcome := disagrees(result)) is not None:
            self._audits.labels("no" if outcome else "yes").inc()

    def decided(self, result: Any) -> None:
        """The questions of a request are answered.

        Args:
            result: A `Decided`.
        """
        for answer in result.answers.values():
            self._decisions.labels(answer["route"], answer["status"]).inc()
        self._tokens.labels("new").inc(result.new_tokens)

    def stepped(self, kind: str, seconds: float, scheduler: Any) -> None:
        """A batch was judged.

        Args:
            kind: `probe`, `think`, or `decide` for one typed question.
            seconds: It took.
            scheduler: Its load is counted and set back.
        """
        load, scheduler.load = scheduler.load, PromptLoad()
        self._batches.labels(kind).inc()
        self._batch_seconds.labels(kind).observe(seconds)
        self._tokens.labels("prompt").inc(load.run_tokens)
        self._tokens.labels("padding").inc(load.padded_tokens)
        with self._lock:
            self.prompt_tokens += load.run_tokens

    # What requests say

    def requested(self, endpoint: str, status: int, seconds: float) -> None:
        """A request was answered.

        Args:
            endpoint: Its path as it is routed, never as it was sent.
            status: HTTP status; 499 where the client went away.
            seconds: It took.
        """
        self._requests.labels(endpoint, str(status)).inc()
        self._request_seconds.labels(endpoint).observe(seconds)

    def corrected(self, route: str | None, right: bool) -> None:
        """A user said what was right.

        Args:
            route: Path that the record took.
            right: Whether the judge had said the same.
        """
        self._feedback.labels(route or "none", "yes" if right else "no").inc()

    def render(self, worker: Any) -> bytes:
        """Everything in Prometheus' text form.

        Args:
            worker: Its queues and thresholds are read now.
        """
        for name, count in worker.queues.items():
            self._queue.labels(name).set(count)
        self._queue.labels("in_flight").set(worker.in_flight)
        for metric in (self._threshold, self._wealth, self._alarm):
            metric.clear()  # a changed policy may have fewer arms
        for arm, tau in worker.policy.thresholds.items():
            self._threshold.labels(arm).set(tau)
        for arm, audit in worker.policy.audits.items():
            self._wealth.labels(arm).set(audit.wealth)
            self._alarm.labels(arm).set(audit.alarm is not None)
        self._ready.set(worker.is_ready)
        self._policy.labels("yes").set(worker.policy.reloads)
        self._policy.labels("no").set(worker.policy.refusals)
        return generate_latest(self.registry)


__all__ = ["Metrics"]
