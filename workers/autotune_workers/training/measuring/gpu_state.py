"""Clocks, temperature and throttling of a rank's GPU before and after a trial, as the driver tells
(NVML). A throttled trial measures the cooling.

    sm_clock_mhz, temperature_c           when the steps end, and with `_before` when they begin
    throttled_share                      of the time between them in which heat held the clocks down, by NVML's violation counter
    throttled                             1 when it was more than `THROTTLED_SHARE`, or when heat or the power brake holds the clocks down at the end

A GPU at its power limit runs at lower clocks than its highest: that is how it is meant to run under
load, and does not count.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch

THROTTLED_SHARE = 0.01
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
"""which of all ranks' readings is that of the trial: collectives wait for the slowest GPU"""


@final
class GpuState:
    """The readings of one GPU. Each is left out where the driver does not tell."""

    def __init__(
        self, nvml: Any, handle: Any, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`nvml`: the module pynvml, or what stands for it; None without NVML."""
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._before: dict[str, float] = {}
        self._violation_s: float | None = None
        self._began_s = 0.0

    @classmethod
    def of(cls, device: torch.device) -> GpuState:
        """Of a GPU of torch's; without readings on a CPU and without NVML."""
        return cls(*nvml_handle(device))

    def start(self) -> None:
        """The steps begin."""
        self._before = self._readings()
        self._violation_s, self._began_s = self._violation(), self._clock()

    def readings(self) -> dict[str, float]:
        """The steps have ended."""
        found = self._readings() | {f"{name}_before": value for name, value in self._before.items()}
        violation_s, elapsed_s = self._violation(), self._clock() - self._began_s
        if violation_s is not None and self._violation_s is not None and elapsed_s > 0:
            found["throttled_share"] = min(
                1.0, max(0.0, violation_s - self._violation_s) / elapsed_s
            )
        held_down = self._held_down()
        if held_down is not None or "throttled_share" in found:
            found["throttled"] = float(
                bool(held_down) or found.get("throttled_share", 0.0) > THROTTLED_SHARE
            )
        return found

    def as_integers(self) -> list[int]:
        """`readings` for a collective: thousandths, one for each name of `WORST`; -1 for what is
        not known."""
        found = self.readings()
        return [round(1e3 * found[name]) if name in found else -1 for name in WORST]

    def _readings(self) -> dict[str, float]:
        nvml, found = self._nvml, dict[str, float]()
        if nvml is None:
            return found
        # NVML's errors are made at run time; a reading is never worth a trial
        with contextlib.suppress(Exception):
            found["sm_clock_mhz"] = float(
                nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)
            )
        with contextlib.suppress(Exception):
            found["temperature_c"] = float(
                nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)
            )
        return found

    def _violation(self) -> float | None:
        """Seconds for which heat has held the clocks down since the driver was loaded."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                policy = self._nvml.NVML_PERF_POLICY_THERMAL
                return (
                    float(
                        self._nvml.nvmlDeviceGetViolationStatus(self._handle, policy).violationTime
                    )
                    / 1e9
                )
        return None

    def _held_down(self) -> bool | None:
        """Whether heat or the power brake holds the clocks down now."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                return bool(
                    self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle) & _REASONS
                )
        return None


def worst_of(ranks: Sequence[Sequence[int]]) -> dict[str, float]:
    """The readings of a trial from all ranks' `as_integers`; what a rank does not know is left
    out."""
    columns = zip(WORST.items(), zip(*ranks, strict=True), strict=True)
    return {name: worst(values) / 1e3 for (name, worst), values in columns if min(values) >= 0}


def nvml_handle(device: torch.device) -> tuple[Any, Any]:
    """pynvml and its handle of a GPU of torch's; (None, None) on a CPU, and where NVML is not
    installed or does not know the GPU."""
    if device.type != "cuda" or importlib.util.find_spec("pynvml") is None:
        return None, None
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None, None
