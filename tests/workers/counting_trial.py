"""The real training loop with a count of the gradient bytes that a rank gives to its data-parallel
peers. Imported by real rank processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from autotune.ports import TrialRequest
from autotune_workers.training.parallel import data_parallel, fully_sharded
from autotune_workers.training.run_trial import TrialResult
from autotune_workers.training.run_trial import run_trial as train

LEAST = 64
"""values: verdicts and times are smaller, gradients larger"""


def run_trial(request: TrialRequest, context: Any, report: Callable[[Any], bool]) -> TrialResult:
    """As `autotune_workers.training.run_trial`; the bytes of one step stand among the readings."""
    sent: list[int] = []

    def counted(collective: Callable[..., Any], position: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if arguments[position].numel() > LEAST:
                sent.append(arguments[position].nbytes)
            return collective(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", counted(dist.all_reduce, 0))
        for module in (data_parallel, fully_sharded):
            patch.setattr(module, "reduce_scatter_single", counted(module.reduce_scatter_single, 1))
        result = train(request, context, report)
    per_step = sum(sent) / len(result.measurement.losses)
    return replace(
        result, measurement=replace(result.measurement, utilization={"sent_bytes": per_step})
    )
