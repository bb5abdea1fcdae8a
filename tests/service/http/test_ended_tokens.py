"""A token that is revoked or has expired ends what it began: event streams within a poll, and what
waits for its turn."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from autotune.service.http.access import Caller
from autotune.service.http.app import create_app
from autotune.service.http.error_responses import RefusalError
from autotune.service.options import ServiceOptions
from autotune.store import MemoryStore
from autotune.store.tables import tokens
from tests.service.running import API, Service, bearer, spec, until


def revoke(store: Any, token: str) -> None:
    store.tokens.revoke(token)


def let_expire(store: Any, token: str) -> None:
    with store.database.write() as connection:
        connection.execute(tokens.update().where(tokens.c.id == token).values(expires_us=1))


@pytest.mark.thorough
@pytest.mark.parametrize("end", [revoke, let_expire])
@pytest.mark.parametrize("scope", ["read", "admin"])
def test_an_event_stream_ends_with_its_token_and_others_continue(
    guarded: Service, end: Any, scope: str
) -> None:
    study = guarded.http.post(
        f"{API}/studies", json=spec(), headers=bearer(guarded.token("submit"))
    ).json()["study"]["id"]
    token, text = guarded.store.tokens.create("leaver", scope)
    accept, path = {"Accept": "text/event-stream"}, f"{API}/studies/{study}/events"
    stays, cookie = bearer(guarded.token("read", "stays")), {"Cookie": f"autotune_token={text}"}
    with guarded.http.stream("GET", path, headers=accept | stays) as other:
        others = other.iter_lines()
        assert next(others) == ": open"
        with (
            guarded.http.stream("GET", path, headers=accept | bearer(text)) as first,
            guarded.http.stream("GET", path, headers=accept | cookie) as second,
        ):
            streams = [first.iter_lines(), second.iter_lines()]
            assert [next(lines) for lines in streams] == [": open"] * 2
            end(guarded.store, token.id)
            for lines in streams:
                # the study waits for ever: only the token can end them
                assert "event: end" not in list(lines)
        assert guarded.http.get(path, headers=accept | bearer(text)).status_code == 401
        until(lambda: guarded.service.streams == 1)
        guarded.http.post(f"{API}/studies/{study}/cancel", headers=bearer(guarded.token("admin")))
        assert "event: end" in list(others)
    until(lambda: guarded.service.streams == 0)


@pytest.mark.parametrize("kind", ["run_heavy", "run_submission"])
def test_a_waiting_request_is_rejected_after_its_token_was_revoked(kind: str) -> None:
    store, release, done = MemoryStore(), threading.Event(), []
    service = create_app(store, ServiceOptions()).state.service
    token, _ = store.tokens.create("leaver", "submit")
    caller = Caller(name="leaver", scope="submit", key=token.id, token=token.id)

    async def all_at_once() -> list[Any]:
        run = getattr(service, kind)
        began = threading.Event()
        first = asyncio.ensure_future(run(caller, lambda: (began.set(), release.wait())))
        await asyncio.to_thread(began.wait)
        second = asyncio.ensure_future(run(caller, lambda: done.append("stored")))
        store.tokens.revoke(token.id)
        release.set()
        return await asyncio.gather(first, second, return_exceptions=True)

    _, refused = asyncio.run(all_at_once())
    assert isinstance(refused, RefusalError)
    assert (refused.status, done) == (401, [])
    store.close()
