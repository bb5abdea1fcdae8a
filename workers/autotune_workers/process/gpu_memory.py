"""The most memory that a program's processes held on any one GPU, as the driver tells (NVML).

    own     sum over the program's processes of a GPU       what counts, where the driver names processes by the numbers that we know
    grown   memory in use on a GPU, less what was in use when the program began       else, as in containers with process numbers of their own

Without GPUs, without NVML or where it fails, there is no reading: memory is then what the program's own log says.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from typing import Any, final

from autotune_workers.process.gpu_affinity import gpu_handle

SAMPLE_S = 0.5
"""time between two readings"""


@final
class GpuMemory:
    """The readings of one program. NVML is loaded when the program begins."""

    def __init__(self, nvml: Any = None) -> None:
        """`nvml`: the module pynvml, where it is not to be imported."""
        self._nvml = nvml
        self._before: dict[Any, int] = {}
        """bytes in use on each visible GPU when the program began"""
        self._looked_s = -SAMPLE_S
        self._own: int | None = None
        self._grown: int | None = None

    @property
    def peak_bytes(self) -> int | None:
        """On the fullest GPU; None without a reading."""
        return self._grown if self._own is None else self._own

    def begin(self, visible: str | None) -> None:
        """The program begins; `visible`: its CUDA_VISIBLE_DEVICES, None for all GPUs."""
        if visible == "" or (self._nvml is None and not os.path.exists("/proc/driver/nvidia")):
            return
        with contextlib.suppress(Exception):  # no driver, no module: no reading
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            handles = [gpu_handle(self._nvml, name) for name in self._names(visible)]
            self._before = {handle: self._used(handle) for handle in handles}

    def look(self, pids: Collection[int]) -> None:
        """Takes a reading for these processes, unless the last one is young."""
        now_s = time.monotonic()
        if not self._before or now_s - self._looked_s < SAMPLE_S:
            return
        self._looked_s = now_s
        with contextlib.suppress(Exception):
            for handle, before in self._before.items():
                held = self._held(handle)
                own = [held[pid] for pid in pids if pid in held]
                if own:
                    self._own = max(self._own or 0, sum(own))
                self._grown = max(self._grown or 0, self._used(handle) - before)

    def _names(self, visible: str | None) -> list[str]:
        if visible is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [name.strip() for name in visible.split(",") if name.strip()]

    def _used(self, handle: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def _held(self, handle: Any) -> Mapping[int, int]:
        """Bytes by process number; a process whose bytes the driver does not tell is left out."""
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {process.pid: int(process.usedGpuMemory) for process in found if process.usedGpuMemory}
