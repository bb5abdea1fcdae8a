"""Diagnoses of what is stored: a trial, an observed run, or the step times of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.diagnosis import Diagnosis, Evidence, diagnose
from autotune.diagnosis.log_words import data_time_s, hints_of
from autotune.errors import SpecError
from autotune.results.knobs_seen import without_effect_in
from autotune.spec import Estimate, Measurement, ObservedRun, ParallelConfig, Study, Trial
from autotune.trainers import trainer
from autotune.trainers.base.own_program import COMMAND
from autotune.trainers.logs.pattern_proposals import propose_patterns


def expected(estimate: Estimate | None) -> dict[str, Any]:
    """What is predicted of a run, in the words of its evidence."""
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
    """All that is known of a trial or an observed run."""
    seen: Measurement | None = run.measurement
    if seen is None:
        return Evidence(**expected(run.estimate))
    kept = Evidence.from_dict(seen.evidence) if seen.evidence else Evidence()
    found: Mapping[str, Any] = {
        "step_times_s": seen.step_times_s,
        "world": max(kept.world, seen.num_ranks),
        "parts_s": seen.breakdown_s,
        "throttled": seen.utilization.get("throttled", 0.0),
        "alloc_retries": seen.utilization.get("alloc_retries", 0.0),
        **expected(run.estimate),
    }
    return with_asked(
        replace(kept, **found), run.config, said_by="spec" if isinstance(run, Trial) else "launch"
    )


def with_asked(evidence: Evidence, config: ParallelConfig | None, *, said_by: str) -> Evidence:
    """The evidence with the knobs that the config asks for and the probe did not see."""
    found = without_effect_in(config, evidence.facts, said_by=said_by) if config is not None else {}
    return replace(evidence, disagreements=tuple(found.values())) if found else evidence


def diagnosis_of_run(run: Trial | ObservedRun) -> Diagnosis:
    """What holds it back."""
    return diagnose(evidence_of_run(run))


def diagnosis_of_log(log: str, study: Study, estimate: Estimate | None) -> Diagnosis:
    """Of a log alone, read as the study's trainer writes it. Raises `SpecError` where it says
    nothing of a step's time."""
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
    counted = steps[1:]
    data = [data_s for _, data_s in counted if data_s is not None]
    return diagnose(
        Evidence(
            step_times_s=tuple(step_s for step_s, _ in counted),
            data_times_s=tuple(data) if len(data) == len(counted) else (),
            hints=hints,
            **expected(estimate),
        )
    )


def _steps(
    lines: Sequence[str], name: str, options: Mapping[str, Any]
) -> list[tuple[float, float | None]]:
    """Seconds of each step whose time the lines say, with those that it waited for data."""
    read = trainer(name).reader(options)
    return [
        (said.step_time_s, data_time_s(line))
        for line in lines
        if (said := read(line)) is not None and said.step_time_s
    ]
