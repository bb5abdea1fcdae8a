"""The CPUs near a GPU: those of its NUMA node, as the driver tells (NVML).

A rank that runs on another socket launches its kernels and copies its batches across the link between sockets. Memory follows the CPUs: Linux takes
a page from the node of the CPU that first writes to it (numa(7)).
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

_WORD_BITS = 64


def bind_near_gpu(visible: str | None, nvml: Any = None) -> frozenset[int]:
    """Binds this thread, and those that it starts, to the CPUs near the first GPU that it may use. Returns them; empty where nothing was changed.

    `visible`: CUDA_VISIBLE_DEVICES; None for all GPUs. `nvml`: the module pynvml, where it is not to be imported.
    """
    with contextlib.suppress(Exception):  # no driver, no module, a GPU that does not tell: the rank runs where it is
        if nvml is None:
            nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        allowed = os.sched_getaffinity(0)
        near = cpus_near(nvml, gpu_handle(nvml, (visible or "0").split(",")[0].strip())) & allowed
        if near and near != allowed:
            os.sched_setaffinity(0, near)
            return frozenset(near)
    return frozenset()


def gpu_handle(nvml: Any, name: str) -> Any:
    """NVML's handle of a GPU by its name in CUDA_VISIBLE_DEVICES: a number or a UUID."""
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def cpus_near(nvml: Any, handle: Any) -> set[int]:
    """The CPUs of the GPU's NUMA node, also those that this process may not use."""
    words = nvml.nvmlDeviceGetCpuAffinity(handle, ((os.cpu_count() or 1) + _WORD_BITS - 1) // _WORD_BITS)
    return {
        word * _WORD_BITS + bit for word, bits in enumerate(words) for bit in range(_WORD_BITS) if int(bits) >> bit & 1
    }
