"""Which configs are asked about: those that are named, else the best of the plan, else the one that comes nearest to fitting."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.cost import Calibration
from autotune.errors import ConfigError, SpecError
from autotune.planning import plan
from autotune.space import SearchSpace, why_not, why_not_in
from autotune.spec import ParallelConfig, Study, Workload


def configs_of(
    asked: Study | Workload,
    configs: ParallelConfig | Iterable[ParallelConfig] | None,
    *,
    top: int,
    calibration: Calibration | None,
    space: SearchSpace | None = None,
) -> tuple[ParallelConfig, ...]:
    """The configs to answer for. `space`: the study's space, if it is already enumerated. Raises `ConfigError` for an invalid config, `SpecError` for a workload without configs."""
    if configs is None:
        if isinstance(asked, Workload):
            raise SpecError(
                "a workload has no search space, so the configs to check must be given",
                remedy="specify configs, or pass a study",
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
