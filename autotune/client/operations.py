"""The requests to a service, without input or output.

Each request is a script: a generator that yields a request to send or a pause, and receives the
response. A transport (`autotune.client.transports`) runs the script, blocking or asynchronously, so
that both clients share everything in this module.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack
from urllib.parse import quote, urlsplit

import httpx

from autotune import errors
from autotune.errors import (
    AutotuneError,
    NotFoundError,
    ServiceError,
    ServiceUnavailableError,
    SourcePlace,
    SpecError,
)
from autotune.spec.texts.as_text import format_duration

if TYPE_CHECKING:
    from autotune.ports import AskedRuns, AskedStudies

Document = dict[str, Any]
One = TypeVar("One")
Many = TypeVar("Many")
Reply = TypeVar("Reply")

RETRIES = 4
"""number of times that a request is repeated"""
FIRST_PAUSE_S = 0.25
"""pause before the first repetition, seconds; it doubles each time"""
LONGEST_PAUSE_S = 10.0
"""maximum pause, seconds"""
BUSY = (429, 503)
"""HTTP statuses after which a request is repeated"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. Every request is safe to send twice, because it only reads, carries an
    idempotency key, or requests a state."""

    method: str = "GET"
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    """body, sent as JSON"""
    headers: Mapping[str, str] = field(default_factory=dict)
    accept: tuple[int, ...] = (200, 201)
    """HTTP statuses that count as success"""

    def request(self) -> dict[str, Any]:
        """Return the arguments for httpx's `request`."""
        body = {} if self.body is None else {"json": dict(self.body)}
        return {
            "method": self.method,
            "url": self.path,
            "params": self.params,
            "headers": self.headers,
            **body,
        }


Instruction = Call | float
"""a request to send, or a pause in seconds"""
Outcome = httpx.Response | httpx.TransportError | None
"""a response or an error; None after a pause"""
Script = Generator[Instruction, Outcome, Reply]


