"""How a study ends or pauses: its status, the reason in words, and what it found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.space.exclusion import in_words
from autotune.spec import Study, StudyStatus, Trial
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
    infeasible: Mapping[str, int],
) -> EndStudy:
    """The end of a study. `why` is empty when it ran its course; `failures`: the failures so far by kind, in words; `infeasible`: configs that cannot be run
    here, by reason."""
    outcome = _outcome(trials, study, phase, stop_reason)
    if cancelled:
        status, message = StudyStatus.CANCELLED, why
    elif has_found(outcome["best"], trials):
        status, message = StudyStatus.COMPLETED, stop_reason
    elif why == STOPPED_ON_REQUEST:
        status, message = StudyStatus.CANCELLED, why
    else:
        cause = repeated_failure(trials) or f"{failures}{_refusals(infeasible)}"
        status, message = StudyStatus.FAILED, f"no config could be measured: {cause}"
    return EndStudy(status=status, message=message, **outcome)


def has_found(best: int | None, trials: Iterable[Trial]) -> bool:
    """Whether a study has an answer: a winner (`best`, its number), or for a target a measured proxy."""
    return best is not None or any(t.stands_for is not None and t.is_measured for t in trials)


def _refusals(infeasible: Mapping[str, int]) -> str:
    """How many configs could not be run at all, and the most frequent reason."""
    if not infeasible:
        return ""
    reason, count = next(iter(in_words(infeasible).items()))
    return f"; {sum(infeasible.values()):,} cannot be run here, {count:,} of them for this reason: {reason}"


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
            "speedup_low": winner.speedup_low,
            "speedup_high": winner.speedup_high,
            "tied_with": list(winner.tied_with),
            "finals": finals,
            "notes": list(winner.notes),
        },
    }
