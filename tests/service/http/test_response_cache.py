"""Cached responses: never older than allowed, and computed once for all requests that wait."""

from __future__ import annotations

import asyncio
import socket

import pytest

from autotune import api
from autotune.errors import NotFoundError
from autotune.service.http.response_cache import FRESH_S, ResponseCache
from autotune.store import SqlStore
from tests.service.running import API, Service, spec


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s


class Counting:
    """Works answers out, and counts."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, study: str) -> bytes:
        self.made += 1
        return f"{study} {self.made}".encode()


def submit(store: SqlStore, name: str = "small") -> str:
    return api.submit_study(store, api.load_study(spec(name=name)), spec(name=name)).id


def test_a_response_is_cached_until_the_study_changes(store: SqlStore) -> None:
    clock, make, study = Clock(), Counting(), submit(store)
    cache = ResponseCache(store, monotonic=clock)

    async def ask() -> bytes:
        return (await cache.get(study, "status", make)).body

    async def story() -> None:
        first = await ask()
        clock.now_s += 10 * FRESH_S
        assert await ask() == first
        store.record_event(study, "note", {})
        assert await ask() == first  # within FRESH_S
        clock.now_s += 2 * FRESH_S
        second = await ask()
        assert second != first
        store.record_event(study, "note", {})
        cache.invalidate()
        assert await ask() not in (first, second)

    asyncio.run(story())
    assert make.made == 3


def test_waiting_requests_share_one_computation(store: SqlStore) -> None:
    make, study = Counting(), submit(store)
    cache = ResponseCache(store)

    async def story() -> None:
        askers = [asyncio.create_task(cache.get(study, "status", make)) for _ in range(50)]
        await asyncio.sleep(0)
        askers[0].cancel()  # who asked first hangs up
        reported = await asyncio.gather(*askers, return_exceptions=True)
        assert isinstance(reported[0], asyncio.CancelledError)
        assert len(set(reported[1:])) == 1

    asyncio.run(story())
    assert make.made == 1


def test_errors_are_returned_and_not_cached(store: SqlStore) -> None:
    make = Counting()
    cache = ResponseCache(store)

    async def story() -> None:
        with pytest.raises(NotFoundError):
            await cache.get("small", "status", make)
        submit(store)
        assert (await cache.get("small", "status", make)).revision.events

    asyncio.run(story())


def test_changes_through_the_service_are_visible_at_once(service: Service) -> None:
    with service.client() as client:
        study = client.submit(spec(name="turns"))["study"]["id"]
        for action, status in (("pause", "PAUSED"), ("resume", "QUEUED"), ("cancel", "CANCELLED")):
            client.status(study)
            client.act(study, action)
            assert client.status(study)["study"]["status"] == status
        newer = client.submit(spec(name="turns"))["study"]["id"]
        assert client.status("turns")["study"]["id"] == newer


def test_a_client_with_the_current_response_gets_304(service: Service) -> None:
    with service.client() as client:
        study = client.submit(spec())["study"]["id"]
        client.act(study, "cancel")  # nothing of it changes any more
    for address in (f"{API}/studies/{study}", f"{API}/studies/{study}/trials"):
        first = service.http.get(address)
        again = service.http.get(
            address, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'}
        )
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert (
            service.http.get(address, headers={"If-None-Match": '"other"'}).content == first.content
        )


def test_head_and_body_do_not_wait_for_each_other(service: Service) -> None:
    """With Nagle's algorithm on, every answer takes the 40 ms of a delayed acknowledgement."""
    service.http.get(f"{API}/health")
    transports = [connection.transport for connection in service.connections]
    assert transports
    for transport in transports:
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
