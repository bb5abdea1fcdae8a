"""The message log of an actor: its messages, numbered from 1, kept until nobody needs them any more."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

from autotune_workers.gang.wire import Message


class MessageLog:
    """Messages are kept until the owner of the actor confirms them, because an answer that Ray loses on its way is given again, and as long as
    their trial is the last one, for an owner that adopts a rank. Threads may share it."""

    def __init__(self, *, keeps_trial: bool = True) -> None:
        """`keeps_trial`: whether confirmed messages of the last trial are kept too."""
        self._keeps_trial = keeps_trial
        self._news = threading.Condition()
        self._messages: deque[Message] = deque()
        self._last = self._before = self._confirmed = 0

    def add(self, message: Message) -> None:
        """Appends a message and wakes up who waits for it."""
        with self._news:
            self._last += 1
            self._messages.append({**message, "number": self._last})
            self._news.notify_all()

    def begin(self) -> None:
        """A trial begins: earlier messages are dropped once they are confirmed."""
        with self._news:
            self._before = self._last

    @property
    def unheard(self) -> int:
        """How many messages are not confirmed."""
        with self._news:
            return self._last - self._confirmed

    def after(self, number: int, timeout_s: float = 0.0) -> list[Message]:
        """The messages after `number`, which confirms those up to it; waits up to `timeout_s` for the first."""
        with self._news:
            self._confirmed = max(self._confirmed, number)
            needless = min(self._before, self._confirmed) if self._keeps_trial else self._confirmed
            while self._messages and self._messages[0]["number"] <= needless:
                self._messages.popleft()
            self._news.wait_for(lambda: self._last > number, timeout_s)
            first = self._messages[0]["number"] if self._messages else 0
            return [dict(message) for message in islice(self._messages, max(0, number + 1 - first), None)]
