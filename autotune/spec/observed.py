"""An observed run: a training that people started themselves, with what was seen of it. It is no trial: nobody chose its config to learn from it, and it never wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from autotune.spec.config import ParallelConfig
from autotune.spec.estimate import Estimate
from autotune.spec.measurement import Measurement
from autotune.spec.plain import workload_from_dict, workload_to_dict
from autotune.spec.trial import Failure, Trial, TrialStatus
from autotune.spec.workload import Workload

OBSERVED = "observed"
"""kind of such a run, beside trials"""


class Outcome(StrEnum):
    """How a run ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    INTERRUPTED = "INTERRUPTED"
    """somebody ended it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """One run. What was not seen is None."""

    program: str
    """what trained: the file of a program, or the name of a trainer"""
    command: tuple[str, ...] = ()
    """the words of its command, without secrets; empty: it was seen from inside"""
    outcome: Outcome = Outcome.COMPLETED
    """how it ended"""
    exit_code: int | None = None
    """exit status, negative for a signal; None where it was seen from inside"""
    workload: Workload | None = None
    """what it trained"""
    config: ParallelConfig | None = None
    """how"""
    estimate: Estimate | None = None
    """what was predicted of it before it started"""
    measurement: Measurement | None = None
    """what its steps showed; step times are empty where none was seen"""
    failure: Failure | None = None
    """why it failed, with the evidence"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """releases of Python and the libraries of training that it could import"""
    host: str = ""
    """name of the machine"""
    owner: str = ""
    """who started it"""
    started_at: datetime
    """UTC"""
    ended_at: datetime
    """UTC"""
    id: str = ""
    """given by the store"""

    @property
    def step_time_s(self) -> float | None:
        """Median seconds of a step; None where no step was seen."""
        return self.measurement.step_time_s if self.measurement and self.measurement.step_times_s else None

    def as_trial(self) -> Trial | None:
        """The same as a measured trial, for what learns from measurements; None where workload, config or steps are not known."""
        if self.workload is None or self.config is None or self.step_time_s is None:
            return None
        return Trial(
            config=self.config, status=TrialStatus.STOPPED, estimate=self.estimate, measurement=self.measurement
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kind": OBSERVED,
            "id": self.id,
            "program": self.program,
            "command": list(self.command),
            "outcome": str(self.outcome),
            "exit_code": self.exit_code,
            "workload": workload_to_dict(self.workload) if self.workload else None,
            "config": self.config.to_dict() if self.config else None,
            "estimate": self.estimate.to_dict() if self.estimate else None,
            "measurement": self.measurement.to_dict() if self.measurement else None,
            "failure": self.failure.to_dict() if self.failure else None,
            "versions": dict(self.versions),
            "host": self.host,
            "owner": self.owner,
            "started_at": self.started_at.isoformat(),
            "ended_at": self.ended_at.isoformat(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ObservedRun:
        """The run of `to_dict`'s values."""
        v = {name: value for name, value in values.items() if name != "kind"}
        readers: dict[str, Any] = {
            "workload": workload_from_dict,
            "config": ParallelConfig.from_dict,
            "estimate": Estimate.from_dict,
            "measurement": Measurement.from_dict,
            "failure": Failure.from_dict,
        }
        for name, read in readers.items():
            v[name] = read(v[name]) if v[name] is not None else None
        v |= {name: datetime.fromisoformat(v[name]) for name in ("started_at", "ended_at")}
        return cls(**{**v, "command": tuple(v["command"]), "outcome": Outcome(v["outcome"])})
