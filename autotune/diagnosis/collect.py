"""Builds evidence from the reports that the probe (`autotune_workers.probe`) sends from all ranks.

The first steps are dropped as warm-up. Each report names its rank, so reports may arrive from any
node or process and in any order between ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, final

from autotune.diagnosis.evidence import PHASES, Evidence, Link, Node, Place, Rank

WARMUP = 3
"""first steps to drop, if a rank has more than twice as many"""
MOST_STEPS = 256
"""last steps to keep per rank"""
MOST_RANKS = 1024
"""maximum number of ranks to keep"""
_SUMS = (
    "stopped_s", "throttled_s", "user_s", "system_s", "major_faults", "minor_faults", "memory_at_limit", "memory_pressure_s", "alloc_retries", "writes", "elapsed_s",
)  # fmt: skip


@final
class Reports:
    """Collects the reports of one run."""

    def __init__(self) -> None:
        self._steps: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        self._counts: dict[int, int] = defaultdict(int)
        self._watch: dict[int, list[Mapping[str, Any]]] = {}
        self._profiles: dict[int, Mapping[str, Any]] = {}
        self.facts: dict[str, Any] = {}
        self._facts_rank: int | None = None

    def hear(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Add reports. Unknown kinds are ignored."""
        for report in reports:
            rank = int(report.get("rank", 0) or 0)
            match report.get("kind"):
                case "step" if rank in self._steps or len(self._steps) < MOST_RANKS:
                    steps = self._steps[rank]
                    counted = [
                        step
                        for step in report["steps"]
                        if "phases" in step and not step.get("profiled")
                    ]
                    steps += counted
                    self._counts[rank] += len(counted)
                    if len(steps) > MOST_STEPS + WARMUP:
                        del steps[: len(steps) - MOST_STEPS]
                case "watch":
                    known = self._watch.setdefault(rank, [])
                    known[:] = [*known[:1], report]
                case "profile" if len(self._profiles) < MOST_RANKS:
                    self._profiles[rank] = report
                case "facts" if self._facts_rank is None or rank <= self._facts_rank:
                    self._facts_rank = rank
                    left_out = ("kind", "pid", "files")
                    self.facts = {
                        name: value for name, value in report.items() if name not in left_out
                    }

    def evidence(self, **known: Any) -> Evidence | None:
        """Return the evidence from all reports so far; None without any step. `known`: further
        fields of `Evidence`, which override those from reports."""
        ranks = tuple(self._rank(rank) for rank in sorted(self._steps) if self._steps[rank])
        if not ranks:
            return None
        count = min(len(rank.step_times_s) for rank in ranks)
        slowest = tuple(
            max(rank.step_times_s[-count:][at] for rank in ranks) for at in range(count)
        )
        world = max(int(self.facts.get("world") or 1), len(ranks))
        values = {"step_times_s": slowest, **self._profile(), **known}
        return Evidence(ranks=ranks, nodes=self._nodes(), facts=self.facts, world=world, **values)

    def _profile(self) -> dict[str, Any]:
        """Return the profile's fields of `Evidence`, as means over the profiled ranks; without a
        profile, only the reason."""
        profiles = [report for _, report in sorted(self._profiles.items()) if "parts_s" in report]
        if not profiles:
            return {
                "profile_failed": next(
                    (str(r["failed"]) for r in self._profiles.values() if "failed" in r), ""
                )
            }
        delays = [
            float(report["launch_delay_s"])
            for report in profiles
            if report.get("launch_delay_s") is not None
        ]
        names = profiles[0]["parts_s"]
        return {
            "parts_s": {
                name: sum(float(r["parts_s"].get(name, 0.0)) for r in profiles) / len(profiles)
                for name in names
            },
            "longest_s": dict(profiles[0].get("longest_s") or {}),
            "launch_delay_s": sum(delays) / len(delays) if delays else None,
        }

    def _after_warmup(self, rank: int) -> list[Mapping[str, Any]]:
        """Return the steps of a rank without its warm-up steps; at least one step, if there is
        one."""
        steps = self._steps[rank]
        if self._counts[rank] == len(steps) and len(steps) > 2 * WARMUP:
            return steps[WARMUP:]
        return steps[1:] if len(steps) > 1 else steps

    def _rank(self, rank: int) -> Rank:
        steps = self._after_warmup(rank)
        first, last = self._watch.get(rank, [{}])[0], self._watch.get(rank, [{}])[-1]
        names = [name for name in PHASES if any(name in step["phases"] for step in steps)]
        looks = max(1, int(last.get("looks", 0)))
        return Rank(
            rank=rank,
            node=str(last.get("host", "")),
            pid=int(last.get("pid", 0)),
            step_times_s=tuple(float(step["s"]) for step in steps),
            phases={name: tuple(_spent(step["phases"].get(name)) for step in steps) for name in names},
            compile_s=tuple(float(step.get("compile_s", 0.0)) for step in steps),
            tokens=tuple(float(step["tokens"] or (step["sequences"] or [0])[0]) for step in steps),
            **{name: max(0.0, float(last.get(name, 0)) - (float(first.get(name, 0)) if first is not last else 0.0)) for name in _SUMS},
            reserved_bytes=float(last.get("reserved_bytes", 0)),
            allocated_bytes=float(last.get("allocated_bytes", 0)),
            cores=int(last.get("cores", 0)),
            threads=int(last.get("threads", 0)),
            looks=int(last.get("looks", 0)),
            places=tuple(
                Place(phase=phase, kind=kind, line=line, text=text, function=function, share=count / looks)
                for phase, kind, line, text, function, count in last.get("lines", ())
            ),
            links=tuple(
                Link(**{name: link[name] for name in Link.__dataclass_fields__ if name in link})
                for link in last.get("links", ())
            ),
            gpu=dict(last.get("gpu", {})),
        )  # fmt: skip

    def _nodes(self) -> tuple[Node, ...]:
        nodes: dict[str, Node] = {}
        for reports in self._watch.values():
            last = reports[-1]
            load, name = last.get("node") or {}, str(last.get("host", ""))
            if float(load.get("at", 0)) > 0 and name not in nodes:
                lasted_s = float(load["at"])
                nodes[name] = Node(
                    name=name,
                    machine=str(last.get("machine", "")),
                    cores=int(load["cores"]),
                    busy=float(load["busy_s"]) / lasted_s,
                    ours=float(load["ours_s"]) / lasted_s,
                    stolen=float(load["stolen_s"]) / lasted_s,
                    others={other: float(s) / lasted_s for other, s in load["others"].items()},
                )
        return tuple(nodes.values())


def evidence_of(reports: Iterable[Mapping[str, Any]], **known: Any) -> Evidence | None:
    """Return the evidence from a complete list of reports; None without any step. `known`: as in
    `Reports.evidence`."""
    collected = Reports()
    collected.hear(reports)
    return collected.evidence(**known)


def _spent(times: Any) -> tuple[float, float, float]:
    return (float(times[0]), float(times[1]), float(times[2])) if times else (0.0, 0.0, 0.0)
