"""What a real GPU has to show of what `tests/workers/training/test_gpu_readings.py` asks of a fake
one. `make test-gpu` runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from autotune.errors import RunnerError
from autotune.spec import Measurement
from autotune_workers.process.machine import bind_near_gpu, cpus_near, gpu_handle
from autotune_workers.runners.local import LocalRunner
from autotune_workers.training.model.decoder import fused_attention
from autotune_workers.training.precision import takes_float8
from autotune_workers.training.torch_version import check_torch_version
from tests.workers.rank_pids import rank_pids
from tests.workers.requests import measurement_of, one, request

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    try:
        check_torch_version()
    except RunnerError as error:
        pytest.skip(error.message)
    with LocalRunner(max_ranks=1, device="cuda") as runner:
        yield runner


def measured(runner: LocalRunner, number: int, precision: str) -> Measurement:
    return measurement_of(one(runner, request(number, dp=1, config={"precision": precision})))


def test_no_rank_is_replaced_for_the_workspaces_of_cublas(runner: LocalRunner) -> None:
    measured(runner, 0, "bf16")
    before = rank_pids(runner)
    measured(runner, 1, "bf16")
    assert rank_pids(runner) == before


def test_a_measurement_says_what_was_reserved_and_how_hot_the_gpu_was(runner: LocalRunner) -> None:
    pytest.importorskip("pynvml")
    m = measured(runner, 2, "fp32")
    assert {
        "reserved_memory_bytes",
        "alloc_retries",
        "temperature_c",
        "sm_clock_mhz",
        "throttled",
    } <= set(m.utilization)
    assert m.occupied_memory_bytes is not None
    assert m.peak_memory_bytes is not None
    assert m.occupied_memory_bytes >= m.peak_memory_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_grouped_queries_keeps_no_scores(dtype: torch.dtype) -> None:
    q = torch.randn(1, 16, 8192, 64, dtype=dtype, device="cuda", requires_grad=True)
    k, v = (
        torch.randn(1, 4, 8192, 64, dtype=dtype, device="cuda", requires_grad=True)
        for _ in range(2)
    )
    torch.cuda.reset_peak_memory_stats()
    fused_attention(q, k, v).sum().backward()
    scores_bytes = q.shape[1] * 8192 * 8192 * dtype.itemsize
    assert torch.cuda.max_memory_allocated() < scores_bytes / 2


def test_layers_that_fp8_takes_train_in_fp8() -> None:
    float8 = pytest.importorskip("torchao.float8")
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
    layers = torch.nn.ModuleDict({
        "projection": torch.nn.Linear(64, 64), "narrow": torch.nn.Linear(64, 24), "router": torch.nn.Linear(64, 16)
    })  # fmt: skip
    module = torch.nn.ModuleDict({"layers": layers}).to("cuda", torch.bfloat16)
    float8.convert_to_float8_training(module, module_filter_fn=takes_float8)
    x = torch.randn(32, 64, dtype=torch.bfloat16, device="cuda")
    for layer in module["layers"].values():
        layer(x).sum().backward()


def test_a_rank_is_bound_to_the_cpus_that_the_driver_tells() -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    try:
        near = cpus_near(pynvml, gpu_handle(pynvml, "0"))
    except pynvml.NVMLError:
        pytest.skip("this driver does not tell")
    allowed = os.sched_getaffinity(0)
    try:
        bind_near_gpu("0", pynvml)
        assert os.sched_getaffinity(0) == (near & allowed or allowed)
    finally:
        os.sched_setaffinity(0, allowed)
