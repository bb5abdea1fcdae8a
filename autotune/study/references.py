"""Losses of fp32 trials, measured once and stored for every later study of the same model, data and
seed.

A curve is stored under all that decides which numbers are computed: model, data, seed, sequence
length, global batch, optimizer, trainer with its options (e.g. the learning rate) and warm-up
steps. Simulated losses are never used for real trials.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autotune.ports import ReferenceLossStore
from autotune.spec import Study, Trial, TrialPurpose
from autotune.spec.plain import identity
from autotune.spec.study import SIMULATED
from autotune.study.assembly import Assembly
from autotune.study.controller.finals.finalists import whole

SHIPPED = "the bundled text"


def known_losses(assembly: Assembly, store: ReferenceLossStore) -> dict[int, tuple[float, ...]]:
    """Losses by tokens per step, for the global batches at which they are needed and an earlier
    study measured them for as many steps."""
    study, found = assembly.study, dict[int, tuple[float, ...]]()
    for batch in assembly.references:
        losses = store.reference_losses(study.workload.model.name, _data(study, batch), study.seed)
        if losses and len(losses) >= whole(study.measure).max_steps:
            found[batch * study.workload.seq_len] = losses
    return found


def keep_losses(assembly: Assembly, store: ReferenceLossStore, trials: Iterable[Trial]) -> None:
    """Keeps the losses of this study's reference trials."""
    study = assembly.study
    for trial in trials:
        if trial.purpose is TrialPurpose.REFERENCE and trial.is_measured:
            losses = trial.measurement.losses if trial.measurement is not None else ()
            data = _data(study, trial.config.global_batch_size)
            store.save_reference_losses(study.workload.model.name, data, study.seed, losses)


def _data(study: Study, batch: int) -> str:
    name = study.data or SHIPPED
    size = Path(name).stat().st_size if study.data and Path(name).is_file() else 0
    workload, made_up = study.workload, "simulated, " if study.runner == SIMULATED else ""
    # two models may have one name
    digest = identity([workload.to_dict()["model"], dict(study.trainer_options)])[:12]
    return (
        f"{made_up}{name} of {size} bytes, {batch} x {workload.seq_len}, {workload.optimizer}, {study.trainer}, "
        f"warm-up {study.measure.warmup_steps}, model and options {digest}"
    )
