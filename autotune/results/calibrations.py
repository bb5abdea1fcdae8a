"""What the store knows of a workload beside the formulas: constants that were measured on its cluster, and the profile of its model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.spec import Workload

if TYPE_CHECKING:
    from autotune.cost import Calibration
    from autotune.ports import CalibrationStore, KnowledgeStore


def measured_constants(workload: Workload, store: CalibrationStore | None) -> Calibration | None:
    """What `autotune calibrate` measured on this cluster for this trainer, where the store has it."""
    values = store.calibration(workload.cluster.name, workload.trainer) if store is not None else None
    if values is None:
        return None
    from autotune.cost import Calibration

    return Calibration.from_dict(values)


def stored_calibration(workload: Workload, store: KnowledgeStore | None) -> Calibration | None:
    """The measured constants with the profile of the model, where the store has either."""
    if store is None:
        return None
    from autotune.cost import calibration_for
    from autotune.profiling import find_profile

    measured, profile = measured_constants(workload, store), find_profile(workload, store)
    if profile is None:
        return measured
    constants = measured or calibration_for(workload)
    said = f"{constants.source}; memory, FLOPs and traffic from {profile.words}"
    return replace(constants, profile=profile, source=said)
