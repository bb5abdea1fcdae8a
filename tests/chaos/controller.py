"""A controller process: `api.run_study` on one study, with a journal of what it was told and a wall
clock that others may set.

The journal is a file of JSON lines, each written with one `write` after the store had acknowledged
the fact; what the process wrote survives its SIGKILL. The clock is read through
`autotune.store.connection.database.datetime`, the only wall clock of the store: it is off by what
the clock file says. Both files are named as the process is on leases: FOLDER/journals/OWNER,
FOLDER/clocks/OWNER.

Controllers are started by the arena (`main`) or by supervisors, whose fork servers call
`keep_journals` before they fork a controller.
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
from types import TracebackType
from typing import Any, Self, TypeVar

from autotune import api
from autotune.errors import ConflictError, StoreError
from autotune.ports import Store
from autotune.store import open_store
from autotune.store.connection import database
from autotune.study.process_id import this_process
from autotune.study.progress import (
    LoopEvent,
    Notice,
    OnEvent,
    StudyOpened,
    StudyRested,
    TrialAsked,
    TrialEnded,
    TrialRetried,
    TrialStarted,
)
from autotune_workers.process.machine import die_with_parent
from tests.chaos.checker import Journal, Line, outcome, study_outcome

T = TypeVar("T")
PATIENCE_S = 900.0
"""for a turn to come"""
AWAY = "the store cannot be reached"
"""how a controller begins to say that it waits for its database"""


class JournalWriter:
    """This process's journal. A context manager: entering it starts the journal and the clock,
    leaving it says how the process left."""

    def __init__(self, folder: Path) -> None:
        self.opened = False
        """whether this process had the study once"""
        self._file = os.open(
            folder / "journals" / this_process(), os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )
        set_clock_by(folder / "clocks" / this_process())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ConflictError | StoreError):
            self._write("left", said=f"{error.kind}: {error}")
        elif error is not None:
            self._write("fell", said="".join(traceback.format_exception(error)))
        else:
            self._write("left", said="done")

    def hear(self, event: LoopEvent) -> None:
        """Writes down what was acknowledged."""
        match event:
            case StudyOpened():
                self.opened = True
                self._write("opened")
            case TrialAsked(trial=trial):
                self._write("asked", trial.number, said=f"{trial.purpose} {trial.config}")
            case TrialStarted(number=number, attempt=attempt):
                self._write("started", number, attempt)
            case TrialRetried(number=number, attempt=attempt):
                self._write("retried", number, attempt)
            case TrialEnded(trial=trial):
                self._write("ended", trial.number, said=outcome(trial))
            case StudyRested(record=record):
                self._write("rested", said=study_outcome(record))
            case Notice(message=message) if message.startswith(AWAY):
                self._write("waits", said=message)
            case _:
                pass

    def _write(self, kind: str, number: int = -1, attempt: int = 0, said: str = "") -> None:
        line = {"kind": kind, "number": number, "attempt": attempt, "said": said}
        os.write(self._file, (json.dumps(line) + "\n").encode())


def main(address: str, study_id: str, folder: str, lease_s: float) -> None:
    """Waits for its turn, runs the study, and leaves when it ended, or another has it."""
    die_with_parent(os.getppid())
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.suppress(BaseException), JournalWriter(Path(folder)) as journal:
        with_store(
            address,
            study_id,
            journal.hear,
            lambda: journal.opened or time.monotonic() > deadline,
            lease_s,
        )


def keep_journals(folder: Path) -> None:
    """From here on whoever runs a study in this process, or in a fork of it, keeps a journal."""
    run_study = api.run_study

    def journalled(store: Store, study_id: str, *, on_event: OnEvent, **options: Any) -> api.Result:
        with JournalWriter(folder) as journal:

            def hear(event: LoopEvent) -> None:
                journal.hear(event)
                on_event(event)

            return run_study(store, study_id, on_event=hear, **options)

    api.run_study = journalled


def with_store(address: str, study_id: str, hear: Any, done: Any, lease_s: float) -> None:
    """Runs the study; tries again until it had it once."""
    with contextlib.closing(patiently(lambda: open_store(address), done)) as store:
        patiently(lambda: api.run_study(store, study_id, on_event=hear, lease_s=lease_s), done)


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

    file.touch()
    database.datetime = Skewed  # type: ignore[misc]


def read_journal(path: Path) -> Journal:
    """What a controller wrote down; it may still be writing."""
    lines = (
        json.loads(line)
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    )
    return Journal(owner=path.name, lines=tuple(Line(**line) for line in lines))
