"""Which cause an event of the profiler speaks for, on a GPU and on a CPU."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from autotune_workers.probe.injected.profile import (
    ASKED,
    INPUT,
    OPTIMIZER,
    STEP,
    Breakdown,
    Profile,
    breakdown,
    launch_delay,
    partition,
)
from tests.shortcuts import file_with
from tests.workers.probe.watching import Watched, python, watched

LOOPS = Path(__file__).parents[2] / "diagnosing" / "programs"


def event(
    name: str, start: float, end: float, *, gpu: bool = False, mark: bool = False, number: int = 0
) -> object:
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
    assert micros(seen) == {
        "optimizer": 15,
        "compute": 30,
        "bubble": 10,
        "communication": 20,
        "input": 0,
        "host": 25,
    }
    assert seen.overlapped_s == pytest.approx(10e-6)
    assert sum(seen.parts_s.values()) == pytest.approx(100e-6)


def test_without_a_pipeline_a_send_is_part_of_a_collective() -> None:
    parts = micros(breakdown(GPU_STEP, on_gpu=True, pipelined=False))
    assert (parts["bubble"], parts["communication"]) == (0, 30)


def test_kernels_start_some_time_after_their_launch() -> None:
    assert breakdown(GPU_STEP, on_gpu=True, pipelined=True).launch_delay_s == pytest.approx(16e-6)
    assert launch_delay({1: 0.0}, {2: 1.0}) is None


def test_of_a_gpu_only_the_time_in_which_it_has_nothing_to_do_is_input() -> None:
    seen = breakdown([*GPU_STEP, event(INPUT, 40, 75, mark=True)], on_gpu=True, pipelined=True)
    assert micros(seen) == {
        "optimizer": 15,
        "compute": 30,
        "bubble": 10,
        "communication": 20,
        "input": 5,
        "host": 20,
    }
    assert list(seen.longest_s or {})[:2] == ["ncclDevKernel_AllReduce_Sum_f32", "sm90_gemm"]


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
    assert micros(seen) == {
        "optimizer": 10,
        "compute": 30,
        "bubble": 5,
        "communication": 20,
        "input": 0,
        "host": 35,
    }
    assert seen.launch_delay_s is None


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
        profile = Profile(torch, on_gpu=False)
        profile.begin()
        step()
        seen = profile.end(pipelined=False)
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


def test_a_program_that_asks_for_nothing_is_profiled_where_the_probe_is_asked_to(
    replicated: Watched,
) -> None:
    """On both ranks, in the same two steps; the steps that it slows are marked."""
    seen = replicated
    assert seen.code == 0, seen.text
    assert not seen.of("trouble")
    assert sorted(report["rank"] for report in seen.of("profile")) == [0, 1]
    for report in seen.of("profile"):
        parts = report["parts_s"]
        assert parts["compute"] > 0
        assert parts["communication"] + parts["communication_overlapped"] > 0
        assert parts["optimizer"] > 0
        assert report["longest_s"]
        steps = seen.steps(report["rank"])
        assert [at for at, step in enumerate(steps, 1) if step.get("profiled")] == [9, 10, 11, 12]
        profiled_s = sum(s for name, s in parts.items() if name != "communication_overlapped")
        assert profiled_s <= steps[8]["s"] + steps[9]["s"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "sleep"), [("train_hf.py", "0.005"), ("train_lightning.py", "0.005")]
)
def test_regions_of_other_loops(tmp_path: Path, name: str, sleep: str) -> None:
    """A loader that is waited for is input; Lightning's passes within the optimizer's step are no
    part of it."""
    seen = watched(
        [sys.executable, str(LOOPS / name), f"--sleep={sleep}"], cwd=tmp_path, env={ASKED: "1"}
    )
    (report,) = seen.of("profile")
    parts = report["parts_s"]
    assert parts["input"] >= 8 * 0.005
    assert parts["compute"] > parts["optimizer"] > 0


@pytest.mark.thorough
def test_the_programs_own_profiler_is_left_alone(tmp_path: Path) -> None:
    argv = [*python("decoder.py")[:1], str(file_with(tmp_path / "own.py", OWN))]
    seen = watched(argv, cwd=tmp_path, env={ASKED: "2"})
    assert [report["failed"] for report in seen.of("profile")] == [
        "the program's own profiler was running"
    ]
    assert "20 of 20 steps in its profile" in seen.text


OWN = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.profiler.profile() as own:
    for _ in range(20):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print(sum(event.name == "aten::addmm" for event in own.events()), "of 20 steps in its profile")
"""


@pytest.mark.thorough
def test_another_thread_that_loads_disturbs_no_mark(tmp_path: Path) -> None:
    """Its draws begin and end in any order beside the training's own regions."""
    seen = watched(
        [sys.executable, str(file_with(tmp_path / "threads.py", THREADS))],
        cwd=tmp_path,
        env={ASKED: "2"},
    )
    assert seen.code == 0, seen.text
    assert not seen.of("trouble")
    (report,) = seen.of("profile")
    assert report["parts_s"]["optimizer"] > 0
    assert report["parts_s"]["input"] == 0


THREADS = """
import queue, threading, time
import torch
from torch.utils.data import DataLoader

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.randn(64)

rows = queue.Queue(2)
loader = threading.Thread(target=lambda: [rows.put(batch) for batch in DataLoader(Rows(), batch_size=4)])
loader.start()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(rows.get()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
loader.join()
"""
