"""Gradients travel once per step, after the last micro-batch, whatever cuts the weights and the
layers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune_workers.runners.local import LocalRunner
from tests.matrix import sampled
from tests.workers.requests import measurement_of, one
from tests.workers.trial_ranks import request


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner(
        max_ranks=4, device="cpu", trial="tests.workers.counting_trial:run_trial"
    ) as runner:
        yield runner


@pytest.mark.thorough
@pytest.mark.parametrize("stage", sampled(range(4), [0, 3]))
@pytest.mark.parametrize(("pp", "few", "many"), sampled([(1, 1, 4), (2, 2, 8)], [(1, 1, 4)]))
def test_more_micro_batches_send_no_more_gradients(
    runner: LocalRunner, stage: int, pp: int, few: int, many: int
) -> None:
    sent = []
    for count in (few, many):
        config = f"dp=2,pp={pp},zero_stage={stage},micro_batch_size=1,accumulation_steps={count},precision=fp32"
        measurement = measurement_of(one(runner, request("llama", config, attempt=count)))
        sent.append(measurement.utilization["sent_bytes"])
    assert sent[0] == sent[1] > 0
