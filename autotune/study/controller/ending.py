"""How a study ends or pauses: its status, the reason in words, and what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from autotune.spec import Study, StudyStatus, Trial, TrialStatus
from autotune.study.controller.commands import STOPPED_ON_REQUEST, EndStudy, StudyPhase
from autotune.study.controller.finals import decide
from autotune.study.controller.repeated_failure import repeated_failure


def paused(trials: Sequence[Trial], study: Study, *, phase: StudyPhase, stop_reason: str, why: str) -> EndStudy:
    """The pause of a study that can go on later."""
    return EndStudy(status=StudyStatus.PAUSED, message=why, **_outcome(trials, study, phase, stop_reason))


def ended(
    trials: Sequence[Trial],
    study: Study,
    *,
    phase: StudyPhase,
    stop_reason: str,
    why: str,
    cancelled: bool,
    failures: str,
) -> EndStudy:
    """The end of a study. `why` is empty when it ran its course; `failures`: the failures so far by kind, in words."""
    outcome = _outcome(trials, study, phase, stop_reason)
    if cancelled:
        status, message = StudyStatus.CANCELLED, why
    elif outcome["best"] is not None:
        status, message = StudyStatus.COMPLETED, stop_reason
    elif why == STOPPED_ON_REQUEST:
        status, message = StudyStatus.CANCELLED, why
    else:
        cause = repeated_failure(trials) or f"{failures}{_refusals(trials)}"
        status, message = StudyStatus.FAILED, f"no config could be measured: {cause}"
    return EndStudy(status=status, message=message, **outcome)


def _refusals(trials: Sequence[Trial]) -> str:
    """How many configs could not be run at all, and the most frequent reason."""
    refusals = Counter(t.reason for t in trials if t.status is TrialStatus.INFEASIBLE)
    if not refusals:
        return ""
    (reason, count), *_ = refusals.most_common(1)
    return f"; {refusals.total()} could not be run at all, {count} of them because {reason}"


def _outcome(trials: Sequence[Trial], study: Study, phase: StudyPhase, stop_reason: str) -> dict[str, Any]:
    """The winner as the fields of `EndStudy`: baseline, best, speedup, result."""
    winner = decide(trials, study)
    finals = [
        {"number": t.number, "config": t.config.to_dict(), "tokens_per_s": t.measurement.tokens_per_s}
        for t in winner.confirmed
        if t.measurement is not None
    ]
    return {
        "baseline": winner.baseline.number if winner.baseline else None,
        "best": winner.best.number if winner.best else None,
        "speedup": winner.speedup,
        "result": {
            "phase": str(phase),
            "stop_reason": stop_reason,
            "final_rounds": winner.rounds,
            "finals": finals,
            "notes": list(winner.notes),
        },
    }
