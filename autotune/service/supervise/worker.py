"""The process of one study: `python -m autotune.service.supervise.worker STUDY`. The store's
address comes from AUTOTUNE_STORE, never from the command line.

The process claims the study's lease, runs the study to its end and reports by its exit code. On
SIGTERM it shuts down cleanly: the study stays RUNNING in the store, and the next process that
claims it continues it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from autotune.errors import AutotuneError, ConflictError, StoreError
from autotune.service.metrics.study_metrics import StudyMetrics
from autotune.service.supervise.ray_jobs import DASHBOARD_KEY
from autotune.study.progress import LoopEvent, Notice, PhaseEntered, TrialEnded

ENDED, FAILED, HELD, STORE_UNAVAILABLE, NOT_STARTED = 0, 1, 3, 4, 5
"""exit codes: the study has ended or is paused; it failed; another controller holds its lease; the
store cannot be reached; the machine could not start the process"""


def run(study_id: str, *, store_url: str | None = None, lease_s: float = 10.0) -> int:
    """Run the study and return the exit code."""
    from autotune import api

    interrupted, metrics = _listen_for_signals(), StudyMetrics(study_id)

    def on_event(event: LoopEvent) -> None:
        _print(event)
        metrics.on_event(event)

    try:
        store = api.open_store(store_url)
    except StoreError as error:
        print(error, file=sys.stderr)
        return STORE_UNAVAILABLE
    try:
        with metrics:
            api.run_study(
                store,
                study_id,
                interrupted=interrupted.is_set,
                leave=True,
                lease_s=lease_s,
                on_event=on_event,
                about=ray_job(os.environ),
            )
        return ENDED
    except ConflictError as error:
        print(error, file=sys.stderr)
        return HELD
    except StoreError as error:
        print(error, file=sys.stderr)
        return STORE_UNAVAILABLE
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return FAILED
    finally:
        store.close()


def ray_job(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return this process's Ray job, from Ray's variables in `environment`: {ray: {job, url}};
    empty if it is not a job of the service."""
    metadata = json.loads(environment.get(_JOB_CONFIG, "{}")).get("metadata") or {}
    job, dashboard = metadata.get("job_submission_id"), metadata.get(DASHBOARD_KEY)
    if not job:
        return {}
    return {"ray": {"job": job, "url": f"{dashboard}/#/jobs/{job}" if dashboard else ""}}


_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""name of the variable with a Ray job's runtime environment and metadata as JSON
(`ray._private.runtime_env.constants`)"""


def _print(event: LoopEvent) -> None:
    match event:
        case PhaseEntered(phase=phase, message=message):
            print(f"{phase}: {message}", flush=True)
        case TrialEnded(trial=trial):
            print(f"trial {trial.number} {trial.config}: {trial.status.lower()}", flush=True)
        case Notice(message=message):
            print(message, flush=True)


def _listen_for_signals() -> threading.Event:
    received = threading.Event()

    def receive(number: int, frame: Any) -> None:
        received.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, receive)
    return received


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
