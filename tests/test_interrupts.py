from __future__ import annotations

import os
import signal

import pytest

from autotune.interrupts import interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_of_a_person_interrupts_outright(number: signal.Signals) -> None:
    with interrupts() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), number)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_a_scheduler_may_say_again_that_the_limit_comes() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with interrupts() as interrupted:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert interrupted()
    assert signal.getsignal(signal.SIGUSR1) is before
