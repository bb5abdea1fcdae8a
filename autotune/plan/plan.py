"""A plan: every valid config of a space, ranked by its predicted speed before anything runs.

    value = predicted tokens/s * (1 - P(OOM))          of the whole job: the expected speed if the config is tried

A config is expected to fit if P(OOM) is at most `FITS`. If no config is, the plan contains the one
that comes nearest, and changes that would make it fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.cost import Calibration, calibration_for, estimate
from autotune.errors import InfeasibleError
from autotune.space import Launchable, SearchSpace, default_config, distance_from_plain, why_not
from autotune.space.enumeration import MEMORY
from autotune.spec import ClusterSpec, ConfigTable, Estimate, ParallelConfig, SpaceSpec, Workload
from autotune.spec.checks import positive, positive_int
from autotune.spec.estimate import risk_text
from autotune.spec.plain import Plain, to_plain
from autotune.spec.post_training import RL_KNOBS
from autotune.spec.texts.as_text import format_bytes, number_of

FITS = 0.5
"""maximum P(OOM) of a config that is expected to fit"""
SAFE = 0.15
"""maximum P(OOM) of a baseline, if the space has such a config"""
_SIMPLEST_FIRST = (
    *("tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps"),
    *("precision", "zero_stage", "recompute"),
)
"""knobs that order the candidates for a baseline; changes of other knobs are avoided first"""
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedConfig(Plain):
    """One ranked config."""

    rank: int
    """from 1, best first"""
    config: ParallelConfig
    estimate: Estimate
    """floats"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMiss(Plain):
    """The config that comes nearest to fitting, when none fits."""

    config: ParallelConfig
    estimate: Estimate
    """floats"""
    remedies: tuple[str, ...]
    """texts of changes that would make it fit, fastest first"""

    @property
    def need(self) -> str:
        """Text of its peak memory and risk; the memory alone may be less than that of the GPU."""
        size, risk = (
            format_bytes(float(self.estimate.peak_memory_bytes)),
            float(self.estimate.oom_probability),
        )
        return f"{size}, with a risk of {risk_text(risk)} of running out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ranked configs of a space, and the number of others by reason."""

    workload: Workload
    rows: tuple[RankedConfig, ...]
    """the best configs, best first"""
    feasible: int
    """number of configs that are valid and expected to fit"""
    infeasible: Mapping[str, int]
    """number of all others by reason: the violated rule, or "memory\""""
    nearest_miss: NearestMiss | None = None
    """set when nothing is feasible"""
    source: str = ""
    """where the cost model's constants come from"""
    baseline: RankedConfig | None = None
    """the baseline, with rank 0; None if it cannot run or nothing is feasible"""
    not_modelled: tuple[str, ...] = ()
    """the study's own knobs: the cost model ignores them, so the rows have their defaults"""
    post_training: Mapping[str, Any] = field(default_factory=dict)
    """for a workload with `rl`: assumptions, splits of the GPUs, and the step time with one more
    node (`autotune.plan.rl_split`)"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: configs, feasible, infeasible, nearest_miss, source, baseline,
        not_modelled, assumed."""
        document: dict[str, Any] = to_plain(
            {
                "configs": self.rows,
                "feasible": self.feasible,
                "infeasible": self.infeasible,
                "nearest_miss": self.nearest_miss,
                "source": self.source,
                "baseline": self.baseline,
                "not_modelled": self.not_modelled,
                "assumed": self.workload.assumptions,
                **({"post_training": self.post_training} if self.post_training else {}),
            }
        )
        return document


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bill(Plain):
    """Time, cost and energy of a training on a cluster.

    gpu hours = days * 24 * GPUs          cost = gpu hours * price of a GPU          energy = gpu hours * board power of a GPU

    All GPUs of the cluster are counted at their price and their power under load, including those
    that a config does not use. Energy is that of the boards, without hosts, network and cooling.
    """

    tokens: float
    """number of training tokens"""
    days: float
    gpu_hours: float
    """of all GPUs of the cluster"""
    cost_usd: float | None
    """None if the GPU's price is unknown"""
    energy_kwh: float | None
    """of the GPUs' boards under load; None if their power is unknown"""

    @classmethod
    def of(cls, cluster: ClusterSpec, tokens_per_s: float, tokens: float) -> Bill:
        """Compute the bill of training on `tokens` tokens at that speed."""
        seconds = tokens / tokens_per_s
        hours = seconds / 3600.0 * cluster.num_gpus
        price, power = cluster.gpu.usd_per_hour, cluster.gpu.power_watts
        return cls(
            tokens=tokens,
            days=seconds / _DAY_S,
            gpu_hours=hours,
            cost_usd=None if price is None else hours * price,
            energy_kwh=None if power is None else hours * power / 1e3,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Plain):
    """The best config of the same space on another number of GPUs."""

    num_gpus: int
    """GPUs of the cluster"""
    config: ParallelConfig | None = None
    """None if no config is valid and fits"""
    estimate: Estimate | None = None
    """floats"""
    days: float | None = None
    """days to train on the token budget; None without one"""
    cost_usd: float | None = None
    """of all GPUs of the cluster for these days; None if the GPU's price is unknown"""
    reason: str = ""
    """why there is no config"""


