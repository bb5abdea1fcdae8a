"""A quick calibration before a study whose cluster was never measured: it takes less than 20 s and
makes the predicted order of configs far more accurate.

It is done for new studies with real trials of the native trainer on the cluster of this machine
(runner `local` or `ray`) if the store holds no calibration. It is skipped if the spec has
`calibrate: false`, or if the budget covers the whole space, so that the order does not matter. It is
stored before the first trial, so that a resumed study makes the same predictions. `autotune
calibrate` replaces it by a full calibration.

Also the dry runs that profile a model built by code, before its first study.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autotune.cost import Calibration
from autotune.errors import AutotuneError, ConflictError, StoreError
from autotune.plan.dry_runs import FIRST_PROFILE, dry_run_line, ensure_profile
from autotune.ports import CalibrationStore, Store
from autotune.registry import CALIBRATORS, calibrator, registered
from autotune.results.calibrations import measured_constants, save_outliers
from autotune.space import SearchSpace
from autotune.spec import Study, Trial
from autotune.spec.texts.as_text import format_span
from autotune.study.assembly import assemble
from autotune.study.preflight import check_here
from autotune.study.progress import Notice, OnEvent

REAL = ("local", "ray")
"""runners whose trials run on this machine, or on the Ray cluster to which it belongs"""
NATIVE = "native"
CALIBRATOR = "local"
MARK = "quick calibration: "
"""prefix of the `source` of a quick calibration"""


def needs_calibration(
    study: Study, store: CalibrationStore, past: Sequence[Trial], num_configs: int
) -> bool:
    """Whether to calibrate before this study. `past`: its earlier trials; `num_configs`: size of its
    space."""
    from autotune.detect import local_cluster

    is_real = (
        study.trainer == NATIVE and study.runner in REAL and "trial" not in study.runner_options
    )
    if not study.calibrate or not is_real or past:
        return False
    if num_configs <= study.budget.max_trials or CALIBRATOR not in registered(CALIBRATORS):
        return False
    if measured_constants(study.workload, store) is not None:
        return False
    return study.workload.cluster.name == local_cluster().name


def calibrate_quickly(
    study: Study, store: CalibrationStore, tell: OnEvent, interrupted: Callable[[], bool]
) -> Calibration | None:
    """Calibrate the cluster, store its constants and return them. Returns None if that failed or was
    interrupted; the study then uses the shipped constants."""

    cluster = study.workload.cluster
    began_s = time.monotonic()
    tell(
        Notice(
            message=f"the cluster {cluster.name} has no calibration, so its speed will now be measured for better predictions, which takes about 15 s (`calibrate: false` in the spec skips this)"
        )
    )
    try:
        measured = calibrator(CALIBRATOR)(
            progress=lambda what, done: tell(Notice(message=f"calibrating: {done:4.0%} {what}")),
            quick=True,
            runner=study.runner,
            runner_options=study.runner_options,
            interrupted=interrupted,
        )
        constants = Calibration.from_measurements(measured, cluster=cluster, trainer=study.trainer)
    except (ConflictError, StoreError):
        raise
    except AutotuneError as error:
        failed = f"the cluster could not be calibrated, so predictions use the shipped constants: {error}"
        tell(Notice(message="the calibration was interrupted" if interrupted() else failed))
        return None
    save_outliers(store, cluster.gpu.name, measured)
    values = {**constants.to_dict(), "source": MARK + constants.source}
    store.save_calibration(cluster.name, study.trainer, values)
    took_s = time.monotonic() - began_s
    tell(
        Notice(message=f"calibrated in {format_span(took_s)}; `autotune calibrate` is more precise")
    )
    return Calibration.from_dict(values)


def profile_first(study: Study, store: Store, tell: OnEvent, *, passed: bool) -> None:
    """Do the dry runs that are missing for the study's model, and report progress or why they were
    impossible. `passed`: whether the runner is passed as an object, which has no preflight."""
    space = SearchSpace.of_study(study)
    if not passed:  # fail before the dry runs if the study cannot run here
        if study.at_hand is None:
            check_here(study, space)
        else:
            here = assemble(study, store).runs_here
            check_here(here.study, here.space)

    def on_run(number: int, count: int, what: str) -> None:
        if number == 1:
            tell(Notice(message=FIRST_PROFILE.format(count=count)))
        tell(Notice(message=dry_run_line(number, count, what)))

    problem = ensure_profile(study, store, space=space, on_run=on_run)
    if problem:
        tell(
            Notice(
                message=f"memory is computed with a decoder's formulas, because the dry run failed: {problem}"
            )
        )
