"""Observations of a run by rank and node. Times are in seconds. What was not observed is empty, 0
or None, and no cause is claimed from it.

T_rt    seconds of step t on rank r                    w, c, q    seconds of a phase: wall time, on a processor, on the run queue
phase   data, forward, backward, optimizer, evaluation, checkpoint, collective, or rest (the time between them)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

PHASES = (
    "data",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "checkpoint",
    "collective",
    "rest",
)
KEPT_RANKS, KEPT_STEPS, LEAST_KEPT, MOST_PLACES = 32, 256, 16, 12
"""limits of stored evidence: ranks; steps of all ranks together; minimum steps per rank; places per
rank"""
Spent = tuple[float, float, float]
"""seconds of a phase: wall time, on a processor, on the run queue"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A source line at which the training was found when its stack was sampled."""

    phase: str
    kind: str = ""
    """kind of work: data, log, checkpoint, evaluation, collective, compile, ...; empty: unknown"""
    line: str = ""
    """file:number of the program's own innermost line"""
    text: str = ""
    """source text of that line"""
    function: str = ""
    """innermost library function that the line called"""
    share: float
    """share of all stack samples, 0 to 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """All TCP connections between two nodes, as measured on one of them."""

    local: str
    remote: str
    rtt_s: float
    """smoothed round-trip time of the slowest connection, seconds"""
    min_rtt_s: float = 0.0
    """shortest round-trip time, seconds"""
    queued_bytes: float = 0.0
    """bytes not yet sent or not yet acknowledged"""
    resent: float = 0.0
    """number of retransmitted segments"""
    sent_bytes: float = 0.0
    busy_s: float = 0.0
    """seconds with unacknowledged data, summed over all connections"""

    @property
    def bytes_per_s(self) -> float | None:
        """Throughput while data was in flight; None if less than 1 MiB was sent."""
        return (
            self.sent_bytes / self.busy_s if self.sent_bytes > 1 << 20 and self.busy_s > 0 else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Observations of one rank. Series have one entry per step after warm-up, in order."""

    rank: int
    node: str = ""
    """hostname"""
    pid: int = 0
    step_times_s: tuple[float, ...]
    phases: Mapping[str, tuple[Spent, ...]] = field(default_factory=dict)
    """times by phase, per step"""
    compile_s: tuple[float, ...] = ()
    """time in torch's compiler, per step"""
    tokens: tuple[float, ...] = ()
    """tokens per step; sequences if tokens are unknown"""
    elapsed_s: float = 0.0
    """period of the sums below"""
    stopped_s: float = 0.0
    """time in which the process had work but neither ran nor was on the run queue: stopped, frozen,
    or throttled by a quota"""
    throttled_s: float = 0.0
    """time in which its cgroup's CPU quota throttled it"""
    user_s: float = 0.0
    system_s: float = 0.0
    major_faults: float = 0.0
    minor_faults: float = 0.0
    memory_at_limit: float = 0.0
    """number of times its cgroup reached its memory limit"""
    memory_pressure_s: float = 0.0
    """time in which some process of its machine waited for memory (PSI)"""
    alloc_retries: float = 0.0
    """retries of the CUDA allocator"""
    reserved_bytes: float = 0.0
    allocated_bytes: float = 0.0
    writes: float = 0.0
    """number of write system calls"""
    cores: int = 0
    """processors that it may use"""
    threads: int = 0
    """threads of torch's operators"""
    places: tuple[Place, ...] = ()
    looks: int = 0
    """number of stack samples behind `places`; 0: unknown"""
    links: tuple[Link, ...] = ()
    gpu: Mapping[str, float] = field(default_factory=dict)
    """sm_clock_mhz, max_clock_mhz, power_watts, power_limit_watts, temperature_c, sm,
    pcie_bytes_per_s, nvlink_bytes_per_s, and `held by REASON`: share of time with lowered clocks"""

    def last(self, count: int) -> Rank:
        """Return a copy with only the last `count` steps and rounded numbers."""
        return replace(
            self,
            step_times_s=tuple(round(s, 6) for s in self.step_times_s[-count:]),
            phases={
                name: tuple((round(w, 6), round(c, 6), round(q, 6)) for w, c, q in spent[-count:])
                for name, spent in self.phases.items()
            },
            compile_s=self.compile_s[-count:] if any(self.compile_s) else (),
            tokens=self.tokens[-count:],
            places=tuple(
                replace(place, share=round(place.share, 4)) for place in self.places[:MOST_PLACES]
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Processor usage of one node, in cores, as means over the run."""

    name: str
    machine: str = ""
    """boot id of the kernel: nodes (containers) with the same one share processors"""
    cores: int = 0
    busy: float = 0.0
    """used by all processes"""
    ours: float = 0.0
    """used by this training"""
    stolen: float = 0.0
    """taken by the hypervisor"""
    others: Mapping[str, float] = field(default_factory=dict)
    """used by processes outside this training, by name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Observations of one run, and its prediction."""

    ranks: tuple[Rank, ...] = ()
    nodes: tuple[Node, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """what the probe learned about the program (`ports.program_facts`)"""
    world: int = 1
    """number of ranks that train together, including unobserved ones"""
    step_times_s: tuple[float, ...] = ()
    """step times of the slowest rank, or from the log"""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """time of a profiled step by part: compute, communication, bubble, optimizer, input, host"""
    longest_s: Mapping[str, float] = field(default_factory=dict)
    """kernels with the most time in the profiled step, of the first profiled rank"""
    launch_delay_s: float | None = None
    """median time from a kernel's launch to its start in the profiled step"""
    profile_failed: str = ""
    """why a requested profile is missing"""
    predicted_s: tuple[float, float, float] | None = None
    """predicted step time, and the ends of its 90% interval"""
    predicted_parts_s: Mapping[str, float] = field(default_factory=dict)
    """parts of the predicted step time, by name of `TimeParts`"""
    is_watched: bool = False
    """whether the probe was injected; it may still have observed nothing"""
    is_measured_here: bool = False
    """whether the prediction is calibrated with measurements of this cluster"""
    disagreements: tuple[str, ...] = ()
    """knobs that were requested but have no effect: `KNOB: observed value; what to change`"""
    asked_at: Mapping[str, str] = field(default_factory=dict)
    """by such a knob, the line that requests it (file:number)"""
    hints: tuple[tuple[str, str], ...] = ()
    """log lines that indicate a cause: (class, line)"""
    data_times_s: tuple[float, ...] = ()
    """time waiting for data in each of `step_times_s`, from the log; empty if it has none"""
    throttled: float = 0.0
    """share of time with GPU clocks lowered by heat or power brake, from the trial's readings"""
    alloc_retries: float = 0.0
    """allocator retries of the rank with the highest peak memory, from the trial's readings"""

    @property
    def on_gpu(self) -> bool:
        """Whether the training is known to use GPUs."""
        return self.facts.get("device") not in (None, "", "cpu") or any(
            rank.gpu for rank in self.ranks
        )

    @property
    def on_several_nodes(self) -> bool:
        """Whether the ranks are on several nodes. Unobserved ranks are assumed to be elsewhere."""
        return bool(self.ranks) and (
            len({rank.node for rank in self.ranks}) > 1 or self.world > len(self.ranks)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def shortened(self) -> Evidence:
        """Return a copy small enough to store with every trial: at most `KEPT_RANKS` ranks, those
        with the most and the least work, and about `KEPT_STEPS` steps over all ranks."""
        ranks = self.ranks
        if len(ranks) > KEPT_RANKS:
            by_work = sorted(
                ranks, key=lambda r: sum(w - q for s in r.phases.values() for w, _, q in s)
            )
            ranks = (*by_work[: KEPT_RANKS // 2], *by_work[-KEPT_RANKS // 2 :])
        count = max(LEAST_KEPT, KEPT_STEPS // max(1, len(ranks)))
        return replace(
            self, ranks=tuple(sorted((r.last(count) for r in ranks), key=lambda r: r.rank))
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Evidence:
        """Restore evidence from the values of `to_dict`; unknown keys are ignored."""
        v = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
        v["ranks"] = tuple(_rank(rank) for rank in v.get("ranks", ()))
        v["nodes"] = tuple(Node(**node) for node in v.get("nodes", ()))
        for name in ("step_times_s", "disagreements"):
            v[name] = tuple(v.get(name, ()))
        v["hints"] = tuple((cause, line) for cause, line in v.get("hints", ()))
        v["data_times_s"] = tuple(v.get("data_times_s", ()))
        v["predicted_s"] = tuple(v["predicted_s"]) if v.get("predicted_s") else None
        return cls(**v)


def _rank(values: Mapping[str, Any]) -> Rank:
    v = dict(values)
    v["phases"] = {
        name: tuple((s[0], s[1], s[2]) for s in series)
        for name, series in v.get("phases", {}).items()
    }
    v["places"] = tuple(Place(**place) for place in v.get("places", ()))
    v["links"] = tuple(Link(**link) for link in v.get("links", ()))
    for name in ("step_times_s", "compile_s", "tokens"):
        v[name] = tuple(v.get(name, ()))
    return Rank(**v)
