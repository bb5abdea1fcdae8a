"""Choose and make the dry runs of a space: the recommended configs get an exact peak, and the
formulas for the others are corrected.

    leaders   the `TOP` best configs of the plan; each has the peak of its own dry run
    pins      configs with the most uncertain memory, from which the effects of depth, micro-batch, recomputation and sharding are fitted (`autotune.cost.learn.from_dry_runs`)

Pins come first, then leaders, because each result may change the ranking. Dry runs are stored under
a hash of the workload and the package versions, and reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.learn.dry_runs import ConfigDryRun, DryRuns, shortened
from autotune.cost.learn.from_dry_runs import DRY_RUN_TRAINER
from autotune.cost.learn.uncertainty import Z90, memory_log_sigma
from autotune.errors import DryRunError, MissingExtraError
from autotune.plan.fit import pipeline_ranks
from autotune.plan.plan import plan
from autotune.ports import DryRunLimits, DryRunner, KnowledgeStore
from autotune.registry import dry_runner
from autotune.results.calibrations import (
    find_profile,
    known_constants,
    profile_fingerprint,
    program_of,
)
from autotune.space import SearchSpace
from autotune.spec import ParallelConfig, Study, Workload, number_of

TOP = 5
"""number of best configs of a plan that are dry-run"""
PINS = 7
"""maximum number of configs that are dry-run to correct the formulas"""
MOST_RUNS = 16
"""maximum number of dry-run configs of a space"""
LEAST_SIGMA = 0.05
"""minimum standard deviation of a config's ln memory for it to be dry-run as a pin"""
MOST_SAMPLED = 20_000
"""maximum number of configs among which the most uncertain one is searched"""
FIRST_PROFILE = (
    "first plan of this model: up to {count} configs are dry-run once, which may take minutes; "
    "use --no-profile to skip the dry runs and predict memory from a decoder's formulas"
)
"""text shown before the first dry run in an interactive command"""
OnRun = Callable[[int, int, str], None]
"""called before each dry run with its number from 1, the maximum number of runs, and the config as
text"""


def dry_run_line(number: int, count: int, what: str) -> str:
    """Return the arguments of `OnRun` as a line of text."""
    return f"dry run {number} of at most {count}: {what}"


def profile_study(
    study: Study,
    *,
    store: KnowledgeStore | None = None,
    limits: DryRunLimits | None = None,
    on_run: OnRun | None = None,
    runner: DryRunner | None = None,
    space: SearchSpace | None = None,
    configs: Iterable[ParallelConfig] | None = None,
) -> DryRuns:
    """Return the dry runs with which plans, estimates and searches correct the memory of the
    study's configs; make those missing in `store` and save them there.

    `configs`: dry-run only these, instead of leaders and pins. A model defined by your own code is
    built in a separate process within `limits`. `on_run` is called before each dry run. `space`:
    the study's space, if it is already enumerated. Raises `DryRunError` if the model cannot be
    dry-run, and `MissingExtraError` without torch. Single configs that fail are in
    `DryRuns.failed`.
    """
    workload = study.workload
    _require_valid_dry_runs(workload)
    constants = known_constants(workload, store, program_of(study)) or calibration_for(workload)
    space = space or SearchSpace.of_study(study)
    found = find_profile(workload, store) or DryRuns(fingerprint=profile_fingerprint(workload))
    asked = None if configs is None else [shortened(config) for config in configs]
    for number in range(1, MOST_RUNS + 1):
        config = next_run(found, space, constants) if asked is None else _unknown(found, asked)
        if config is None:
            break
        if on_run is not None:
            on_run(number, MOST_RUNS, str(config))
        try:
            run = _run(workload, config, runner or dry_runner(), limits or DryRunLimits())
        except DryRunError as error:
            if not found.points:  # a model that fails here fails in all
                raise
            found = replace(
                found, failed={**found.failed, str(config): " ".join(error.message.split())}
            )
        else:
            found = replace(found, points=(*found.points, run))
        if store is not None:
            store.save_profile(found.fingerprint, found.to_dict())
    return found


def _require_valid_dry_runs(workload: Workload) -> None:
    """Raise `DryRunError` if dry runs do not represent the workload's memory."""
    model, code = workload.model, workload.model.code
    remedy = (
        "plans and searches use the memory formulas; `autotune fit --config` dry-runs one config"
    )
    if workload.trainer != DRY_RUN_TRAINER:
        raise DryRunError(
            f"dry runs report memory only for trainers whose code they run ({DRY_RUN_TRAINER}), but trainer={workload.trainer}",
            remedy=remedy,
        )
    if code is not None and code.has_towers:
        raise DryRunError(
            f"a dry run trains the model on tokens, but {model.name} has parts that take other inputs",
            remedy=remedy,
        )


def _run(
    workload: Workload, config: ParallelConfig, runner: DryRunner, limits: DryRunLimits
) -> ConfigDryRun:
    """Dry-run the first, middle and last rank of the config's pipeline."""
    asked = replace(workload, global_batch_size=config.global_batch_size)
    runs = (
        runner.run(asked, config, pp_rank=rank, limits=limits) for rank in pipeline_ranks(config.pp)
    )
    return ConfigDryRun.of(config, tuple(runs))


