"""Where step time goes, from steps under torch's profiler.

    compute          some kernel of the model runs (on a CPU: some operator)
    optimizer        clipping and update
    communication    a collective runs and nothing is computed: the exposed part
    bubble           a pipeline rank waits for its neighbor: a send or receive runs and nothing is computed
    input            a data loader is drawn from: on a GPU, where the GPU has nothing to do meanwhile
    host             the rest: Python, launches, waiting for a slow peer before a collective begins

Each instant of the step belongs to one of them: on a CPU the first in the order optimizer, input,
compute, bubble, communication, host; on a GPU input comes before host alone. So they add up to the
step. Communication that runs while something is computed costs no time of its own:
`communication_overlapped` is told beside them. A profiled step is slower than others: shares are
meant, not seconds. Without a pipeline every send belongs to a collective (the all-to-all of experts
is made of them). On a GPU kernels count, and of the spans that mark a region of code only the
optimizer's: the others would hide its gaps.

Like the rest of the probe it needs nothing but the standard library until the program has imported
torch.
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
"""calls that launch a kernel"""
ASKED = "AUTOTUNE_PROBE_PROFILE"
"""number of steps that are to be profiled; 0 or absent: none"""
FIRST = 8
"""steps that pass before: the first ones build and compile"""
SETTLING = 2
"""steps after it that count for nothing: the events are read within the first of them, on the
slowest rank within the second"""
MOST_KERNELS = 5
"""the longest, by name"""


@dataclass(frozen=True)
class Breakdown:
    """Seconds of one rank's step."""

    parts_s: Mapping[str, float]
    """by cause; adds up to the step"""
    overlapped_s: float
    """communication hidden behind computation"""
    launch_delay_s: float | None = None
    """median time from the call that launches a kernel to its start: microseconds where the GPU
    waits for the host, much more where the host runs ahead; None where there are none"""
    longest_s: Mapping[str, float] | None = None
    """kernels (on a CPU: operators) by name, those that take longest in all"""

    def over(self, steps: int) -> Breakdown:
        """Of one of so many steps that were profiled together."""
        return replace(
            self,
            parts_s={cause: s / steps for cause, s in self.parts_s.items()},
            overlapped_s=self.overlapped_s / steps,
            longest_s={name: s / steps for name, s in (self.longest_s or {}).items()},
        )


class Profile:
    """One profile: from `begin` to `end`."""

    def __init__(self, torch: Any, *, on_gpu: bool) -> None:
        self._torch, self._on_gpu = torch, on_gpu
        profiler = torch.profiler
        kinds = [
            profiler.ProfilerActivity.CPU,
            *([profiler.ProfilerActivity.CUDA] if on_gpu else []),
        ]
        self._profiler = profiler.profile(activities=kinds)
        self._whole = profiler.record_function(STEP)

    def begin(self) -> None:
        """Whatever was asked of the device before is done. Raises `RuntimeError` where another
        profiler runs, which this one would end."""
        if self._torch.autograd._profiler_enabled():
            raise RuntimeError("the program's own profiler was running")
        self._synchronize()
        self._profiler.start()
        self._whole.__enter__()

    def end(self, *, pipelined: bool) -> Breakdown:
        """`pipelined`: whether ranks wait for their neighbors' layers."""
        self._synchronize()
        self._whole.__exit__(None, None, None)
        self._profiler.stop()
        return breakdown(self._profiler.events(), on_gpu=self._on_gpu, pipelined=pipelined)

    def _synchronize(self) -> None:
        if self._on_gpu:
            self._torch.cuda.synchronize()


