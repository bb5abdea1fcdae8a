"""Answer "will it fit?" for the specified configs, or the best of the plan, or the one that comes
nearest to fitting: choose the ranks to dry-run, and use the cost model if none can be.

All ranks of a pipeline stage hold the same shapes, so one of each stage is enough; inner stages
differ from each other by at most a layer. The first holds the embedding and the most micro-batches
in flight, the last one the output projection and the loss: first, middle and last are run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.learn.from_dry_runs import DRY_RUN_TRAINER
from autotune.errors import ConfigError, DryRunError, SpecError
from autotune.plan.fit.answer import Fit, Reserved
from autotune.plan.plan import plan
from autotune.ports import DryRunLimits, DryRunner
from autotune.registry import dry_runner
from autotune.space import SearchSpace, why_not, why_not_in
from autotune.spec import DryRun, Estimate, ParallelConfig, Study, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """A dry run that begins or has ended."""

    config: ParallelConfig
    pp_rank: int
    """pipeline rank that is dry-run"""
    number: int
    """number of this run among the config's runs, from 1"""
    count: int
    """number of runs for the config"""
    run: DryRun | None = None
    """its result; None when it begins"""
    config_number: int = 1
    """number of the config among the requested ones, from 1"""
    config_count: int = 1
    """number of requested configs"""


OnRank = Callable[[RankProgress], None]


def configs_of(
    asked: Study | Workload,
    configs: ParallelConfig | Iterable[ParallelConfig] | None,
    *,
    top: int,
    calibration: Calibration | None,
    space: SearchSpace | None = None,
) -> tuple[ParallelConfig, ...]:
    """The configs to answer for. `space`: the study's space, if it is already enumerated. Raises
    `ConfigError` for an invalid config, `SpecError` for a workload without configs."""
    if configs is None:
        if isinstance(asked, Workload):
            raise SpecError(
                "a workload has no search space from which configs could be taken",
                remedy="pass the configs to check, or a study",
                field="configs",
            )
        found = plan(space or SearchSpace.of_study(asked), calibration=calibration, top=top)
        if found.nearest_miss is not None:
            return (found.nearest_miss.config,)
        return tuple(row.config for row in found.rows)
    chosen = (configs,) if isinstance(configs, ParallelConfig) else tuple(configs)
    for config in chosen:
        reason = why_not_in(asked, config) if isinstance(asked, Study) else why_not(asked, config)
        if reason is not None:
            raise ConfigError(reason)
    return chosen


def pipeline_ranks(pp: int) -> tuple[int, ...]:
    """First, middle and last rank of a pipeline of `pp` ranks, each once."""
    return tuple(sorted({0, pp // 2, pp - 1}))


def answer(
    workload: Workload,
    config: ParallelConfig,
    *,
    runner: DryRunner,
    limits: DryRunLimits | None = None,
    calibration: Calibration | None = None,
    on_rank: OnRank | None = None,
) -> Fit:
    """Whether the config fits: by dry runs of its pipeline ranks if they execute the study's
    trainer, otherwise by the cost model.

    `Fit.problem` says why no dry run was possible.
    """
    constants = calibration or calibration_for(workload)
    predicted = estimate(workload, config, calibration=constants)
    begun = time.monotonic()
    tell = on_rank or (lambda _: None)
    runs: list[DryRun] = []
    ranks = pipeline_ranks(config.pp)
    try:
        if workload.model.is_counted:
            raise DryRunError(
                f"a dry run builds the model, but only the weight count of {workload.model.name} is known",
                remedy="set `model` to the model's fields, {hf: PATH} or {module: PACKAGE.MODULE:FUNCTION}",
            )
        for number, pp_rank in enumerate(ranks, start=1):
            tell(RankProgress(config=config, pp_rank=pp_rank, number=number, count=len(ranks)))
            run = runner.run(workload, config, pp_rank=pp_rank, limits=limits or DryRunLimits())
            tell(
                RankProgress(
                    config=config, pp_rank=pp_rank, number=number, count=len(ranks), run=run
                )
            )
            runs.append(run)
    except DryRunError as error:
        return Fit(
            workload=workload,
            config=config,
            runs=(),
            estimate=predicted,
            reserved=_predicted(workload, predicted, constants),
            problem=error.message,
            remedy=error.remedy,
            notes=workload.model.assumptions,
            took_s=time.monotonic() - begun,
        )
    allocated = max(run.peak.total_bytes for run in runs)
    runs_study_trainer = workload.trainer == DRY_RUN_TRAINER
    assumed = (
        () if runs_study_trainer else workload.model.assumptions
    )  # a dry run builds the real model
    return Fit(
        workload=workload,
        config=config,
        runs=tuple(runs),
        estimate=predicted,
        reserved=Reserved.of(allocated, workload, constants)
        if runs_study_trainer
        else _predicted(workload, predicted, constants),
        notes=assumed,
        took_s=time.monotonic() - begun,
    )


def answers(
    workload: Workload,
    configs: Iterable[ParallelConfig],
    *,
    runner: DryRunner | None = None,
    limits: DryRunLimits | None = None,
    calibration: Calibration | None = None,
    on_rank: OnRank | None = None,
) -> tuple[Fit, ...]:
    """The answer for each config; if `runner` is None, the built-in one is
    used. Raises `MissingExtraError` without torch."""
    runs_by = runner or dry_runner()
    asked = tuple(configs)

    def tell(number: int, now: RankProgress) -> None:
        if on_rank is not None:
            on_rank(replace(now, config_number=number, config_count=len(asked)))

    return tuple(
        answer(
            workload,
            config,
            runner=runs_by,
            limits=limits,
            calibration=calibration,
            on_rank=partial(tell, number),
        )
        for number, config in enumerate(asked, start=1)
    )


def _predicted(workload: Workload, predicted: Estimate, constants: Calibration) -> Reserved:
    """Return the memory that the cost model predicts to be reserved."""
    return Reserved(
        peak_bytes=float(predicted.peak_memory_bytes),
        low_bytes=float(predicted.peak_memory_low_bytes),
        high_bytes=float(predicted.peak_memory_high_bytes),
        usable_bytes=workload.cluster.gpu.memory_bytes * constants.usable_fraction,
        oom_probability=float(predicted.oom_probability),
        source=constants.source,
    )
