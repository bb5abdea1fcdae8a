"""Signals as a question that a loop asks. Ctrl-C and SIGTERM: the first one is heard, the second
one interrupts outright. SIGUSR1, by which a scheduler says that the time limit comes soon (`sbatch
--signal=B:USR1@120`), is heard each time."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from autotune.study.controller.commands import TIME_IS_OVER

INTERRUPTED = "interrupted"


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], str]]:
    """Why this process shall come to rest, once Ctrl-C, SIGTERM or SIGUSR1 came; empty before. Only
    the main thread can hear signals."""
    why: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield str
        return

    def hear(number: int, frame: Any) -> None:
        if number == signal.SIGUSR1:
            why.append(TIME_IS_OVER)
            return
        if INTERRUPTED in why:
            raise KeyboardInterrupt
        why.append(INTERRUPTED)

    before = {
        number: signal.signal(number, hear)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield lambda: why[-1] if why else ""
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
