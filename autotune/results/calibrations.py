"""Stored corrections of the cost model for a workload: constants measured on its cluster
(`autotune calibrate`), observed runs of its program, and dry runs of its model.

Observed runs of a GPU type and program refit the constants (`autotune.cost.learn.refit`) as trials
do. Runs faster than the GPUs' peak are left out, because their logs were misread.

GPUs, nodes and links that a calibration found slower than others of their kind are stored by type
of GPU until their nodes are measured again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from autotune.cost import Calibration, calibration_for
from autotune.cost.learn.dry_runs import VERSION, DryRuns
from autotune.cost.learn.from_dry_runs import DRY_RUN_TRAINER
from autotune.spec import Study, Trial, Workload, number_of
from autotune.spec.plain import identity
from autotune.trainers.base.own_program import COMMAND, program_name

if TYPE_CHECKING:
    from autotune.ports import CalibrationStore, KnowledgeStore, ObservedStore, ProfileStore

MAX_RUNS = 20
"""number of latest observed runs that are read"""
MAX_WORKLOADS = 6
"""number of workloads among them that refit the constants"""


def measured_constants(workload: Workload, store: CalibrationStore | None) -> Calibration | None:
    """Return the constants that `autotune calibrate` measured on this cluster for this trainer;
    None if the store has none."""
    values = (
        store.calibration(workload.cluster.name, workload.trainer) if store is not None else None
    )
    if values is None:
        return None

    return Calibration.from_dict(values)


def known_constants(
    workload: Workload, store: KnowledgeStore | None, program: str = ""
) -> Calibration | None:
    """Return the measured constants, refit with observed runs of the program; None if the store has
    neither."""
    measured = measured_constants(workload, store)
    runs = _runs_like(workload, store, program) if store is not None else []
    if not runs:
        return measured

    return _refit(measured or calibration_for(workload), runs)


def stored_calibration(
    workload: Workload, store: KnowledgeStore | None, program: str = ""
) -> Calibration | None:
    """Return the measured constants, refit with observed runs of the program, and with the dry runs
    of the workload; None if the store has none of these. `program`: name of the user's program
    (`autotune.trainers.base.own_program`), whose runs are used if the trainer is `command`."""
    if store is None:
        return None

    constants, dry_runs = known_constants(workload, store, program), find_profile(workload, store)
    if dry_runs is None:
        return constants
    constants = constants or calibration_for(workload)
    source = f"{constants.source}; memory and matrix products corrected by {len(dry_runs.points)} dry runs"
    return replace(constants, dry_runs=dry_runs, source=source)


def find_profile(workload: Workload, store: ProfileStore | None) -> DryRuns | None:
    """Return the stored dry runs of the workload; None if there are none."""
    if store is None or workload.trainer != DRY_RUN_TRAINER:
        return None
    values = store.profile(profile_fingerprint(workload))
    return None if values is None else DryRuns.from_dict(values)


def profile_fingerprint(workload: Workload) -> str:
    """Return a key that is equal for workloads with the same dry runs."""
    plain: dict[str, Any] = workload.to_dict()
    model = {name: value for name, value in plain["model"].items() if name != "name"}
    trained = [workload.seq_len, workload.optimizer, workload.document_len, plain["peft"]]
    return identity([VERSION, model, trained, _versions(), workload.cluster.gpu.is_cpu])


@cache
def _versions() -> dict[str, str]:
    """Return the versions of the installed packages that affect a dry run."""
    versions = {}
    for name in ("torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def program_of(study: Study) -> str:
    """Return the name of the program that the study's trials start."""
    return program_name(study.trainer, study.trainer_options)


def _runs_like(
    workload: Workload, store: ObservedStore, program: str
) -> list[tuple[Workload, Trial]]:
    """Return the last `MAX_RUNS` measured runs of the same GPU type and program, on one node or on
    the same network. Runs with an MFU above 1 are left out, because their logs were misread."""
    if workload.trainer == COMMAND and not program:
        return []
    name = program if workload.trainer == COMMAND else ""
    observed = store.observed(
        gpu=workload.cluster.gpu.name,
        trainer=workload.trainer,
        program=name,
        measured=True,
        limit=MAX_RUNS,
    )
    pairs = [
        (run.workload, trial)
        for run in observed
        if run.workload is not None and (trial := run.as_trial()) is not None
    ]
    return [
        (ran, trial)
        for ran, trial in pairs
        if (
            ran.cluster.num_nodes == 1
            or ran.cluster.inter_node.fabric == workload.cluster.inter_node.fabric
        )
        and trial.measurement is not None
        and (trial.measurement.mfu or 0.0) <= 1.0
    ]


def _refit(constants: Calibration, runs: list[tuple[Workload, Trial]]) -> Calibration:
    """Return the constants refit with these runs."""
    from autotune.cost.learn.correction import measured_workloads
    from autotune.cost.learn.refit import refit, uncertain

    fitted = refit(uncertain(constants), measured_workloads(runs)[:MAX_WORKLOADS])
    return replace(
        fitted.constants,
        level=fitted.constants.level * math.exp(fitted.log_level),
        level_sigma=min(constants.level_sigma, math.sqrt(float(fitted.covariance[-1, -1]))),
        source=f"{constants.source}; adjusted by {number_of(len(runs), 'observed run')}",
    )


OUTLIERS = "out_of_line"
"""stored instead of a trainer's name, because slow hardware is slow for all trainers"""


def save_outliers(store: CalibrationStore, gpu: str, measured: Mapping[str, Any]) -> None:
    """Replace the stored outliers of the nodes that a calibration measured. `gpu`: type of their
    GPUs; `measured`: the calibration's {nodes, out_of_line, date}."""
    nodes = set(measured.get("nodes", ()))
    if nodes:
        of_other_nodes = [
            entry for entry in known_outliers(store, gpu) if entry["node"] not in nodes
        ]
        outliers = [
            {**entry, "date": measured.get("date", "")} for entry in measured.get("out_of_line", ())
        ]
        store.save_calibration(gpu, OUTLIERS, {"found": [*of_other_nodes, *outliers]})


def known_outliers(store: CalibrationStore | None, gpu: str) -> list[Mapping[str, Any]]:
    """Return the stored `OutOfLine` values as JSON values, each with the `date` of its
    calibration."""
    stored = store.calibration(gpu, OUTLIERS) if store is not None else None
    return list(stored["found"]) if stored else []
