"""Refused requests are in the audit log, at a limited rate and without secrets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from autotune import cli
from autotune.service.http.refusals import AUDIT_RATE, Refusals
from autotune.store import open_store
from tests.service.running import API, Service, bearer, spec, until


def refused(service: Service) -> list[Any]:
    return [line for line in service.store.audit_events() if line.action == "refused"]


def test_rejected_requests_are_recorded(guarded: Service) -> None:
    reader = guarded.token("read", "rita")
    wrong = "at_000000000000_" + "s3cret" * 7
    guarded.http.get(f"{API}/studies?secret=s3cret", headers=bearer(wrong))
    guarded.http.post(f"{API}/studies", json=spec(), headers=bearer(reader))
    guarded.http.get(f"{API}/studies", headers={"Host": "evil.example"})
    until(lambda: len(refused(guarded)) >= 3)
    by_status = {line.data["status"]: line for line in refused(guarded)}
    assert by_status[401].actor == by_status[421].actor == "stranger"
    assert by_status[401].data["path"] == f"{API}/studies"
    assert (by_status[403].actor, by_status[403].data["method"]) == ("rita", "POST")
    assert by_status[403].data["address"] == "127.0.0.1"
    reported = str(refused(guarded))
    assert "s3cret" not in reported
    assert reader not in reported


def test_strangers_cannot_fill_the_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    store = open_store(tmp_path / "results.db")

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})

    async def deaf(message: Any) -> None:
        return None

    middleware = Refusals(refuse, store=store, monotonic=lambda: now_s)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/" + "x" * 100_000,
        "client": ("10.0.0.1", 1),
    }

    async def flood(times: int) -> None:
        for _ in range(times):
            await middleware(scope, deaf, deaf)

    asyncio.run(flood(10 * AUDIT_RATE.burst))
    assert len(store.audit_events()) == AUDIT_RATE.burst
    now_s += 1 / AUDIT_RATE.per_s
    asyncio.run(flood(10))
    last = store.audit_events(after=AUDIT_RATE.burst)
    assert [line.data["untold"] for line in last] == [9 * AUDIT_RATE.burst]
    assert len(last[0].data["path"]) <= 200
    store.close()
    assert cli.run(["token", "audit", "--store", str(tmp_path / "results.db"), "--limit", "2"]) == 0
    assert "reason=unauthorized" in capsys.readouterr().out
