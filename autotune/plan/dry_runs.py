"""Dry runs of a space: which of its configs are run dry, so that a plan is right for what it
recommends, and the formulas of the others are corrected.

    leaders   the `TOP` best of the plan; each has the peak of its own dry run
    pins      configs of which the least is known: what depth, micro-batch, recomputation and sharding do to memory (`autotune.cost.learn.from_dry_runs`)

Pins come first, then leaders: what a run says may put others in front. Dry runs are kept under the
fingerprint of the workload and of what ran it, and found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.learn.dry_runs import DryRuns, RunDry, shortened
from autotune.cost.learn.from_dry_runs import PLAYED_TRAINERS
from autotune.cost.learn.uncertainty import Z90, spread_of_memory
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
"""best configs of a plan that are run dry"""
PINS = 7
"""configs that are run for what they tell of others, at most"""
MOST_RUNS = 16
"""configs of a space that are run dry, at most"""
WIDE = 0.05
"""spread of a config's memory (standard deviation of its log) from which on it is worth a run"""
LOOKED_AT = 20_000
"""configs among which the widest is looked for"""
FIRST_PROFILE = (
    "first plan of this model: up to {count} configs are dry-run once, which may take minutes; "
    "use --no-profile to skip the dry runs and predict memory from a decoder's formulas"
)
"""what to say before the first dry run, where a person waits"""
OnRun = Callable[[int, int, str], None]
"""is told of a config before it is run dry: its number from 1, how many there may be, what is
run"""


def dry_run_words(number: int, count: int, what: str) -> str:
    """What `OnRun` hears, as a line."""
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
    """The dry runs by which plans, estimates and searches correct the memory of the study's
    configs; those that `store` lacks are made, and kept there.

    `configs`: runs these alone, in place of leaders and pins. Building a model of your own runs its
    code, in a process of its own within `limits`. `on_run` hears of each config before it is run.
    `space`: the study's space, if it is already enumerated. Raises `DryRunError` where the model
    cannot be run dry, and `MissingExtraError` without torch. A single config that cannot is named
    in `DryRuns.failed`.
    """
    workload = study.workload
    _refuse(workload)
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


def _refuse(workload: Workload) -> None:
    """Raises `DryRunError` where dry runs do not tell of the workload's memory."""
    model, code = workload.model, workload.model.code
    remedy = (
        "plans and searches use the memory formulas; `autotune fit --config` dry-runs one config"
    )
    if workload.trainer not in PLAYED_TRAINERS:
        raise DryRunError(
            f"dry runs report memory only for trainers whose code they run ({', '.join(PLAYED_TRAINERS)}), but trainer={workload.trainer}",
            remedy=remedy,
        )
    if code is not None and code.has_towers:
        raise DryRunError(
            f"a dry run trains the model on tokens, but {model.name} has parts that take other inputs",
            remedy=remedy,
        )


def _run(
    workload: Workload, config: ParallelConfig, runner: DryRunner, limits: DryRunLimits
) -> RunDry:
    """The first, middle and last rank of its pipeline, run dry."""
    asked = replace(workload, global_batch_size=config.global_batch_size)
    runs = (
        runner.run(asked, config, pp_rank=rank, limits=limits) for rank in pipeline_ranks(config.pp)
    )
    return RunDry.of(config, tuple(runs))


def next_run(found: DryRuns, space: SearchSpace, constants: Calibration) -> ParallelConfig | None:
    """The config to run next; None where the best of the plan are known."""
    corrected = replace(constants, dry_runs=found)
    ranked = plan(space, calibration=corrected, top=TOP)
    best = [row.config for row in ranked.rows] or (
        [ranked.nearest_miss.config] if ranked.nearest_miss else []
    )
    leader = _unknown(found, (shortened(config) for config in best))
    if leader is None or not found.points or len(found.points) > PINS:
        return leader
    sigma = spread_of(space, corrected)
    widest = int(np.argmax(sigma))
    pin = shortened(space[widest * _stride(space)])
    return leader if sigma[widest] < WIDE or found.is_known(pin) else pin


