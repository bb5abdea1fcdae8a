"""A study's history as it happens: what is asked for next, and what the lines of a stream of server-sent events mean (HTML standard, section on
server-sent events; data is JSON). A connection that breaks is made again where it broke.
"""

from __future__ import annotations

import json

import httpx

from autotune.client import questions
from autotune.client.questions import Call, Document, of, unreachable


class Following:
    """How far somebody who follows a study has come."""

    def __init__(self, url: str, study_id: str, after: int) -> None:
        self._url, self._path, self._after = url, of(study_id, "events"), after
        self._failures = 0
        self._kind, self._data = "", list[str]()
        self.ended = False
        """whether the study's last event was heard"""

    def call(self) -> Call:
        """What to ask for; forgets half an event of a connection that broke."""
        self._kind, self._data = "", []
        return Call(path=self._path, params={"after": self._after}, headers={"Accept": "text/event-stream"})

    def hear(self, line: str) -> Document | None:
        """The event that this line completes."""
        if line.startswith("event:"):
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

    def broke(self, error: httpx.TransportError) -> None:
        """The connection failed. Raises `ServiceError` when it has too often."""
        self._failures += 1
        if self._failures > questions.RETRIES:
            raise unreachable(self._url, error) from None

    @property
    def pause_s(self) -> float:
        """How long to wait before asking again."""
        return min(questions.LONGEST_PAUSE_S, questions.FIRST_PAUSE_S * 2.0**self._failures)
