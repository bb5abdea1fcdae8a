"""A trial as a request to the runner: how long it is measured, what it has to beat, whether its step is profiled."""

from __future__ import annotations

from autotune.ports import TrialRequest
from autotune.spec import ParallelConfig, Study, Trial, TrialPurpose
from autotune.study.controller.finals import longer, whole
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.trial_index import TrialIndex


def request_for(trial: Trial, study_id: str, study: Study, index: TrialIndex, scorer: Scorer) -> TrialRequest:
    """The next attempt of a trial; `trial.attempts` counts it already."""
    is_search, is_reference = trial.purpose is TrialPurpose.SEARCH, trial.purpose is TrialPurpose.REFERENCE
    is_last = trial.purpose is TrialPurpose.FINAL and _is_last_round(trial.config, study, index)
    return TrialRequest(
        study=study_id,
        number=trial.number,
        attempt=trial.attempts,
        workload=study.workload,
        config=trial.config,
        measure=whole(study.measure) if is_reference else longer(study.measure) if is_last else study.measure,
        seed=trial.seed,
        trainer=study.trainer,
        trainer_options=study.trainer_options,
        data=study.data,
        profile=is_last,
        beat_step_time_s=scorer.time_to_beat(trial, index.best) if is_search else None,
        repeat=_repeat(trial, index),
    )


def _repeat(trial: Trial, index: TrialIndex) -> int:
    """How often its config was measured before: only the finals measure again."""
    if trial.purpose is not TrialPurpose.FINAL:
        return 0
    return sum(t.is_measured and t.config == trial.config for t in index.trials.values())


def _is_last_round(config: ParallelConfig, study: Study, index: TrialIndex) -> bool:
    finals = [t for t in index.trials.values() if t.purpose is TrialPurpose.FINAL and t.config == config]
    return sum(t.is_measured for t in finals) >= study.measure.final_rounds - 1
