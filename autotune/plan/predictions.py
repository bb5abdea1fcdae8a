"""Predictions that need no hardware: the plan of a study's space, one config's estimate, other
numbers of GPUs, other clusters.

They use measured constants and dry runs from the store. For a model defined by code, `plan_of` and
`estimate_of` make the missing dry runs (`autotune.plan.dry_runs`), because the formulas treat such
a model as a decoder of its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.learn.uncertainty import Z90
from autotune.errors import InfeasibleError
from autotune.plan.clusters import ClusterChoice, clusters_of, compare_clusters
from autotune.plan.dry_runs import OnRun, ensure_profile, memory_sigmas
from autotune.plan.plan import Plan, RankedConfig, WhatIf, baseline_of, plan, what_if
from autotune.plan.rl_split import post_training_findings
from autotune.ports import KnowledgeStore
from autotune.registry import RUNNERS, find
from autotune.results.calibrations import known_constants, program_of, stored_calibration
from autotune.space import Launchable, Proxy, SearchSpace, why_not
from autotune.spec import ClusterSpec, Estimate, ParallelConfig, Study, number_of
from autotune.study import preflight
from autotune.study.assembly import Assembly, assemble
from autotune.study.target_findings import TargetFindings

if TYPE_CHECKING:
    from autotune.search.target_searcher import TargetSearcher


def plan_of(
    study: Study,
    *,
    top: int = 10,
    store: KnowledgeStore | None = None,
    profile: bool = True,
    on_dry_run: OnRun | None = None,
) -> Plan:
    """Rank the space with the cost model, with this cluster's calibration if `store` has one.

    `profile`: for a model defined by code, whether to make the dry runs missing in `store`;
    `on_dry_run` is called before each. `Plan.source` contains the sources of constants and memory.
    Raises `InfeasibleError`, and `CatalogError` for an unknown runner.
    """
    find(RUNNERS, study.runner)
    space = SearchSpace.of_study(study)
    problem = ensure_profile(study, store, space=space, on_run=on_dry_run) if profile else ""
    calibration = stored_calibration(study.workload, store, program_of(study))
    found = plan(space, calibration=calibration, top=top)
    rl_findings = post_training_findings(
        study.workload, study.space, calibration=calibration, launchable=Launchable.of(study)
    )
    source = _sources(study, store, problem, calibration, space)
    baseline = _baseline(study, space, found, calibration)
    return replace(found, source=source, post_training=rl_findings, baseline=baseline)


def _baseline(
    study: Study, space: SearchSpace, found: Plan, calibration: Calibration | None
) -> RankedConfig | None:
    """Return the baseline of a plan; None for a study of proxies, if nothing fits, or if the
    baseline is not valid."""
    config = study.baseline or baseline_of(space, calibration=calibration)
    if not found.rows or study.at_hand is not None or why_not(study.workload, config):
        return None
    return RankedConfig(
        rank=0, config=config, estimate=estimate(study.workload, config, calibration=calibration)
    )


def cannot_run_here(study: Study) -> str:
    """Return why this machine cannot run the study; empty if it can. Starts no process. Raises
    `CatalogError` or `SpecError` for an unknown runner or an unknown option of it."""
    if study.at_hand is None:
        return preflight.cannot_run_here(study, SearchSpace.of_study(study))
    try:
        here = assemble(study).runs_here
    except InfeasibleError as error:
        return str(error)
    return preflight.cannot_run_here(here.study, here.space)


def few_for_many_of(
    study: Study, *, top: int = 10, store: KnowledgeStore | None = None
) -> dict[str, Any]:
    """Return {proxies, target} for a study with a target; both are empty without one. Raises
    `InfeasibleError`.

    `proxies`: the proxy that would run here for each of the plan's `top` configs: {rank, config,
    proxy, reason}. `proxy`: {config, model, num_layers, global_batch_size, cluster, step_time_s,
    blind}, or null with a `reason`. A proxy shared by several configs is listed with the first of
    them; `shared_with` is its rank. `target`: the ranking of the target's configs before any proxy
    ran, and findings on the first one (`autotune.study.target_findings`).
    """
    if study.at_hand is None:
        return {"proxies": [], "target": {}}
    found = assemble(study, store)
    searcher = cast("TargetSearcher", found.searcher())
    return {
        "proxies": _proxies(found, searcher, top),
        "target": TargetFindings(searcher)()["target"],
    }


def _proxies(found: Assembly, searcher: TargetSearcher, top: int) -> list[dict[str, Any]]:
    rows, first = list[dict[str, Any]](), list[tuple[Proxy, int]]()
    for row in plan(found.space, calibration=found.calibration, top=top).rows:
        index = found.space.index_of(row.config)
        assert index is not None
        proxy = searcher.proxy_at(index)
        if isinstance(proxy, str):
            rows.append(
                {"rank": row.rank, "config": row.config.to_dict(), "proxy": None, "reason": proxy}
            )
            continue
        same = (proxy.workload, proxy.config)
        shared = next(
            (rank for known, rank in first if (known.workload, known.config) == same), None
        )
        first += [(proxy, row.rank)] if shared is None else []
        rows.append(
            {
                "rank": row.rank,
                "config": row.config.to_dict(),
                "shared_with": shared,
                "reason": "",
                "proxy": {
                    "config": proxy.config.to_dict(),
                    "model": proxy.workload.model.name,
                    "num_layers": proxy.workload.model.num_layers,
                    "global_batch_size": proxy.workload.global_batch_size,
                    "cluster": proxy.workload.cluster.name,
                    "step_time_s": float(searcher.estimate_of(proxy).step_time_s),
                    "blind": list(proxy.blind),
                },
            }
        )
    return rows


def what_if_of(
    study: Study,
    gpus: Sequence[int],
    *,
    tokens: float | None = None,
    store: KnowledgeStore | None = None,
) -> tuple[WhatIf, ...]:
    """Return the best config of the study's space on clusters of other sizes, with days and cost
    for a budget of `tokens`."""
    known = stored_calibration(study.workload, store, program_of(study))
    trainer = Launchable.of(study)
    return what_if(
        study.workload, study.space, gpus, tokens=tokens, calibration=known, launchable=trainer
    )


def compare_clusters_of(
    study: Study,
    clusters: Sequence[str | ClusterSpec],
    *,
    tokens: float | None = None,
    store: KnowledgeStore | None = None,
) -> tuple[ClusterChoice, ...]:
    """Return the best config of the study's space on each cluster, with days, cost and energy of a
    training on `tokens` tokens (None: the budget's `train_tokens`).

    A cluster is a `ClusterSpec`, a name such as `h100-sxm-8x8`, or a GPU type with as many GPUs as
    the study's cluster. Raises `CatalogError`, `SpecError`.
    """
    return compare_clusters(
        study.workload,
        study.space,
        clusters_of(clusters, study.workload.cluster.num_gpus),
        tokens=study.budget.train_tokens if tokens is None else tokens,
        launchable=Launchable.of(study),
        calibration=lambda workload: stored_calibration(workload, store, program_of(study)),
    )


def estimate_of(
    study: Study,
    config: ParallelConfig,
    *,
    store: KnowledgeStore | None = None,
    profile: bool = True,
    on_dry_run: OnRun | None = None,
) -> tuple[Estimate, str]:
    """Return one config's estimate, with this cluster's calibration if `store` has one, and the
    sources of the constants and the memory as text.

    `profile` and `on_dry_run`: see `plan_of`.
    """
    problem = ensure_profile(study, store, on_run=on_dry_run, configs=[config]) if profile else ""
    constants = stored_calibration(study.workload, store, program_of(study)) or calibration_for(
        study.workload
    )
    source = _sources(study, store, problem, constants, SearchSpace.of(study.workload, [config]))
    return estimate(study.workload, config, calibration=constants), source


def _sources(
    study: Study,
    store: KnowledgeStore | None,
    problem: str,
    calibration: Calibration | None,
    space: SearchSpace,
) -> str:
    """Return the sources of the constants and of the configs' memory as text. `problem`: why a dry
    run was impossible; empty if none failed."""
    source = (
        known_constants(study.workload, store, program_of(study)) or calibration_for(study.workload)
    ).source
    if problem:
        return f"{source}; memory is computed with a decoder's formulas, because the dry run failed: {problem}"
    runs = calibration.dry_runs if calibration is not None else None
    if calibration is None or runs is None or not runs.points:
        return source
    spread = float(np.median(memory_sigmas(space, calibration))) * Z90
    failed = next(
        (f"; {config} cannot be dry-run: {reason}" for config, reason in runs.failed.items()), ""
    )
    return (
        f"{source}; memory from dry runs of {number_of(len(runs.points), 'config')}; for others, from formulas corrected by these runs "
        f"(here within {spread:.0%}){failed}"
    )
