"""Metrics of a running study, exported through Ray for the dashboards in `dashboards/grafana`, and
Prometheus metrics of the service itself. `dashboards/prometheus/metrics.yaml` lists the names.

A study's metrics are only exported if its process is connected to Ray; the service's own /metrics
and the results database have the same facts. Ray drops a gauge that was not set for two of its
report intervals (10 s each), so a thread sets each gauge's last value repeatedly.

The service's metrics are requests by route and status, response times, and counts from the store at
each scrape, for studies on any runner. Labels are routes, never full paths, so that no name or
token becomes a label. Study ids are labels only while the studies are active, which bounds their
number.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.ports import Statistics, StudyRecord
from autotune.spec import FailureKind, StudyStatus, TrialStatus
from autotune.study.progress import BestChanged, LoopEvent, StudyOpened, TrialEnded, TrialStepped

STEP_BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""bounds of the histogram of step times, seconds"""
REPEAT_S = 5.0
"""interval at which gauges are set again, seconds; half of Ray's report interval"""
GAUGES = {
    "autotune_tokens_per_second_per_gpu": "Throughput of the running trial",
    "autotune_mfu": "Model FLOPs utilization of the running trial, 0 to 1",
    "autotune_peak_memory_bytes": "Peak memory of the last trial, on the rank that used the most",
    "autotune_best_tokens_per_second_per_gpu": "Best measured throughput of the study so far",
}


class StudyMetrics:
    """The metrics of one study. Pass `on_event` to the loop; as a context manager, it keeps the
    gauges alive."""

    def __init__(
        self, study: str, *, connected: Callable[[], bool] | None = None, kinds: Any = None
    ) -> None:
        """`connected`: returns whether metrics can be exported. `kinds`: an object with Counter,
        Gauge and Histogram (default: Ray's)."""
        self._study = study
        self._connected = connected or _is_connected_to_ray
        self._kinds = kinds
        self._metrics: dict[str, Any] = {}
        self._last: dict[str, float] = {}
        """last value of each gauge"""
        self._warmup_steps = 0
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._repeat, name="study-metrics", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()

    def repeat(self) -> None:
        """Set every gauge to its last value again."""
        for name, value in list(self._last.items()):
            self._metric(name).set(value, tags={"study": self._study})

    def _repeat(self) -> None:
        while not self._closing.wait(REPEAT_S):
            self.repeat()

    def on_event(self, event: LoopEvent) -> None:
        """Update the metrics for one event of the loop."""
        if isinstance(event, StudyOpened):
            self._warmup_steps = event.record.study.measure.warmup_steps
        if not self._connected():
            return
        match event:
            case TrialStepped(steps=steps):
                for index, seconds in enumerate(steps.step_times_s, steps.first_step):
                    if index >= self._warmup_steps:
                        self._metric("autotune_step_time_seconds").observe(
                            seconds, tags={"study": self._study}
                        )
            case TrialEnded(trial=trial):
                tags = {
                    "study": self._study,
                    "status": str(trial.status),
                    "failure": str(trial.failure.kind) if trial.failure is not None else "",
                }
                self._metric("autotune_trials").inc(1, tags=tags)
                if trial.measurement is not None:
                    self._set(
                        "autotune_tokens_per_second_per_gpu", trial.measurement.tokens_per_s_per_gpu
                    )
                    self._set("autotune_mfu", trial.measurement.mfu)
                    self._set("autotune_peak_memory_bytes", trial.measurement.peak_memory_bytes)
            case BestChanged(trial=trial) if trial.measurement is not None:
                self._set(
                    "autotune_best_tokens_per_second_per_gpu",
                    trial.measurement.tokens_per_s_per_gpu,
                )

    def _set(self, name: str, value: float | None) -> None:
        if value is not None:
            self._last[name] = float(value)
            self._metric(name).set(float(value), tags={"study": self._study})

    def _metric(self, name: str) -> Any:
        if name not in self._metrics:
            self._metrics[name] = self._make(name)
        return self._metrics[name]

    def _make(self, name: str) -> Any:
        if self._kinds is None:
            from ray.util import metrics

            self._kinds = metrics
        kinds = self._kinds
        if name == "autotune_trials":
            text = "Finished trials by final status and failure kind (empty when nothing failed)"
            return kinds.Counter(name, description=text, tag_keys=("study", "status", "failure"))
        if name == "autotune_step_time_seconds":
            text = "Duration of each optimizer step after warm-up on the slowest rank, in seconds"
            return kinds.Histogram(
                name, description=text, boundaries=list(STEP_BOUNDS_S), tag_keys=("study",)
            )
        return kinds.Gauge(name, description=GAUGES[name], tag_keys=("study",))


def _is_connected_to_ray() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


REQUEST_BOUNDS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""bounds of the histogram of response times, seconds"""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counters:
    """The metrics of one service, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "autotune_service_requests",
            "Answered requests",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "autotune_service_request_seconds", "Time until the response is complete", ["route"], buckets=REQUEST_BOUNDS_S,
            registry=self.registry,
        )  # fmt: skip
        self._studies = self._gauge("studies", "Studies by status", "status")
        self._trials = self._gauge("trials", "Trials by status", "status")
        self._failures = self._gauge("failures", "Failed trials by kind", "kind")
        self._study_trials = self._gauge(
            "study_trials", "Trials of each active study by status", "study", "status"
        )
        self._running = self._gauge("running", "Studies that a controller runs")
        self._streams = self._gauge("streams", "Open event streams")
        self._checks = self._gauge(
            "check", "Health checks of the service (1: passing, 0: failing)", "check"
        )
        self._disk = self._gauge(
            "disk_free_bytes", "Free disk space in the folder of the service's data"
        )

    def text(
        self,
        health: Mapping[str, Any],
        statistics: Statistics | None,
        active: Sequence[StudyRecord],
        *,
        streams: int,
    ) -> bytes:
        """Return the metrics in Prometheus' text format. `health`: the health document.
        `statistics`: counts from the store; None if it cannot be read."""
        self._checks.clear()
        for check, state in health["checks"].items():
            self._checks.labels(check).set(state == "ok")
        self._disk.set(health["disk_free_bytes"])
        self._streams.set(streams)
        for gauge in (self._studies, self._trials, self._failures, self._study_trials):
            gauge.clear()
        if statistics is not None:
            _set_counts(self._studies, StudyStatus, statistics.studies)
            _set_counts(self._trials, TrialStatus, statistics.trials)
            _set_counts(self._failures, FailureKind, statistics.failures)
            for record in active:
                _set_counts(self._study_trials, TrialStatus, record.trial_counts, record.id)
            self._running.set(statistics.leased)
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"autotune_service_{name}", text, labels, registry=self.registry)


def _set_counts(
    gauge: Gauge, kinds: Iterable[str], counts: Mapping[str, int], *labels: str
) -> None:
    """Set the count of every kind, including 0: Prometheus only detects a rise from 0 to 1 if it
    has scraped the 0."""
    for kind in dict.fromkeys((*map(str, kinds), *counts)):
        gauge.labels(*labels, kind).set(counts.get(kind, 0))


class CountRequests:
    """Middleware that counts and times responses."""

    def __init__(self, app: ASGIApp, *, counters: Counters) -> None:
        self.app, self.counters = app, counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request, and count and time its response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), [500]

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_count)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
            self.counters.requests.labels(method, route, str(status[0])).inc()
            self.counters.seconds.labels(route).observe(time.perf_counter() - began)
