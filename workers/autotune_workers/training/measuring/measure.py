"""Measurements of a rank: the peak memory of this trial alone, the mean power of its steps, and
readings of the device.

On a GPU, the peak is the allocator's (allocated bytes; reserved bytes are reported too). On a CPU,
it is the growth of the resident set: its high-water mark, which Linux allows to reset, minus the
resident memory at the beginning of the trial, after freed memory was returned to the system, and
minus the file pages loaded since: program code that a new rank runs for the first time (about 30
MiB), and token files. So neither torch itself nor an earlier trial counts. If the mark cannot be
reset, the peak is unknown (None).

Further readings of torch's GPU allocator:

    reserved    bytes that the allocator took from the driver; nobody else can use them, so they count against the GPU's memory
    retries     allocations that succeeded only after cached memory was freed; each one stops the device
    left        bytes still allocated after a trial, without the workspaces of cuBLAS

cuBLAS allocates a workspace for each handle and stream at its first use, and keeps it: 32 MiB on
Hopper, about 8 MiB on older GPUs (https://docs.nvidia.com/cuda/cublas, cublasSetWorkspace). torch
allocates another one for cublasLt. These are not leaks.
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
        """Begin to measure, without earlier peaks."""
        release(self._device)
        if self._gpu is not None:
            self._gpu.start()
        else:
            self._before = status_bytes("VmRSS") if _reset_high_water() else None
            self._files_before = status_bytes("RssFile") or 0

    def bytes(self) -> int | None:
        """Peak in bytes; None if unknown on this system."""
        if self._gpu is not None:
            return self._gpu.peak_bytes()
        peak = status_bytes("VmHWM")
        if self._before is None or peak is None:
            return None
        files = max(0, (status_bytes("RssFile") or 0) - self._files_before)
        return max(0, peak - self._before - files)

    def reserved_bytes(self) -> int | None:
        """Peak of the GPU allocator's reserved bytes; None on a CPU."""
        return None if self._gpu is None else self._gpu.reserved_bytes()

    def retries(self) -> int:
        """Number of the GPU allocator's retries; 0 on a CPU."""
        return 0 if self._gpu is None else self._gpu.retries()


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Return unused memory to the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    give_back_memory()


class MeanPower:
    """Mean power of a device since `start`, from its energy counter."""

    def __init__(
        self,
        read_joules: Callable[[], float | None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`read_joules`: returns the energy that the device has used since some fixed time, or None
        if unknown."""
        self._read, self._clock = read_joules, clock
        self._joules: float | None = None
        self._began_s = 0.0

    @classmethod
    def of(cls, device: torch.device) -> MeanPower:
        """The power of a GPU, if NVML is installed and counts its energy (Volta and later). Unknown
        for a CPU, whose counters include other ranks."""
        return cls(_energy_counter(device) or (lambda: None))

    def start(self) -> None:
        """Begin to measure."""
        self._joules, self._began_s = self._read(), self._clock()

    def watts(self) -> float | None:
        """Mean power since `start`, watts; None if unknown."""
        now, elapsed_s = self._read(), self._clock() - self._began_s
        if now is None or self._joules is None or elapsed_s <= 0 or now < self._joules:
            return None
        return (now - self._joules) / elapsed_s


def device_readings(device: torch.device) -> dict[str, float]:
    """NVML's current utilization: shares of time in which a kernel ran (`sm`), and in which memory
    was accessed (`memory_bandwidth`).

    They do not show how many SMs or how much of the bandwidth were used. Empty on a CPU, without
    NVML, and if the GPU does not provide them (as MIG slices).
    """
    if device.type != "cuda" or importlib.util.find_spec("pynvml") is None:
        return {}
    try:
        return {
            "sm": torch.cuda.utilization(device) / 100,
            "memory_bandwidth": torch.cuda.memory_usage(device) / 100,
        }
    except Exception:
        # NVML creates its error classes at run time; a missing reading must not end the trial
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
"""bytes that may remain allocated after a trial, besides workspaces"""
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""variables that configure the allocator; the first is the newer name"""


@final
class GpuAllocator:
    """The allocator of one GPU."""

    def __init__(self, device: Any, cuda: Any = torch.cuda, internals: Any = None) -> None:
        """`cuda`, `internals`: substitutes for torch.cuda and torch._C in tests."""
        self._device, self._cuda, self._internals = device, cuda, internals
        self._retries_before = 0

    def start(self) -> None:
        """Reset peaks and counters at the beginning of a trial."""
        self._cuda.reset_peak_memory_stats(self._device)
        self._retries_before = self._retries()

    def peak_bytes(self) -> int:
        """Peak of allocated bytes since `start`."""
        return int(self._cuda.max_memory_allocated(self._device))

    def reserved_bytes(self) -> int:
        """Peak of reserved bytes since `start`."""
        return int(self._cuda.max_memory_reserved(self._device))

    def retries(self) -> int:
        """Number of retries since `start`."""
        return self._retries() - self._retries_before

    def leaks(self) -> bool:
        """Whether more than `LEAK_BYTES` remain allocated after a trial. cuBLAS workspaces are freed
        first; if torch cannot do that, their size is added to the limit."""
        dropped = drop_cublas_workspaces(self._internals)
        expected = 0 if dropped else cublas_workspace_bytes(self._internals)
        return int(self._cuda.memory_allocated(self._device)) > LEAK_BYTES + expected

    def _retries(self) -> int:
        return int(self._cuda.memory_stats(self._device).get("num_alloc_retries", 0))


def allocator_settings(environment: Mapping[str, str] = os.environ) -> str:
    """The GPU allocator's settings from the environment, such as `expandable_segments:True`; empty
    for torch's defaults."""
    return next((environment[name] for name in SETTINGS if environment.get(name)), "")
