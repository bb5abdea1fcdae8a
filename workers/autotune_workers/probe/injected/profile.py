"""Breaks down the step time by cause, from steps under torch's profiler.

    compute          a kernel of the model runs (on a CPU: an operator)
    optimizer        clipping and update
    communication    a collective runs and nothing is computed: the exposed part
    bubble           a pipeline rank waits for its neighbor: a send or receive runs and nothing is computed
    input            a batch is drawn from a data loader; on a GPU only while the GPU is idle
    host             the rest: Python, launches, waiting for a slow peer before a collective begins

Each instant of the step belongs to one cause: on a CPU the first in the order optimizer, input,
compute, bubble, communication, host; on a GPU input comes just before host. So the causes add up to
the step. Communication during computation costs no time; it is reported separately as
`communication_overlapped`. A profiled step is slower than others, so use the shares, not the
seconds. Without a pipeline every send belongs to a collective (experts' all-to-all consists of
them). On a GPU kernels are used, and of the spans that mark regions of code only the optimizer's,
because the others would hide gaps.

Like the rest of the probe it needs only the standard library until the program has imported torch.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace

from .versions import uses_cuda

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from collections.abc import Iterable, Mapping
    from typing import Any

    Interval = tuple[float, float]

ON_GPU = ("optimizer", "compute", "bubble", "communication", "input")
ON_CPU = ("optimizer", "input", "compute", "bubble", "communication")
STEP = "autotune.step"
OPTIMIZER = "autotune.optimizer"
INPUT = "autotune.input"
LAUNCHES = ("cudaLaunch", "cuLaunch")
"""prefixes of calls that launch a kernel"""
ASKED = "AUTOTUNE_PROBE_PROFILE"
"""environment variable with the number of steps to profile; 0 or absent: none"""
FIRST = 8
"""number of steps before the profile: the first ones build and compile"""
SETTLING = 2
"""number of steps after the profile that are ignored: the events are read within the first, on the
slowest rank within the second"""
MOST_KERNELS = 5
"""number of kernels that are reported by name"""


@dataclass(frozen=True)
class Breakdown:
    """Breakdown of one rank's step time, seconds."""

    parts_s: Mapping[str, float]
    """seconds by cause; they add up to the step"""
    overlapped_s: float
    """seconds of communication during computation"""
    launch_delay_s: float | None = None
    """median time from the call that launches a kernel to its start, seconds: microseconds if the
    GPU waits for the host, much more if the host runs ahead; None if there are none"""
    longest_s: Mapping[str, float] | None = None
    """seconds by name of the kernels (on a CPU: operators) with the largest total time"""

    def over(self, steps: int) -> Breakdown:
        """The breakdown per step, of `steps` steps profiled together."""
        return replace(
            self,
            parts_s={cause: s / steps for cause, s in self.parts_s.items()},
            overlapped_s=self.overlapped_s / steps,
            longest_s={name: s / steps for name, s in (self.longest_s or {}).items()},
        )


class Profile:
    """One profile, from `begin` to `end`."""

    def __init__(self, torch: Any, *, on_gpu: bool) -> None:
        self._torch, self._on_gpu = torch, on_gpu
        profiler = torch.profiler
        kinds = [
            profiler.ProfilerActivity.CPU,
            *([profiler.ProfilerActivity.CUDA] if on_gpu else []),
        ]
        self._profiler = profiler.profile(activities=kinds)
        self._step_mark = profiler.record_function(STEP)

    def begin(self) -> None:
        """Starts the profile after waiting for the device. Raises `RuntimeError` if another
        profiler runs, which this one would end."""
        if self._torch.autograd._profiler_enabled():
            raise RuntimeError("the program's own profiler was running")
        self._synchronize()
        self._profiler.start()
        self._step_mark.__enter__()

    def end(self, *, pipelined: bool) -> Breakdown:
        """Ends the profile and returns its breakdown. `pipelined`: whether ranks wait for other
        pipeline stages."""
        self._synchronize()
        self._step_mark.__exit__(None, None, None)
        self._profiler.stop()
        return breakdown(self._profiler.events(), on_gpu=self._on_gpu, pipelined=pipelined)

    def _synchronize(self) -> None:
        if self._on_gpu:
            self._torch.cuda.synchronize()


