"""Readings of this process's GPU by the driver's library (NVML), without a package: clocks, what holds them down, power, temperature, use."""

from __future__ import annotations

import ctypes
from typing import Any

_SM = 1
_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""nvmlClocksEventReason (nvml.h) of those that hold the clocks below what was asked"""


class Gpu:
    """One GPU; raises `OSError` without NVML, and `ValueError` for a device that it does not know."""

    def __init__(self, uuid: str) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else "GPU-" + uuid
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self._handle)):
            raise ValueError(name)
        self._sums: dict[str, float] = {}
        self._count = 0

    def read(self) -> dict[str, Any]:
        """Means of all readings so far, and the shares of them in which each reason held the clocks down."""
        use = (ctypes.c_uint * 2)()
        now: dict[str, float] = {}
        if not self._nvml.nvmlDeviceGetUtilizationRates(self._handle, use):
            now["sm"] = use[0] / 100
        for name, function, scale in (
            ("power_watts", "nvmlDeviceGetPowerUsage", 1e-3),
            ("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", 1e-3),
        ):
            if (value := self._number(function)) is not None:
                now[name] = value * scale
        for name, function in (
            ("sm_clock_mhz", "nvmlDeviceGetClockInfo"),
            ("max_clock_mhz", "nvmlDeviceGetMaxClockInfo"),
        ):
            if (value := self._number(function, _SM)) is not None:
                now[name] = float(value)
        if (value := self._number("nvmlDeviceGetTemperature", 0)) is not None:
            now["temperature_c"] = float(value)
        mask = ctypes.c_ulonglong()
        if not self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle, ctypes.byref(mask)):
            for reason in set(_REASONS.values()):
                is_held = any(mask.value & bit for bit, name in _REASONS.items() if name == reason)
                now["held by " + reason] = float(is_held)
        self._count += 1
        for name, reading in now.items():
            self._sums[name] = self._sums.get(name, 0.0) + reading
        return {name: round(total / self._count, 4) for name, total in self._sums.items()}

    def _number(self, function: str, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        code = getattr(self._nvml, function)(self._handle, *arguments, ctypes.byref(value))
        return None if code else int(value.value)
