"""Where the time of a step goes, from one step under torch's profiler.

    compute          some kernel of the model runs (on a CPU: some operator)
    optimizer        clipping and update
    communication    a collective runs and nothing is computed: the exposed part
    bubble           a pipeline rank waits for its neighbour: a send or receive runs and nothing is computed
    host             the rest: Python, launches, waiting for a slow peer before a collective begins

Each instant of the step belongs to one of them, the first in the order optimizer, compute, bubble, communication, host; so they add up to
the step. Communication that runs while something is computed costs no time of its own: `communication_overlapped` is told beside them. Seconds are means
over ranks. A profiled step is slower than others: shares are meant, not seconds. Without a pipeline every send belongs to a collective (the all-to-all
of experts is made of them). On a GPU kernels count, and of the spans that mark a region of code only the optimizer's: the others would hide its gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

Interval = tuple[float, float]
ORDER = ("optimizer", "compute", "bubble", "communication")
STEP = "autotune.step"
OPTIMIZER = "autotune.optimizer"
LAUNCHES = ("cudaLaunch", "cuLaunch")
"""calls that launch a kernel"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of one rank's step."""

    parts_s: Mapping[str, float]
    """by cause; adds up to the step"""
    overlapped_s: float
    """communication hidden behind computation"""
    launch_delay_s: float = math.nan
    """median time from the call that launches a kernel to its start: microseconds where the GPU waits for the host, much more where the
    host runs ahead; nan where there are none"""


def partition(window: Interval, intervals: Mapping[str, Iterable[Interval]]) -> Breakdown:
    """Cuts the window (start, end) among the causes that have intervals in it; what none covers is `host`."""
    parts: dict[str, float] = {}
    covered: list[Interval] = []
    for cause in ORDER:
        mine = _merge(_clip(intervals.get(cause, ()), window))
        together = _merge([*covered, *mine])
        parts[cause] = _less(_length(together), _length(covered))
        covered = together
    parts["host"] = _less(window[1] - window[0], _length(covered))
    busy = _merge(_clip([*intervals.get("optimizer", ()), *intervals.get("compute", ())], window))
    talk = _merge(_clip([*intervals.get("bubble", ()), *intervals.get("communication", ())], window))
    overlapped = _less(_length(busy) + _length(talk), _length(_merge([*busy, *talk])))
    return Breakdown(parts_s=parts, overlapped_s=overlapped)


def _less(whole: float, part: float) -> float:
    """`whole - part`, which is no time below zero however the sums were rounded."""
    return max(0.0, whole - part)


def profile_step(step: Callable[[], Any], device: torch.device, *, pipelined: bool) -> Breakdown:
    """Runs `step` under the profiler; it must end synchronized with the device. `pipelined`: whether ranks wait for their neighbours' layers."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler, record_function(STEP):
        step()
    return breakdown(profiler.events(), on_gpu=device.type == "cuda", pipelined=pipelined)


def breakdown(events: Iterable[Any], *, on_gpu: bool, pipelined: bool) -> Breakdown:
    """What the profiler's events (`FunctionEvent`) say of the step."""
    window: Interval = (0.0, 0.0)
    intervals: dict[str, list[Interval]] = {cause: [] for cause in ORDER}
    launched: dict[int, float] = {}
    started: dict[int, float] = {}
    for event in events:
        span = (event.time_range.start / 1e6, event.time_range.end / 1e6)
        on_device = event.device_type != torch.autograd.DeviceType.CPU
        if event.name == STEP and not on_device:
            window = span
        elif not on_device and event.name.startswith(LAUNCHES):
            launched[event.id] = span[0]
        elif on_device == on_gpu or event.name.startswith("gloo:"):
            cause = _cause(event.name, on_device, is_mark=bool(event.is_user_annotation))
            if cause:
                intervals["communication" if cause == "bubble" and not pipelined else cause].append(span)
            if on_device and not event.is_user_annotation:
                started[event.id] = span[0]
    return replace(partition(window, intervals), launch_delay_s=launch_delay(launched, started))


def launch_delay(launched: Mapping[int, float], started: Mapping[int, float]) -> float:
    """Median of start less launch over the kernels of which both moments are known; nan when there are none."""
    delays = [start - launched[number] for number, start in started.items() if number in launched]
    return float(np.median(delays)) if delays else math.nan


def _cause(name: str, on_device: bool, *, is_mark: bool) -> str:
    """Cause of an event by its name; empty for one that says nothing (marks, waits that another event explains)."""
    if name == OPTIMIZER:
        return "optimizer"
    if on_device and is_mark:
        return ""
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
