"""The baseline of a study that could not measure it, and so reports no speedup: its trial, and the
reason."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.ports import StudyRecord
from autotune.spec import FailureKind, Trial, TrialPurpose, TrialStatus

_FAILED = {
    FailureKind.OUT_OF_MEMORY: "ran out of memory",
    FailureKind.DIVERGED: "diverged",
    FailureKind.HANG: "hung",
    FailureKind.TIMEOUT: "took too long",
    FailureKind.INVALID: "was rejected by the trainer",
    FailureKind.METRICS_MISSING: "printed no metrics",
    FailureKind.WORKER_LOST: "lost its workers",
}


def unmeasured_baseline(record: StudyRecord, trials: Iterable[Trial]) -> Trial | None:
    """Return the baseline's failed trial, or one with its prediction if it cannot run here; None if
    the baseline was measured or still may be."""
    runs = [t for t in trials if t.purpose is TrialPurpose.BASELINE]
    if any(t.is_measured or not t.status.is_terminal for t in runs):
        return None
    rejected = record.result.get("refused_baseline")
    return Trial.from_dict(rejected) if rejected and not runs else next(iter(runs), None)


def why_unmeasured(trial: Trial | None) -> str:
    """Return why the baseline was not measured. `trial`: from `unmeasured_baseline`."""
    if trial is not None and trial.failure is not None:
        return f"the baseline {_FAILED.get(trial.failure.kind, 'failed')} (trial {trial.number})"
    if trial is not None and trial.status is TrialStatus.INFEASIBLE:
        subject = "the baseline "
        return subject + (trial.reason.partition(subject)[2] or f"cannot run here ({trial.reason})")
    return "the baseline was not measured"
