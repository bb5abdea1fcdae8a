"""Commands of these tests hear the signals of a terminal, also where whoever started the tests has
them ignored, as a shell does for jobs in the background."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

OF_A_TERMINAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def _signals_of_a_terminal() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in OF_A_TERMINAL}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            )
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
