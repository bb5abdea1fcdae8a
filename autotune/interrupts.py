"""Signals as a question that a loop asks. Ctrl-C and SIGTERM: the first one is heard, the second one interrupts outright. SIGUSR1, by which a scheduler says that
the time limit comes soon (`sbatch --signal=B:USR1@120`), is heard each time."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C, SIGTERM or SIGUSR1 came. Only the main thread can hear signals."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return

    def hear(number: int, frame: Any) -> None:
        if came.is_set() and number != signal.SIGUSR1:
            raise KeyboardInterrupt
        came.set()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
