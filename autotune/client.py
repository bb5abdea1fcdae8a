"""The service from a program: the same questions as `autotune.cli.source`, over HTTP.

    client = autotune.Client("http://127.0.0.1:8600", token=...)
    study  = client.submit(autotune.client.read_spec("spec.yaml"))["study"]
    for event in client.stream(study["id"]): ...
    client.best(study["id"])["best"]["config"]

Errors of the service arrive as the errors they are (`SpecError`, `NotFoundError`, ...). What can be asked again safely is asked again when the
service cannot be reached or is busy: reads, and submissions, which carry a key that makes the second one the first. The token goes nowhere but into the
Authorization header: redirects are not followed, and it stands in no message.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from autotune import errors
from autotune.errors import AutotuneError, ServiceError, SpecError

Document = dict[str, Any]

TIMEOUT_S = 60.0
RETRIES = 4
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0
BUSY = (429, 503)


class Client:
    """One service. Threads may share it; a context manager."""

    def __init__(self, url: str | None = None, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """`url`, `token`: default AUTOTUNE_URL and AUTOTUNE_TOKEN. Raises `SpecError` for an address that cannot be one."""
        from autotune.settings import settings

        found = settings()
        address = (url or found.url or "http://127.0.0.1:8600").rstrip("/")
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise SpecError(
                f"the service's address is http(s)://HOST:PORT, but is {address[:200]!r}",
                remedy="see AUTOTUNE_URL and --url",
                field="url",
            )
        given = found.token if token is None else token
        self.url = address
        self._http = httpx.Client(
            base_url=f"{address}/api/v1",
            headers={"Authorization": f"Bearer {given}"} if given else {},
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> Document:
        """Hands a study over: {study}. Without a key one is made, so that a lost answer does not make two studies."""
        key = idempotency_key or secrets.token_hex(16)
        return self._ask("POST", "/studies", json=dict(spec), headers={"Idempotency-Key": key}, repeat=True)

    def studies(self, *, limit: int = 50, offset: int = 0, **filters: Any) -> Document:
        """Newest first: {studies, next_offset}. `filters`: status, model, cluster, owner, name."""
        query = {name: str(value) for name, value in filters.items() if value}
        return self._ask("GET", "/studies", params={"limit": limit, "offset": offset, **query})

    def status(self, study_id: str) -> Document:
        """{study, best, baseline, speedup}."""
        return self._ask("GET", _of(study_id))

    def trials(self, study_id: str) -> list[Document]:
        """All trials of a study."""
        found: list[Document] = self._ask("GET", _of(study_id, "trials"))["trials"]
        return found

    def events(self, study_id: str, *, after: int = 0) -> list[Document]:
        """The next page of history after that sequence number."""
        found: list[Document] = self._ask("GET", _of(study_id, "events"), params={"after": after})["events"]
        return found

    def stream(self, study_id: str, *, after: int = 0) -> Iterator[Document]:
        """History as it happens, to the study's end; a connection that breaks is made again where it broke."""
        failures = 0
        while True:
            try:
                with self._http.stream(
                    "GET", _of(study_id, "events"), params={"after": after}, headers={"Accept": "text/event-stream"}
                ) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        raise _error(answer)
                    for kind, data in _server_sent(answer.iter_lines()):
                        if kind == "end":
                            return
                        after, failures = data["sequence"], 0
                        yield data
            except httpx.TransportError as error:
                failures += 1
                if failures > RETRIES:
                    raise self._unreachable(error) from None
            time.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**failures))

    def act(self, study_id: str, action: str) -> Document:
        """pause, resume, stop or cancel: {study}."""
        return self._ask("POST", _of(study_id, action), repeat=True)

    def best(self, study_id: str, *, top: int = 1, pareto: bool = False) -> Document:
        """Best configs of a study: {study, best, baseline, speedup, configs}."""
        return self._ask("GET", _of(study_id, "best"), params={"top": top, "pareto": pareto})

    def best_across(
        self, *, model: str = "", cluster: str = "", trainer: str = "", runner: str = "", top: int = 1
    ) -> Document:
        """Best configs across all history."""
        asked = {"model": model, "cluster": cluster, "trainer": trainer, "runner": runner, "top": top}
        return self._ask("GET", "/best", params=asked)

    def export(self, study_id: str, trainer: str, options: Mapping[str, Any] | None = None) -> Document:
        """The best config as a launch of that trainer: {trainer, config, argv, env, files, notes}."""
        pairs = [f"{key}={value}" for key, value in (options or {}).items()]
        return self._ask("GET", _of(study_id, "export", trainer), params={"option": pairs})

    def plan(self, spec: Mapping[str, Any], *, top: int = 10) -> Document:
        """The feasible configs ranked by the cost model: {configs, feasible, infeasible}."""
        return self._ask("POST", "/plan", json=dict(spec), params={"top": top}, repeat=True)

    def health(self) -> Document:
        """{status, version, ...}; also when it is failing."""
        return self._ask("GET", "/health", accept=(200, 503))

    def wait(self, study_id: str, *, timeout_s: float = float("inf"), poll_s: float = 0.5) -> Document:
        """The status once the study has ended or is paused. Raises `ServiceError` when that takes longer."""
        from autotune.spec import StudyStatus

        deadline = time.monotonic() + timeout_s
        while True:
            document = self.status(study_id)
            status = StudyStatus(document["study"]["status"])
            if status.is_terminal or status is StudyStatus.PAUSED:
                return document
            if time.monotonic() >= deadline:
                raise ServiceError(f"study {study_id} is still {status} after {timeout_s:.0f} s")
            time.sleep(poll_s)

    def close(self) -> None:
        """Lets go of connections."""
        self._http.close()

    def _ask(
        self, method: str, path: str, *, repeat: bool = False, accept: Sequence[int] = (200, 201), **request: Any
    ) -> Document:
        pause_s, tries = FIRST_PAUSE_S, RETRIES if repeat or method == "GET" else 0
        while True:
            try:
                answer = self._http.request(method, path, **request)
            except httpx.TransportError as error:
                if tries <= 0:
                    raise self._unreachable(error) from None
                wait_s = pause_s
            else:
                if answer.status_code in accept:
                    return _document(answer)
                if answer.status_code not in BUSY or tries <= 0:
                    raise _error(answer)
                asked = answer.headers.get("retry-after", "")
                wait_s = min(LONGEST_PAUSE_S, float(asked)) if asked.isdigit() else pause_s
            time.sleep(wait_s)
            pause_s, tries = min(LONGEST_PAUSE_S, 2 * pause_s), tries - 1

    def _unreachable(self, error: Exception) -> ServiceError:
        return ServiceError(
            f"the service at {self.url} cannot be reached: {error}",
            remedy="start it with `autotune serve`, or name another with --url or AUTOTUNE_URL",
        )


