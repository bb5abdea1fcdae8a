"""`Finding`, one cause of lost time with its cost, evidence and remedy, and `Diagnosis`, all
findings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

CLAIMED = 0.05
"""minimum share of the step that a cause must cost to be reported"""
SURE = 0.02
"""minimum lower end of that share's 95% interval"""
CLASSES: Mapping[str, str] = {
    "input": "the ranks wait for data",
    "host": "the program's own work outside training slows training down",
    "communication_inside_node": "collectives inside a node",
    "communication_between_nodes": "collectives between nodes",
    "slow_rank": "one rank is slower than the others",
    "slow_node": "one node is slower than the others",
    "unequal_lengths": "ranks do unequal amounts of work in a step",
    "bubble": "the pipeline is idle longer than necessary",
    "optimizer": "the optimizer's step",
    "memory": "memory is tight",
    "recompilation": "torch recompiles repeatedly",
    "pauses": "checkpoints and evaluation",
    "clocks": "GPU clocks are lowered",
    "foreign_process": "other processes use the ranks' processors",
    "knob_without_effect": "a requested setting has no effect",
    "prediction": "the prediction does not match this run",
}
"""classes of causes, with their meaning"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause of lost time."""

    cause: str
    """a key of `CLASSES`"""
    share: float | None = None
    """share of the step that it costs, 0 to 1; None if unknown"""
    low: float | None = None
    """lower end of the 95% interval of the share"""
    high: float | None = None
    """upper end"""
    rank: int | None = None
    """the affected rank; None for all"""
    node: str = ""
    """the affected node; empty for all"""
    what: str
    """the cause in a sentence"""
    evidence: tuple[str, ...]
    """observations, one sentence each"""
    confirm: str
    """how to confirm the cause"""
    change: str
    """what to change"""
    line: str = ""
    """source line of the program (file:number); empty if unknown"""
    knob: str = ""
    """the knob to change; empty if there is none"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = asdict(self)
        return {"class": values.pop("cause"), **values, "evidence": list(self.evidence)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings of a run, the costliest first."""

    findings: tuple[Finding, ...]
    verdict: str
    """summary in a sentence, also without findings"""
    not_seen: tuple[str, ...] = ()
    """missing evidence, and how to get it"""
    profile: tuple[str, ...] = ()
    """lines of text about the profiled step; empty without a profile"""
    table: tuple[Mapping[str, Any], ...] = ()
    """mean seconds per step, by rank and part"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in self.findings],
            "not_seen": list(self.not_seen),
            "profile": list(self.profile),
            "ranks": [dict(row) for row in self.table],
        }
