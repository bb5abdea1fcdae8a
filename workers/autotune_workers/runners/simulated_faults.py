"""Faults of simulated trials: which there are, and which attempts they meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import SpecError
from autotune.ports import TrialRequest
from autotune.spec import FailureKind
from autotune.spec.checks import one_of, positive

FAULTS: Mapping[str, FailureKind | None] = {
    "out_of_memory": FailureKind.OUT_OF_MEMORY,
    "diverged": FailureKind.DIVERGED,
    "hang": FailureKind.HANG,
    "timeout": FailureKind.TIMEOUT,
    "invalid": FailureKind.INVALID,
    "metrics_missing": FailureKind.METRICS_MISSING,
    "worker_lost": FailureKind.WORKER_LOST,
    "error": FailureKind.ERROR,
    "duplicate": None,
    "late": None,
}
"""What can be injected. `duplicate` ends the attempt twice and `late` reports steps after its end: breaches of the runner's contract that a
loop has to survive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFault:
    """A fault, and the attempts that it meets."""

    kind: str
    """one of FAULTS"""
    probability: float = 1.0
    """of each attempt that fits, 0 to 1"""
    trial: int | None = None
    """only in the trial of this number"""
    attempt: int | None = None
    """only in this attempt"""

    def __post_init__(self) -> None:
        one_of("runner.faults.kind", self.kind, FAULTS)
        positive("runner.faults.probability", self.probability, zero=True)

    def meets(self, request: TrialRequest, draw: float) -> bool:
        """Whether this attempt is hit, given a uniform draw from 0 to 1."""
        return (
            self.trial in (None, request.number) and self.attempt in (None, request.attempt) and draw < self.probability
        )


def read_faults(faults: Mapping[str, float] | Sequence[Mapping[str, Any]]) -> tuple[SimulatedFault, ...]:
    """The faults of a runner's option: probabilities by kind, or one mapping per fault. Raises `SpecError` for anything else."""
    if isinstance(faults, Mapping):
        return tuple(SimulatedFault(kind=kind, probability=p) for kind, p in faults.items())
    try:
        return tuple(SimulatedFault(**fault) for fault in faults)
    except TypeError:
        known = "kind, probability, trial, attempt"
        raise SpecError(f"a fault must be an object with {known}, but got {faults!r}", field="runner.faults") from None
