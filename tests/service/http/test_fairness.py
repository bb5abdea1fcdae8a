"""No caller can starve the others: plans, submissions and event streams of one beside those of
another, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune.service.http.error_responses import RefusalError
from autotune.service.http.fair_use import FairQueue
from autotune.service.options import ServiceOptions
from tests.service.running import API, DEADLINE_S, Service, bearer, slow_spec, spec, until

LARGE = {
    "model": "llama-405b",
    "cluster": "h100-sxm-128x8",
    "workload": {"seq_len": 8192, "global_batch_size": 2048},
    "space": "dense-multi-node",
}
"""the largest space that ships"""


def queue(**changes: Any) -> FairQueue:
    """A queue with one place."""
    return FairQueue(
        "plans", **{"places": 1, "places_per_caller": 1, "waiting_per_caller": 3} | changes
    )


def test_callers_take_turns() -> None:
    done: list[str] = []

    async def all_at_once() -> None:
        line = queue()
        await asyncio.gather(
            *(line.run(c, lambda c=c: done.append(c)) for c in ("a", "a", "a", "b", "c", "b"))
        )

    asyncio.run(all_at_once())
    assert done == ["a", "b", "c", "a", "b", "a"]


def test_waiting_requests_are_limited_per_caller() -> None:
    async def all_at_once() -> list[Any]:
        line = queue()
        asked = [line.run(caller, lambda: time.sleep(0.01)) for caller in ("a",) * 6 + ("b",)]
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(all_at_once())
    assert [isinstance(answer, RefusalError) for answer in answers] == [False] * 4 + [True] * 2 + [
        False
    ]
    assert answers[4].status == 429


def test_one_caller_cannot_use_all_places() -> None:
    """While one caller's work hangs in the place that it may have, the work of another is done."""
    hanging = threading.Event()

    async def all_at_once() -> str:
        line = queue(places=2)
        stuck = [asyncio.ensure_future(line.run("a", hanging.wait)) for _ in range(3)]
        answer = await asyncio.wait_for(line.run("b", lambda: "done"), 60)
        hanging.set()
        await asyncio.gather(*stuck)
        return answer

    assert asyncio.run(all_at_once()) == "done"


def test_a_cancelled_request_uses_no_place() -> None:
    async def all_at_once() -> str:
        line, release = queue(), threading.Event()
        running = asyncio.ensure_future(line.run("a", release.wait))
        should_give_up = asyncio.ensure_future(line.run("b", lambda: "never"))
        await asyncio.sleep(0.01)
        should_give_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await should_give_up
        release.set()
        await running
        return await asyncio.wait_for(line.run("c", lambda: "done"), 60)

    assert asyncio.run(all_at_once()) == "done"


def test_requests_cancelled_together_leave_an_empty_queue() -> None:
    """As when the service ends while requests run and wait: the place of one must not go to another
    that is given up too."""

    async def all_at_once() -> str:
        line, release = queue(), threading.Event()
        should_give_up = [
            asyncio.ensure_future(line.run(caller, release.wait)) for caller in ("a", "a", "b", "b")
        ]
        await asyncio.sleep(0.01)
        for request in should_give_up:
            request.cancel()
        release.set()
        answers = await asyncio.gather(*should_give_up, return_exceptions=True)
        assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 4
        return await asyncio.wait_for(line.run("c", lambda: "done"), 60)

    assert asyncio.run(all_at_once()) == "done"


def test_a_request_cancelled_while_waiting_frees_its_place_in_the_queue() -> None:
    async def all_at_once() -> str:
        line, release = queue(waiting_per_caller=1), threading.Event()
        running = asyncio.ensure_future(line.run("a", release.wait))
        for _ in range(3):
            should_give_up = asyncio.ensure_future(line.run("a", lambda: "never"))
            await asyncio.sleep(0.01)
            should_give_up.cancel()
            await asyncio.gather(should_give_up, return_exceptions=True)
        last = asyncio.ensure_future(line.run("a", lambda: "done"))
        release.set()
        await running
        return await asyncio.wait_for(last, 60)

    assert asyncio.run(all_at_once()) == "done"


def test_a_caller_with_two_places_uses_both_and_leaves_nothing_behind() -> None:
    both = threading.Barrier(2)

    async def all_at_once() -> tuple[list[Any], FairQueue]:
        line = queue(places=2, places_per_caller=2)
        answers = await asyncio.gather(*(line.run("a", lambda: both.wait(60)) for _ in range(4)))
        return answers, line

    answers, line = asyncio.run(all_at_once())
    assert sorted(answers) == [0, 0, 1, 1]
    assert [line._waiting, dict(line._running), line._turn] == [{}, {}, {}], (
        "a caller that is served takes no memory"
    )


