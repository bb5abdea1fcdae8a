"""Diagnoses of a stored trial, a stored observed run, or a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.diagnosis import Diagnosis, Evidence, diagnose
from autotune.diagnosis.log_hints import data_time_s, hints_of
from autotune.errors import SpecError
from autotune.results.knobs_seen import ineffective_knobs
from autotune.spec import Estimate, Measurement, ObservedRun, ParallelConfig, Study, Trial
from autotune.trainers import trainer
from autotune.trainers.base.own_program import COMMAND
from autotune.trainers.logs.pattern_proposals import propose_patterns


def predicted_fields(estimate: Estimate | None) -> dict[str, Any]:
    """Return the fields of `Evidence` that hold predictions; empty without an estimate."""
    if estimate is None:
        return {}
    return {
        "predicted_s": (
            float(estimate.step_time_s),
            float(estimate.step_time_low_s),
            float(estimate.step_time_high_s),
        ),
        "predicted_parts_s": estimate.time_parts_s.to_dict(),
        "is_measured_here": float(estimate.level) != 1.0,
    }


def evidence_of_run(run: Trial | ObservedRun) -> Evidence:
    """Return the evidence from the measurement, estimate and config of a trial or an observed
    run."""
    measurement: Measurement | None = run.measurement
    if measurement is None:
        return Evidence(**predicted_fields(run.estimate))
    stored = Evidence.from_dict(measurement.evidence) if measurement.evidence else Evidence()
    measured: Mapping[str, Any] = {
        "step_times_s": measurement.step_times_s,
        "world": max(stored.world, measurement.num_ranks),
        "parts_s": measurement.breakdown_s,
        "throttled": measurement.utilization.get("throttled", 0.0),
        "alloc_retries": measurement.utilization.get("alloc_retries", 0.0),
        **predicted_fields(run.estimate),
    }
    return with_disagreements(
        replace(stored, **measured),
        run.config,
        source="spec" if isinstance(run, Trial) else "launch",
    )


def with_disagreements(
    evidence: Evidence, config: ParallelConfig | None, *, source: str
) -> Evidence:
    """Return the evidence with messages about the config's knobs that had no effect. `source`: spec
    or launch, which set the knobs."""
    knobs = ineffective_knobs(config, evidence.facts, source=source) if config is not None else {}
    return replace(evidence, disagreements=tuple(knobs.values())) if knobs else evidence


def diagnosis_of_run(run: Trial | ObservedRun) -> Diagnosis:
    """Return the diagnosis of a trial or an observed run."""
    return diagnose(evidence_of_run(run))


def diagnosis_of_log(log: str, study: Study, estimate: Estimate | None) -> Diagnosis:
    """Return the diagnosis of a log in the format of the study's trainer. Raises `SpecError` if the
    log has less than two step times and no hints."""
    lines = log.replace("\r", "\n").splitlines()
    steps = _steps(lines, study.trainer, study.trainer_options)
    if len(steps) < 2 and study.trainer == COMMAND and (proposed := propose_patterns(lines)):
        steps = _steps(lines, COMMAND, {**study.trainer_options, "metrics": proposed})
    hints = hints_of(lines)
    if len(steps) < 2 and not hints:
        raise SpecError(
            f"the log must contain at least 2 step times in trainer {study.trainer}'s format, but contains {len(steps)}",
            remedy="run the program under `autotune run --diagnose -- COMMAND`, which times its steps itself",
            field="--log",
        )
    counted = steps[1:]  # the first step includes compilation and allocation
    data = [data_s for _, data_s in counted if data_s is not None]
    return diagnose(
        Evidence(
            step_times_s=tuple(step_s for step_s, _ in counted),
            data_times_s=tuple(data) if len(data) == len(counted) else (),
            hints=hints,
            **predicted_fields(estimate),
        )
    )


def _steps(
    lines: Sequence[str], name: str, options: Mapping[str, Any]
) -> list[tuple[float, float | None]]:
    """Return (step time, time waiting for data or None) in seconds, for each step that the lines
    log."""
    read = trainer(name).reader(options)
    return [
        (logged.step_time_s, data_time_s(line))
        for line in lines
        if (logged := read(line)) is not None and logged.step_time_s
    ]
