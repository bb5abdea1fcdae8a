"""Requests of tiny trials on CPU ranks, and how they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.ports import AttemptEnded, RunnerEvent, StepsReported, TrialRequest, TrialRunner
from autotune.spec import (
    ClusterSpec,
    Failure,
    GpuSpec,
    LinkSpec,
    Measurement,
    MeasureSpec,
    ModelSpec,
    ParallelConfig,
    Workload,
)
from autotune.testing.runners import ended, events_until_ended
from tests.workers.processes import until

GIB = float(1 << 30)
DOUBLE = "tests.workers.double_trial:run_trial"
NANO = ModelSpec(
    name="nano",
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    vocab_size=256,
    max_positions=64,
)
CPU = GpuSpec(
    name="cpu",
    memory_bytes=2 * GIB,
    peak_flops_per_s={"fp32": 1e10, "bf16": 1e10},
    memory_bytes_per_s=1e10,
)
LINK = LinkSpec(latency_s=1e-5, bytes_per_s=1e9)
PATIENT = MeasureSpec(
    warmup_steps=1,
    min_steps=4,
    max_steps=8,
    precision=0.5,
    start_timeout_s=600.0,
    step_timeout_s=300.0,
    trial_timeout_s=1500.0,
)


def request(
    number: int = 0, *, dp: int = 2, attempt: int = 1, measure: MeasureSpec = PATIENT, **fields: Any
) -> TrialRequest:
    """A trial on `dp` ranks; `fields` replace those of the request, `config`, `cluster` and
    `memory_bytes` (of a rank) what these say."""
    config = {"dp": dp, "precision": "fp32", **fields.pop("config", {})}
    gpu = replace(CPU, memory_bytes=fields.pop("memory_bytes", CPU.memory_bytes))
    sizes = {"num_nodes": 1, "gpus_per_node": 8, **fields.pop("cluster", {})}
    cluster = ClusterSpec(name="cpu-1x8", gpu=gpu, intra_node=LINK, inter_node=LINK, **sizes)
    workload = Workload(model=NANO, cluster=cluster, seq_len=16, global_batch_size=(1, 2, 4, 8, 16))
    base = TrialRequest(
        study="s",
        number=number,
        attempt=attempt,
        workload=workload,
        config=ParallelConfig(**config),
        measure=measure,
    )
    return replace(base, **fields)


def events_of(
    runner: TrialRunner, asked: TrialRequest, *, deadline_s: float = 900.0
) -> list[RunnerEvent]:
    """Runs this attempt to its end."""
    runner.start(asked)
    return events_until_ended(runner, [asked.id], deadline_s=deadline_s)


def one(runner: TrialRunner, asked: TrialRequest, *, deadline_s: float = 900.0) -> AttemptEnded:
    """The end of this attempt."""
    return ended(events_of(runner, asked, deadline_s=deadline_s))


def until_it_steps(runner: TrialRunner, asked: TrialRequest, *, deadline_s: float = 900.0) -> None:
    """Starts the attempt and waits for its first step."""
    runner.start(asked)
    until_steps(runner, deadline_s)


def until_steps(runner: TrialRunner, deadline_s: float = 900.0) -> float:
    """Waits until an attempt reports steps; returns how long that took, in seconds."""

    def are_reported() -> bool:
        events = runner.poll(0.2)
        assert not any(isinstance(event, AttemptEnded) for event in events), events
        return any(isinstance(event, StepsReported) for event in events)

    return until(are_reported, deadline_s)


def failure_of(end: AttemptEnded) -> Failure:
    """Why it failed, as it must have."""
    assert end.failure is not None
    return end.failure


def measurement_of(end: AttemptEnded) -> Measurement:
    """What it measured; it must not have failed."""
    assert end.failure is None, end.failure
    assert end.measurement is not None
    return end.measurement
