"""Where the time of a step goes, from one step under torch's profiler.

    compute          some kernel of the model runs (on a CPU: some operator)
    optimizer        clipping and update
    communication    a collective runs and nothing is computed: the exposed part
    bubble           a pipeline rank waits for its neighbour: a send or receive runs and nothing is computed
    host             the rest: Python, launches, waiting for a slow peer before a collective begins

Each instant of the step belongs to one of them, the first in the order optimizer, compute, bubble, communication, host; so they add up to
the step. Communication that runs while something is computed costs no time of its own: `communication_overlapped` is told beside them. Seconds are means
over ranks. A profiled step is slower than others: shares are meant, not seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

Interval = tuple[float, float]
ORDER = ("optimizer", "compute", "bubble", "communication")
STEP = "autotune.step"
OPTIMIZER = "autotune.optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of one rank's step."""

    parts_s: Mapping[str, float]
    """by cause; adds up to the step"""
    overlapped_s: float
    """communication hidden behind computation"""


def partition(window: Interval, intervals: Mapping[str, Iterable[Interval]]) -> Breakdown:
    """Cuts the window (start, end) among the causes that have intervals in it; what none covers is `host`."""
    parts: dict[str, float] = {}
    covered: list[Interval] = []
    for cause in ORDER:
        mine = _merge(_clip(intervals.get(cause, ()), window))
        together = _merge([*covered, *mine])
        parts[cause] = _length(together) - _length(covered)
        covered = together
    parts["host"] = window[1] - window[0] - _length(covered)
    busy = _merge(_clip([*intervals.get("optimizer", ()), *intervals.get("compute", ())], window))
    talk = _merge(_clip([*intervals.get("bubble", ()), *intervals.get("communication", ())], window))
    overlapped = _length(busy) + _length(talk) - _length(_merge([*busy, *talk]))
    return Breakdown(parts_s=parts, overlapped_s=overlapped)


def profile_step(step: Callable[[], Any], device: torch.device) -> Breakdown:
    """Runs `step` under the profiler; it must end synchronized with the device."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler, record_function(STEP):
        step()
    window: Interval = (0.0, 0.0)
    intervals: dict[str, list[Interval]] = {cause: [] for cause in ORDER}
    for event in profiler.events():
        span = (event.time_range.start / 1e6, event.time_range.end / 1e6)
        on_device = event.device_type != torch.autograd.DeviceType.CPU
        if event.name == STEP and not on_device:
            window = span
        elif on_device == (device.type == "cuda") or event.name.startswith("gloo:"):
            cause = _cause(event.name, on_device)
            if cause:
                intervals[cause].append(span)
    return partition(window, intervals)


def _cause(name: str, on_device: bool) -> str:
    """Cause of an event by its name; empty for one that says nothing (annotations, waits that another event explains)."""
    if name == OPTIMIZER:
        return "optimizer"
    if name.startswith(("gloo:send", "gloo:recv", "c10d::send", "c10d::recv")) or "SendRecv" in name:
        return "bubble"
    if name.startswith(("gloo:", "c10d::", "_c10d_functional::", "fsdp::", "nccl")):
        return "communication"
    if on_device:
        return "" if name.startswith(("autotune.", "ProfilerStep", "Optimizer.")) else "compute"
    return "compute" if name.startswith(("aten::", "torchao::", "inductor")) else ""


def _clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    cut = ((max(a, window[0]), min(b, window[1])) for a, b in intervals)
    return [(a, b) for a, b in cut if a < b]


def _merge(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _length(intervals: Iterable[Interval]) -> float:
    return sum(b - a for a, b in intervals)
