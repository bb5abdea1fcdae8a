"""A study whose baseline could not be measured: why, and what was predicted for it. No speedup can
be stated then."""

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
    """The baseline's failed trial, or the one that was not run because it cannot run here, with its
    prediction; None where the baseline was measured, or may be."""
    runs = [t for t in trials if t.purpose is TrialPurpose.BASELINE]
    if any(t.is_measured or not t.status.is_terminal for t in runs):
        return None
    refused = record.result.get("refused_baseline")
    return Trial.from_dict(refused) if refused and not runs else next(iter(runs), None)


def why_unmeasured(trial: Trial | None) -> str:
    """Why the baseline was not measured, in words. `trial`: of `unmeasured_baseline`."""
    if trial is not None and trial.failure is not None:
        return f"the baseline {_FAILED.get(trial.failure.kind, 'failed')} (trial {trial.number})"
    if trial is not None and trial.status is TrialStatus.INFEASIBLE:
        said = "the baseline "
        return said + (trial.reason.partition(said)[2] or f"cannot run here ({trial.reason})")
    return "the baseline was not measured"
