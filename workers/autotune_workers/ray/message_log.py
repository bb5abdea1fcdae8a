"""What a rank said, numbered from 1, until nobody needs it any more."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

from autotune_workers.gang.wire import Message


class MessageLog:
    """Messages are kept until the owner of the rank confirms them, for an answer that Ray loses on its way is given again; and as long as their trial is
    the last, for an owner that comes later. Threads may share it."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._messages: deque[Message] = deque()
        self._told = self._before = self._confirmed = 0

    def add(self, message: Message) -> None:
        """One more."""
        with self._news:
            self._told += 1
            self._messages.append({**message, "number": self._told})
            self._news.notify_all()

    def begin(self) -> None:
        """A trial begins: what was said before it is forgotten once it is confirmed."""
        with self._news:
            self._before = self._told

    def after(self, number: int, timeout_s: float = 0.0) -> list[Message]:
        """Those beyond `number`, up to which the caller has them; waits up to `timeout_s` for the first."""
        with self._news:
            self._confirmed = max(self._confirmed, number)
            while self._messages and self._messages[0]["number"] <= min(self._before, self._confirmed):
                self._messages.popleft()
            self._news.wait_for(lambda: self._told > number, timeout_s)
            first = self._messages[0]["number"] if self._messages else 0
            return [dict(message) for message in islice(self._messages, max(0, number + 1 - first), None)]
