"""Fifty studies under a supervisor that runs four at once: they start in order and none starves.
Studies under supervisors that are killed, with the studies' processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune import api
from autotune.ports import HistoryEvent
from autotune.service.supervise.launcher import ProcessLauncher
from autotune.service.supervise.supervisor import Supervisor
from autotune.spec import StudyStatus
from autotune.store import SqlStore
from tests.chaos import supervisor
from tests.chaos.arena import forkserver, see, undisturbed
from tests.chaos.checker import violations
from tests.chaos.replay.faults import faults_of
from tests.chaos.supervisor import PLACES
from tests.small_studies import QUIET, spec

pytestmark = [pytest.mark.thorough, pytest.mark.alone]

DEADLINE_S = 900.0
SMALL = spec(
    space={"tp": [1, 2], "micro_batch_size": [1, 2, 4], "precision": ["bf16"]},
    objective={"stability_weight": 0},
    budget={"max_trials": 3, "min_gain": 0},
    measure={"finalists": 0},
    runner=QUIET | {"time_scale": 0.01},
)
"""Four trials. None of the studies learns from another: all are submitted before the first has
ended."""


def submitted(store: SqlStore, count: int) -> list[str]:
    study = api.load_study(SMALL)
    return [api.submit_study(store, study, SMALL).id for _ in range(count)]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the studies do not end")
        time.sleep(0.1)


def all_ended(store: SqlStore, count: int) -> bool:
    return len(store.studies(status=StudyStatus.COMPLETED, limit=1000)) == count


def wrong(store: SqlStore, studies: list[str]) -> list[str]:
    """What differs from the undisturbed run, and broken laws."""
    found = [
        sentence
        for study in studies
        for sentence in violations(see(store, study, []), undisturbed(SMALL))
    ]
    return [*found, *faults_of(store)]


@pytest.mark.slow
def test_fifty_studies_on_four_places_are_run_in_turn(tmp_path: Path, store: SqlStore) -> None:
    studies = submitted(store, 50)
    launcher = ProcessLauncher(tmp_path / "logs", store_url=str(tmp_path / "store.db"))
    watch = Supervisor(store, launcher, max_studies=PLACES, poll_s=0.05)
    watch.start()
    try:
        wait_until(lambda: all_ended(store, 50))
    finally:
        watch.close()
    assert wrong(store, studies) == []
    history = {study: store.events(study) for study in studies}
    assert [[e.kind for e in history[s]].count("study.claimed") for s in studies] == [1] * 50
    began = sorted(studies, key=lambda s: moment(history[s], "study.claimed"))
    overtaken = [abs(began.index(study) - place) for place, study in enumerate(studies)]
    assert max(overtaken) < PLACES, "only those that are started at once may change places"
    for study in studies:
        at = moment(history[study], "study.claimed")
        running = [
            s
            for s in studies
            if moment(history[s], "study.claimed") <= at < moment(history[s], "study.completed")
        ]
        assert len(running) <= PLACES


def moment(events: list[HistoryEvent], kind: str) -> float:
    return next(e.at.timestamp() for e in events if e.kind == kind)


def test_killed_supervisors_and_killed_studies_change_no_result(
    tmp_path: Path, store: SqlStore
) -> None:
    studies, draw = submitted(store, 16), random.Random(0)
    processes = []

    def another() -> None:
        process = forkserver().Process(
            target=supervisor.main,
            args=(str(tmp_path / "store.db"), str(tmp_path / "logs"), 1.0),
            daemon=True,
        )
        process.start()
        processes.append(process)

    try:
        another()
        another()  # two at a time are safe
        for ended in (2, 5, 8, 11):
            wait_until(
                lambda ended=ended: (
                    len(store.studies(status=StudyStatus.COMPLETED, limit=1000)) >= ended
                )
            )
            draw.choice([p for p in processes if p.exitcode is None]).kill()
            another()
            for record in store.studies(status=StudyStatus.RUNNING)[:2]:
                kill_holder(store, record.id)
        wait_until(lambda: all_ended(store, 16))
    finally:
        for process in processes:
            process.kill()
            process.join(DEADLINE_S)
        for study in studies:
            kill_holder(store, study)
    assert wrong(store, studies) == []


def kill_holder(store: SqlStore, study: str) -> None:
    """SIGKILL to the process that holds the study, if there is one."""
    lease = store.holder(study)
    if lease is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(lease.owner.split(":")[1]), signal.SIGKILL)
