"""HEAD is answered wherever GET is, with the same status and head and without a body."""

from __future__ import annotations

import re

import pytest

from autotune.service.http.app import create_app
from autotune.service.options import ServiceOptions
from autotune.store import MemoryStore
from tests.service.http.test_attacks_on_every_route import at, routes_of
from tests.service.running import API, Service, bearer, spec, until

SAME = (
    "content-type",
    "content-security-policy",
    "cache-control",
    "etag",
    "location",
    "allow",
    "www-authenticate",
)


@pytest.mark.thorough
def test_head_is_answered_like_get(service: Service) -> None:
    study = service.http.post(f"{API}/studies", json=spec()).json()["study"]["id"]
    store = MemoryStore()
    routes = set(routes_of(create_app(store, ServiceOptions())))
    store.close()
    for path in sorted({path for _, path in routes}):
        get, head = (service.http.request(method, at(path, study)) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert {name: head.headers.get(name) for name in SAME} == {
            name: get.headers.get(name) for name in SAME
        }, path


def test_head_needs_the_same_token(guarded: Service) -> None:
    assert guarded.http.head(f"{API}/studies").status_code == 401
    assert (
        guarded.http.head(f"{API}/studies", headers=bearer(guarded.token("read"))).status_code
        == 200
    )


def test_head_does_not_open_an_event_stream(service: Service) -> None:
    study = service.http.post(f"{API}/studies", json=spec()).json()["study"]["id"]
    answer = service.http.head(
        f"{API}/studies/{study}/events", headers={"Accept": "text/event-stream"}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )
    until(lambda: service.service.streams == 0)


def test_metrics_count_head_by_its_route(service: Service) -> None:
    service.http.head(f"{API}/studies")
    assert re.search(
        r'method="HEAD",route="[^"]*/studies",status="200"', service.http.get(f"{API}/metrics").text
    )
