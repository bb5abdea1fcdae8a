"""Ctrl-C and SIGTERM as a question that a loop asks: the first one is heard, the second one interrupts outright."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or SIGTERM) came. The second one interrupts outright. Only the main thread can hear signals."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return

    def hear(number: int, frame: Any) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
