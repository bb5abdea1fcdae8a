"""A finding: one cause of lost time, what it costs, why it is claimed, how to make sure, and what
to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

CLAIMED = 0.05
"""share of the step from which on a cause is claimed"""
SURE = 0.02
"""least lower end of its interval"""
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
"""every class of cause, and what it means"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause."""

    cause: str
    """a key of `CLASSES`"""
    share: float | None = None
    """of the step that it costs, 0 to 1; None where that is not known"""
    low: float | None = None
    """lower end of the 95% interval of the share"""
    high: float | None = None
    """upper end"""
    rank: int | None = None
    """the rank that it is about"""
    node: str = ""
    """the node that it is about"""
    what: str
    """the cause in a sentence"""
    evidence: tuple[str, ...]
    """what was seen, each a sentence"""
    confirm: str
    """how to make sure"""
    change: str
    """what to change"""
    line: str = ""
    """file:number of the program's line that it is about, where there is one"""
    knob: str = ""
    """the knob that it is about, where there is one"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = asdict(self)
        return {"class": values.pop("cause"), **values, "evidence": list(self.evidence)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What holds a run back: findings, the costliest first."""

    findings: tuple[Finding, ...]
    verdict: str
    """in a sentence, also where nothing was found"""
    not_seen: tuple[str, ...] = ()
    """evidence that there was none of, and how to get it"""
    profile: tuple[str, ...] = ()
    """a profiled step in words, where there is one"""
    table: tuple[Mapping[str, Any], ...] = ()
    """seconds of a median step by rank and part"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in self.findings],
            "not_seen": list(self.not_seen),
            "profile": list(self.profile),
            "ranks": [dict(row) for row in self.table],
        }
