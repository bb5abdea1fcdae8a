"""What the store knows of a workload beside the formulas: constants that were measured on its
cluster, the level that runs of its program showed, and dry runs of its configs.

Observed runs of a GPU type and program refit the constants (`autotune.cost.learn.refit`) as trials
do, most of all their level. One that would pass the GPUs' peak was misread, and teaches nothing.

GPUs, nodes and links that a calibration found slower than their likes are kept by type of GPU until
their nodes are measured again.
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
from autotune.cost.learn.from_dry_runs import PLAYED_TRAINERS
from autotune.spec import Study, Trial, Workload, number_of
from autotune.spec.plain import identity
from autotune.trainers.base.own_program import COMMAND, program_name

if TYPE_CHECKING:
    from autotune.ports import CalibrationStore, KnowledgeStore, ObservedStore, ProfileStore

LOOKED_AT = 20
"""last runs that are looked at"""
MOST_WORKLOADS = 6
"""workloads of these"""


def measured_constants(workload: Workload, store: CalibrationStore | None) -> Calibration | None:
    """What `autotune calibrate` measured on this cluster for this trainer, where the store has
    it."""
    values = (
        store.calibration(workload.cluster.name, workload.trainer) if store is not None else None
    )
    if values is None:
        return None

    return Calibration.from_dict(values)


def known_constants(
    workload: Workload, store: KnowledgeStore | None, program: str = ""
) -> Calibration | None:
    """The measured constants, as observed runs of the program move them; None where the store has
    neither."""
    measured = measured_constants(workload, store)
    runs = _runs_like(workload, store, program) if store is not None else []
    if not runs:
        return measured

    return _taught(measured or calibration_for(workload), runs)


def stored_calibration(
    workload: Workload, store: KnowledgeStore | None, program: str = ""
) -> Calibration | None:
    """The measured constants as runs of the program move them, with the dry runs of the workload,
    where the store has any of these. `program`: its name (`autotune.trainers.base.own_program`),
    where the trainer is any program; its runs alone tell of it."""
    if store is None:
        return None

    measured, runs = known_constants(workload, store, program), find_profile(workload, store)
    if runs is None:
        return measured
    constants = measured or calibration_for(workload)
    said = (
        f"{constants.source}; memory and matrix products corrected by {len(runs.points)} dry runs"
    )
    return replace(constants, dry_runs=runs, source=said)


def find_profile(workload: Workload, store: ProfileStore | None) -> DryRuns | None:
    """The dry runs that the store keeps for the workload; None without any."""

    if store is None or workload.trainer not in PLAYED_TRAINERS:
        return None
    values = store.profile(profile_fingerprint(workload))
    return None if values is None else DryRuns.from_dict(values)


def profile_fingerprint(workload: Workload) -> str:
    """The same for workloads whose dry runs are the same."""

    plain: dict[str, Any] = workload.to_dict()
    model = {name: value for name, value in plain["model"].items() if name != "name"}
    trained = [workload.seq_len, workload.optimizer, workload.document_len, plain["peft"]]
    return identity([VERSION, model, trained, _versions(), workload.cluster.gpu.is_cpu])


@cache
def _versions() -> dict[str, str]:
    """Of the installed packages that decide a dry run."""
    found = {}
    for name in ("torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def program_of(study: Study) -> str:
    """The name of the program that the study's trials start."""
    return program_name(study.trainer, study.trainer_options)


def _runs_like(
    workload: Workload, store: ObservedStore, program: str
) -> list[tuple[Workload, Trial]]:
    """Measured runs of the same GPU type and program, on one node or on the same network; the last
    ones."""
    if workload.trainer == COMMAND and not program:
        return []
    name = program if workload.trainer == COMMAND else ""
    found = store.observed(
        gpu=workload.cluster.gpu.name,
        trainer=workload.trainer,
        program=name,
        measured=True,
        limit=LOOKED_AT,
    )
    pairs = [
        (run.workload, trial)
        for run in found
        if run.workload is not None and (trial := run.as_trial()) is not None
    ]
    return [
        (theirs, trial)
        for theirs, trial in pairs
        if (
            theirs.cluster.num_nodes == 1
            or theirs.cluster.inter_node.fabric == workload.cluster.inter_node.fabric
        )
        and trial.measurement is not None
        and (trial.measurement.mfu or 0.0) <= 1.0
    ]


def _taught(constants: Calibration, runs: list[tuple[Workload, Trial]]) -> Calibration:
    """The constants given these runs."""
    from autotune.cost.learn.correction import measured_workloads
    from autotune.cost.learn.refit import refit, uncertain

    told = measured_workloads(runs)[:MOST_WORKLOADS]
    known = refit(uncertain(constants), told)
    sigma = math.sqrt(float(known.covariance[-1, -1]))
    count = len(runs)
    return replace(
        known.constants,
        level=known.constants.level * math.exp(known.log_level),
        level_sigma=min(constants.level_sigma, sigma),
        source=f"{constants.source}; adjusted by {number_of(count, 'observed run')}",
    )


KEPT_AS = "out_of_line"
"""in the place of a trainer's name: hardware is slow whoever trains on it"""


def keep_outliers(store: CalibrationStore, gpu: str, measured: Mapping[str, Any]) -> None:
    """Keeps what a calibration says of nodes with this type of GPU; what was known of other nodes
    stays."""
    again = set(measured.get("nodes", ()))
    if again:
        rest = [entry for entry in known_outliers(store, gpu) if entry["node"] not in again]
        found = [
            {**entry, "date": measured.get("date", "")} for entry in measured.get("out_of_line", ())
        ]
        store.save_calibration(gpu, KEPT_AS, {"found": [*rest, *found]})


def known_outliers(store: CalibrationStore | None, gpu: str) -> list[Mapping[str, Any]]:
    """`OutOfLine` as plain values, each with the `date` of its calibration."""
    kept = store.calibration(gpu, KEPT_AS) if store is not None else None
    return list(kept["found"]) if kept else []
