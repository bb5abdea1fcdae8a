"""A study's event stream: the next request, and the parser for the stream's lines (HTML standard,
section "Server-sent events"; data is JSON).

If the connection breaks, the stream continues after the last event that arrived.
"""

from __future__ import annotations

import json

import httpx

from autotune.client import operations
from autotune.client.operations import Call, Document, study_path, unreachable


class EventStream:
    """The position in the event stream of a study."""

    def __init__(self, url: str, study_id: str, after: int) -> None:
        self._url, self._path, self._after = url, study_path(study_id, "events"), after
        self._failures = 0
        self._kind, self._data = "", list[str]()
        self._is_open = False
        """whether the service has answered the last request"""
        self.ended = False
        """whether the study's last event has arrived"""

    def call(self) -> Call:
        """Return the next request, and drop the incomplete event that a broken connection left."""
        self._kind, self._data, self._is_open = "", [], False
        return Call(
            path=self._path, params={"after": self._after}, headers={"Accept": "text/event-stream"}
        )

    def feed(self, line: str) -> Document | None:
        """Process a line; return the event if the line completes one, otherwise None."""
        # a comment: the first one opens the stream; a later one shows that the connection lasted
        if line.startswith(":"):
            if self._is_open:
                self._failures = 0
            self._is_open = True
        elif line.startswith("event:"):
            self._kind = line[6:].strip()
        elif line.startswith("data:"):
            self._data.append(line[5:].strip())
        elif not line and self._data:
            event: Document = json.loads("\n".join(self._data))
            self.ended = self._kind == "end"
            self._kind, self._data = "", []
            if not self.ended:
                self._after, self._failures = event["sequence"], 0
                return event
        return None

    def record_failure(self, error: httpx.TransportError) -> None:
        """Record a broken connection. Raises `ServiceUnavailableError` after too many broken
        connections in a row."""
        self._failures += 1
        if self._failures > operations.RETRIES:
            raise unreachable(self._url, error) from None

    @property
    def pause_s(self) -> float:
        """Time to wait before the next request, seconds."""
        return min(operations.LONGEST_PAUSE_S, operations.FIRST_PAUSE_S * 2.0**self._failures)