class AskedProfile:
    """The profile of a program whose steps the probe sees, where `ASKED` names how many."""

    def __init__(self, torch: Any) -> None:
        asked = os.environ.get(ASKED, "")
        self._left = int(asked) if asked.isdigit() else 0
        self._steps = self._left
        self._torch = torch
        self._profile: Profile | None = None
        self._marks: list[tuple[str, Any]] = []
        self._has_passes_inside = False
        self._thread = 0
        """the one that trains, whose regions alone are marked: marks of one thread end in their
        order"""
        self._settling = 0

    def enter(self, name: str) -> None:
        """A region begins that is marked by this name."""
        if self._profile is not None and threading.get_ident() == self._thread:
            mark = self._torch.profiler.record_function(name)
            self._marks.append((name, mark))
            mark.__enter__()

    def leave(self) -> None:
        """The last one ends."""
        if self._marks and threading.get_ident() == self._thread:
            self._marks.pop()[1].__exit__(None, None, None)

    def pass_begins(self) -> None:
        """A forward or backward pass within the optimizer's step, as Lightning's closure has them,
        is no part of it."""
        if self._marks and self._marks[-1][0] == OPTIMIZER:
            self.leave()
            self._has_passes_inside = True

    def pass_ends(self) -> None:
        """A backward pass has ended; the optimizer goes on where its step had begun before."""
        if self._has_passes_inside:
            self._has_passes_inside = False
            self.enter(OPTIMIZER)

    def step(self, count: int, *, pipelined: bool) -> dict[str, Any] | None:
        """At the end of the step of this number: begins the profile, or ends it and returns what is
        reported of it."""
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
        seen = profile.end(pipelined=pipelined).over(self._steps)
        return {
            "parts_s": {**seen.parts_s, "communication_overlapped": seen.overlapped_s},
            "launch_delay_s": seen.launch_delay_s,
            "longest_s": seen.longest_s,
            "steps": self._steps,
        }

    def is_busy(self, count: int) -> bool:
        """Whether what the training is found at behind the step of this number is the profiler's
        work, or slowed by it."""
        return self._settling > 0 or (self._left > 0 and count >= FIRST)

    def disturbs(self) -> bool:
        """Whether the step that ends now took longer because of it; called once a step."""
        if self._profile is not None:
            return True
        settles = self._settling > 0
        self._settling -= settles
        return settles


def partition(
    window: Interval, intervals: Mapping[str, Iterable[Interval]], order: Iterable[str] = ON_GPU
) -> Breakdown:
    """Cuts the window (start, end) among the causes that have intervals in it; what none covers is
    `host`."""
    parts: dict[str, float] = {}
    covered: list[Interval] = []
    for cause in order:
        mine = _merge(_clip(intervals.get(cause, ()), window))
        together = _merge([*covered, *mine])
        parts[cause] = _less(_length(together), _length(covered))
        covered = together
    parts["host"] = _less(window[1] - window[0], _length(covered))
    busy = _merge(_clip([*intervals.get("optimizer", ()), *intervals.get("compute", ())], window))
    talk = _merge(
        _clip([*intervals.get("bubble", ()), *intervals.get("communication", ())], window)
    )
    overlapped = _less(_length(busy) + _length(talk), _length(_merge([*busy, *talk])))
    return Breakdown(parts_s=parts, overlapped_s=overlapped)


def breakdown(events: Iterable[Any], *, on_gpu: bool, pipelined: bool) -> Breakdown:
    """What the profiler's events (`FunctionEvent`) say of the step."""
    window: Interval = (0.0, 0.0)
    intervals: dict[str, list[Interval]] = {cause: [] for cause in ON_GPU}
    launched: dict[int, float] = {}
    started: dict[int, float] = {}
    names: dict[str, float] = {}
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
                names[event.name] = names.get(event.name, 0.0) + _own_s(event, span)
            if on_device and not event.is_user_annotation:
                started[event.id] = span[0]
    order = ON_GPU if on_gpu else ON_CPU
    longest = sorted(names.items(), key=lambda entry: -entry[1])[:MOST_KERNELS]
    return replace(
        partition(window, intervals, order),
        launch_delay_s=launch_delay(launched, started),
        longest_s=dict(longest),
    )


def _own_s(event: Any, span: Interval) -> float:
    """Seconds in this kernel or operator itself, without those that it calls."""
    own = getattr(event, "self_cpu_time_total", None) if event.device_type.name == "CPU" else None
    return own / 1e6 if own is not None else span[1] - span[0]


def launch_delay(launched: Mapping[int, float], started: Mapping[int, float]) -> float | None:
    """Median of start less launch over the kernels of which both moments are known; None when there
    are none."""
    import statistics

    delays = [start - launched[number] for number, start in started.items() if number in launched]
    return statistics.median(delays) if delays else None


def _cause(name: str, on_device: bool, *, is_mark: bool) -> str:
    """Cause of an event by its name; empty for one that says nothing (marks, waits that another
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


def _less(whole: float, part: float) -> float:
    """`whole - part`, which is no time below zero however the sums were rounded."""
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