def _of(study_id: str, *parts: str) -> str:
    return "/".join(["/studies", *(quote(str(part), safe="") for part in (study_id, *parts))])


def _document(answer: httpx.Response) -> Document:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServiceError(
            f"{answer.url.host} answered with something that is no autotune service's",
            remedy="check the address: AUTOTUNE_URL",
        )
    return found


def _error(answer: httpx.Response) -> AutotuneError:
    """The error of the envelope, as the class that it was."""
    try:
        told = answer.json()["error"]
        kind, message, field, remedy = (str(told[name]) for name in ("kind", "message", "field", "remedy"))
    except (ValueError, LookupError, TypeError):
        return ServiceError(
            f"the service answered with HTTP {answer.status_code} and no explanation", remedy="check AUTOTUNE_URL"
        )
    return _kinds().get(kind, ServiceError)(message, remedy=remedy, field=field)


def _kinds() -> dict[str, type[AutotuneError]]:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, AutotuneError)]
    return {c("").kind: c for c in classes}


def _server_sent(lines: Iterator[str]) -> Iterator[tuple[str, Document]]:
    """(event, data) of a stream, by the HTML standard's section on server-sent events; data is JSON."""
    kind = ""
    data: list[str] = []
    for line in lines:
        if not line and data:
            yield kind, json.loads("\n".join(data))
            kind, data = "", []
        elif line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].strip())
