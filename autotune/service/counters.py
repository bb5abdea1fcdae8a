"""Prometheus metrics of the service itself: requests by route and status, response times, and counts from the store at each scrape.

Labels hold routes, never full paths: no name or token becomes a label. The ids of studies do only while they are active, so that their number stays
bounded. They come from the store, so they are there however the studies are run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.ports import Statistics, StudyRecord
from autotune.spec import FailureKind, StudyStatus, TrialStatus

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counters:
    """The metrics of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "autotune_service_requests", "Answered requests", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "autotune_service_request_seconds", "Time to the end of the answer", ["route"], buckets=SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self._studies = self._gauge("studies", "Studies by status", "status")
        self._trials = self._gauge("trials", "Trials by status", "status")
        self._failures = self._gauge("failures", "Failed trials by kind", "kind")
        self._study_trials = self._gauge("study_trials", "Trials of each active study by status", "study", "status")
        self._running = self._gauge("running", "Studies that a controller runs")
        self._streams = self._gauge("streams", "Open event streams")
        self._checks = self._gauge("check", "Checks of the service's health: 1 passes, 0 fails", "check")
        self._disk = self._gauge("disk_free_bytes", "Free space where the service keeps its data")

    def text(
        self, health: Mapping[str, Any], found: Statistics | None, active: Sequence[StudyRecord], *, streams: int
    ) -> bytes:
        """The metrics in Prometheus' text format. `health`: the health document. `found`: None while the store cannot be read."""
        self._checks.clear()
        for check, state in health["checks"].items():
            self._checks.labels(check).set(state == "ok")
        self._disk.set(health["disk_free_bytes"])
        self._streams.set(streams)
        for gauge in (self._studies, self._trials, self._failures, self._study_trials):
            gauge.clear()
        if found is not None:
            _fill(self._studies, StudyStatus, found.studies)
            _fill(self._trials, TrialStatus, found.trials)
            _fill(self._failures, FailureKind, found.failures)
            for record in active:
                _fill(self._study_trials, TrialStatus, record.trial_counts, record.id)
            self._running.set(found.leased)
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"autotune_service_{name}", text, labels, registry=self.registry)


def _fill(gauge: Gauge, kinds: Iterable[str], counts: Mapping[str, int], *labels: str) -> None:
    """Sets a count for every kind, 0 included: a rise from nothing to 1 is a rise only where the 0 was seen."""
    for kind in dict.fromkeys((*map(str, kinds), *counts)):
        gauge.labels(*labels, kind).set(counts.get(kind, 0))


class CountRequests:
    """Middleware that counts and times responses."""

    def __init__(self, app: ASGIApp, *, counters: Counters) -> None:
        self.app, self.counters = app, counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on and counts its response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), [500]

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, counting)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
            self.counters.requests.labels(method, route, str(status[0])).inc()
            self.counters.seconds.labels(route).observe(time.perf_counter() - began)
