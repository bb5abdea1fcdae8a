"""Losses of fp32 trials, stored for later studies of the same model, data and seed.

The key of a curve contains everything that determines the losses: model, data, seed, sequence
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
    """Stored fp32 losses by tokens per step, for the global batches that need a reference and have
    enough stored steps."""
    study, by_tokens = assembly.study, dict[int, tuple[float, ...]]()
    for batch in assembly.references:
        losses = store.reference_losses(study.workload.model.name, _data(study, batch), study.seed)
        if losses and len(losses) >= whole(study.measure).max_steps:
            by_tokens[batch * study.workload.seq_len] = losses
    return by_tokens


def keep_losses(assembly: Assembly, store: ReferenceLossStore, trials: Iterable[Trial]) -> None:
    """Store the losses of this study's reference trials."""
    study = assembly.study
    for trial in trials:
        if trial.purpose is TrialPurpose.REFERENCE and trial.is_measured:
            losses = trial.measurement.losses if trial.measurement is not None else ()
            data = _data(study, trial.config.global_batch_size)
            store.save_reference_losses(study.workload.model.name, data, study.seed, losses)


def _data(study: Study, batch: int) -> str:
    """The part of the key besides model name and seed."""
    name = study.data or SHIPPED
    size = Path(name).stat().st_size if study.data and Path(name).is_file() else 0
    workload, made_up = study.workload, "simulated, " if study.runner == SIMULATED else ""
    # different models may have the same name
    digest = identity([workload.to_dict()["model"], dict(study.trainer_options)])[:12]
    return (
        f"{made_up}{name} of {size} bytes, {batch} x {workload.seq_len}, {workload.optimizer}, {study.trainer}, "
        f"warm-up {study.measure.warmup_steps}, model and options {digest}"
    )
