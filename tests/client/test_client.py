"""The client against a hand-written fake service that fails in every way."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from autotune.client import AsyncClient, Client
from autotune.client import operations as module
from autotune.client.operations import Operations
from autotune.errors import (
    AutotuneError,
    NotFoundError,
    ServiceError,
    SpecError,
    StoreUnavailableError,
)
from autotune.results.answers import result_from
from autotune_workers.process.machine import free_port
from tests.report import worlds


class Script:
    """Plays answers, one a request: (status, headers, body), or None to hang up. The last one is
    repeated."""

    def __init__(self, *answers: tuple[int, dict[str, str], Any] | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def play(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.asked.append((self.command, self.path, headers, body))
                answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                if answer is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                status, extra, found = answer
                text = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                for name, value in extra.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = play  # noqa: N815  names of the base class

            def log_message(self, *arguments: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.0)


class Awaited:
    """`AsyncClient`, used like `Client`, so that both pass the same tests."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._runner.run(method(*arguments, **options))

    def __repr__(self) -> str:
        return repr(self._client) + str(vars(self._client))

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def stream(self, study: str) -> Iterator[Any]:
        async def all_of() -> list[Any]:
            return [event async for event in self._client.stream(study)]

        return iter(self._runner.run(all_of()))


both = pytest.mark.parametrize("client_of", [Client, Awaited])


def error(kind: str, message: str = "so it is") -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "field": "here", "remedy": "mend it"}}


OK = (200, {}, {"study": {"id": "x"}})


@both
def test_an_empty_name_is_rejected_without_a_request(client_of: Any) -> None:
    with Script(OK) as service, client_of(service.url) as client:
        for method in ("status", "trials", "pause"):
            with pytest.raises(NotFoundError, match="the study's name is empty"):
                getattr(client, method)("")
        with pytest.raises(NotFoundError, match="there is no trainer ''"):
            client.export("x", "")
        assert service.asked == []


@both
def test_a_name_cannot_change_the_address(client_of: Any) -> None:
    """Dots are refused, because they shorten an address on its way; everything else is quoted."""
    methods = [
        name
        for name, method in vars(Operations).items()
        if "study_id" in getattr(method, "__annotations__", {})
    ]
    with Script(OK, OK) as service, client_of(service.url) as client:
        for name, study in itertools.product(["stream", "result", *methods], (".", "..")):
            more = {
                "act": ["stop"],
                "add_note": ["text"],
                "remove_note": [1],
                "export": ["native"],
            }.get(name, [])
            with pytest.raises(NotFoundError, match=f"there is no resource '{re.escape(study)}'"):
                list(getattr(client, name)(study, *more))
        with pytest.raises(NotFoundError, match=r"there is no resource '\.\.'"):
            client.export("x", "..")
        assert service.asked == []
        client.status("../best?a=1#\ud800%2e")
        client.act("a b", "/")
        assert [path for _, path, *_ in service.asked] == [
            "/api/v1/studies/..%2Fbest%3Fa%3D1%23%3F%252e",
            "/api/v1/studies/a%20b/%2F",
        ]


@both
def test_a_submission_whose_answer_was_lost_is_repeated_with_its_key(client_of: Any) -> None:
    with Script(
        None, (503, {"Retry-After": "0"}, error("busy")), (201, {}, {"study": {"id": "x"}})
    ) as script:
        with client_of(script.url, token="") as client:
            assert client.submit({"a": 1})["study"]["id"] == "x"
        keys = {headers["idempotency-key"] for _, _, headers, _ in script.asked}
        assert (len(script.asked), len(keys)) == (3, 1)
        assert all("authorization" not in headers for _, _, headers, _ in script.asked)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("spec", SpecError),
        ("not_found", NotFoundError),
        ("store_unavailable", StoreUnavailableError),
        ("unauthorized", ServiceError),
        ("of_next_year", ServiceError),
    ],
)
@both
def test_errors_of_the_service_are_raised_with_their_class(
    kind: str, expected: type[AutotuneError], client_of: Any
) -> None:
    with Script((422, {}, error(kind))) as script, client_of(script.url) as client:
        with pytest.raises(expected) as caught:
            client.status("x")
        assert type(caught.value) is expected
        assert str(caught.value) == "here: so it is; mend it"
        assert len(script.asked) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"error": "x"}', b""])
