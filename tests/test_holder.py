from __future__ import annotations

import subprocess
import sys

import pytest

from autotune.holder import is_gone, this_process


def test_this_process_lives() -> None:
    assert not is_gone(this_process())


@pytest.mark.skipif(sys.platform != "linux", reason="start times are read from /proc")
def test_a_process_that_ended_is_gone_even_when_it_is_not_waited_for() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "from autotune.holder import this_process; print(this_process())"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    child.stdout.close()
    child.wait()
    assert is_gone(name)


@pytest.mark.skipif(sys.platform != "linux", reason="start times are read from /proc")
def test_another_process_with_the_same_id_is_not_the_holder() -> None:
    host, pid, start = this_process().split(":")
    assert is_gone(f"{host}:{pid}:{int(start) - 1}")


@pytest.mark.parametrize("holder", ["elsewhere:1:5", "somebody", "", "a:b:c", f"{this_process().rpartition(':')[0]}:0"])
def test_who_cannot_be_judged_counts_as_alive(holder: str) -> None:
    assert not is_gone(holder)
