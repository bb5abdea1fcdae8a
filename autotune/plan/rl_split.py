"""Split the GPUs of post-training between training and generation: findings shown with a plan.

    splits          for each number of GPUs that only generate, the best config of the rest (by speed times the probability to fit, as in a plan): the time that each side works on a
                    step, and waits for the other
    balanced        the fractional split whose sides work equally long; both times are assumed to be inversely proportional to GPUs, starting from the best split
    one more node   the best step of the same space with one more node for training, or for generation; with more nodes if the batch is not divisible with one

A side that works t of a step of T seconds waits T - t. If training and generation share GPUs,
an additional node serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.cost import Calibration
from autotune.cost.rl.step import generation_s
from autotune.errors import InfeasibleError
from autotune.plan.plan import RankedConfig, plan
from autotune.space import Launchable, SearchSpace
from autotune.space.rl_laws import knob_value
from autotune.spec import SpaceSpec, Workload, config_label
from autotune.spec.post_training import PostTraining

MOST_SPLITS = 24
"""maximum number of splits that are evaluated"""
MOST_NODES = 8
"""maximum number of additional nodes"""


def post_training_findings(
    workload: Workload,
    spec: SpaceSpec,
    *,
    calibration: Calibration | None = None,
    launchable: Launchable | None = None,
) -> dict[str, Any]:
    """Return {assumed, splits, balanced, one_more_node} of a workload with `rl`: empty without
    `rl`, only the assumptions without generation, and splits only if the study has
    `rollout_gpus`."""
    asked = workload.rl
    if asked is None:
        return {}
    found: dict[str, Any] = {
        "algorithm": asked.algorithm,
        "prompt_lengths": asked.prompt_lengths.to_dict(),
        "response_lengths": asked.response_lengths.to_dict(),
        "assumed": list(asked.assumed),
    }
    if not asked.generates:
        return found
    splits: list[dict[str, Any]] = []
    no_split: dict[int, str] = {}
    if asked.rollout_gpus or any(spec.extra.get("rollout_gpus", ())):
        splits, no_split = _splits(workload, asked, spec, calibration, launchable)
    best = min(splits, key=lambda row: float(row["step_time_s"]), default=None)
    more, why_not = _one_more_node(workload, spec, best, calibration, launchable)
    return {
        **found,
        "splits": splits,
        "splits_why_not": no_split,
        "balanced": _balanced(best)
        if asked.staleness or any(spec.extra.get("staleness", ()))
        else None,
        "one_more_node": more,
        "one_more_node_why_not": why_not,
    }


def _splits(
    workload: Workload,
    asked: PostTraining,
    spec: SpaceSpec,
    calibration: Calibration | None,
    launchable: Launchable | None,
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return (the best config of each split in ascending order of generating GPUs, the reason for
    each listed split without one). If the space lists only one split, all splits in steps of a node
    (of an engine on one node) are evaluated too."""
    cluster = workload.cluster
    asked_for = sorted(
        {int(gpus) for gpus in spec.extra.get("rollout_gpus", (asked.rollout_gpus,)) if gpus}
    )
    listed = asked_for
    if len(listed) == 1:
        engine = max(int(tp) for tp in spec.extra.get("rollout_tp", (asked.current("rollout_tp"),)))
        step = cluster.gpus_per_node if cluster.num_nodes > 1 else engine
        step *= -(-cluster.num_gpus // (step * MOST_SPLITS))
        listed = sorted({*listed, *range(step, cluster.num_gpus, step)})
    found = {gpus: _best(workload, spec, gpus, calibration, launchable) for gpus in listed}
    none = {gpus: found[gpus][1] for gpus in asked_for if found[gpus][0] is None}
    return [row for row, _ in found.values() if row is not None], none


def _best(
    workload: Workload,
    spec: SpaceSpec,
    generating: int,
    calibration: Calibration | None,
    launchable: Launchable | None,
) -> tuple[dict[str, Any] | None, str]:
    """Return (the best config with `generating` GPUs that only generate, or None if none is valid
    and fits; the reason why there is none)."""
    try:
        space = SearchSpace.build(
            workload, _with_generating(spec, generating), launchable=launchable
        )
    except InfeasibleError as error:
        return None, error.brief or error.message
    best = plan(space, calibration=calibration, top=1)
    return (
        (_times_of_sides(workload, best.rows[0], generating), "")
        if best.rows
        else (None, "no valid config fits")
    )


def _with_generating(spec: SpaceSpec, generating: int) -> SpaceSpec:
    """Return the space with `generating` GPUs that only generate."""
    extra = (
        {**spec.extra, "rollout_gpus": (generating,)}
        if generating or "rollout_gpus" in spec.extra
        else dict(spec.extra)
    )
    if not generating and "staleness" in extra:
        extra["staleness"] = (0,)
    return replace(spec, extra=extra, world_sizes=())


def _times_of_sides(workload: Workload, best: RankedConfig, generating: int) -> dict[str, Any]:
    one, config = best.estimate, best.config
    assert one.phases_s is not None
    training = sum(
        float(getattr(one.phases_s, name)) for name in ("log_prob", "reference", "values", "update")
    )
    gpus = np.array([float(generating or config.world_size)])
    bulk, tail = generation_s(
        workload, np.array([knob_value(workload, config, "rollout_tp")]), gpus
    )
    step, generation = float(one.step_time_s), float(bulk[0] + tail[0])
    return {
        "rollout_gpus": generating,
        "training_gpus": config.world_size,
        "step_time_s": step,
        "training_s": training,
        "generation_s": generation,
        "trainer_waits_s": max(step - training, 0.0) if generating else 0.0,
        "rollout_waits_s": max(step - generation, 0.0) if generating else 0.0,
        "oom_probability": float(one.oom_probability),
        "config": config.to_dict(),
        "label": config_label(config),
    }


def _balanced(best: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the number of GPUs of the best split that should generate so that both sides work
    equally long, and the step time then; None without a split."""
    if best is None:
        return None
    train, generate = (
        best["training_s"] * best["training_gpus"],
        best["generation_s"] * best["rollout_gpus"],
    )
    gpus = best["training_gpus"] + best["rollout_gpus"]
    return {
        "rollout_gpus": gpus * generate / (train + generate),
        "step_time_s": (train + generate) / gpus,
    }


def _one_more_node(
    workload: Workload,
    spec: SpaceSpec,
    best: Mapping[str, Any] | None,
    calibration: Calibration | None,
    launchable: Launchable | None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (the best step by the side that gets additional nodes, the reason why one node is not
    enough by side). The step is None if no config is valid and fits with up to `MOST_NODES`."""
    generating = 0 if best is None else int(best["rollout_gpus"])
    per_node = workload.cluster.gpus_per_node
    sides = ("both",) if best is None else ("training", "generation")
    shown: dict[str, Any] = {}
    why: dict[str, str] = {}
    for side in sides:
        for nodes in range(1, min(MOST_NODES, workload.cluster.num_nodes) + 1):
            larger = replace(
                workload,
                cluster=workload.cluster.resized(
                    num_nodes=workload.cluster.num_nodes + nodes, gpus_per_node=per_node
                ),
            )
            engines = generating + (nodes * per_node if side == "generation" else 0)
            row, reason = _best(larger, spec, engines, calibration, launchable)
            if row is not None:
                names = ("training_gpus", "rollout_gpus", "step_time_s", "oom_probability", "label")
                shown[side] = {"nodes": nodes, **{name: row[name] for name in names}}
                break
            why.setdefault(side, reason)
        shown.setdefault(side, None)
    return shown, why