def begin_plans(service: Service, count: int) -> list[int]:
    """Has a reader ask for so many plans of the largest space at once; the status of each is added
    to the list as it is answered."""
    reader, answered = bearer(service.token("read", "reader")), []

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):  # the service has ended
            answered.append(
                service.http.post(f"{API}/plan", json=spec(**LARGE), headers=reader).status_code
            )

    for _ in range(count):
        threading.Thread(target=ask, daemon=True).start()
    return answered


@pytest.mark.thorough
def test_a_submission_waits_behind_no_plan(tmp_path: Path) -> None:
    with Service(tmp_path, options=ServiceOptions(port=0, require_token=True)) as service:
        owner = bearer(service.token("submit", "owner"))
        answered = begin_plans(service, 6)
        until(lambda: answered)
        assert service.http.post(f"{API}/studies", json=spec(), headers=owner).status_code == 201
        assert len(answered) < 5  # in one queue it would have waited behind all of them
        until(lambda: len(answered) == 6)
        assert answered == [200] * 6


@contextlib.contextmanager
def stream(service: Service, study: str, headers: dict[str, str]) -> Iterator[int]:
    """An event stream that is open, or the status with which it was refused."""
    accept = {"Accept": "text/event-stream", **headers}
    with service.http.stream("GET", f"{API}/studies/{study}/events", headers=accept) as answer:
        lines = answer.iter_lines()
        if answer.status_code == 200:
            next(lines)
        yield answer.status_code
        del lines


def test_streams_are_reserved_for_owners(tmp_path: Path) -> None:
    options = ServiceOptions(
        port=0,
        require_token=True,
        max_streams=6,
        max_streams_per_caller=3,
        streams_reserved_for_owners=2,
    )
    with Service(tmp_path, options=options) as service, contextlib.ExitStack() as open_streams:
        owner = bearer(service.token("submit", "owner"))
        study = service.http.post(f"{API}/studies", json=slow_spec(), headers=owner).json()[
            "study"
        ]["id"]
        first, second = (bearer(service.token("read", name)) for name in ("first", "second"))
        admin = bearer(service.token("admin", "root"))
        asked = [first] * 4 + [second] * 2 + [owner, admin, owner]
        statuses = [open_streams.enter_context(stream(service, study, who)) for who in asked]
        assert statuses == [200, 200, 200, 429, 200, 503, 200, 200, 503]
        assert service.service.streams == 6
        open_streams.close()
        service.http.post(f"{API}/studies/{study}/cancel", headers=owner)
        until(lambda: service.service.streams == 0)


def test_a_stream_closed_before_its_first_line_releases_its_slot(service: Service) -> None:
    study = service.http.post(f"{API}/studies", json=spec()).json()["study"]["id"]
    head = f"GET {API}/studies/{study}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode()
    for _ in range(30):
        with socket.create_connection(service.address, timeout=DEADLINE_S) as raw:
            raw.sendall(head)
    until(lambda: service.service.streams == 0, 60.0)


@pytest.mark.slow
def test_a_submission_does_not_wait_behind_fifty_plans_and_five_hundred_streams(
    tmp_path: Path,
) -> None:
    with Service(tmp_path, options=ServiceOptions(port=0, require_token=True)) as service:
        owner, reader = (
            bearer(service.token("submit", "owner")),
            bearer(service.token("read", "reader")),
        )

        def submit_s() -> float:
            began_s = time.monotonic()
            assert (
                service.http.post(f"{API}/studies", json=spec(), headers=owner).status_code == 201
            )
            return time.monotonic() - began_s

        submit_s()
        alone_s = min(submit_s() for _ in range(3))
        study = service.store.studies()[0].id
        head = f"GET {API}/studies/{study}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
        head += f"Authorization: {reader['Authorization']}\r\n\r\n"
        raws = [socket.create_connection(service.address, timeout=DEADLINE_S) for _ in range(500)]
        try:
            for raw in raws:
                raw.sendall(head.encode())
            until(lambda: service.service.streams == service.options.max_streams_per_caller)
            answered = begin_plans(service, 50)
            # a place is taken, or those are refused that find no place to wait
            until(lambda: answered)
            beside_s = max(submit_s() for _ in range(5))
            with stream(service, study, owner) as status:
                assert status == 200
        finally:
            for raw in raws:
                raw.close()
        print(
            f"submission: {alone_s:.3f} s alone, {beside_s:.3f} s beside 50 plans and 500 streams"
        )
        assert (
            beside_s - alone_s < 10.0
        )  # in one queue: 27 s on two idle cores; the goal of 1 s is measured by `service_crowd`