@both
def test_unexpected_answers_are_errors(body: bytes, client_of: Any) -> None:
    with (
        Script((500, {}, body)) as script,
        client_of(script.url) as client,
        pytest.raises(ServiceError, match="500"),
    ):
        client.status("x")
    if body in (b"<html>", b"[]", b""):
        with (
            Script((200, {}, body)) as script,
            client_of(script.url) as client,
            pytest.raises(ServiceError),
        ):
            client.status("x")


@both
def test_the_token_is_sent_only_to_the_service(
    monkeypatch: pytest.MonkeyPatch, client_of: Any
) -> None:
    with Script(OK) as elsewhere, Script((302, {"Location": elsewhere.url}, {})) as script:
        with client_of(script.url, token="at_1_secret") as client:
            assert "secret" not in repr(client) + str(vars(client))
            with pytest.raises(ServiceError) as caught:
                client.status("x")
        assert "secret" not in str(caught.value)
        assert script.asked[0][2]["authorization"] == "Bearer at_1_secret"
        assert elsewhere.asked == []
    with Script(OK) as script:
        monkeypatch.setenv("AUTOTUNE_URL", script.url + "/")
        monkeypatch.setenv("AUTOTUNE_TOKEN", "at_2_other")
        with client_of() as client:
            client.status("x")
        assert script.asked[0][2]["authorization"] == "Bearer at_2_other"


@pytest.mark.parametrize("verb", ["pause", "resume", "stop", "cancel"])
@both
def test_each_action_has_a_method_of_its_name(verb: str, client_of: Any) -> None:
    with Script(OK) as script, client_of(script.url) as client:
        assert getattr(client, verb)("x") == {"study": {"id": "x"}}
        assert [asked[:2] for asked in script.asked] == [("POST", f"/api/v1/studies/x/{verb}")]


@both
def test_a_result_equals_the_result_in_the_same_process(client_of: Any) -> None:
    record, trials = worlds.record(), worlds.trials()
    answers = ({"record": record.to_dict()}, {"trials": [trial.to_dict() for trial in trials]})
    with (
        Script(*((200, {}, answer) for answer in answers)) as script,
        client_of(script.url) as client,
    ):
        assert client.result("x") == result_from(record, trials)


@both
def test_an_unreachable_service(client_of: Any) -> None:
    with (
        client_of(f"http://127.0.0.1:{free_port('127.0.0.1')}") as client,
        pytest.raises(ServiceError, match="cannot be reached"),
    ):
        client.health()


@pytest.mark.parametrize("url", ["ftp://x", "x", "http://", "http://me:pw@x", "http://x?y=1"])
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        Client(url)
    assert caught.value.field == "url"


@both
def test_a_broken_stream_continues_where_it_broke(client_of: Any) -> None:
    def event(number: int) -> bytes:
        return f'id: {number}\nevent: trial.ended\ndata: {{"sequence": {number}}}\n\n'.encode()

    end = b'event: end\ndata: {"status": "COMPLETED"}\n\n'
    first = (200, {"Content-Type": "text/event-stream"}, b": open\n\n" + event(1) + event(2))
    with Script(first, None, (200, {}, event(3) + end)) as script, client_of(script.url) as client:
        assert [e["sequence"] for e in client.stream("x")] == [1, 2, 3]
        assert [path.partition("?")[2] for _, path, _, _ in script.asked] == [
            "after=0",
            "after=2",
            "after=2",
        ]


@both
def test_a_quiet_stream_may_break_repeatedly_if_each_connection_lasts(
    client_of: Any,
) -> None:
    quiet = (200, {"Content-Type": "text/event-stream"}, b": open\n\n: still here\n\n")
    end = (200, {}, b': open\n\nevent: end\ndata: {"status": "COMPLETED"}\n\n')
    with (
        Script(*[None, quiet] * (module.RETRIES + 1), end) as script,
        client_of(script.url) as client,
    ):
        assert list(client.stream("x")) == []
    with (
        Script(None) as script,
        client_of(script.url) as client,
        pytest.raises(AutotuneError, match="cannot be reached"),
    ):
        list(client.stream("x"))


@both
def test_waiting_has_a_timeout(client_of: Any) -> None:
    running = (200, {}, {"study": {"id": "x", "status": "RUNNING"}})
    with (
        Script(running) as script,
        client_of(script.url) as client,
        pytest.raises(ServiceError, match="still running"),
    ):
        client.wait("x", timeout_s=0.05, poll_s=0.01)


def test_both_clients_send_the_same_requests() -> None:
    blocking, awaited = (
        {n for n in dir(c) if not n.startswith("_")} for c in (Client, AsyncClient)
    )
    assert blocking == awaited
