"""Sample data for tests of stores: a study, pending, measured and failed trials, and a controller's
writes about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from autotune.ports import (
    AttemptId,
    Decision,
    EndTrial,
    Fact,
    KeepTrial,
    Lease,
    LeasedStore,
    StartAttempt,
    StepsReported,
    StudyReader,
    TrialRequest,
)
from autotune.spec import (
    Budget,
    ClusterSpec,
    Estimate,
    Failure,
    FailureKind,
    GpuSpec,
    Measurement,
    MemoryParts,
    ModelSpec,
    ObservedRun,
    ParallelConfig,
    Reward,
    SpaceSpec,
    Study,
    StudyStatus,
    TimeParts,
    Trial,
    TrialStatus,
    Workload,
)

LONG_S = 3600.0
"""duration of a lease that outlives every test, seconds"""


def a_study(
    name: str = "study", *, model: str = "tiny", num_gpus: int = 8, trainer: str = "native"
) -> Study:
    """A small study; equal arguments give equal studies."""
    gpu = GpuSpec(
        name="gpu", memory_bytes=80e9, peak_flops_per_s={"bf16": 1e15}, memory_bytes_per_s=3e12
    )
    workload = Workload(
        model=ModelSpec(
            name=model, num_layers=4, hidden_size=256, num_attention_heads=4, vocab_size=1000
        ),
        cluster=ClusterSpec(name=f"gpu-1x{num_gpus}", gpu=gpu, num_nodes=1, gpus_per_node=num_gpus),
        seq_len=1024,
        global_batch_size=(32, 64),
        trainer=trainer,
    )
    return Study(
        name=name,
        workload=workload,
        space=SpaceSpec(
            knobs={"tp": (1, 2, 4), "precision": ("bf16",), "compile": (False, True)},
            world_sizes=(8,),
        ),
        budget=Budget(max_trials=7, max_gpu_s=100.5),
        trainer_options={"argv": ["train", "--lr", "1e-4"], "nested": {"a": None}},
        baseline=ParallelConfig(dp=8),
        enqueue=(ParallelConfig(tp=2, dp=4), ParallelConfig(pp=2, dp=4)),
    )


def an_estimate() -> Estimate:
    """An estimate with a value in every field."""
    parts = dict.fromkeys(TimeParts.__dataclass_fields__, 0.1)
    memory = dict.fromkeys(MemoryParts.__dataclass_fields__, 1e9)
    return Estimate(
        step_time_s=0.9,
        step_time_low_s=0.8,
        step_time_high_s=1.0,
        time_parts_s=TimeParts(**parts),
        tokens_per_s=1e5,
        tokens_per_s_per_gpu=1.25e4,
        mfu=0.4,
        peak_memory_bytes=6e9,
        peak_memory_low_bytes=5e9,
        peak_memory_high_bytes=7e9,
        memory_parts_bytes=MemoryParts(**memory),
        oom_probability=0.01,
    )


def pending(number: int, config: ParallelConfig | None = None, **fields: Any) -> Trial:
    """A trial that has not run. By default, each number has a different config."""
    config = config or ParallelConfig(dp=8, micro_batch_size=number + 1)
    return Trial(
        config=config,
        number=number,
        seed=number,
        estimate=an_estimate(),
        reason="because",
        **fields,
    )


def measured(
    trial: Trial, *, step_time_s: float = 0.5, status: TrialStatus = TrialStatus.COMPLETED
) -> Trial:
    """The trial with a measurement: steps of about this time, 32 * 1024 tokens per step, 8 ranks."""
    measurement = Measurement(
        step_times_s=(step_time_s, step_time_s * 1.1, step_time_s * 0.9),
        peak_memory_bytes=7.5e9,
        step_peak_memory_bytes=(7e9, 7.5e9, 7.5e9),
        tokens_per_step=32 * 1024,
        num_ranks=8,
        losses=(5.5, 5.25, math.inf),
        grad_norms=(1.0, math.nan, 0.5),
        utilization={"power_watts": 400.0},
    )
    return replace(
        trial,
        status=status,
        attempts=1,
        measurement=measurement,
        reward=Reward(total=0.3, throughput=0.25, stability=0.9, parts={"loss": 1.0}),
        ended_at=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    )


def failed(trial: Trial, kind: FailureKind = FailureKind.OUT_OF_MEMORY) -> Trial:
    """The trial with a failure whose texts contain characters that are hard to store."""
    failure = Failure(
        kind=kind,
        message="no room\0 left",
        exception="Error: \ud800",
        log_tail=("a", "b \u2028"),
        rank=3,
        step=2,
    )
    return replace(trial, status=TrialStatus.FAILED, attempts=1, failure=failure)


def decide(store: LeasedStore, lease: Lease, *facts: Fact) -> None:
    """Write these facts as the study's next decision, caused by a tick."""
    number = store.study(lease.study).decisions + 1
    store.keep_decision(lease, Decision(number=number, cause={"event": "Tick"}, facts=facts))


