"""What an earlier run of the nearest config measured: an observed run, or a trial of a study.

nearest    of the same model on the same GPU type and number of GPUs, the one whose config differs in the fewest knobs; of equals the one of the same program,
           then the fastest
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.spec import FIELDS, Measurement, ParallelConfig, Study, Workload
from autotune.spec.observed import OBSERVED
from autotune.spec.study import SIMULATED
from autotune.trainers.program_name import program_name

if TYPE_CHECKING:
    from autotune.results.nearest_workload import BestKnownStore

LOOKED_AT = 50
"""of runs and of trials"""
TRIAL = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A measurement of before."""

    kind: str
    """observed or trial"""
    where: str
    """id of the run, or of the study and number of the trial"""
    program: str
    """what trained"""
    config: ParallelConfig
    workload: Workload
    step_time_s: float
    """median seconds of a step"""
    tokens_per_s: float
    """of the whole job"""
    differs: Mapping[str, tuple[Any, Any]]
    """knobs in which its config differs: (here, there); empty: the same config"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kind": self.kind,
            "where": self.where,
            "program": self.program,
            "config": self.config.to_dict(),
            "cluster": self.workload.cluster.name,
            "seq_len": self.workload.seq_len,
            "step_time_s": self.step_time_s,
            "tokens_per_s": self.tokens_per_s,
            "differs": {name: list(values) for name, values in self.differs.items()},
        }


def earlier_of(study: Study, config: ParallelConfig, store: BestKnownStore) -> Earlier | None:
    """The nearest one; None where the store has none of the model and these GPUs."""
    program = program_name(study.trainer, study.trainer_options)
    found = list(_measured(study.workload, config, store))
    return min(found, key=lambda e: (len(e.differs), e.program != program, -e.tokens_per_s), default=None)


def _measured(workload: Workload, config: ParallelConfig, store: BestKnownStore) -> Iterator[Earlier]:
    model, gpu = workload.model.name, workload.cluster.gpu.name

    def one(
        kind: str, where: str, program: str, theirs: Workload, there: ParallelConfig, seen: Measurement
    ) -> Iterator[Earlier]:
        if theirs.cluster.num_gpus != workload.cluster.num_gpus or (seen.mfu or 0.0) > 1.0:
            return
        differs = {
            n: (getattr(config, n), getattr(there, n)) for n in FIELDS if getattr(config, n) != getattr(there, n)
        }
        if theirs.seq_len != workload.seq_len:
            differs["seq_len"] = (workload.seq_len, theirs.seq_len)
        yield Earlier(
            kind=kind,
            where=where,
            program=program,
            config=there,
            workload=theirs,
            step_time_s=seen.step_time_s,
            tokens_per_s=seen.median_tokens_per_s,
            differs=differs,
        )

    for run in store.observed(model=model, gpu=gpu, measured=True, limit=LOOKED_AT):
        if run.workload and run.config and run.measurement:
            yield from one(OBSERVED, run.id, run.program, run.workload, run.config, run.measurement)
    for record, trial in store.best(model=model, gpu=gpu, without_runner=SIMULATED, limit=LOOKED_AT):
        if trial.measurement is not None:
            program = program_name(record.study.trainer, record.study.trainer_options)
            yield from one(
                TRIAL, f"{record.id}/{trial.number}", program, record.study.workload, trial.config, trial.measurement
            )
