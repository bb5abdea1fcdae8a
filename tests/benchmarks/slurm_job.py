"""What a job of Slurm costs a study: from the job's start to its first trial, and from its last
trial to the job's end.

    python -m tests.benchmarks.slurm_job FOLDER

A real Slurm on two nodes of this machine (`tests.nodes.slurm_cluster`), a program as trial, Ray as
one step. FOLDER: below /tmp, seen by all nodes; it must not exist.
"""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import datetime
from pathlib import Path

from autotune.store.upkeep.study_folder import opened_copy
from tests.nodes.slurm_cluster import slurm_cluster
from tests.slurm.test_stories import SPREAD, LoginNode


def measure(folder: Path) -> dict[str, float]:
    """Seconds by what they were needed for."""
    folder.mkdir()
    with slurm_cluster(2, shared=[str(folder)]) as cluster:
        login = LoginNode(cluster, folder)
        job = login.submit(SPREAD, budget={"max_trials": 3, "min_gain": 0})
        state = cluster.wait_for(job)
        known = cluster.job(job)
    assert state == "COMPLETED", login.said("spread")
    with opened_copy(folder / "spread") as store:
        events = list(store.events(store.studies(limit=1)[0].id, limit=1000))
    started = next(event.at for event in events if event.kind == "trial.started")
    ended = [event.at for event in events if event.kind == "trial.ended"][-1]
    began, over = (
        datetime.fromisoformat(known[key]).timestamp() for key in ("StartTime", "EndTime")
    )
    return {
        "job's start to the first trial": started.timestamp() - began,
        "last trial to the job's end": over - ended.timestamp(),
        "trials": ended.timestamp() - started.timestamp(),
    }


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    for what, seconds in measure(Path(sys.argv[1])).items():
        print(f"{seconds:6.1f} s  {what}")
