"""The process of one study: `python -m autotune.service.worker STUDY`. The store's address comes from AUTOTUNE_STORE, never from the command line.

It claims the study's lease, runs it to its end, and answers by its exit code. SIGTERM lets it put things down: the study stays RUNNING in the
store, and whoever comes next goes on with it.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from autotune.errors import AutotuneError, ConflictError, StoreError
from autotune.service.study_metrics import StudyMetrics
from autotune.study.progress import LoopEvent, Notice, PhaseEntered, TrialEnded

ENDED, FAILED, HELD, STORE_AWAY = 0, 1, 3, 4
"""Exit codes: the study rests or has ended; it ended badly; another controller has it; the store cannot be reached."""


def run(study_id: str, *, store_url: str | None = None, lease_s: float = 10.0) -> int:
    """Runs the study and returns the exit code."""
    from autotune import api

    interrupted, metrics = _hear_signals(), StudyMetrics(study_id)

    def on_event(event: LoopEvent) -> None:
        _say(event)
        metrics.on_event(event)

    try:
        store = api.open_store(store_url)
    except StoreError as error:
        print(error, file=sys.stderr)
        return STORE_AWAY
    try:
        api.run_study(store, study_id, interrupted=interrupted.is_set, leave=True, lease_s=lease_s, on_event=on_event)
        return ENDED
    except ConflictError as error:
        print(error, file=sys.stderr)
        return HELD
    except StoreError as error:
        print(error, file=sys.stderr)
        return STORE_AWAY
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return FAILED
    finally:
        store.close()


def _say(event: LoopEvent) -> None:
    match event:
        case PhaseEntered(phase=phase, message=message):
            print(f"{phase}: {message}", flush=True)
        case TrialEnded(trial=trial):
            print(f"trial {trial.number} {trial.config}: {trial.status}", flush=True)
        case Notice(message=message):
            print(message, flush=True)


def _hear_signals() -> threading.Event:
    came = threading.Event()

    def hear(number: int, frame: Any) -> None:
        came.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hear)
    return came


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
