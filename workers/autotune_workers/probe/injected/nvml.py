"""Reads this process's GPU through the driver's library (NVML), without a Python package: clocks
and what limits them, power, temperature, utilization, and traffic of its links.

Values that a GPU, its driver or a virtual machine does not provide are left out.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_SM = 1
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat",
    0x80: "power brake",
}
"""bits of nvmlClocksEventReason (nvml.h) for reasons that hold clocks below the requested ones"""
_NVLINK_TX, _NVLINK_RX, _ALL_LINKS = 138, 139, 0xFFFFFFFF
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX: KiB since the driver was loaded; scope ID for all
links"""
_PCIE_TX, _PCIE_RX = 0, 1
"""nvmlPcieUtilCounter_t: KB per second over the last 20 ms"""


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; the value is an unsigned 64-bit number for the fields used here."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp_us", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class Gpu:
    """One GPU. Raises `OSError` without NVML, and `ValueError` for an unknown device."""

    def __init__(self, uuid: str, library: str = LIBRARY) -> None:
        self._nvml = ctypes.CDLL(library)
        self._handle = ctypes.c_void_p()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else "GPU-" + uuid
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByUUID(
            name.encode(), ctypes.byref(self._handle)
        ):
            raise ValueError(name)
        self._sums: dict[str, tuple[float, int]] = {}
        self._last_moved: tuple[float, int] | None = None

    def read(self) -> dict[str, Any]:
        """Takes a reading. Returns the means of all readings so far, and for each reason the share
        of readings in which it held the clocks down."""
        for name, reading in self._reading().items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + reading, count + 1
        return {name: round(total / count, 4) for name, (total, count) in self._sums.items()}

    def _reading(self) -> dict[str, float]:
        use = (ctypes.c_uint * 2)()
        now: dict[str, float] = {}
        if self._call_succeeds("nvmlDeviceGetUtilizationRates", use):
            now["sm"] = use[0] / 100
        for name, function, arguments, scale in (
            ("power_watts", "nvmlDeviceGetPowerUsage", (), 1e-3),
            ("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
            ("sm_clock_mhz", "nvmlDeviceGetClockInfo", (_SM,), 1.0),
            ("max_clock_mhz", "nvmlDeviceGetMaxClockInfo", (_SM,), 1.0),
            ("temperature_c", "nvmlDeviceGetTemperature", (0,), 1.0),
        ):
            if (value := self._number(function, *arguments)) is not None:
                now[name] = value * scale
        pcie = [
            self._number("nvmlDeviceGetPcieThroughput", counter) for counter in (_PCIE_TX, _PCIE_RX)
        ]
        if None not in pcie:
            now["pcie_bytes_per_s"] = 1e3 * sum(value or 0 for value in pcie)
        if (moved := self._moved_kib()) is not None:
            at_s, before = time.monotonic(), self._last_moved
            self._last_moved = (at_s, moved)
            if before is not None and at_s > before[0] and moved >= before[1]:
                now["nvlink_bytes_per_s"] = 1024 * (moved - before[1]) / (at_s - before[0])
        mask = ctypes.c_ulonglong()
        if self._call_succeeds("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.byref(mask)):
            for reason in set(_REASONS.values()):
                is_held = any(mask.value & bit for bit, name in _REASONS.items() if name == reason)
                now["held by " + reason] = float(is_held)
        return now

    def _moved_kib(self) -> int | None:
        """KiB moved by NVLink in both directions; None for a GPU without it."""
        values = (_FieldValue * 2)()
        for at, field in enumerate((_NVLINK_TX, _NVLINK_RX)):
            values[at].field, values[at].scope = field, _ALL_LINKS
        if not self._call_succeeds("nvmlDeviceGetFieldValues", 2, values) or any(
            value.code for value in values
        ):
            return None
        return sum(int(value.value) for value in values)

    def _number(self, function: str, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        return (
            int(value.value)
            if self._call_succeeds(function, *arguments, ctypes.byref(value))
            else None
        )

    def _call_succeeds(self, function: str, *arguments: Any) -> bool:
        """Calls a function of the driver. Returns whether it exists and succeeded."""
        call = getattr(self._nvml, function, None)
        return call is not None and call(self._handle, *arguments) == 0
