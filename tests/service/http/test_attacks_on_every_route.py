"""The attacks that hold for every address of the service, over real HTTP. The addresses are read
from the application, so that a new one is attacked too."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from autotune.service.http.access import COOKIE
from autotune.service.http.app import create_app
from autotune.service.options import ServiceOptions
from autotune.store import MemoryStore
from tests.service.running import API, DEADLINE_S, Service, bearer, spec

Route = tuple[str, str]
"""method and path"""
OPEN = {
    f"{API}/health",
    f"{API}/health/live",
    f"{API}/health/ready",
    "/login",
    "/static/{name}",
    "/openapi.json",
    "/",
    "/logout",
}
"""addresses that answer strangers; `/` only leads to the studies, and /logout only removes the
browser's cookie"""
FOR_READERS = {f"{API}/plan", f"{API}/review", "/submit/preview", "/submit/review"}
"""addresses that take a body and change nothing"""
EVIL_IDS = (
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "a%00b",
    "%3Cscript%3E",
    "a" * 300,
    "%ff%fe",
    "x%0d%0aSet-Cookie:%20a=b",
)


def routes_of(router: Any, prefix: str = "") -> Iterator[Route]:
    """All addresses, with those of the routers that it includes."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes_of(inner, prefix + route.include_context.prefix)
        else:
            yield from ((method, prefix + route.path) for method in route.methods - {"HEAD"})


@pytest.fixture(scope="module")
def routes() -> list[Route]:
    store = MemoryStore()
    found = sorted(set(routes_of(create_app(store, ServiceOptions()))))
    store.close()
    assert len(found) > 40
    assert {path for _, path in found} >= OPEN | FOR_READERS
    return found


@pytest.fixture(scope="module")
def study(guarded: Service) -> str:
    """Ann's, and it waits for ever."""
    made = guarded.http.post(
        f"{API}/studies", json=spec(), headers=bearer(guarded.token("submit", "ann"))
    )
    return str(made.json()["study"]["id"])


def changing(routes: list[Route]) -> list[Route]:
    return [route for route in routes if route[0] != "GET"]


def at(path: str, study: str) -> str:
    """The path with values in its places."""
    values = {
        "study_id": study,
        "number": "0",
        "number:int": "0",
        "figure": "memory",
        "trainer": "megatron",
        "action": "cancel",
        "name": "style.css",
    }
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path, "a place without a value in this test"
    return path


def ask(service: Service, route: Route, study: str, **more: Any) -> httpx.Response:
    """One request, with a body that the address could take."""
    method, path = route
    body: dict[str, Any] = {}
    if method != "GET":
        is_form = not path.startswith(API)
        body = (
            {"data": {"action": "cancel", "text": "t", "form_token": "0" * 64}}
            if is_form
            else {"json": spec()}
        )
    return service.http.request(method, at(path, study), **body, **more)


def untouched(service: Service, study: str) -> bool:
    """Whether the study is as it was submitted."""
    record = service.store.study(study)
    return (
        str(record.status) == "QUEUED"
        and not record.tags
        and not service.store.annotations.notes(study)
    )


def test_strangers_are_rejected_on_every_route(
    guarded: Service, routes: list[Route], study: str
) -> None:
    for route in routes:
        if route[1] in OPEN:
            continue
        answer = ask(guarded, route, study)
        if route[1].startswith(API):
            assert answer.status_code == 401, route
        else:
            assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (
                303,
                "/login",
            ), route
        assert study not in answer.text, route
    assert untouched(guarded, study)


def test_pages_of_other_sites_change_nothing(
    guarded: Service, routes: list[Route], study: str
) -> None:
    admin = guarded.token("admin", "root")
    for route in changing(routes):
        for head in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            for who in (bearer(admin), {"Cookie": f"{COOKIE}={admin}"}):
                assert ask(guarded, route, study, headers={**who, **head}).status_code == 403, (
                    route,
                    head,
                )
    assert untouched(guarded, study)


def test_other_host_names_are_rejected(guarded: Service, routes: list[Route], study: str) -> None:
    head = bearer(guarded.token("admin", "root")) | {"Host": "evil.example"}
    assert {ask(guarded, route, study, headers=head).status_code for route in routes} == {421}
    assert untouched(guarded, study)


def test_a_token_that_may_read_changes_nothing(
    guarded: Service, routes: list[Route], study: str
) -> None:
    read = guarded.token("read", "bob")
    for route in changing(routes):
        if route[1] in FOR_READERS | OPEN:
            continue
        who = bearer(read) if route[1].startswith(API) else {"Cookie": f"{COOKIE}={read}"}
        assert ask(guarded, route, study, headers=who).status_code == 403, route
    assert untouched(guarded, study)


def test_a_cookie_without_the_forms_token_changes_nothing(
    guarded: Service, routes: list[Route], study: str
) -> None:
    cookie = {"Cookie": f"{COOKIE}={guarded.token('admin', 'root')}"}
    for route in changing(routes):
        if route[1] not in FOR_READERS | OPEN:
            assert ask(guarded, route, study, headers=cookie).status_code == 403, route
    assert untouched(guarded, study)


def test_ids_cannot_address_files(guarded: Service, routes: list[Route]) -> None:
    admin = guarded.token("admin", "root")
    for method, path in routes:
        for evil in EVIL_IDS if "{study_id}" in path else ():
            line = f"{method} {at(path, evil)} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 0\r\n"
            who = f"Authorization: Bearer {admin}\r\n"
            # a library would tidy the path
            with socket.create_connection(guarded.address, timeout=DEADLINE_S) as raw:
                raw.sendall(f"{line}{who}\r\n".encode())
                answer = raw.makefile("rb").read()
            assert answer.split()[1] in (b"404", b"405", b"422"), (method, path, evil, answer[:200])
            assert b"root:" not in answer
            assert b"<script>" not in answer
            assert b"\r\nset-cookie: a=b" not in answer.lower()
