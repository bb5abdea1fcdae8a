"""A training loop that trains nothing: one all-reduce per step, as long as `trainer_options.step_s`
says. Imported by real rank processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from autotune.ports import TrialRequest
from autotune.spec import Failure, FailureKind, Measurement


class RefusedError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def run_trial(
    request: TrialRequest, context: Any, report: Callable[[Any], bool]
) -> SimpleNamespace:
    options = request.trainer_options
    if options.get("refuse"):
        raise RefusedError(Failure(kind=FailureKind.INVALID, message="this config is refused"))
    measure, times = request.measure, []
    for number in range(measure.warmup_steps + measure.min_steps):
        began = time.perf_counter()
        time.sleep(float(options.get("step_s", 0.005)))
        go_on = torch.ones(1, device=context.device)
        dist.all_reduce(go_on, dist.ReduceOp.MIN)
        times.append(time.perf_counter() - began)
        step = SimpleNamespace(
            step=number, time_s=times[-1], loss=1.0 / (number + 1), grad_norm=1.0
        )
        go_on.fill_(float(report(step)))
        dist.broadcast(go_on, 0)
        if not go_on.item():
            break
    counted = tuple(times[measure.warmup_steps :])
    tokens = request.config.global_batch_size * request.workload.seq_len
    measurement = Measurement(
        step_times_s=counted, num_ranks=context.world_size, tokens_per_step=tokens
    )
    return SimpleNamespace(measurement=measurement, stopped="")
