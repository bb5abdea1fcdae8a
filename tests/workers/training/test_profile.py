"""Which cause an event of the profiler speaks for, on a GPU and on a CPU."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from autotune_workers.training.measuring.profile import (
    OPTIMIZER,
    STEP,
    Breakdown,
    breakdown,
    launch_delay,
    partition,
    profile_step,
)


def event(name: str, start: float, end: float, *, gpu: bool = False, mark: bool = False, number: int = 0) -> object:
    """As the profiler tells it; microseconds."""
    return SimpleNamespace(
        name=name,
        id=number,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=DeviceType.CUDA if gpu else DeviceType.CPU,
        is_user_annotation=mark,
    )


GPU_STEP = [
    event(STEP, 0, 100, mark=True),
    event("aten::mm", 0, 90),  # the CPU's share does not count on a GPU
    event("cudaLaunchKernel", 1, 3, number=1),
    event("cudaLaunchKernelExC", 4, 5, number=2),
    event("cuLaunchKernel", 20, 22, number=3),
    event("sm90_gemm", 10, 30, gpu=True, number=1),
    event("ncclDevKernel_AllReduce_Sum_f32", 20, 50, gpu=True, number=2),
    event("triton_fused_norm", 50, 60, gpu=True, number=3),
    event("ncclDevKernel_SendRecv", 60, 70, gpu=True, number=7),
    event("FSDP::pre_forward", 0, 100, gpu=True, mark=True),
    event("Forward 0", 0, 100, gpu=True, mark=True),
    event(OPTIMIZER, 80, 95, gpu=True, mark=True),
    event("multi_tensor_apply", 82, 90, gpu=True, number=8),
]


def micros(seen: Breakdown) -> dict[str, Any]:
    return {cause: pytest.approx(1e6 * s) for cause, s in seen.parts_s.items()}


def test_a_gpu_is_judged_by_its_kernels_and_not_by_marks_of_regions() -> None:
    seen = breakdown(GPU_STEP, on_gpu=True, pipelined=True)
    assert micros(seen) == {"optimizer": 15, "compute": 30, "bubble": 10, "communication": 20, "host": 25}
    assert seen.overlapped_s == pytest.approx(10e-6)
    assert sum(seen.parts_s.values()) == pytest.approx(100e-6)


def test_without_a_pipeline_a_send_is_part_of_a_collective() -> None:
    parts = micros(breakdown(GPU_STEP, on_gpu=True, pipelined=False))
    assert (parts["bubble"], parts["communication"]) == (0, 30)


def test_kernels_start_some_time_after_their_launch() -> None:
    assert breakdown(GPU_STEP, on_gpu=True, pipelined=True).launch_delay_s == pytest.approx(16e-6)
    assert math.isnan(launch_delay({1: 0.0}, {2: 1.0}))


def test_a_cpu_is_judged_by_operators_and_gloos_threads() -> None:
    seen = breakdown(
        [
            event(STEP, 0, 100, mark=True),
            event("aten::mm", 10, 40),
            event("gloo:all_reduce", 30, 60),
            event("gloo:recv", 60, 65),
            event(OPTIMIZER, 70, 80, mark=True),
        ],
        on_gpu=False,
        pipelined=True,
    )
    assert micros(seen) == {"optimizer": 10, "compute": 30, "bubble": 5, "communication": 20, "host": 35}
    assert math.isnan(seen.launch_delay_s)


def test_the_parts_add_up_to_the_time_that_the_step_took() -> None:
    took: list[float] = []

    def step() -> None:
        began = time.perf_counter()
        x = torch.ones(256, 256)
        while time.perf_counter() - began < 0.05:
            x = x @ x / 256
        time.sleep(0.05)
        took.append(time.perf_counter() - began)

    ratios = []
    for _ in range(20):  # a busy machine may stop the process on the edge of a step
        seen = profile_step(step, torch.device("cpu"), pipelined=False)
        ratios.append(sum(seen.parts_s.values()) / took[-1])
        assert ratios[-1] > 0.99
        if ratios[-1] < 1.05:
            assert seen.parts_s["host"] > 0.045
            return
    pytest.fail(f"the parts exceed the step by more than 5%: {ratios}")


def test_rounding_makes_no_time_below_zero() -> None:
    """Sums of the same spans in another order differ in their last digit."""
    busy = [(0.1 * i, 0.1 * i + 0.01) for i in range(60)]
    talk = [(0.1 * i + 0.05, 0.1 * i + 0.063) for i in range(60)]
    for n in range(1, 60):
        found = partition((0.0, 6.1), {"compute": busy[:n], "communication": talk[:n]})
        assert found.overlapped_s >= 0.0
        assert min(found.parts_s.values()) >= 0.0
