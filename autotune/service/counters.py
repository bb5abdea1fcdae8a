"""Prometheus metrics of the service itself: requests by route and status, response times, and counts from the store at each scrape.

Labels hold routes, never full paths: no id, name or token becomes a label.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.ports import Statistics

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
        self._gauges = {
            "studies": Gauge("autotune_service_studies", "Studies by status", ["status"], registry=self.registry),
            "trials": Gauge("autotune_service_trials", "Trials by status", ["status"], registry=self.registry),
            "failures": Gauge("autotune_service_failures", "Failed trials by kind", ["kind"], registry=self.registry),
        }
        self._running = Gauge("autotune_service_running", "Studies that a controller runs", registry=self.registry)
        self._streams = Gauge("autotune_service_streams", "Open event streams", registry=self.registry)

    def text(self, found: Statistics, *, streams: int) -> bytes:
        """The metrics in Prometheus' text format."""
        for name, gauge in self._gauges.items():
            gauge.clear()
            for label, count in getattr(found, name).items():
                gauge.labels(label).set(count)
        self._running.set(found.leased)
        self._streams.set(streams)
        return generate_latest(self.registry)


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
