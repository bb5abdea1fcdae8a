"""The blocking client and the asynchronous client, which run the scripts in
`autotune.client.operations`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from autotune.client.event_stream import EventStream
from autotune.client.operations import (
    Call,
    Document,
    Operations,
    Outcome,
    Script,
    address_of,
    error_of,
)

if TYPE_CHECKING:
    from autotune.results.result import Result

Reply = TypeVar("Reply")
TIMEOUT_S = 60.0
"""default timeout of a request, seconds"""


class Client(Operations[Document, list[Document]]):
    """A blocking client of one service. Thread-safe; a context manager."""

    def __init__(
        self, url: str | None = None, *, token: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`url` and `token` default to AUTOTUNE_URL and AUTOTUNE_TOKEN. Raises `SpecError` for an
        invalid address."""
        self.url = address_of(url)
        self._http = httpx.Client(**_options(self.url, token, timeout_s))

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def stream(self, study_id: str, *, after: int = 0) -> Iterator[Document]:
        """Yield events as they happen, until the study ends. A broken connection is reopened, and
        the stream continues."""
        stream = EventStream(self.url, study_id, after)
        while True:
            try:
                with self._http.stream(**stream.call().request()) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        raise error_of(answer)
                    for line in answer.iter_lines():
                        if (event := stream.feed(line)) is not None:
                            yield event
                        if stream.ended:
                            return
            except httpx.TransportError as error:
                stream.record_failure(error)
            time.sleep(stream.pause_s)

    def result(self, study_id: str) -> Result:
        """Return the running or finished study with its trials, in the same form as `autotune.tune`
        returns it: figures, data frame, winner."""
        return _result(self.record(study_id), self.trials(study_id))

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _run(self, script: Script[Reply]) -> Reply:
        outcome: Outcome = None
        try:
            while True:
                instruction = script.send(outcome)
                if isinstance(instruction, Call):
                    outcome = self._send(instruction)
                else:
                    time.sleep(instruction)
        except StopIteration as end:
            result: Reply = end.value
            return result

    _one = _many = _run

    def _send(self, call: Call) -> Outcome:
        try:
            return self._http.request(**call.request())
        except httpx.TransportError as error:
            return error


class AsyncClient(Operations[Awaitable[Document], Awaitable[list[Document]]]):
    """An asynchronous client of one service, for one event loop, and an asynchronous context
    manager. `Client`'s methods are coroutines here."""

    def __init__(
        self, url: str | None = None, *, token: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Take the same arguments as `Client`."""
        self.url = address_of(url)
        self._http = httpx.AsyncClient(**_options(self.url, token, timeout_s))

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def stream(self, study_id: str, *, after: int = 0) -> AsyncIterator[Document]:
        """Yield events as `Client.stream` does."""
        stream = EventStream(self.url, study_id, after)
        while True:
            try:
                async with self._http.stream(**stream.call().request()) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                        raise error_of(answer)
                    async for line in answer.aiter_lines():
                        if (event := stream.feed(line)) is not None:
                            yield event
                        if stream.ended:
                            return
            except httpx.TransportError as error:
                stream.record_failure(error)
            await asyncio.sleep(stream.pause_s)

    async def result(self, study_id: str) -> Result:
        """Return the study as `Client.result` does."""
        return _result(await self.record(study_id), await self.trials(study_id))

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _run(self, script: Script[Reply]) -> Reply:
        outcome: Outcome = None
        try:
            while True:
                instruction = script.send(outcome)
                if isinstance(instruction, Call):
                    outcome = await self._send(instruction)
                else:
                    await asyncio.sleep(instruction)
        except StopIteration as end:
            result: Reply = end.value
            return result

    _one = _many = _run

    async def _send(self, call: Call) -> Outcome:
        try:
            return await self._http.request(**call.request())
        except httpx.TransportError as error:
            return error


def _result(record: Document, trials: list[Document]) -> Result:
    from autotune.results.answers import result_from
    from autotune.results.records import record_of
    from autotune.spec import Trial

    return result_from(record_of(record["record"]), [Trial.from_dict(values) for values in trials])


def _options(address: str, token: str | None, timeout_s: float) -> dict[str, Any]:
    from autotune.settings import settings

    token_sent = settings().token if token is None else token
    return {
        "base_url": f"{address}/api/v1",
        "headers": {"Authorization": f"Bearer {token_sent}"} if token_sent else {},
        "timeout": timeout_s,
        "follow_redirects": False,
        "trust_env": False,
    }