def fits(estimate: Estimate) -> NDArray[np.bool_]:
    """Return whether each estimated config is expected to fit into memory, shape (N,)."""
    return np.asarray(np.asarray(estimate.oom_probability, dtype=float) <= FITS)


def plan(
    space: SearchSpace, *, calibration: Calibration | None = None, top: int | None = 10
) -> Plan:
    """Return the plan of a space; `top` limits the rows (None: all feasible ones).

    Configs with equal value keep their order in the space, so plans are reproducible. Configs that
    differ only in the study's own knobs have equal predictions and share one row, with each own
    knob at its default.
    """
    constants = calibration or calibration_for(space.workload)
    predicted = estimate(space.workload, space.table, calibration=constants)
    feasible = np.flatnonzero(fits(predicted))
    value = np.asarray(predicted.tokens_per_s) * (1.0 - np.asarray(predicted.oom_probability))
    order = feasible[np.argsort(-value[feasible], kind="stable")]
    modelled = RL_KNOBS if space.workload.rl is not None else ()
    unknown = tuple(knob.name for knob in space.table.own if knob.name not in modelled)
    order = order[space.table.at_default(unknown)[order]]
    shown = order if top is None else order[: positive_int("top", top)]
    infeasible = dict(space.excluded)
    if len(space) > len(feasible):
        infeasible[MEMORY] = len(space) - len(feasible)
    return Plan(
        workload=space.workload,
        rows=tuple(
            RankedConfig(rank=rank, config=space[int(i)], estimate=predicted.row(int(i)))
            for rank, i in enumerate(shown, start=1)
        ),
        feasible=len(feasible),
        infeasible=infeasible,
        nearest_miss=None if len(feasible) else nearest_miss(space, predicted, constants),
        source=constants.source,
        not_modelled=unknown,
    )


def baseline_of(
    space: SearchSpace,
    *,
    calibration: Calibration | None = None,
    predicted: Estimate | None = None,
) -> ParallelConfig:
    """Return the baseline of a study that specifies none.

    It is `default_config`; or, if that is not expected to fit, the nearest config in the space that
    fits at low risk (`SAFE`). Knobs change in the order in which an untuned setup would be changed:
    first ZeRO, then recomputation, then model parallelism; others keep their defaults if possible.

    `predicted`: the estimate of the space's table, if it is known.
    """
    plain = default_config(space)
    if fits(estimate(space.workload, plain, calibration=calibration)):
        return plain
    table = space.table
    predicted = predicted or estimate(space.workload, table, calibration=calibration)
    risk = np.asarray(predicted.oom_probability, dtype=float)
    if risk.min() > FITS:
        return plain
    others = [name for name in table.knobs if name not in _SIMPLEST_FIRST]
    changed = sum(~table.at_default([name]) for name in others)
    precision, recompute, zero_stage, *sizes = distance_from_plain(table, plain.precision)
    nearest = np.lexsort((precision, zero_stage, recompute, *sizes, changed))
    limit = SAFE if risk.min() <= SAFE else FITS
    return space[next(int(i) for i in nearest if risk[i] <= limit)]


def what_if(
    workload: Workload,
    space: SpaceSpec,
    gpus: Sequence[int],
    *,
    tokens: float | None = None,
    calibration: Calibration | None = None,
    launchable: Launchable | None = None,
) -> tuple[WhatIf, ...]:
    """Return the best config of the space on clusters of other sizes, with days and cost for a
    budget of `tokens`.

    `launchable`: the trainer that must be able to launch it. A count below a node's size is one
    smaller node; others must be whole nodes. Raises `SpecError` for impossible counts or budgets.
    """
    if tokens is not None:
        positive("tokens", tokens)
    free = replace(space, world_sizes=())
    return tuple(
        _on(
            workload,
            free,
            positive_int("gpus", count, at_most=1 << 24),
            tokens,
            calibration,
            launchable,
        )
        for count in gpus
    )