class AskedProfile:
    """Profiles a program whose steps the probe observes, if the variable `ASKED` sets a number of
    steps."""

    def __init__(self, torch: Any) -> None:
        asked = os.environ.get(ASKED, "")
        self._left = int(asked) if asked.isdigit() else 0
        self._steps = self._left
        self._torch = torch
        self._profile: Profile | None = None
        self._marks: list[tuple[str, Any]] = []
        self._has_passes_inside = False
        self._thread = 0
        """identifier of the training thread; only its regions are marked, because marks must be
        nested"""
        self._settling = 0

    def enter(self, name: str) -> None:
        """Begins a region marked by this name."""
        if self._profile is not None and threading.get_ident() == self._thread:
            mark = self._torch.profiler.record_function(name)
            self._marks.append((name, mark))
            mark.__enter__()

    def leave(self) -> None:
        """Ends the last region."""
        if self._marks and threading.get_ident() == self._thread:
            self._marks.pop()[1].__exit__(None, None, None)

    def pass_begins(self) -> None:
        """Ends the optimizer's region when a forward or backward pass begins in it, as in
        Lightning's closure."""
        if self._marks and self._marks[-1][0] == OPTIMIZER:
            self.leave()
            self._has_passes_inside = True

    def pass_ends(self) -> None:
        """Resumes the optimizer's region after a pass that interrupted it."""
        if self._has_passes_inside:
            self._has_passes_inside = False
            self.enter(OPTIMIZER)

    def step(self, count: int, *, pipelined: bool) -> dict[str, Any] | None:
        """Call at the end of each step. Begins the profile, or ends it and returns its report; None
        otherwise."""
        if not self._left or count < FIRST:
            return None
        if self._profile is None:
            self._thread = threading.get_ident()
            self._profile = Profile(self._torch, on_gpu=uses_cuda(self._torch))
            try:
                self._profile.begin()
            except Exception as error:  # the program profiles itself
                self._profile, self._left = None, 0
                return {"failed": str(error)[:300]}
            return None
        self._left -= 1
        if self._left:
            return None
        while self._marks:
            self.leave()
        profile, self._profile, self._settling = self._profile, None, SETTLING
        per_step = profile.end(pipelined=pipelined).over(self._steps)
        return {
            "parts_s": {**per_step.parts_s, "communication_overlapped": per_step.overlapped_s},
            "launch_delay_s": per_step.launch_delay_s,
            "longest_s": per_step.longest_s,
            "steps": self._steps,
        }

    def is_busy(self, count: int) -> bool:
        """Whether samples after this step would show the profiler's work, or are slowed by it."""
        return self._settling > 0 or (self._left > 0 and count >= FIRST)

    def disturbs(self) -> bool:
        """Whether the profile slowed the step that ends now; call once per step."""
        if self._profile is not None:
            return True
        settles = self._settling > 0
        self._settling -= settles
        return settles


def partition(
    window: Interval, intervals: Mapping[str, Iterable[Interval]], order: Iterable[str] = ON_GPU
) -> Breakdown:
    """Divides the window (start, end) among the causes with intervals in it; uncovered time is
    `host`."""
    parts: dict[str, float] = {}
    covered: list[Interval] = []
    for cause in order:
        of_cause = _merge(_clip(intervals.get(cause, ()), window))
        merged = _merge([*covered, *of_cause])
        parts[cause] = _difference(_length(merged), _length(covered))
        covered = merged
    parts["host"] = _difference(window[1] - window[0], _length(covered))
    computing = _merge(
        _clip([*intervals.get("optimizer", ()), *intervals.get("compute", ())], window)
    )
    communicating = _merge(
        _clip([*intervals.get("bubble", ()), *intervals.get("communication", ())], window)
    )
    overlapped = _difference(
        _length(computing) + _length(communicating), _length(_merge([*computing, *communicating]))
    )
    return Breakdown(parts_s=parts, overlapped_s=overlapped)


def breakdown(events: Iterable[Any], *, on_gpu: bool, pipelined: bool) -> Breakdown:
    """The breakdown of a step, from the profiler's events (`FunctionEvent`)."""
    window: Interval = (0.0, 0.0)
    intervals: dict[str, list[Interval]] = {cause: [] for cause in ON_GPU}
    launched: dict[int, float] = {}
    started: dict[int, float] = {}
    seconds_by_name: dict[str, float] = {}
    for event in events:
        span = (event.time_range.start / 1e6, event.time_range.end / 1e6)
        on_device = event.device_type.name != "CPU"
        if event.name == STEP and not on_device:
            window = span
        elif event.name == INPUT and not on_device:
            intervals["input"].append(span)
        elif not on_device and event.name.startswith(LAUNCHES):
            launched[event.id] = span[0]
        elif on_device == on_gpu or event.name.startswith("gloo:"):
            cause = _cause(event.name, on_device, is_mark=bool(event.is_user_annotation))
            if cause:
                intervals["communication" if cause == "bubble" and not pipelined else cause].append(
                    span
                )
            if cause and event.name != OPTIMIZER:
                seconds_by_name[event.name] = seconds_by_name.get(event.name, 0.0) + _own_s(
                    event, span
                )
            if on_device and not event.is_user_annotation:
                started[event.id] = span[0]
    order = ON_GPU if on_gpu else ON_CPU
    longest = sorted(seconds_by_name.items(), key=lambda entry: -entry[1])[:MOST_KERNELS]
    return replace(
        partition(window, intervals, order),
        launch_delay_s=launch_delay(launched, started),
        longest_s=dict(longest),
    )


def _own_s(event: Any, span: Interval) -> float:
    """Seconds in this kernel or operator itself, without the operators it calls."""
    own_us = (
        getattr(event, "self_cpu_time_total", None) if event.device_type.name == "CPU" else None
    )
    return own_us / 1e6 if own_us is not None else span[1] - span[0]


def launch_delay(launched: Mapping[int, float], started: Mapping[int, float]) -> float | None:
    """Median of start minus launch over the kernels with both; None if there are none."""
    import statistics

    delays = [start - launched[number] for number, start in started.items() if number in launched]
    return statistics.median(delays) if delays else None


def _cause(name: str, on_device: bool, *, is_mark: bool) -> str:
    """Cause of an event by its name; empty for events that are ignored (marks, waits that another
    event explains)."""
    if name == OPTIMIZER:
        return "optimizer"
    if on_device and is_mark:
        return ""
    if (
        name.startswith(("gloo:send", "gloo:recv", "c10d::send", "c10d::recv"))
        or "SendRecv" in name
    ):
        return "bubble"
    if name.startswith(("gloo:", "c10d::", "_c10d_functional::", "fsdp::", "nccl")):
        return "communication"
    if on_device:
        return "" if name.startswith(("autotune.", "ProfilerStep", "Optimizer.")) else "compute"
    return "compute" if name.startswith(("aten::", "torchao::", "inductor")) else ""


def _difference(whole: float, part: float) -> float:
    """`whole - part`, at least 0 despite rounding."""
    return max(0.0, whole - part)


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
