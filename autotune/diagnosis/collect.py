"""Evidence from the probe's reports of all ranks. The first steps do not count: they build, compile
and fill caches.

Reports `step`, `watch` and `facts` are those of `autotune_workers.probe`; they name their rank, so
it does not matter which node or process passed them on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, final

from autotune.diagnosis.evidence import PHASES, Evidence, Link, Node, Place, Rank

WARMUP = 3
"""steps that do not count, where there are twice as many"""
MOST_STEPS = 256
"""of a rank: the last ones"""
MOST_RANKS = 1024
_SUMS = (
    "stopped_s", "throttled_s", "user_s", "system_s", "major_faults", "minor_faults", "memory_at_limit", "memory_pressure_s", "alloc_retries", "writes", "elapsed_s",
)  # fmt: skip


@final
class Reports:
    """The reports of one run as they come."""

    def __init__(self) -> None:
        self._steps: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        self._counts: dict[int, int] = defaultdict(int)
        self._watch: dict[int, list[Mapping[str, Any]]] = {}
        self._profiles: dict[int, Mapping[str, Any]] = {}
        self.facts: dict[str, Any] = {}
        self._facts_rank: int | None = None

    def hear(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Reports that are not understood are left out."""
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
        """All of it; `known`: other fields of the evidence. None where no step was seen."""
        ranks = tuple(self._rank(rank) for rank in sorted(self._steps) if self._steps[rank])
        if not ranks:
            return None
        count = min(len(rank.step_times_s) for rank in ranks)
        slowest = tuple(
            max(rank.step_times_s[-count:][at] for rank in ranks) for at in range(count)
        )
        world = max(int(self.facts.get("world") or 1), len(ranks))
        found = {"step_times_s": slowest, **self._profile(), **known}
        return Evidence(ranks=ranks, nodes=self._nodes(), facts=self.facts, world=world, **found)

    def _profile(self) -> dict[str, Any]:
        """Means over ranks of what a profile saw."""
        seen = [report for _, report in sorted(self._profiles.items()) if "parts_s" in report]
        if not seen:
            return {
                "profile_failed": next(
                    (str(r["failed"]) for r in self._profiles.values() if "failed" in r), ""
                )
            }
        delays = [
            float(report["launch_delay_s"])
            for report in seen
            if report.get("launch_delay_s") is not None
        ]
        names = seen[0]["parts_s"]
        return {
            "parts_s": {
                name: sum(float(r["parts_s"].get(name, 0.0)) for r in seen) / len(seen)
                for name in names
            },
            "longest_s": dict(seen[0].get("longest_s") or {}),
            "launch_delay_s": sum(delays) / len(delays) if delays else None,
        }

    def _after_warmup(self, rank: int) -> list[Mapping[str, Any]]:
        """The steps of a rank without its first ones, as far as it has others."""
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
        found: dict[str, Node] = {}
        for reports in self._watch.values():
            last = reports[-1]
            load, name = last.get("node") or {}, str(last.get("host", ""))
            if float(load.get("at", 0)) > 0 and name not in found:
                lasted_s = float(load["at"])
                found[name] = Node(
                    name=name,
                    machine=str(last.get("machine", "")),
                    cores=int(load["cores"]),
                    busy=float(load["busy_s"]) / lasted_s,
                    ours=float(load["ours_s"]) / lasted_s,
                    stolen=float(load["stolen_s"]) / lasted_s,
                    others={other: float(s) / lasted_s for other, s in load["others"].items()},
                )
        return tuple(found.values())


def evidence_of(reports: Iterable[Mapping[str, Any]], **known: Any) -> Evidence | None:
    """Evidence of reports that are all there."""
    heard = Reports()
    heard.hear(reports)
    return heard.evidence(**known)


def _spent(told: Any) -> tuple[float, float, float]:
    return (float(told[0]), float(told[1]), float(told[2])) if told else (0.0, 0.0, 0.0)
