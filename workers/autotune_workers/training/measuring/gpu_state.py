"""Clocks, temperature and throttling of a rank's GPU before and after a trial, from the driver
(NVML). The speed of a throttled trial depends on the cooling.

    sm_clock_mhz, temperature_c           at the end of the steps, and with `_before` at their beginning
    throttled_share                      share of the time between with clocks lowered by heat, from NVML's violation counter
    throttled                             1 if that share is above `THROTTLED_SHARE`, or heat or the power brake lowers the clocks at the end

A GPU at its power limit runs below its maximum clock. That is normal under load and does not count.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch

THROTTLED_SHARE = 0.01
"""share of throttled time above which a trial counts as throttled"""
_REASONS = 0x8 | 0x20 | 0x40 | 0x80
"""nvmlClocksEventReason: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown
(nvml.h)"""
WORST: Mapping[str, Callable[[Iterable[int]], int]] = {
    "sm_clock_mhz": min,
    "sm_clock_mhz_before": min,
    "temperature_c": max,
    "temperature_c_before": max,
    "throttled_share": max,
    "throttled": max,
}
"""how readings of all ranks are combined to that of the trial: collectives wait for the slowest
GPU"""


@final
class GpuState:
    """Readings of one GPU. Readings that the driver does not provide are missing."""

    def __init__(
        self, nvml: Any, handle: Any, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`nvml`: the module pynvml, or a substitute; None without NVML."""
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._before: dict[str, float] = {}
        self._violation_s: float | None = None
        self._began_s = 0.0

    @classmethod
    def of(cls, device: torch.device) -> GpuState:
        """The state of a torch device; without readings on a CPU or without NVML."""
        return cls(*nvml_handle(device))

    def start(self) -> None:
        """Take the readings at the beginning of the steps."""
        self._before = self._readings()
        self._violation_s, self._began_s = self._violation(), self._clock()

    def readings(self) -> dict[str, float]:
        """All readings, at the end of the steps."""
        readings = self._readings() | {
            f"{name}_before": value for name, value in self._before.items()
        }
        violation_s, elapsed_s = self._violation(), self._clock() - self._began_s
        if violation_s is not None and self._violation_s is not None and elapsed_s > 0:
            readings["throttled_share"] = min(
                1.0, max(0.0, violation_s - self._violation_s) / elapsed_s
            )
        held_down = self._is_throttled()
        if held_down is not None or "throttled_share" in readings:
            readings["throttled"] = float(
                bool(held_down) or readings.get("throttled_share", 0.0) > THROTTLED_SHARE
            )
        return readings

    def as_integers(self) -> list[int]:
        """`readings` as integers for a collective: thousandths, one for each name in `WORST`; -1 if
        unknown."""
        readings = self.readings()
        return [round(1e3 * readings[name]) if name in readings else -1 for name in WORST]

    def _readings(self) -> dict[str, float]:
        nvml, readings = self._nvml, dict[str, float]()
        if nvml is None:
            return readings
        # NVML creates its error classes at run time; a missing reading must not end the trial
        with contextlib.suppress(Exception):
            readings["sm_clock_mhz"] = float(
                nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)
            )
        with contextlib.suppress(Exception):
            readings["temperature_c"] = float(
                nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)
            )
        return readings

    def _violation(self) -> float | None:
        """Seconds with clocks lowered by heat since the driver was loaded; None if unknown."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                policy = self._nvml.NVML_PERF_POLICY_THERMAL
                status = self._nvml.nvmlDeviceGetViolationStatus(self._handle, policy)
                return float(status.violationTime) / 1e9
        return None

    def _is_throttled(self) -> bool | None:
        """Whether heat or the power brake lowers the clocks now; None if unknown."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                return bool(
                    self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle) & _REASONS
                )
        return None


def worst_of(ranks: Sequence[Sequence[int]]) -> dict[str, float]:
    """The readings of a trial from `as_integers` of all ranks, without those that a rank does not
    know."""
    columns = zip(WORST.items(), zip(*ranks, strict=True), strict=True)
    return {name: worst(values) / 1e3 for (name, worst), values in columns if min(values) >= 0}


def nvml_handle(device: torch.device) -> tuple[Any, Any]:
    """The module pynvml and its handle of a torch device; (None, None) on a CPU, without NVML, or if
    NVML does not know the GPU."""
    if device.type != "cuda" or importlib.util.find_spec("pynvml") is None:
        return None, None
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None, None
