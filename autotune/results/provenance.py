"""Provenance of a study's best config: what was tuned, and how it was measured. It goes into exported files, where people read it without this package.

study {id, name}   model   cluster   trainer   runner   config (its label)   autotune (version of this package)
tokens_per_s, step_time_s, step_time_spread (relative), steps, final_rounds, measured_at (ISO 8601, UTC)
trials {measured, failed}   default {config, tokens_per_s, step_time_s, step_time_spread} or null   speedup or null
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.spec import Trial, TrialPurpose
from autotune.spec.config import config_label

if TYPE_CHECKING:
    from autotune.results.answers import Result


def provenance(result: Result) -> dict[str, Any]:
    """The document; empty without a measured config."""
    from autotune import __version__

    best, study = result.best, result.record.study
    if best is None or best.measurement is None:
        return {}
    ended = best.ended_at or result.record.ended_at
    return {
        "study": {"id": result.record.id, "name": study.name},
        "model": study.workload.model.name,
        "cluster": study.workload.cluster.name,
        "trainer": study.trainer,
        "runner": study.runner,
        "autotune": __version__,
        **_measured(best),
        "steps": len(best.measurement.step_times_s),
        "final_rounds": result.final_rounds,
        "measured_at": ended.isoformat(timespec="seconds") if ended else None,
        "trials": {"measured": _searched(result.measured), "failed": _searched(result.failed)},
        "default": _measured(result.baseline) if result.baseline and result.baseline.measurement else None,
        "speedup": result.speedup,
    }


def _searched(trials: tuple[Trial, ...]) -> int:
    """Without those that measure finalists again."""
    return sum(trial.purpose is not TrialPurpose.FINAL for trial in trials)


def _measured(trial: Trial) -> dict[str, Any]:
    measurement = trial.measurement
    assert measurement is not None
    return {
        "config": config_label(trial.config),
        "tokens_per_s": measurement.tokens_per_s,
        "step_time_s": measurement.step_time_s,
        "step_time_spread": measurement.step_time_spread,
    }
