"""What torch's GPU allocator says beside the peak: what it kept in reserve, how often it had to begin anew, how it was set, and what a trial left behind.

    reserved    bytes that the allocator took from the driver: no one else can use them, so they count against the GPU's memory
    retries     allocations that failed at first, and went well after cached memory had been given back: each stops the device
    left        bytes that are still allocated after a trial, less the workspaces of cuBLAS

cuBLAS allocates a workspace for each of its handles and streams when it is first used, and keeps it: 32 MiB on Hopper, about 8 MiB on older GPUs
(https://docs.nvidia.com/cuda/cublas, cublasSetWorkspace), and torch one more for cublasLt. They are no leak.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, final

import torch

from autotune_workers.training.torch_internals import cublas_workspace_bytes, drop_cublas_workspaces

LEAK_BYTES = 64 << 20
"""a finished trial may leave this much allocated beside workspaces"""
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""variables that set the allocator; the first is the newer name"""


@final
class GpuAllocator:
    """The allocator of one GPU."""

    def __init__(self, device: Any, cuda: Any = torch.cuda, internals: Any = None) -> None:
        """`cuda`, `internals`: what stands for the module torch.cuda and for torch's own one; None: that one."""
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
        """Whether a finished trial left more than a rank that goes on may hold. Workspaces are given back first; where torch cannot, as much as they
        take is expected to be there."""
        dropped = drop_cublas_workspaces(self._internals)
        expected = 0 if dropped else cublas_workspace_bytes(self._internals)
        return int(self._cuda.memory_allocated(self._device)) > LEAK_BYTES + expected

    def _retries(self) -> int:
        return int(self._cuda.memory_stats(self._device).get("num_alloc_retries", 0))


def allocator_settings(environment: Mapping[str, str] = os.environ) -> str:
    """How the allocator of GPU memory was set by a variable, `expandable_segments:True` for instance; empty for torch's defaults."""
    return next((environment[name] for name in SETTINGS if environment.get(name)), "")
