"""After SIGKILL of a controller its ranks end by themselves: no other process has to clean up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.spec import StudyStatus
from autotune_workers.process.machine import descendants, is_alive
from tests.chaos.replay.faults import faults_of
from tests.shortcuts import present
from tests.workers.requests import DOUBLE

pytestmark = [pytest.mark.thorough, pytest.mark.alone]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600.0
GONE_S = 600.0
CHILD = """
import json, sys
from autotune import api
api.tune(json.loads(sys.argv[1]), store=sys.argv[2], on_event=lambda e: print(type(e).__name__, flush=True))
"""


def real(runner: dict[str, Any]) -> dict[str, Any]:
    """A study of two ranks on this machine whose trials last a second or more."""
    return {
        "name": "real",
        "model": "nano-gpt",
        "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 2},
        "workload": {"seq_len": 32, "global_batch_size": 8},
        "space": {"dp": [2], "micro_batch_size": [1, 2, 4], "precision": ["fp32"]},
        "objective": {"stability_weight": 0},
        "budget": {"max_trials": 2, "min_gain": 0},
        "measure": {"warmup_steps": 1, "min_steps": 250, "max_steps": 250, "finalists": 0},
        "searcher": "grid",
        "runner": runner,
    }


def test_the_ranks_of_a_killed_controller_are_gone_and_the_study_goes_on(tmp_path: Path) -> None:
    kill_and_look(tmp_path, {"kind": "local", "max_ranks": 2, "device": "cpu", "trial": DOUBLE})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_cluster_of_a_killed_controller_is_gone_and_the_study_goes_on(tmp_path: Path) -> None:
    kill_and_look(tmp_path, {"kind": "ray", "num_cpus": 2, "trial": DOUBLE})


def controller_of(spec: dict[str, Any], url: str) -> subprocess.Popen[str]:
    """A process that runs the study and prints the names of its events."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(spec), url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "workers")])},
        cwd=ROOT,
    )


def kill_and_look(tmp_path: Path, runner: dict[str, Any]) -> None:
    """Kills a controller in the middle of a trial, waits until nothing of it is left, and lets the
    study end."""
    spec, url = real(runner), str(tmp_path / "store.db")
    controller = controller_of(spec, url)
    family: list[int] = []
    try:
        while not (line := present(controller.stdout).readline()).startswith("TrialStarted"):
            assert line, "the controller ended by itself"
        family = descendants(controller.pid)
        assert len(family) >= 2
        controller.kill()
        controller.wait(DEADLINE_S)
        began = time.monotonic()
        while (
            left := [pid for pid in family if is_alive(pid)]
        ) and time.monotonic() < began + GONE_S:
            time.sleep(0.1)
        print(
            f"{len(family)} processes of the controller were gone after {time.monotonic() - began:.1f} s"
        )
        assert [Path(f"/proc/{pid}/cmdline").read_bytes()[:200] for pid in left] == []
    finally:
        controller.kill()
        controller.wait(DEADLINE_S)
        present(controller.stdout).close()
        for pid in family:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
    result = api.tune(spec, store=url)
    assert result.record.status is StudyStatus.COMPLETED
    with closing(api.open_store(url)) as store:
        assert faults_of(store) == []