def launch(lease: Lease, number: int, attempt: int) -> StartAttempt:
    """The fact that starts an attempt. A store uses only the numbers of trial and attempt."""
    trial, study = pending(number), a_study()
    request = TrialRequest(
        study=lease.study,
        number=number,
        attempt=attempt,
        workload=study.workload,
        config=trial.config,
        measure=study.measure,
        seed=trial.seed,
        trainer="native",
    )
    return StartAttempt(request=request)


def run_trial(store: LeasedStore, lease: Lease, trial: Trial) -> None:
    """Write the creation, start and end of a terminal `trial`, as a controller does."""
    asked = replace(
        trial, status=TrialStatus.PENDING, attempts=0, measurement=None, reward=None, failure=None
    )
    decide(
        store, lease, KeepTrial(trial=replace(asked, ended_at=None)), launch(lease, trial.number, 1)
    )
    decide(store, lease, EndTrial(trial=trial))


def running_study(
    store: LeasedStore, study: Study | None = None, *, owner: str = "controller"
) -> Lease:
    """A new study that is claimed and RUNNING."""
    record = store.submit(study or a_study(), {})
    lease = store.claim(record.id, owner, lease_s=LONG_S)
    assert lease is not None
    store.set_status(record.id, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    return lease


def reported(attempt: AttemptId, first_step: int, step_times_s: Sequence[float]) -> StepsReported:
    """A report of steps with these times, and losses and norms derived from them."""
    return StepsReported(
        id=attempt,
        first_step=first_step,
        step_times_s=tuple(step_times_s),
        losses=tuple(1.0 + t for t in step_times_s),
        grad_norms=tuple(2.0 + t for t in step_times_s),
    )


def kinds(store: StudyReader, study_id: str) -> list[str]:
    """The kinds of a study's events in order. Asserts that their numbers have no gaps."""
    events = store.events(study_id, limit=100_000)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    return [event.kind for event in events]


def kinds_without_decisions(store: StudyReader, study_id: str) -> list[str]:
    """The kinds of a study's events in order, without those of decisions."""
    return [kind for kind in kinds(store, study_id) if kind != "study.decided"]


def an_observed_run(
    study: Study | None, *, step_time_s: float = 0.5, program: str = "train.py"
) -> ObservedRun:
    """A run of the study's workload; with None, a run of which only the end was observed."""
    at = datetime(2026, 11, 3, 9, 30, tzinfo=UTC)
    seen = None
    if study is not None:
        seen = measured(pending(0), step_time_s=step_time_s).measurement
    return ObservedRun(
        program=program,
        command=("torchrun", "--nproc-per-node", "8", program),
        exit_code=0,
        workload=study.workload if study else None,
        config=pending(0).config if study else None,
        measurement=seen,
        versions={"torch": "2.13.0"},
        host="node-1",
        started_at=at,
        ended_at=at,
    )
