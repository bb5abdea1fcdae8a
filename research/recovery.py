"""Recovery after SIGKILL of a study's controller: time until the study has a controller again, and
until the next trial starts.

    python -m research.recovery [REPEATS]

The killed controller is a process of its own, with its study in an SQLite file and the simulated
runner. Its successors:

    tune again      a new process, as started at a terminal; the time includes the start of Python and all imports
    warm process    `tune` in a process that has imported everything
    supervisor      the service's supervisor, which detects the death itself; the time includes its polling interval
    local ranks     `tune again` with real trials on two ranks, which die with their controller: torch is imported again
    ray adopted     the same on a Ray cluster that keeps running: the gang and its trial are adopted (the trial starts when that is reported)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune import api
from autotune.service.supervise.launcher import ProcessLauncher
from autotune.service.supervise.supervisor import Supervisor
from autotune.store import open_store
from autotune.study.progress import LoopEvent, StudyOpened, TrialStarted
from tests.ray_roles import played_head

Spec = dict[str, Any]

SPEC: Spec = {
    "name": "recovery",
    "model": "gpt2-medium",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 64},
    "space": {
        "tp": [1, 2, 4],
        "pp": [1, 2],
        "micro_batch_size": [1, 2, 4, 8],
        "precision": ["fp32", "bf16"],
    },
    "budget": {"max_trials": 10, "min_gain": 0},
    "searcher": "bayesian",
    "runner": {"kind": "simulated", "time_scale": 0.05},
}
REAL: Spec = {
    "name": "recovery",
    "model": "nano-gpt",
    "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 2},
    "workload": {"seq_len": 32, "global_batch_size": 8},
    "space": {
        "dp": [2],
        "tp": [1],
        "micro_batch_size": [1, 2, 4],
        "zero_stage": [0, 1],
        "precision": ["fp32"],
    },
    "objective": {"stability_weight": 0},
    "budget": {"max_trials": 6, "min_gain": 0},
    "measure": {
        "warmup_steps": 1,
        "min_steps": 100,
        "max_steps": 100,
        "first_look": 0,
        "precision": 0.001,
        "finalists": 0,
    },
    "searcher": "grid",
}
CHILD = """
import json, sys
from autotune import api
api.tune(json.loads(sys.argv[1]), store=sys.argv[2], on_event=lambda e: print(type(e).__name__, flush=True))
"""


OPENED, STARTED = StudyOpened.__name__, TrialStarted.__name__


@contextlib.contextmanager
def child(url: str, spec: Spec = SPEC) -> Iterator[Callable[[str], None]]:
    """A controller process; what is yielded waits until it says a word. It is killed at the end."""
    argv = [sys.executable, "-c", CHILD, json.dumps(spec), url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout

        def wait_for(word: str) -> None:
            while (line := lines.readline().strip()) != word:
                if not line:
                    raise RuntimeError("the controller ended by itself")

        try:
            yield wait_for
        finally:
            process.kill()


def kill_in_fifth_trial(url: str, spec: Spec = SPEC) -> float:
    """The moment of the kill, in monotonic seconds."""
    with child(url, spec) as wait_for:
        for _ in range(5):
            wait_for(STARTED)
        return time.monotonic()


def tune_again(folder: Path, spec: Spec = SPEC) -> tuple[float, float]:
    """Seconds from the kill to (the study being open again, the next trial's start)."""
    url = str(folder / "results.db")
    began = kill_in_fifth_trial(url, spec)
    with child(url, spec) as wait_for:
        wait_for(OPENED)
        opened = time.monotonic() - began
        wait_for(STARTED)
        return opened, time.monotonic() - began


def on_local_ranks(folder: Path) -> tuple[float, float]:
    """`tune_again` with trials that train."""
    return tune_again(folder, REAL | {"runner": {"kind": "local", "max_ranks": 2, "device": "cpu"}})


def on_ray(folder: Path) -> tuple[float, float]:
    """The same on a Ray cluster that goes on."""
    with played_head() as (_, address):
        return tune_again(folder, REAL | {"runner": {"kind": "ray", "address": address}})


def in_warm_process(folder: Path) -> tuple[float, float]:
    """The same in this process."""
    url, seen = str(folder / "results.db"), dict[str, float]()
    kill_in_fifth_trial(url)
    began = time.monotonic()

    def hear(event: LoopEvent) -> None:
        seen.setdefault(type(event).__name__, time.monotonic() - began)

    api.tune(SPEC, store=url, on_event=hear)
    return seen[OPENED], seen[STARTED]


def under_supervisor(folder: Path) -> tuple[float, float]:
    """The same when a supervisor has the study; its process is killed. Times are those of the
    history."""
    url = str(folder / "results.db")
    store = open_store(url)
    study = api.submit_study(store, api.load_study(SPEC), SPEC).id
    supervisor = Supervisor(
        store, ProcessLauncher(folder / "logs", store_url=url), max_studies=1, grace_s=5.0
    )
    supervisor.start()
    try:
        while sum(e.kind == "trial.started" for e in store.events(study)) < 5:
            time.sleep(0.02)
        lease = store.holder(study)
        assert lease is not None
        began, before = time.time(), len(store.events(study))
        os.kill(int(lease.owner.split(":")[1]), signal.SIGKILL)
        while not (
            again := [e for e in store.events(study, after=before) if e.kind == "trial.started"]
        ):
            time.sleep(0.02)
        claimed = next(e for e in store.events(study, after=before) if e.kind == "study.claimed")
        return claimed.at.timestamp() - began, again[0].at.timestamp() - began
    finally:
        api.act(store, study, "cancel")
        supervisor.close()
        store.close()


def main() -> None:
    """Prints the table."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(
        "| successor | study claimed, median | worst | next trial started, median | worst |\n|---|---|---|---|---|"
    )
    ways = {
        "tune again": tune_again,
        "warm process": in_warm_process,
        "supervisor": under_supervisor,
        "local ranks": on_local_ranks,
        "ray adopted": on_ray,
    }
    for name, once in ways.items():
        rows = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(once(Path(folder)))
        cells = [
            f"{value:.2f} s"
            for column in zip(*rows, strict=True)
            for value in (statistics.median(column), max(column))
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
