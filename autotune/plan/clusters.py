"""Compare clusters: the best config of one space on each, its predicted speed, and the time and
cost of a training.

A cluster on which nothing fits has the nearest miss instead of a config. Precisions of the space
that its GPU lacks are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from autotune.cost import Calibration
from autotune.errors import CatalogError, InfeasibleError, SpecError
from autotune.plan.plan import Bill, NearestMiss, plan
from autotune.space import Launchable, SearchSpace
from autotune.spec import KNOBS, ClusterSpec, Estimate, ParallelConfig, SpaceSpec, Workload, catalog
from autotune.spec.checks import positive
from autotune.spec.plain import to_plain

MAX_CLUSTERS = 100
"""maximum number of clusters in a comparison; each takes about a second"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """One cluster of a comparison."""

    cluster: ClusterSpec
    config: ParallelConfig | None = None
    """the best by expected speed; None if no config is valid and fits"""
    estimate: Estimate | None = None
    """floats"""
    bill: Bill | None = None
    """time, cost and energy of the training; None without a number of tokens"""
    lacking: tuple[str, ...] = ()
    """precisions of the space that the GPU does not have; other configs in the space were still
    compared"""
    nearest_miss: NearestMiss | None = None
    """set if there are valid configs but none is expected to fit"""
    reason: str = ""
    """why there is no config"""
    source: str = ""
    """where the cost model's constants come from"""

    @property
    def tokens_per_s_90(self) -> tuple[float, float] | None:
        """90% interval of the tokens per second of the whole job; None without a config."""
        if self.estimate is None:
            return None
        tokens = float(self.estimate.tokens_per_s) * float(self.estimate.step_time_s)
        return tokens / float(self.estimate.step_time_high_s), tokens / float(
            self.estimate.step_time_low_s
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        reach = self.tokens_per_s_90
        return {
            "cluster": self.cluster.name,
            "gpu": self.cluster.gpu.name,
            "num_gpus": self.cluster.num_gpus,
            "config": to_plain(self.config),
            "estimate": to_plain(self.estimate),
            "tokens_per_s_low": reach[0] if reach else None,
            "tokens_per_s_high": reach[1] if reach else None,
            "bill": to_plain(self.bill),
            "lacking": list(self.lacking),
            "nearest_miss": to_plain(self.nearest_miss),
            "reason": self.reason,
            "source": self.source,
        }


def clusters_of(asked: Sequence[str | ClusterSpec], num_gpus: int) -> tuple[ClusterSpec, ...]:
    """Return the clusters for names such as `h100-sxm-8x8`; a GPU type alone, such as `h200-sxm`,
    has at least `num_gpus` GPUs in whole nodes.

    Raises `CatalogError` for unknown names, `SpecError` for no names, too many, or a repeated one.
    """
    found = tuple(one if isinstance(one, ClusterSpec) else _named(one, num_gpus) for one in asked)
    if not 1 <= len(found) <= MAX_CLUSTERS:
        raise SpecError(
            f"there must be 1 to {MAX_CLUSTERS} clusters to compare, but there are {len(found)}",
            remedy="write clusters as h100-sxm-8x8, or GPU types as h200-sxm",
            field="clusters",
        )
    names = [cluster.name for cluster in found]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(
                f"{name} is named twice", remedy="list each cluster once", field="clusters"
            )
    return found


def _named(word: str, num_gpus: int) -> ClusterSpec:
    sized = re.search(r"-[0-9]+x[0-9]+$", word)
    try:
        return catalog.cluster(word) if sized else catalog.usual_cluster(word, num_gpus=num_gpus)
    except CatalogError as error:
        error.field = "clusters"
        raise


_SMALLEST_FIRST: Mapping[str, Callable[[ClusterChoice], float | None]] = {
    "speed": lambda choice: -float(choice.estimate.tokens_per_s) if choice.estimate else None,
    "cost": lambda choice: choice.bill.cost_usd if choice.bill else None,
    "energy": lambda choice: choice.bill.energy_kwh if choice.bill else None,
}


def sorted_choices(choices: Sequence[ClusterChoice], by: str) -> tuple[ClusterChoice, ...]:
    """Sort the choices, best first, by speed or by the lowest cost or energy; those without a value
    come last. `by`: speed, cost or energy."""

    def place(choice: ClusterChoice) -> tuple[bool, float]:
        value = _SMALLEST_FIRST[by](choice)
        return value is None, value or 0.0

    return tuple(sorted(choices, key=place))


def compare_clusters(
    workload: Workload,
    space: SpaceSpec,
    clusters: Sequence[ClusterSpec],
    *,
    tokens: float | None = None,
    launchable: Launchable | None = None,
    calibration: Callable[[Workload], Calibration | None] = lambda _: None,
) -> tuple[ClusterChoice, ...]:
    """Return the best config of the space on each cluster, in the given order, with the cost of
    training on `tokens` tokens.

    The space's world sizes are ignored, because they belong to the workload's own cluster.
    `launchable`: the trainer that must be able to launch the configs. `calibration`: returns the
    constants measured on a workload's cluster, or None.
    """
    if tokens is not None:
        positive("tokens", tokens)
    free = replace(space, world_sizes=())
    return tuple(
        _choice(moved, free, tokens, launchable, calibration(moved))
        for moved in (replace(workload, cluster=cluster) for cluster in clusters)
    )


def _choice(
    workload: Workload,
    space: SpaceSpec,
    tokens: float | None,
    launchable: Launchable | None,
    calibration: Calibration | None,
) -> ClusterChoice:
    cluster = workload.cluster
    asked = space.knobs.get("precision", (KNOBS["precision"].default,))
    lacking = tuple(str(word) for word in asked if word not in cluster.gpu.peak_flops_per_s)
    nothing = ClusterChoice(cluster=cluster, lacking=lacking)
    if len(lacking) == len(asked):
        has = ", ".join(cluster.gpu.peak_flops_per_s)
        return replace(
            nothing, reason=f"{cluster.gpu.name} has no {' and no '.join(lacking)}, only {has}"
        )
    try:
        best = plan(
            SearchSpace.build(workload, space, launchable=launchable),
            calibration=calibration,
            top=1,
        )
    except InfeasibleError as error:
        return replace(nothing, reason=error.message)
    if not best.rows:
        reason = "no valid config is expected to fit into memory"
        return replace(nothing, reason=reason, nearest_miss=best.nearest_miss, source=best.source)
    row = best.rows[0]
    bill = None if tokens is None else Bill.of(cluster, float(row.estimate.tokens_per_s), tokens)
    return replace(nothing, config=row.config, estimate=row.estimate, bill=bill, source=best.source)
