"""Calibrations of the cost model that the store keeps for a cluster and trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.ports import CalibrationStore
from autotune.spec import Workload

if TYPE_CHECKING:
    from autotune.cost import Calibration


def stored_calibration(workload: Workload, store: CalibrationStore | None) -> Calibration | None:
    """What `autotune calibrate` measured on this cluster for this trainer, where the store has it."""
    values = store.calibration(workload.cluster.name, workload.trainer) if store is not None else None
    if values is None:
        return None
    from autotune.cost import Calibration

    return Calibration.from_dict(values)
