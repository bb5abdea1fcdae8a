"""Makes signals available to a loop that polls them. The first Ctrl-C or SIGTERM is recorded, the
second one raises `KeyboardInterrupt`. SIGUSR1, with which a scheduler announces the time limit
(`sbatch --signal=B:USR1@120`), is always recorded."""

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
    """Context manager of a function that returns why this process must stop: `interrupted` after
    Ctrl-C or SIGTERM, `TIME_IS_OVER` after SIGUSR1, empty before. In other threads than the main
    one it is always empty, because they cannot handle signals."""
    reasons: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield str
        return

    def record(number: int, frame: Any) -> None:
        if number == signal.SIGUSR1:
            reasons.append(TIME_IS_OVER)
            return
        if INTERRUPTED in reasons:
            raise KeyboardInterrupt
        reasons.append(INTERRUPTED)

    before = {
        number: signal.signal(number, record)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield lambda: reasons[-1] if reasons else ""
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
