"""Studies in different processes take turns on the devices of this machine, in a fair order,
whatever becomes of a process."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune_workers.process.machine_turn import MachineTurn

DEADLINE_S = 600.0
_OTHER = """
import sys
from autotune_workers.process.machine_turn import MachineTurn
turn = MachineTurn(sys.argv[2:])
for line in sys.stdin:
    if line.strip() == "take":
        print(turn.take(sys.argv[1]) or "held", flush=True)
    else:
        turn.give_back()
        print("given back", flush=True)
"""


class OtherProcess:
    """Another process with a turn of its own."""

    def __init__(self, study: str, gpus: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OTHER, study, *gpus],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str) -> str:
        """Its answer to "take" or "give back"."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def other(study: str = "theirs", gpus: tuple[str, ...] = ()) -> Iterator[OtherProcess]:
    running = OtherProcess(study, gpus)
    with running.process as process:
        try:
            yield running
        finally:
            process.kill()


@pytest.fixture
def turn() -> Iterator[MachineTurn]:
    mine = MachineTurn()
    yield mine
    mine.give_back()


def test_a_turn_is_taken_after_the_other_process_has_given_it_back_and_never_twice_before_one_that_waits(
    turn: MachineTurn,
) -> None:
    with other() as theirs:
        assert theirs.ask("take") == "held"
        who = f"study theirs (process {theirs.process.pid})"
        assert turn.take("mine") == f"{who} measures on the CPU of this machine"
        theirs.ask("give back")
        assert "study mine" in theirs.ask("take"), "this process waited before"
        assert turn.take("mine") == ""
        assert turn.is_held
        assert "study mine" in theirs.ask("take")
        assert turn.is_wanted
        turn.give_back()
        assert "is next" in turn.take("mine")
        assert theirs.ask("take") == "held"


def test_the_turn_of_a_process_that_is_killed_is_free_at_once(turn: MachineTurn) -> None:
    with other() as theirs:
        assert theirs.ask("take") == "held"
        assert turn.take("mine")
        theirs.process.kill()
        theirs.process.wait(DEADLINE_S)
        assert turn.take("mine") == ""


def test_different_gpus_are_used_at_the_same_time_and_the_cpu_by_either(turn: MachineTurn) -> None:
    with (
        other("first", ("0", "1")) as first,
        other("second", ("2",)) as second,
        other("third", ("1", "2")) as third,
    ):
        assert first.ask("take") == "held"
        assert second.ask("take") == "held"
        assert "GPU 1 of this machine" in third.ask("take")
        assert "the CPU of this machine" in turn.take("mine")
        first.ask("give back")
        assert "GPU 2 of this machine" in third.ask("take")
        second.ask("give back")
        assert turn.take("mine") == ""
        assert "the CPU of this machine" in third.ask("take"), (
            "it has both GPUs, but ranks on the CPU measure"
        )
        turn.give_back()
        assert third.ask("take") == "held"


def test_where_nothing_can_be_locked_trials_run_and_a_warning_says_it_once(
    turn: MachineTurn, own_house: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_house.parent.mkdir(parents=True)
    own_house.write_text("a file where the data folder should be")
    with caplog.at_level(logging.WARNING):
        assert turn.take("mine") == turn.take("mine") == ""
    assert [record.message for record in caplog.records] == [caplog.records[0].message]
    assert "may run on this machine at the same time" in caplog.records[0].message