def _on(
    workload: Workload,
    space: SpaceSpec,
    count: int,
    tokens: float | None,
    calibration: Calibration | None,
    launchable: Launchable | None,
) -> WhatIf:
    cluster = workload.cluster
    per_node = min(count, cluster.gpus_per_node)
    if count % per_node:
        return WhatIf(
            num_gpus=count,
            reason=f"{number_of(count, 'GPU')} cannot be split into a whole number of nodes of {per_node}",
        )
    resized = replace(
        workload, cluster=cluster.resized(num_nodes=count // per_node, gpus_per_node=per_node)
    )
    try:
        best = plan(
            SearchSpace.build(resized, space, launchable=launchable), calibration=calibration, top=1
        )
    except InfeasibleError as error:
        return WhatIf(num_gpus=count, reason=str(error))
    if not best.rows:
        return WhatIf(num_gpus=count, reason="no valid config is expected to fit into memory")
    row = best.rows[0]
    found = WhatIf(num_gpus=count, config=row.config, estimate=row.estimate)
    if tokens is None:
        return found
    bill = Bill.of(resized.cluster, float(row.estimate.tokens_per_s), tokens)
    return replace(found, days=bill.days, cost_usd=bill.cost_usd)


def nearest_miss(
    space: SearchSpace, predicted: Estimate, constants: Calibration | None = None
) -> NearestMiss:
    """Return the config with the lowest P(OOM), and changes that would make it fit. `predicted`:
    the estimate of every config in the space."""
    constants = constants or calibration_for(space.workload)
    index = int(
        np.lexsort(
            (np.asarray(predicted.peak_memory_bytes), np.asarray(predicted.oom_probability))
        )[0]
    )
    config, row = space[index], predicted.row(index)
    return NearestMiss(
        config=config, estimate=row, remedies=_remedies(space.workload, config, constants)
    )


def _remedies(
    workload: Workload, config: ParallelConfig, constants: Calibration
) -> tuple[str, ...]:
    """Return texts of single changes of `config` that fit, fastest first; if there are none, of the
    number of GPUs that would hold the fully sharded model."""
    changes = [
        (words, changed)
        for words, changed in _changes(config)
        if why_not(workload, changed) is None
    ]
    found: list[tuple[float, str]] = []
    if changes:
        predicted = estimate(
            workload, ConfigTable.of([c for _, c in changes]), calibration=constants
        )
        for i, (words, _) in enumerate(changes):
            row = predicted.row(i)
            if fits(row):
                size = format_bytes(float(row.peak_memory_bytes))
                found.append((float(row.step_time_s), f"{words} would need {size}"))
    if found:
        return tuple(words for _, words in sorted(found))
    return _more_gpus(workload, config, constants)


def _changes(config: ParallelConfig) -> Iterator[tuple[str, ParallelConfig]]:
    if config.recompute != "full":
        yield "recompute=full", replace(config, recompute="full")
    for stage in range(config.zero_stage + 1, 4):
        yield f"zero_stage={stage}", replace(config, zero_stage=stage)
    yield (
        "recompute=full and zero_stage=3",
        replace(config, recompute="full", zero_stage=3),
    )
    if config.micro_batch_size > 1:
        steps = config.accumulation_steps * config.micro_batch_size
        yield "micro_batch_size=1", replace(config, micro_batch_size=1, accumulation_steps=steps)
    if config.dp % 2 == 0:
        fewer = replace(config, dp=config.dp // 2, accumulation_steps=config.accumulation_steps * 2)
        yield f"tp={config.tp * 2}", replace(fewer, tp=config.tp * 2)
        yield f"pp={config.pp * 2}", replace(fewer, pp=config.pp * 2)


def _more_gpus(
    workload: Workload, config: ParallelConfig, constants: Calibration
) -> tuple[str, ...]:
    times = [1 << i for i in range(1, 13)]
    wide = [
        replace(
            config,
            dp=config.dp * n,
            zero_stage=3,
            recompute="full",
            micro_batch_size=1,
            accumulation_steps=1,
        )
        for n in times
    ]
    enough = np.flatnonzero(fits(estimate(workload, ConfigTable.of(wide), calibration=constants)))
    if len(enough):
        gpus = config.world_size * times[int(enough[0])]
        return (
            f"about {number_of(gpus, 'GPU')}, with zero_stage=3, recompute=full and micro_batch_size=1, would be enough",
        )
    return (
        "sharding alone cannot make the model fit on any number of these GPUs; split the sequence (cp) or the layers (tp) further",
    )