def next_run(found: DryRuns, space: SearchSpace, constants: Calibration) -> ParallelConfig | None:
    """Return the config to dry-run next; None if the best configs of the plan are known."""
    corrected = replace(constants, dry_runs=found)
    ranked = plan(space, calibration=corrected, top=TOP)
    best = [row.config for row in ranked.rows] or (
        [ranked.nearest_miss.config] if ranked.nearest_miss else []
    )
    leader = _unknown(found, (shortened(config) for config in best))
    if leader is None or not found.points or len(found.points) > PINS:
        return leader
    sigma = memory_sigmas(space, corrected)
    widest = int(np.argmax(sigma))
    pin = shortened(space[widest * _stride(space)])
    return leader if sigma[widest] < LEAST_SIGMA or found.is_known(pin) else pin


def _unknown(found: DryRuns, configs: Iterable[ParallelConfig]) -> ParallelConfig | None:
    return next((config for config in configs if not found.is_known(config)), None)


def _stride(space: SearchSpace) -> int:
    return -(-len(space) // MOST_SAMPLED)


def memory_sigmas(
    space: SearchSpace, constants: Calibration
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the standard deviation of ln peak memory of each config, or of every n-th config of a
    space larger than `MOST_SAMPLED`."""
    rows = space.table.take(slice(None, None, _stride(space)))
    return memory_log_sigma(estimate(space.workload, rows, calibration=constants))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRun:
    """One dry run, and the prediction for its config from all other dry runs."""

    config: str
    predicted_bytes: float
    run_bytes: float
    spread: float
    """predicted relative error that 90% of errors should not exceed"""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_bytes / self.run_bytes - 1.0


def leave_one_out(found: DryRuns, workload: Workload, constants: Calibration) -> list[LeftOutRun]:
    """Predict each dry run from all others; empty for fewer than two."""
    checks = []
    for point in found.points if len(found.points) > 1 else ():
        others = replace(found, points=tuple(other for other in found.points if other is not point))
        here, there = (
            estimate(workload, point.config, calibration=replace(constants, dry_runs=runs))
            for runs in (found, others)
        )
        predicted, low = float(there.peak_memory_bytes), float(there.peak_memory_low_bytes)
        checks.append(
            LeftOutRun(
                config=str(point.config),
                predicted_bytes=predicted,
                run_bytes=float(here.peak_memory_bytes),
                spread=predicted / low - 1.0,
            )
        )
    return checks


def profile_document(found: DryRuns, space: SearchSpace, constants: Calibration) -> dict[str, Any]:
    """Return the dry runs, the prediction of each from the others, and the 90% relative error
    expected for other configs, as plain JSON values."""
    checks = [
        {
            "config": c.config,
            "predicted_bytes": c.predicted_bytes,
            "run_bytes": c.run_bytes,
            "error": c.error,
        }
        for c in leave_one_out(found, space.workload, constants)
    ]
    spread = float(np.median(memory_sigmas(space, replace(constants, dry_runs=found)))) * Z90
    runs = [str(point.config) for point in found.points]
    known = {"fingerprint": found.fingerprint, "runs": runs, "failed": dict(found.failed)}
    return {**known, "checks": checks, "configs": len(space), "spread": spread}


def profile_lines(document: dict[str, Any]) -> list[str]:
    """Return `profile_document` as sentences."""
    others = f"for the other configs ({document['configs']:,} in all), memory comes from formulas corrected by these runs, within {document['spread']:.1%}"
    return [
        f"memory comes from {number_of(len(document['runs']), 'dry run')}; plan, estimate and tune use it; {others}",
        *(
            f"{check['config']}: predicted from the other runs with an error of {check['error']:+.1%}"
            for check in document["checks"]
        ),
        *(f"not run, {config}: {reason}" for config, reason in document["failed"].items()),
    ]


def ensure_profile(
    study: Study,
    store: KnowledgeStore | None,
    *,
    space: SearchSpace | None = None,
    on_run: OnRun | None = None,
    runner: DryRunner | None = None,
    configs: Iterable[ParallelConfig] | None = None,
) -> str:
    """Make and store the dry runs of a model defined by code, if they are needed and missing in
    `store`. Return one line on why none could be made; empty if they were made or not needed.

    The formulas are fitted to the architectures of the catalog; any other model is treated as a
    decoder of its size. They are also the fallback if a dry run is impossible, so that is not an
    error. Without a store nothing is made, because every plan would have to repeat the dry runs.
    """
    workload = study.workload
    if store is None or workload.model.code is None or workload.trainer != DRY_RUN_TRAINER:
        return ""
    try:
        profile_study(
            study, store=store, on_run=on_run, runner=runner, space=space, configs=configs
        )
    except (DryRunError, MissingExtraError) as error:
        return " ".join(error.message.split())
    return ""
