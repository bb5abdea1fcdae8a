"""Makes the request to the runner for a trial: its number of steps, the step time it has to beat,
whether it is profiled. Also decides whether the trial must wait for its reference."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.ports import TrialRequest
from autotune.spec import ParallelConfig, Study, Trial, TrialPurpose
from autotune.study.controller.finals.finalists import longer, whole
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.trial_index import TrialIndex


def request_for(
    trial: Trial, study_id: str, study: Study, index: TrialIndex, scorer: Scorer
) -> TrialRequest:
    """The request for the next attempt of a trial; `trial.attempts` includes it."""
    is_search, is_reference = (
        trial.purpose is TrialPurpose.SEARCH,
        trial.purpose is TrialPurpose.REFERENCE,
    )
    is_last = trial.purpose is TrialPurpose.FINAL and _is_last_round(trial.config, study, index)
    measure = longer(study.measure) if is_last else study.measure
    return TrialRequest(
        study=study_id,
        number=trial.number,
        attempt=trial.attempts,
        workload=trial.stands_for.workload if trial.stands_for else study.workload,
        config=trial.config,
        measure=whole(study.measure) if is_reference else measure,
        seed=trial.seed,
        trainer=study.trainer,
        trainer_options=study.trainer_options,
        data=study.data,
        profile=is_last,
        beat_step_time_s=scorer.time_to_beat(trial, index.best, index.levels.now)
        if is_search
        else None,
        repeat=index.measured[trial.config],
        watched=not study.unwatched,
        keeps_outputs=study.keeps_outputs,
    )


def awaits_reference(trial: Trial, running: Iterable[Trial]) -> bool:
    """Whether the fp32 reference of the trial's batch is still running, with whose losses the
    trial's will be compared."""
    batch = trial.config.global_batch_size
    return any(
        t.purpose is TrialPurpose.REFERENCE and t.config.global_batch_size == batch for t in running
    )


def _is_last_round(config: ParallelConfig, study: Study, index: TrialIndex) -> bool:
    """Whether the next final run of the config is its last regular round."""
    finals = [
        t for t in index.trials.values() if t.purpose is TrialPurpose.FINAL and t.config == config
    ]
    return sum(t.is_measured for t in finals) == study.measure.final_rounds - 1