class Operations(ABC, Generic[One, Many]):
    """All requests. `One` is a document and `Many` a list of documents, or an awaitable of
    these."""

    url: str

    @abstractmethod
    def _one(self, script: Script[Document]) -> One:
        """Run a script that returns a document."""

    @abstractmethod
    def _many(self, script: Script[list[Document]]) -> Many:
        """Run a script that returns a list of documents."""

    def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> One:
        """Submit a study: {study, notes}. Without `idempotency_key`, a random key is used, so that
        a repeated request does not create a second study."""
        key = idempotency_key or secrets.token_hex(16)
        return self._ask(
            Call(method="POST", path="/studies", body=spec, headers={"Idempotency-Key": key})
        )

    def studies(self, *, limit: int = 50, offset: int = 0, **filters: Unpack[AskedStudies]) -> One:
        """List studies, newest first: {studies, next_offset}. `filters`: status, model, cluster,
        owner, name, tag."""
        query = {name: str(value) for name, value in filters.items() if value}
        return self._ask(Call(path="/studies", params={"limit": limit, "offset": offset, **query}))

    def observed(
        self,
        *,
        limit: int = 50,
        offset: int = 0,
        version: Sequence[str] = (),
        **filters: Unpack[AskedRuns],
    ) -> One:
        """List observed runs, newest first: {runs, next_offset}. `filters`: id, model, cluster,
        gpu, trainer, program, outcome. `version`: NAME=VERSION."""
        query: dict[str, Any] = {name: str(value) for name, value in filters.items() if value}
        query |= {"limit": limit, "offset": offset, "version": list(version)}
        return self._ask(Call(path="/observed", params=query))

    def status(self, study_id: str) -> One:
        """Read a study with its best config: {study, best, baseline, speedup}."""
        return self._ask(Call(path=study_path(study_id)))

    def record(self, study_id: str) -> One:
        """Read the whole study as stored: {record}."""
        return self._ask(Call(path=study_path(study_id, "record")))

    def trials(self, study_id: str, *, version: Sequence[str] = ()) -> Many:
        """List the trials of a study, or only those measured with these versions (NAME=VERSION)."""
        return self._list(
            Call(path=study_path(study_id, "trials"), params={"version": list(version)}), "trials"
        )

    def events(self, study_id: str, *, after: int = 0, limit: int = 1000) -> Many:
        """Read the next events after this sequence number."""
        params = {"after": after, "limit": limit}
        return self._list(Call(path=study_path(study_id, "events"), params=params), "events")

    def act(self, study_id: str, action: str) -> One:
        """Pause, resume, stop or cancel a study: {study}."""
        return self._ask(Call(method="POST", path=study_path(study_id, action)))

    def notes(self, study_id: str) -> Many:
        """List the notes of a study, oldest first."""
        return self._list(Call(path=study_path(study_id, "notes")), "notes")

    def add_note(self, study_id: str, text: str) -> One:
        """Add a note to a study: {note}. Repeating the last note adds nothing."""
        return self._ask(
            Call(method="POST", path=study_path(study_id, "notes"), body={"text": text})
        )

    def remove_note(self, study_id: str, number: int) -> One:
        """Remove a note permanently: {notes}, the remaining notes."""
        return self._ask(Call(method="DELETE", path=study_path(study_id, "notes", str(number))))

    def tag(self, study_id: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> One:
        """Add tags to a study and remove others: {study}."""
        body = {"add": list(add), "remove": list(remove)}
        return self._ask(Call(method="PATCH", path=study_path(study_id, "tags"), body=body))

    def deletion(self, study_id: str) -> One:
        """Show what would be deleted with a study: {deletion}. Deletes nothing."""
        return self._ask(Call(path=study_path(study_id, "deletion")))

    def delete(self, study_id: str) -> One:
        """Delete a finished study permanently: {deletion}, the list of what was deleted."""
        return self._ask(Call(method="DELETE", path=study_path(study_id)))

    def pause(self, study_id: str) -> One:
        """Pause a study, so that running trials finish and no new trials start: {study}. Raises
        `ConflictError` if the study has ended."""
        return self.act(study_id, "pause")

    def resume(self, study_id: str) -> One:
        """Resume a paused study: {study}. Raises `ConflictError` if the study has ended."""
        return self.act(study_id, "resume")

    def stop(self, study_id: str) -> One:
        """Stop a study, so that running trials finish and then the best config is named: {study}.
        Raises `ConflictError` if the study has ended."""
        return self.act(study_id, "stop")

    def cancel(self, study_id: str) -> One:
        """Cancel a study and kill its running trials: {study}. Raises `ConflictError` if the study
        has ended."""
        return self.act(study_id, "cancel")

    def best(
        self,
        study_id: str,
        *,
        top: int = 1,
        pareto: bool = False,
        metric: str | None = None,
        stability_weight: float | None = None,
        version: Sequence[str] = (),
    ) -> One:
        """Rank a study's configs by its own objective, or by the objective in the arguments:
        {study, best, baseline, speedup, objective, configs}. `version`: NAME=VERSION; only trials
        measured with these versions are ranked."""
        params = {
            "top": top,
            "pareto": pareto,
            "metric": metric,
            "stability_weight": stability_weight,
        }
        return self._ask(
            Call(
                path=study_path(study_id, "best"),
                params={**_without_none(params), "version": list(version)},
            )
        )

    def explain(self, study_id: str, trial: int | None = None) -> One:
        """Explain why a trial (the winner, if None) is better or worse than others."""
        return self._ask(
            Call(path=study_path(study_id, "explain"), params=_without_none({"trial": trial}))
        )

    def best_across(
        self,
        *,
        model: str = "",
        cluster: str = "",
        trainer: str = "",
        runner: str = "",
        num_gpus: int | None = None,
        measured_after: datetime | None = None,
        seq_len: int | None = None,
        global_batch_size: int | None = None,
        metric: str | None = None,
        stability_weight: float | None = None,
        top: int = 1,
    ) -> One:
        """Find the best configs across all studies, by speed or by the objective in the arguments.

        If nothing has been measured for the model and cluster, the answer contains the configs for
        the nearest workload. If there is no similar workload, it contains the cost model's ranking.
        `source` shows where the configs come from.
        """
        params = {
            "model": model,
            "cluster": cluster,
            "trainer": trainer,
            "runner": runner,
            "top": top,
            "num_gpus": num_gpus,
            "measured_after": measured_after.isoformat() if measured_after else None,
            "seq_len": seq_len,
            "global_batch_size": global_batch_size,
            "metric": metric or None,
            "stability_weight": stability_weight,
        }
        return self._ask(Call(path="/best", params=_without_none(params)))

    def export(
        self,
        study_id: str,
        trainer: str,
        options: Mapping[str, Any] | None = None,
        *,
        on: str = "",
        trial: int | None = None,
    ) -> One:
        """Export the best config, or a trial's config, for a trainer and a scheduler (default:
        shell): {trainer, config, argv, env, files, notes, tuned, job}."""
        if not trainer:  # an empty name would change the path
            raise NotFoundError(
                "there is no trainer ''",
                remedy="`autotune trainers` lists the trainers",
                field="trainer",
            )
        pairs = [f"{key}={value}" for key, value in (options or {}).items()]
        params = _without_none({"option": pairs, "on": on or None, "trial": trial})
        return self._ask(Call(path=study_path(study_id, "export", trainer), params=params))

    def plan(
        self,
        spec: Mapping[str, Any],
        *,
        top: int = 10,
        clusters: Sequence[str] = (),
        tokens: float | None = None,
    ) -> One:
        """Rank the feasible configs by the cost model: {configs, feasible, infeasible}.

        If you pass `clusters` (names or GPU types), the answer also has `clusters`: the best config
        on each cluster, and the cost of training on `tokens` tokens.
        """
        params = {"top": top, "clusters": ",".join(clusters) or None, "tokens": tokens}
        return self._ask(Call(method="POST", path="/plan", body=spec, params=_without_none(params)))

    def review(
        self,
        files: Mapping[str, str],
        *,
        model: str | None = None,
        cluster: str | None = None,
        seq_len: int | None = None,
        batch: int | None = None,
        precision: str | None = None,
        config: str | None = None,
        measured_s: float | None = None,
        log: str | None = None,
    ) -> One:
        """Review a launch without running it: whether the launch fits, how fast it should be, and
        which edits make it faster. `files`: texts by name, with the launch first."""
        options = {
            "model": model,
            "cluster": cluster,
            "seq_len": seq_len,
            "batch": batch,
            "precision": precision,
            "config": config,
            "measured_s": measured_s,
            "log": log,
        }
        return self._ask(
            Call(
                method="POST", path="/review", body={"files": dict(files), **_without_none(options)}
            )
        )

    def health(self) -> One:
        """Read the service's health: {status, version, ...}, even if checks fail."""
        return self._ask(Call(path="/health", accept=(200, 503)))

    def wait(self, study_id: str, *, timeout_s: float = float("inf"), poll_s: float = 0.5) -> One:
        """Wait until the study has ended or is paused, and return its status. Raises `ServiceError`
        if this takes longer than `timeout_s`."""
        return self._one(_wait_until_idle(self.url, study_id, timeout_s, poll_s))

    def _ask(self, call: Call) -> One:
        return self._one(_send_with_retries(self.url, call))

    def _list(self, call: Call, key: str) -> Many:
        return self._many(_read_list(self.url, call, key))


def _send_with_retries(url: str, call: Call) -> Script[Document]:
    """Send a request, repeat it while the service is busy or unreachable, and return its answer."""
    pause_s, tries = FIRST_PAUSE_S, RETRIES
    while True:
        outcome = yield call
        if isinstance(outcome, httpx.Response):
            if outcome.status_code in call.accept:
                return _document(outcome)
            if outcome.status_code not in BUSY or tries <= 0:
                raise error_of(outcome)
            retry_after = outcome.headers.get("retry-after", "")
            wait_s = min(LONGEST_PAUSE_S, float(retry_after)) if retry_after.isdigit() else pause_s
        else:
            if tries <= 0:
                raise unreachable(url, outcome)
            wait_s = pause_s
        yield wait_s
        pause_s, tries = min(LONGEST_PAUSE_S, 2 * pause_s), tries - 1


def _read_list(url: str, call: Call, key: str) -> Script[list[Document]]:
    """Send a request with retries, and return the list under `key` in its answer."""
    documents: list[Document] = (yield from _send_with_retries(url, call))[key]
    return documents


def _wait_until_idle(url: str, study_id: str, timeout_s: float, poll_s: float) -> Script[Document]:
    """Poll a study until it has ended or is paused, and return its status document."""
    from autotune.spec import StudyStatus

    deadline = time.monotonic() + timeout_s
    while True:
        document = yield from _send_with_retries(url, Call(path=study_path(study_id)))
        status = StudyStatus(document["study"]["status"])
        if status.is_terminal or status is StudyStatus.PAUSED:
            return document
        if time.monotonic() >= deadline:
            raise ServiceError(
                f"study {study_id} is still {status.lower()} after {format_duration(timeout_s)}",
                remedy="pass a larger timeout_s",
            )
        yield poll_s


def study_path(study_id: str, *parts: str) -> str:
    """Return the URL path of a study, or of a resource below it. Raises `NotFoundError` for names
    that would change the path: an empty name, `.` or `..`."""
    if not study_id:
        raise NotFoundError(
            "the study's name is empty",
            remedy="`studies()` lists ids and names",
            field="study_id",
        )
    names = [str(part) for part in (study_id, *parts)]
    for name in names:
        # clients and proxies remove these parts of a path, even if they are quoted
        if name in (".", ".."):
            raise NotFoundError(
                f"there is no resource {name!r}",
                remedy="`studies()` lists ids and names of studies",
            )
    return "/".join(["/studies", *(quote(name, safe="", errors="replace") for name in names)])


def _without_none(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def address_of(url: str | None) -> str:
    """Return the service's address (default: AUTOTUNE_URL). Raises `SpecError` for an invalid
    address."""
    from autotune.settings import settings

    address = (url or settings().url or "http://127.0.0.1:8600").rstrip("/")
    try:
        parts = urlsplit(address)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:  # an unclosed bracket, or an invalid port
        is_valid = is_plain = False
    if not (is_valid and is_plain):
        raise SpecError(
            f"the address of a service must be http://HOST:PORT or https://HOST:PORT, but is {address[:200]!r}",
            remedy="correct --url or AUTOTUNE_URL",
            field="url",
        )
    return address


def unreachable(url: str, error: object) -> ServiceUnavailableError:
    """Return the error for a service that does not answer."""
    return ServiceUnavailableError(
        f"the service at {url} cannot be reached: {error}",
        remedy="start the service with `autotune serve`, or set another address with --url or AUTOTUNE_URL",
    )


def error_of(response: httpx.Response) -> AutotuneError:
    """Return the error in a response, as an instance of the class that the service raised."""
    try:
        body = response.json()["error"]
        kind, message, field, remedy = (
            str(body[name]) for name in ("kind", "message", "field", "remedy")
        )
    except (ValueError, LookupError, TypeError):
        return ServiceError(
            f"the service answered with HTTP {response.status_code} and no explanation",
            remedy="check that --url or AUTOTUNE_URL is the address of an autotune service",
        )
    error = _classes_by_kind().get(kind, ServiceError)(message, remedy=remedy, field=field)
    problems = [_problem(type(error), problem) for problem in body.get("problems", ())]
    if problems:
        error.place, error.others = problems[0].place, tuple(problems[1:])
    return error


def _problem(kind: type[AutotuneError], problem: Mapping[str, Any]) -> AutotuneError:
    """Return one of the `problems` in an error document, as an error."""
    place = None
    if problem.get("line"):
        place = SourcePlace(
            file=problem["file"], line=problem["line"], column=problem["column"], excerpt=""
        )
    return kind(problem["message"], remedy=problem["remedy"], field=problem["field"], place=place)


def _document(response: httpx.Response) -> Document:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ServiceError(
            f"{response.url.host} did not answer like an autotune service",
            remedy="check that --url or AUTOTUNE_URL is the address of an autotune service",
        )
    return body


def _classes_by_kind() -> dict[str, type[AutotuneError]]:
    classes = [
        c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, AutotuneError)
    ]
    return {c("").kind: c for c in classes}
