"""A small finished study, made by hand: a baseline, better trials, one out of memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from autotune.ports import StudyRecord
from autotune.spec import (
    ClusterSpec,
    Estimate,
    Failure,
    FailureKind,
    GpuSpec,
    Measurement,
    MemoryParts,
    ModelSpec,
    ParallelConfig,
    Reward,
    SpaceSpec,
    Study,
    StudyStatus,
    TimeParts,
    Trial,
    TrialPurpose,
    TrialStatus,
    Workload,
)

GIB = 2.0**30
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WORKLOAD = Workload(
    model=ModelSpec(
        name="tiny <llama> & co",
        num_layers=8,
        hidden_size=512,
        num_attention_heads=8,
        vocab_size=32000,
    ),
    cluster=ClusterSpec(
        name="h100-1x8",
        gpu=GpuSpec(
            name="h100",
            memory_bytes=80 * GIB,
            peak_flops_per_s={"bf16": 989e12},
            memory_bytes_per_s=3e12,
        ),
        gpus_per_node=8,
    ),
    seq_len=1024,
    global_batch_size=64,
)


def estimate(step_time_s: float, *, comm: float = 0.2) -> Estimate:
    """A prediction whose parts add up."""
    shares = {"compute": 0.9 - comm, "dp_comm": comm, "optimizer": 0.1}
    names = (
        "compute",
        "tp_comm",
        "pp_comm",
        "dp_comm",
        "cp_comm",
        "ep_comm",
        "bubble",
        "optimizer",
        "other",
    )
    memory = MemoryParts(
        weights=4 * GIB,
        gradients=4 * GIB,
        optimizer=8 * GIB,
        activations=20 * GIB,
        logits=2 * GIB,
        framework=2 * GIB,
    )
    tokens = 64 * 1024 / step_time_s
    return Estimate(
        step_time_s=step_time_s,
        step_time_low_s=step_time_s * 0.8,
        step_time_high_s=step_time_s * 1.2,
        time_parts_s=TimeParts(**{name: step_time_s * shares.get(name, 0.0) for name in names}),
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens / 8,
        mfu=0.4,
        peak_memory_bytes=40 * GIB,
        peak_memory_low_bytes=36 * GIB,
        peak_memory_high_bytes=44 * GIB,
        memory_parts_bytes=memory,
        oom_probability=0.01,
    )


def trial(number: int, *, step_time_s: float = 1.0, comm: float = 0.2, **knobs: int) -> Trial:
    """A completed trial."""
    config = ParallelConfig(**{"dp": 8, "micro_batch_size": 1, "accumulation_steps": 8, **knobs})
    return Trial(
        config=config,
        number=number,
        study="s1",
        status=TrialStatus.COMPLETED,
        purpose=TrialPurpose.BASELINE if number == 0 else TrialPurpose.SEARCH,
        attempts=1,
        estimate=estimate(step_time_s * 1.1, comm=comm),
        measurement=Measurement(
            step_times_s=(step_time_s, step_time_s * 1.01, step_time_s * 0.99),
            peak_memory_bytes=38 * GIB,
            tokens_per_step=64 * 1024,
            num_ranks=8,
            losses=(5.0, 4.9, 4.8),
            memory_capacity_bytes=80 * GIB,
        ),
        reward=Reward(total=-step_time_s, throughput=0.0, stability=1.0),
        reason="the model expects the largest gain here",
        created_at=START,
        started_at=START + timedelta(seconds=10 * number),
        ended_at=START + timedelta(seconds=10 * number + 8),
    )


def out_of_memory(number: int) -> Trial:
    """A trial that did not fit."""
    return Trial(
        config=ParallelConfig(dp=8, micro_batch_size=8),
        number=number,
        study="s1",
        status=TrialStatus.FAILED,
        attempts=1,
        estimate=estimate(0.7),
        failure=Failure(
            kind=FailureKind.OUT_OF_MEMORY,
            message="rank 3 ran out of memory",
            exception="OutOfMemoryError: <b>tried</b> to allocate 2 GiB",
            log_tail=("line <1>", "line 2"),
            rank=3,
            step=1,
        ),
        created_at=START,
        started_at=START,
        ended_at=START,
    )


def trials() -> list[Trial]:
    """A baseline, three better ones of growing worth, one failure."""
    return [
        trial(0, step_time_s=1.0, comm=0.5),
        trial(1, step_time_s=0.8, micro_batch_size=2, accumulation_steps=4),
        out_of_memory(2),
        trial(3, step_time_s=0.5, comm=0.1, micro_batch_size=4, accumulation_steps=2),
        trial(4, step_time_s=0.9, zero_stage=1),
    ]


def record(**changes: object) -> StudyRecord:
    """The finished study of these trials."""
    values = {
        "id": "s1",
        "study": Study(
            name='demo "<script>alert(1)</script>"',
            workload=WORKLOAD,
            space=SpaceSpec(name="inline", knobs={"dp": (8,), "micro_batch_size": (1, 2, 4, 8)}),
        ),
        "spec": {
            "name": "demo",
            "model": "nano-llama",
            "space": {"micro_batch_size": [1, 2, 4, 8]},
        },
        "status": StudyStatus.COMPLETED,
        "created_at": START,
        "updated_at": START + timedelta(minutes=2),
        "started_at": START,
        "ended_at": START + timedelta(minutes=2),
        "elapsed_s": 120.0,
        "baseline": 0,
        "best": 3,
        "speedup": 2.0,
        "message": "the expected gain of another trial fell under 1%",
        "trial_counts": {"COMPLETED": 4, "FAILED": 1},
    }
    return StudyRecord(**{**values, **changes})  # type: ignore[arg-type]
