"""A study with very many trials, as a long search leaves it: written in bulk, in the store's own
format.

Its configs are legal and distinct, at most `MOST` of them, spread evenly over the space of a 8B
model on 256 GPUs. What was predicted was measured with 10% of noise, 18 steps each; what was
predicted not to fit ran out of memory. The baseline comes first. The study has ended, or still runs
(`status`).
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import insert, update

from autotune import load_study
from autotune.cost import estimate
from autotune.plan.plan import fits
from autotune.reward import rerank
from autotune.space import SearchSpace, default_config
from autotune.spec import (
    Estimate,
    Failure,
    FailureKind,
    Measurement,
    ParallelConfig,
    Study,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.store import SqlStore
from autotune.store.rows import ended_columns, new_trial_row
from autotune.store.tables import studies, trials
from autotune.store.upkeep.checksums import with_checksum
from autotune.store.writes import locking
from autotune.store.writes.history import append

STEPS = 18
"""measured steps of a trial"""
NOISE = 0.1
"""standard deviation of the logarithm of measured / predicted"""
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TRIAL_S = 40.0


def large_spec(num_trials: int) -> dict[str, Any]:
    """The spec of the study."""
    return {
        "name": "large",
        "model": "llama-8b",
        "cluster": "h100-sxm-32x8",
        "workload": {"seq_len": 4096, "global_batch_size": [512, 1024]},
        "space": "dense-multi-node",
        "budget": {"max_trials": num_trials},
        "searcher": "random",
        "runner": "simulated",
    }


def large_study(
    store: SqlStore, num_trials: int, *, status: StudyStatus = StudyStatus.COMPLETED
) -> str:
    """Stores the study and returns its id."""
    spec = large_spec(num_trials)
    study = load_study(spec)
    record = store.submit(study, spec)
    with store.database.write() as connection:
        row = locking.find(connection, record.id)
        rows = [_row(row.key, row.workload, trial) for trial in large_trials(study, num_trials)]
        connection.execute(insert(trials), rows)
        append(
            connection,
            row.key,
            [("study.note", {"message": f"{len(rows)} trials"})],
            new_trials=len(rows),
        )
        began = int(START.timestamp() * 1e6)
        last = began + int(TRIAL_S * 1e6 * len(rows))
        changes = {
            "status": str(status),
            "started_us": began,
            "elapsed_s": TRIAL_S * len(rows),
            "created_us": began,
        }
        if status.is_terminal:
            changes["ended_us"] = last
        connection.execute(update(studies).where(studies.c.key == row.key).values(**changes))
    return record.id


def large_trials(study: Study, num_trials: int) -> list[Trial]:
    """The trials, the baseline first."""
    dice, space = random.Random(0), SearchSpace.of_study(study)
    default = default_config(space)
    at = np.linspace(0, len(space) - 1, num_trials).astype(int)
    table = space.table.take(np.unique(at))
    predicted = estimate(study.workload, table)
    will_fit = fits(predicted)
    order = list(range(len(table)))
    dice.shuffle(order)
    configs = [(default, estimate(study.workload, [default]).row(0), True)]
    configs += [
        (table[i], predicted.row(i), bool(will_fit[i])) for i in order if table[i] != default
    ]
    made = [_trial(study, number, *one, dice) for number, one in enumerate(configs)]
    baseline = made[0].measurement
    scored = rerank(
        [t for t in made if t.is_measured],
        objective=study.objective,
        workload=study.workload,
        baseline=baseline,
    )
    rewards = {t.number: t.reward for t in scored}
    return [replace(t, reward=rewards.get(t.number)) for t in made]


def _trial(
    study: Study,
    number: int,
    config: ParallelConfig,
    predicted: Estimate,
    will_fit: bool,
    dice: random.Random,
) -> Trial:
    began = START + timedelta(seconds=TRIAL_S * number)
    trial = Trial(
        config=config,
        number=number,
        seed=number,
        purpose=TrialPurpose.SEARCH if number else TrialPurpose.BASELINE,
        estimate=predicted,
        reason="drawn at random" if number else "the baseline",
        attempts=1,
        created_at=began,
        started_at=began,
        ended_at=began + timedelta(seconds=0.9 * TRIAL_S),
    )
    if not will_fit:
        said = Failure(
            kind=FailureKind.OUT_OF_MEMORY,
            message=f"rank {number % 8} ran out of memory",
            rank=number % 8,
        )
        return replace(trial, status=TrialStatus.FAILED, failure=said)
    middle_s = float(predicted.step_time_s) * math.exp(dice.gauss(0.0, NOISE))
    times_s = tuple(middle_s * math.exp(dice.gauss(0.0, 0.01)) for _ in range(STEPS))
    return replace(
        trial,
        status=TrialStatus.COMPLETED,
        measurement=Measurement(
            step_times_s=times_s,
            losses=tuple(
                11.0 - 0.2 * math.log1p(step) + dice.gauss(0.0, 0.02) for step in range(STEPS)
            ),
            grad_norms=tuple(1.0 + dice.random() for _ in range(STEPS)),
            peak_memory_bytes=float(predicted.peak_memory_bytes) * math.exp(dice.gauss(0.0, 0.03)),
            tokens_per_step=config.global_batch_size * study.workload.seq_len,
            num_ranks=config.world_size,
            setup_s=10.0,
            memory_capacity_bytes=study.workload.cluster.gpu.memory_bytes,
        ),
    )


def _row(study: int, workload: int, trial: Trial) -> dict[str, Any]:
    row = new_trial_row(trial, study=study, workload=workload, now=0)
    row |= ended_columns(trial, trial, num_gpus=trial.config.world_size, now=0)
    began = int(trial.started_at.timestamp() * 1e6) if trial.started_at else None
    return with_checksum(trials, {**row, "attempts": 1, "started_us": began})
