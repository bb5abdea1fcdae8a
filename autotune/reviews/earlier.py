"""Finds the earlier measurement of the config nearest to a launch: of an observed run, a trial of a
study, or a published run.

nearest    of the same model on the same GPU type and number of GPUs, the one whose config differs in the fewest knobs; then that of the same program,
           then the fastest
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.spec import FIELDS, Measurement, ParallelConfig, Study, Workload
from autotune.spec.plain import Plain
from autotune.spec.runs.observed import OBSERVED
from autotune.spec.study import SIMULATED
from autotune.trainers.base.own_program import program_name

if TYPE_CHECKING:
    from autotune.results.best_known import BestKnownStore

PUBLISHED_FILE = Path(__file__).with_name("published.csv")
"""results from public sources; each row names its source"""
FAR = 3.0
"""maximum factor between sequence lengths of comparable runs, because attention and memory depend
on the length"""
COLUMNS = (
    "source",
    "model",
    "params_b",
    "layers",
    "hidden",
    "gpu",
    "gpus",
    "seq_len",
    "trainer",
    "step_time_s",
    "config",
)
"""columns of that file"""
ALIKE = 1.12
"""maximum factor between the parameters of models with the same layers that count as equal"""
LOOKED_AT = 50
"""maximum number of runs and of trials that are considered"""
TRIAL, PUBLISHED = "trial", "published"
"""kinds of measurements"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier(Plain):
    """An earlier measurement."""

    kind: str
    """observed, trial or published"""
    where: str
    """id of the run, id of the study and number of the trial, or the source"""
    program: str
    """the training program"""
    config: ParallelConfig
    cluster: str
    """its name, or GPU and number of GPUs"""
    seq_len: int
    """tokens"""
    step_time_s: float
    """median seconds per step"""
    tokens_per_s: float
    """tokens per second of the whole job"""
    differs: Mapping[str, tuple[Any, Any]]
    """knobs in which the configs differ: (here, there); empty for the same config"""


def earlier_of(
    study: Study, config: ParallelConfig, store: BestKnownStore | None
) -> Earlier | None:
    """The nearest measurement; None if there is none for the model on these GPUs."""
    program = program_name(study.trainer, study.trainer_options)
    workload = study.workload
    found = [
        *(_kept(workload, config, store) if store is not None else ()),
        *_published(workload, config),
    ]
    return min(
        found,
        key=lambda e: (e.kind == PUBLISHED, len(e.differs), e.program != program, -e.tokens_per_s),
        default=None,
    )


def _kept(workload: Workload, config: ParallelConfig, store: BestKnownStore) -> Iterator[Earlier]:
    """Measurements in the results database."""
    model, gpu = workload.model.name, workload.cluster.gpu.name

    def if_comparable(
        kind: str,
        where: str,
        program: str,
        theirs: Workload,
        there: ParallelConfig,
        seen: Measurement,
    ) -> Iterator[Earlier]:
        if there.world_size == config.world_size and (seen.mfu or 0.0) <= 1.0:
            yield Earlier(
                kind=kind,
                where=where,
                program=program,
                config=there,
                cluster=theirs.cluster.name,
                seq_len=theirs.seq_len,
                step_time_s=seen.step_time_s,
                tokens_per_s=seen.median_tokens_per_s,
                differs=_differences(workload, config, theirs.seq_len, there),
            )

    for run in store.observed(model=model, gpu=gpu, measured=True, limit=LOOKED_AT):
        if run.workload and run.config and run.measurement:
            yield from if_comparable(
                OBSERVED, run.id, run.program, run.workload, run.config, run.measurement
            )
    for record, trial in store.best(
        model=model, gpu=gpu, without_runner=SIMULATED, limit=LOOKED_AT
    ):
        if trial.measurement is not None:
            program = program_name(record.study.trainer, record.study.trainer_options)
            yield from if_comparable(
                TRIAL,
                f"{record.id}/{trial.number}",
                program,
                record.study.workload,
                trial.config,
                trial.measurement,
            )


def _published(workload: Workload, config: ParallelConfig) -> Iterator[Earlier]:
    """Measurements in the bundled file."""
    model, gpu = workload.model, workload.cluster.gpu.name
    ours = (str(model.num_layers), str(model.hidden_size), gpu, str(config.world_size))
    if workload.rl is not None or workload.peft is not None:
        return  # published runs are plain trainings of all weights
    for row in _published_rows().get(ours, ()):
        there = ParallelConfig.parse(row["config"])
        seq_len, step_time_s = int(row["seq_len"]), float(row["step_time_s"])
        is_alike = 1 / ALIKE < float(row["params_b"]) * 1e9 / model.num_parameters < ALIKE
        if not (is_alike and 1 / FAR < seq_len / workload.seq_len < FAR):
            continue
        yield Earlier(
            kind=PUBLISHED,
            where=f"{row['model']}, {row['source']}",
            program=row["trainer"],
            config=there,
            cluster=f"{row['gpus']} x {row['gpu']}",
            seq_len=seq_len,
            step_time_s=step_time_s,
            tokens_per_s=there.global_batch_size * seq_len / step_time_s,
            differs=_differences(workload, config, seq_len, there),
        )


@cache
def _published_rows() -> Mapping[tuple[str, ...], Sequence[Mapping[str, str]]]:
    """Rows by (layers, hidden size, GPU, number of GPUs)."""
    found: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    with PUBLISHED_FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["layers"], row["hidden"], row["gpu"], row["gpus"]), []).append(
                row
            )
    return found


def _differences(
    workload: Workload, config: ParallelConfig, seq_len: int, there: ParallelConfig
) -> dict[str, tuple[Any, Any]]:
    found = {
        n: (getattr(config, n), getattr(there, n))
        for n in FIELDS
        if getattr(config, n) != getattr(there, n)
    }
    return found | ({"seq_len": (workload.seq_len, seq_len)} if seq_len != workload.seq_len else {})
