"""A GPU that is not there: what the code asks of NVML, of torch.cuda and of torch._C, with answers
that a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20


class NotSupportedError(Exception):
    """As NVML's errors, which are made at run time."""


@dataclass
class FakeGpuDriver:
    """NVML of one GPU, number 0 and UUID GPU-0."""

    sm_clock_mhz: float = 1980.0
    temperature_c: float = 60.0
    thermal_violation_s: float = 0.0
    reasons: int = 0
    affinity: list[int] = field(default_factory=lambda: [0b1])
    """CPUs near the GPU, 64 to a word"""
    unsupported: frozenset[str] = frozenset()
    """calls that fail"""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_PERF_POLICY_THERMAL = 1, 0, 1

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names, here and below
        """Nothing to begin."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        """The GPU of that number."""
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        """The GPU of that UUID."""
        return uuid

    def nvmlDeviceGetClockInfo(self, _: Any, kind: int) -> float:  # noqa: N802
        """MHz."""
        return self._answer("clock", self.sm_clock_mhz)

    def nvmlDeviceGetTemperature(self, _: Any, kind: int) -> float:  # noqa: N802
        """Degrees Celsius."""
        return self._answer("temperature", self.temperature_c)

    def nvmlDeviceGetViolationStatus(self, _: Any, policy: int) -> SimpleNamespace:  # noqa: N802
        """Nanoseconds since the driver was loaded."""
        return SimpleNamespace(
            violationTime=self._answer("violation", self.thermal_violation_s) * 1e9
        )

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: Any) -> int:  # noqa: N802
        """A set of bits."""
        return int(self._answer("reasons", self.reasons))

    def nvmlDeviceGetCpuAffinity(self, _: Any, words: int) -> list[int]:  # noqa: N802
        """Words of 64 CPUs each."""
        return (self.affinity + [0] * words)[:words]

    def _answer(self, call: str, value: float) -> float:
        if call in self.unsupported:
            raise NotSupportedError(call)
        return value


@dataclass
class FakeCuda:
    """The allocator of a GPU: torch.cuda, and torch._C where `internals` is asked for."""

    tensors_bytes: int = 0
    """that somebody still holds"""
    workspaces_bytes: int = 0
    """that cuBLAS holds"""
    reserved_bytes: int = 0
    alloc_retries: int = 0

    def memory_allocated(self, _: Any) -> int:
        """Of tensors and workspaces."""
        return self.tensors_bytes + self.workspaces_bytes

    def max_memory_allocated(self, _: Any) -> int:
        """The same."""
        return self.tensors_bytes + self.workspaces_bytes

    def max_memory_reserved(self, _: Any) -> int:
        """What it took from the driver."""
        return self.reserved_bytes

    def reset_peak_memory_stats(self, _: Any) -> None:
        """Nothing to forget."""

    def memory_stats(self, _: Any) -> dict[str, int]:
        """Counters since the process began."""
        return {"num_alloc_retries": self.alloc_retries}

    def internals(self, *, can_drop: bool) -> SimpleNamespace:
        """What torch._C offers; `can_drop`: whether workspaces can be given back."""
        sizes = {
            "_cuda_getCublasWorkspaceSize": lambda: 32 * MIB,
            "_cuda_getCublasLtWorkspaceSize": lambda: 32 * MIB,
        }
        return SimpleNamespace(
            **sizes, **({"_cuda_clearCublasWorkspaces": self._drop} if can_drop else {})
        )

    def _drop(self) -> None:
        self.workspaces_bytes = 0
