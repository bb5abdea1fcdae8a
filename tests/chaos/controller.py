"""A controller process: `wiring.run_study` on one study, with a journal of what it was told and a wall clock that others may set.

The journal is a file of JSON lines, each written with one `write` after the store had acknowledged the fact; what the process wrote survives its
SIGKILL. The clock is read through `autotune.store.database.datetime`, the only wall clock of the store: it is off by what the clock file says.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, TypeVar

from autotune import wiring
from autotune.errors import ConflictError, StoreError
from autotune.holder import this_process
from autotune.progress import LoopEvent, StudyOpened, StudyRested, TrialAsked, TrialEnded, TrialRetried, TrialStarted
from autotune.store import database, open_store
from autotune_workers.machine import die_with_parent
from tests.chaos.checker import Journal, Line, outcome, study_outcome

T = TypeVar("T")
PATIENCE_S = 300.0
"""for a turn to come"""


def main(address: str, study_id: str, journal: str, clock: str, lease_s: float) -> None:
    """Waits for its turn, runs the study, and leaves when it ended, or another has it."""
    die_with_parent(os.getppid())
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    opened = False

    def write(kind: str, number: int = -1, attempt: int = 0, said: str = "") -> None:
        line = {"kind": kind, "number": number, "attempt": attempt, "said": said}
        os.write(file, (json.dumps(line) + "\n").encode())

    def hear(event: LoopEvent) -> None:
        nonlocal opened
        match event:
            case StudyOpened():
                opened = True
                write("opened")
            case TrialAsked(trial=trial):
                write("asked", trial.number, said=f"{trial.purpose} {trial.config}")
            case TrialStarted(number=number, attempt=attempt):
                write("started", number, attempt)
            case TrialRetried(number=number, attempt=attempt):
                write("retried", number, attempt)
            case TrialEnded(trial=trial):
                write("ended", trial.number, said=outcome(trial))
            case StudyRested(record=record):
                write("rested", said=study_outcome(record))
            case _:
                pass

    write("born", said=this_process())
    set_clock_by(Path(clock))
    deadline = time.monotonic() + PATIENCE_S
    try:
        with_store(address, study_id, hear, lambda: opened or time.monotonic() > deadline, lease_s)
    except (ConflictError, StoreError) as error:
        write("left", said=f"{error.kind}: {error}")
    except BaseException:
        write("fell", said=traceback.format_exc())
    else:
        write("left", said="done")


def with_store(address: str, study_id: str, hear: Any, done: Any, lease_s: float) -> None:
    """Runs the study; tries again until it had it once."""
    with contextlib.closing(patiently(lambda: open_store(address), done)) as store:
        patiently(lambda: wiring.run_study(store, study_id, on_event=hear, lease_s=lease_s), done)


def patiently(do: Callable[[], T], done: Callable[[], bool]) -> T:
    """Does it as soon as it can be done."""
    while True:
        try:
            return do()
        except (ConflictError, StoreError):
            if done():
                raise
        time.sleep(0.2)


def set_clock_by(file: Path) -> None:
    """From here on the store's wall clock is off by so many seconds as the file says."""

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz or UTC) + timedelta(seconds=float(file.read_text() or 0))

    database.datetime = Skewed  # type: ignore[misc]


def read_journal(path: Path) -> Journal:
    """What a controller wrote down; it may still be writing."""
    lines = (
        [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )
    owner = next((line["said"] for line in lines if line["kind"] == "born"), "")
    return Journal(owner=owner, lines=tuple(Line(**line) for line in lines))
