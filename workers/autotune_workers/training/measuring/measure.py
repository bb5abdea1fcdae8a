"""What a rank can say of itself: synchronized time, the peak memory of this trial alone, and the
mean power of its steps.

On a GPU the peak is the allocator's (bytes allocated; bytes reserved are reported too). On a CPU it
is the rise of the resident set: its high-water mark since the trial began, which Linux lets a
process reset, less what was resident at the beginning, after freed memory was given back to the
system, and less the pages of files that came in meanwhile: program code that a fresh rank runs for
the first time (some 30 MiB), or token files. So neither torch itself nor an earlier trial counts.
Where the mark cannot be reset, the peak is unknown and is reported as such.

What torch's GPU allocator says beside the peak: what it kept in reserve, how often it had to begin
anew, how it was set, and what a trial left behind.

    reserved    bytes that the allocator took from the driver: no one else can use them, so they count against the GPU's memory
    retries     allocations that failed at first, and went well after cached memory had been given back: each stops the device
    left        bytes that are still allocated after a trial, less the workspaces of cuBLAS

cuBLAS allocates a workspace for each of its handles and streams when it is first used, and keeps
it: 32 MiB on Hopper, about 8 MiB on older GPUs (https://docs.nvidia.com/cuda/cublas,
cublasSetWorkspace), and torch one more for cublasLt. They are no leak.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import torch

from autotune_workers.process.machine import give_back_memory, status_bytes
from autotune_workers.training.measuring.gpu_state import nvml_handle
from autotune_workers.training.torch_internals import cublas_workspace_bytes, drop_cublas_workspaces


class PeakMemory:
    """Peak memory of this rank since `start`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpu = GpuAllocator(device) if device.type == "cuda" else None
        self._before: int | None = None
        self._files_before = 0

    def start(self) -> None:
        """Forgets all earlier peaks."""
        release(self._device)
        if self._gpu is not None:
            self._gpu.start()
        else:
            self._before = status_bytes("VmRSS") if _reset_high_water() else None
            self._files_before = status_bytes("RssFile") or 0

    def bytes(self) -> int | None:
        """Bytes at the peak; None where this system cannot tell."""
        if self._gpu is not None:
            return self._gpu.peak_bytes()
        peak = status_bytes("VmHWM")
        if self._before is None or peak is None:
            return None
        files = max(0, (status_bytes("RssFile") or 0) - self._files_before)
        return max(0, peak - self._before - files)

    def reserved_bytes(self) -> int | None:
        """Bytes that the GPU allocator held at its peak; None on a CPU."""
        return None if self._gpu is None else self._gpu.reserved_bytes()

    def retries(self) -> int:
        """Allocations of the GPU allocator that had to be tried again."""
        return 0 if self._gpu is None else self._gpu.retries()


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Gives memory that nobody uses back to the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    give_back_memory()


class MeanPower:
    """Mean power of a device since `start`, by its energy counter."""

    def __init__(
        self,
        read_joules: Callable[[], float | None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`read_joules`: energy that the device has used since any moment; None where that is not
        known."""
        self._read, self._clock = read_joules, clock
        self._joules: float | None = None
        self._began_s = 0.0

    @classmethod
    def of(cls, device: torch.device) -> MeanPower:
        """Of a GPU, where NVML is installed and counts its energy (Volta and later); unknown for a
        CPU, whose counters are not one rank's."""
        return cls(_energy_counter(device) or (lambda: None))

    def start(self) -> None:
        """Forgets what was used so far."""
        self._joules, self._began_s = self._read(), self._clock()

    def watts(self) -> float | None:
        """Mean since `start`; None where it is not known."""
        now, elapsed_s = self._read(), self._clock() - self._began_s
        if now is None or self._joules is None or elapsed_s <= 0 or now < self._joules:
            return None
        return (now - self._joules) / elapsed_s


def device_readings(device: torch.device) -> dict[str, float]:
    """What NVML says of the last moments: shares of time in which any kernel ran (`sm`) and any
    memory was read or written (`memory_bandwidth`).

    Neither says how much of the SMs or of the bandwidth was used. Empty on a CPU, where NVML is not
    installed, and where the GPU does not tell (a slice of a GPU does not): a reading is never worth
    a trial.
    """
    if device.type != "cuda" or importlib.util.find_spec("pynvml") is None:
        return {}
    try:
        return {
            "sm": torch.cuda.utilization(device) / 100,
            "memory_bandwidth": torch.cuda.memory_usage(device) / 100,
        }
    except Exception:
        # NVML's errors are made at run time and have no common base that can be named here
        return {}


def _energy_counter(device: torch.device) -> Callable[[], float | None] | None:
    nvml, handle = nvml_handle(device)
    if nvml is None:
        return None

    def joules() -> float | None:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except nvml.NVMLError:
            return None

    return joules


def _reset_high_water() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak resident set size
    except OSError:
        return False
    return True


LEAK_BYTES = 64 << 20
"""a finished trial may leave this much allocated beside workspaces"""
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""variables that set the allocator; the first is the newer name"""


@final
class GpuAllocator:
    """The allocator of one GPU."""

    def __init__(self, device: Any, cuda: Any = torch.cuda, internals: Any = None) -> None:
        """`cuda`, `internals`: what stands for the module torch.cuda and for torch's own one; None:
        that one."""
        self._device, self._cuda, self._internals = device, cuda, internals
        self._retries_before = 0

    def start(self) -> None:
        """A trial begins: forgets all earlier peaks."""
        self._cuda.reset_peak_memory_stats(self._device)
        self._retries_before = self._retries()

    def peak_bytes(self) -> int:
        """Bytes allocated at the peak since `start`."""
        return int(self._cuda.max_memory_allocated(self._device))

    def reserved_bytes(self) -> int:
        """Bytes reserved at the peak since `start`."""
        return int(self._cuda.max_memory_reserved(self._device))

    def retries(self) -> int:
        """Allocations since `start` that had to be tried again."""
        return self._retries() - self._retries_before

    def leaks(self) -> bool:
        """Whether a finished trial left more than a rank that goes on may hold. Workspaces are
        given back first; where torch cannot, as much as they take is expected to be there."""
        dropped = drop_cublas_workspaces(self._internals)
        expected = 0 if dropped else cublas_workspace_bytes(self._internals)
        return int(self._cuda.memory_allocated(self._device)) > LEAK_BYTES + expected

    def _retries(self) -> int:
        return int(self._cuda.memory_stats(self._device).get("num_alloc_retries", 0))


def allocator_settings(environment: Mapping[str, str] = os.environ) -> str:
    """How the allocator of GPU memory was set by a variable, `expandable_segments:True` for
    instance; empty for torch's defaults."""
    return next((environment[name] for name in SETTINGS if environment.get(name)), "")
