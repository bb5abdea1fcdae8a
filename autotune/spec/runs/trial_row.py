"""A trial as one row of a table: the columns of `autotune store export` and of
`Result.to_dataframe`.

Columns have units in their names; times are ISO 8601 in UTC; unknown values are None. Estimates are
from the time when the trial was proposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from autotune.spec.config import KNOBS
from autotune.spec.plain import canonical
from autotune.spec.runs.trial import Trial

_TYPES: Final = {"flag": bool, "word": str}
_SPEEDS: Final = ("step_time_s", "step_time_spread", "tokens_per_s", "tokens_per_s_per_gpu", "mfu")
TRIAL_COLUMNS: Final[Mapping[str, type]] = {
    "study": str,
    "number": int,
    **{name: _TYPES.get(knob.kind, int) for name, knob in KNOBS.items()},
    "extra": str,
    **dict.fromkeys(("purpose", "status", "failure", "failure_message", "reason"), str),
    **dict.fromkeys(("seed", "attempts"), int),
    **dict.fromkeys(_SPEEDS, float),
    **dict.fromkeys(
        ("peak_memory_bytes", "estimated_step_time_s", "estimated_peak_memory_bytes"), float
    ),
    **dict.fromkeys(("reward", "stability"), float),
    **dict.fromkeys(("created_at", "started_at", "ended_at"), str),
}
"""the columns and their types; `extra` has the study's own knobs as JSON"""


def trial_row(trial: Trial) -> tuple[Any, ...]:
    """Return the trial's values, in the order of `TRIAL_COLUMNS`."""
    failure, reward, estimate = trial.failure, trial.reward, trial.estimate
    measured = trial.measurement if trial.measurement and trial.measurement.step_times_s else None
    state = (
        str(trial.purpose),
        str(trial.status),
        failure and str(failure.kind),
        failure and failure.message,
        trial.reason,
    )
    return (
        trial.study,
        trial.number,
        *(trial.config.value(name) for name in KNOBS),
        canonical(dict(trial.config.extra)) if trial.config.extra else None,
        *state,
        trial.seed,
        trial.attempts,
        *(getattr(measured, name) if measured else None for name in _SPEEDS),
        trial.measurement and trial.measurement.peak_memory_bytes,
        estimate and float(estimate.step_time_s),
        estimate and float(estimate.peak_memory_bytes),
        reward and reward.total,
        reward and reward.stability,
        *(iso(time) for time in (trial.created_at, trial.started_at, trial.ended_at)),
    )


def iso(at: datetime | None) -> str | None:
    """Return a time as ISO 8601; None if it is None."""
    return at.isoformat() if at is not None else None
