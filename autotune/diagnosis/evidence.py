"""Evidence: what was seen of a run, rank by rank and node by node. Times are seconds; what was not
seen is empty, 0 or None, and no law is claimed from it.

T_rt    seconds of step t on rank r                    w, c, q    of a phase: wall, on a processor, on the run queue
phase   data, forward, backward, optimizer, evaluation, checkpoint, collective, or the rest between them
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
Spent = tuple[float, float, float]
"""wall, processor, run queue"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the training was found when it was looked at."""

    phase: str
    kind: str = ""
    """data, log, checkpoint, evaluation, collective, compile; empty: not told"""
    line: str = ""
    """file:number of the program's own innermost line"""
    text: str = ""
    """that line"""
    function: str = ""
    """the innermost function of a library below it"""
    share: float
    """of all looks, 0 to 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """TCP connections between two nodes, from one end."""

    local: str
    remote: str
    rtt_s: float
    """smoothed round trip, of the slowest connection"""
    min_rtt_s: float = 0.0
    """shortest round trip"""
    queued_bytes: float = 0.0
    """what waited to be sent or to be acknowledged"""
    resent: float = 0.0
    """segments that were sent again"""
    sent_bytes: float = 0.0
    busy_s: float = 0.0
    """something was on its way, over all connections"""

    @property
    def bytes_per_s(self) -> float | None:
        """What got through while something was on its way; None where too little was sent to
        tell."""
        return (
            self.sent_bytes / self.busy_s if self.sent_bytes > 1 << 20 and self.busy_s > 0 else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank. Series have one entry per step after warm-up, in the order of the steps."""

    rank: int
    node: str = ""
    """name of its machine"""
    pid: int = 0
    step_times_s: tuple[float, ...]
    phases: Mapping[str, tuple[Spent, ...]] = field(default_factory=dict)
    """by name, of every step"""
    compile_s: tuple[float, ...] = ()
    """of every step, in torch's compiler"""
    tokens: tuple[float, ...] = ()
    """of every step; else sequences"""
    elapsed_s: float = 0.0
    """over which the sums below were counted"""
    stopped_s: float = 0.0
    """the process neither ran nor waited for a processor though it had work: stopped, frozen, or
    held by a quota"""
    throttled_s: float = 0.0
    """a quota of its control group held it"""
    user_s: float = 0.0
    system_s: float = 0.0
    major_faults: float = 0.0
    minor_faults: float = 0.0
    memory_at_limit: float = 0.0
    """how many times its cgroup reached its memory limit"""
    memory_pressure_s: float = 0.0
    """something on its machine waited for memory"""
    alloc_retries: float = 0.0
    """of the GPU's allocator"""
    reserved_bytes: float = 0.0
    allocated_bytes: float = 0.0
    writes: float = 0.0
    """system calls that write"""
    cores: int = 0
    """that it may use"""
    threads: int = 0
    """of torch's operators"""
    places: tuple[Place, ...] = ()
    looks: int = 0
    """by which the places were found; 0: not told"""
    links: tuple[Link, ...] = ()
    gpu: Mapping[str, float] = field(default_factory=dict)
    """sm_clock_mhz, max_clock_mhz, power_watts, power_limit_watts, temperature_c, sm,
    pcie_bytes_per_s, nvlink_bytes_per_s, and the shares of time `held by` each reason"""

    def last(self, count: int) -> Rank:
        """The same, of its last steps, to five digits."""
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
    """One node's processors, in cores, means over the run."""

    name: str
    machine: str = ""
    """of the boot of its kernel: nodes of one machine share its processors"""
    cores: int = 0
    busy: float = 0.0
    ours: float = 0.0
    stolen: float = 0.0
    """that a hypervisor took"""
    others: Mapping[str, float] = field(default_factory=dict)
    """processes that are not of this training, by name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen of one run, and what was expected of it."""

    ranks: tuple[Rank, ...] = ()
    nodes: tuple[Node, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """what the probe saw the program train (`ports.program_facts`)"""
    world: int = 1
    """ranks that train together; more than there is evidence of where some were not watched"""
    step_times_s: tuple[float, ...] = ()
    """of the slowest rank, or of the log"""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """a step by cause as a profile measured it: compute, communication, bubble, optimizer, input,
    host"""
    longest_s: Mapping[str, float] = field(default_factory=dict)
    """kernels that take longest in it, of the first rank"""
    launch_delay_s: float | None = None
    """median time from a kernel's launch to its start in it"""
    profile_failed: str = ""
    """why there is no profile though one was asked for"""
    predicted_s: tuple[float, float, float] | None = None
    """step time: expected, and the ends of its 90% interval"""
    predicted_parts_s: Mapping[str, float] = field(default_factory=dict)
    """its parts by name of `TimeParts`"""
    is_watched: bool = False
    """whether the ranks were to be observed from inside; what was seen of them may still be
    nothing"""
    is_measured_here: bool = False
    """whether the prediction rests on measurements of this cluster"""
    disagreements: tuple[str, ...] = ()
    """knobs that were asked for and are not what was seen, in words: `KNOB: what was seen; what to
    change`"""
    asked_at: Mapping[str, str] = field(default_factory=dict)
    """file:number of the line that asks for such a knob, by its name"""
    hints: tuple[tuple[str, str], ...] = ()
    """lines of its log that speak of a cause: the class and the line"""
    data_times_s: tuple[float, ...] = ()
    """what its log says it waited for data in each of `step_times_s`; empty where it says
    nothing"""
    throttled: float = 0.0
    """share of the time in which heat or a power brake held a GPU's clocks down, as the trial's
    readings say"""
    alloc_retries: float = 0.0
    """of the fullest rank, as the trial's readings say"""

    @property
    def on_gpu(self) -> bool:
        """Whether it trains on GPUs, as far as anything says."""
        return self.facts.get("device") not in (None, "", "cpu") or any(
            rank.gpu for rank in self.ranks
        )

    @property
    def on_several_nodes(self) -> bool:
        """Whether its ranks are on several nodes; also where some were not watched, which are
        elsewhere."""
        return bool(self.ranks) and (
            len({rank.node for rank in self.ranks}) > 1 or self.world > len(self.ranks)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def shortened(self) -> Evidence:
        """Of a size that can be kept with every trial: `KEPT_STEPS` steps in all, of `KEPT_RANKS`
        ranks at most: those that take longest and shortest for themselves."""
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
        """The evidence of `to_dict`'s values."""
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
