"""Measures the cluster at hand, so that the cost model knows what it really does and not what its datasheet promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from autotune.errors import SpecError
from autotune.ports import Store

if TYPE_CHECKING:
    from autotune.cost import Calibration

LOCAL = "local"


def calibrate(
    cluster: str = LOCAL,
    *,
    store: Store | None = None,
    on_progress: Callable[[str], None] | None = None,
    trainer: str = "native",
) -> Calibration:
    """Measures this machine in about a minute; kept in `store`, where one is given, for the cost model of later studies.

    `cluster` is `local`, or the name of another registered calibrator's cluster. Raises `SpecError` for a cluster that is not here and
    `RunnerError` when ranks cannot be run.
    """
    from autotune.cost import Calibration
    from autotune.detect import local_cluster
    from autotune.registry import calibrator, calibrator_names

    if cluster not in calibrator_names():
        raise SpecError(
            f"only what is here can be measured, but {cluster!r} is no registered calibrator",
            remedy=f"use {', '.join(calibrator_names())} on a machine of that cluster",
            field="cluster",
        )
    tell = on_progress or (lambda _: None)
    measured = calibrator(cluster)(progress=lambda what, done: tell(f"{done:4.0%} {what}"))
    here = local_cluster()
    constants = Calibration.from_measurements(measured, cluster=here, trainer=trainer)
    save = getattr(store, "save_calibration", None)
    if save is not None:
        save(here.name, trainer, constants.to_dict())
    return constants
