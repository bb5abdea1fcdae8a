from __future__ import annotations

import subprocess
import sys

import pytest

from autotune.study.process_id import is_beside, is_gone, this_process

HOST, PID, START, PLACE = this_process().split(":")
WITHOUT_START, WITHOUT_PLACE = f"{HOST}:{PID}:0:{PLACE}", f"{HOST}:{PID}:{int(START) - 1}:0"


def test_this_process_lives() -> None:
    assert not is_gone(this_process())


@pytest.mark.skipif(sys.platform != "linux", reason="start times are read from /proc")
def test_a_process_that_ended_is_gone_even_when_it_is_not_waited_for() -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from autotune.study.process_id import this_process; print(this_process())",
        ],
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
    host, pid, start, place = this_process().split(":")
    assert is_gone(f"{host}:{pid}:{int(start) - 1}:{place}")


@pytest.mark.skipif(sys.platform != "linux", reason="places are read from /proc")
def test_a_process_of_another_container_or_boot_with_the_same_host_name_counts_as_alive() -> None:
    host, pid, start, place = this_process().split(":")
    elsewhere = f"{host}:{pid}:{int(start) - 1}:{place[::-1]}x"
    assert not is_beside(elsewhere)
    assert not is_gone(elsewhere)
    assert not is_gone(f"{host}:{pid}:{int(start) - 1}"), (
        "a name of an older version says nothing of the place"
    )
    assert is_beside(this_process())


@pytest.mark.parametrize(
    "holder",
    ["elsewhere:1:5:0", "somebody", "", "a:b:c:d", WITHOUT_START, WITHOUT_PLACE],
    ids=["another host", "a word", "nothing", "no numbers", "no start time", "no place"],
)
def test_who_cannot_be_judged_counts_as_alive(holder: str) -> None:
    assert not is_gone(holder)