def _unknown(found: DryRuns, configs: Iterable[ParallelConfig]) -> ParallelConfig | None:
    return next((config for config in configs if not found.is_known(config)), None)


def _stride(space: SearchSpace) -> int:
    return -(-len(space) // LOOKED_AT)


def spread_of(space: SearchSpace, constants: Calibration) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Standard deviation of the log of each config's memory; of a large space, of some."""
    rows = space.table.take(slice(None, None, _stride(space)))
    found = estimate(space.workload, rows, calibration=constants)
    return spread_of_memory(found)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One dry run beside what the others say of its config."""

    config: str
    predicted_bytes: float
    run_bytes: float
    spread: float
    """90% of such errors are said to be within it, as a share"""

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted_bytes / self.run_bytes - 1.0


def checks_of(found: DryRuns, workload: Workload, constants: Calibration) -> list[Check]:
    """Each dry run left out in turn."""
    checks = []
    for point in found.points if len(found.points) > 1 else ():
        others = replace(found, points=tuple(other for other in found.points if other is not point))
        here, there = (
            estimate(workload, point.config, calibration=replace(constants, dry_runs=runs))
            for runs in (found, others)
        )
        predicted, low = float(there.peak_memory_bytes), float(there.peak_memory_low_bytes)
        checks.append(
            Check(
                config=str(point.config),
                predicted_bytes=predicted,
                run_bytes=float(here.peak_memory_bytes),
                spread=predicted / low - 1.0,
            )
        )
    return checks


def profile_document(found: DryRuns, space: SearchSpace, constants: Calibration) -> dict[str, Any]:
    """The dry runs, each beside what the others say of it, and how far the other configs may be
    off, as plain JSON values."""
    checks = [
        {
            "config": c.config,
            "predicted_bytes": c.predicted_bytes,
            "run_bytes": c.run_bytes,
            "error": c.error,
        }
        for c in checks_of(found, space.workload, constants)
    ]
    spread = float(np.median(spread_of(space, replace(constants, dry_runs=found)))) * Z90
    runs = [str(point.config) for point in found.points]
    known = {"fingerprint": found.fingerprint, "runs": runs, "failed": dict(found.failed)}
    return {**known, "checks": checks, "configs": len(space), "spread": spread}


def profile_lines(document: dict[str, Any]) -> list[str]:
    """The same in sentences."""
    others = f"for the other configs ({document['configs']:,} in all), memory comes from formulas corrected by these runs, within {document['spread']:.1%}"
    lines = [
        f"memory comes from {number_of(len(document['runs']), 'dry run')}; plan, estimate and tune use it; {others}"
    ]
    lines += [
        f"{check['config']}: predicted from the other runs with an error of {check['error']:+.1%}"
        for check in document["checks"]
    ]
    return lines + [f"not run, {config}: {reason}" for config, reason in document["failed"].items()]


def ensure_profile(
    study: Study,
    store: KnowledgeStore | None,
    *,
    space: SearchSpace | None = None,
    on_run: OnRun | None = None,
    runner: DryRunner | None = None,
    configs: Iterable[ParallelConfig] | None = None,
) -> str:
    """Makes and keeps the dry runs of a model that code builds, where they are needed and `store`
    lacks them. Returns in one line why none could be made.

    The formulas answer for the shapes of the catalog, which they know; of other models they know
    what a decoder of like size takes. Where no dry run can be made they answer too, so nothing is
    raised for that. Without a store nothing is made, because the next answer would have to make it
    again.
    """
    workload = study.workload
    if store is None or workload.model.code is None or workload.trainer not in PLAYED_TRAINERS:
        return ""
    try:
        profile_study(
            study, store=store, on_run=on_run, runner=runner, space=space, configs=configs
        )
    except (DryRunError, MissingExtraError) as error:
        return " ".join(error.message.split())
    return ""
