"""Earlier studies refit the constants of a study where they are of its kind, and a large history
costs no more than a small one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.cost import calibration_for, estimate
from autotune.search.history import MOST_CONFIGS, history_refit, informed
from autotune.search.searcher import Problem
from autotune.space import SearchSpace
from autotune.spec import Measurement, SpaceSpec, Trial, TrialStatus, Workload, catalog
from tests.shortcuts import present

KNOBS = {
    "tp": (1, 2, 4),
    "pp": (1, 2, 4),
    "micro_batch_size": (1, 2, 4),
    "recompute": ("none", "full"),
}


def on(name: str, fabric: str = "") -> SearchSpace:
    cluster = catalog.cluster(name)
    cluster = replace(cluster, inter_node=replace(cluster.inter_node, fabric=fabric))
    workload = Workload(
        model=catalog.model("llama-8b"), cluster=cluster, seq_len=4096, global_batch_size=256
    )
    return SearchSpace.build(workload, SpaceSpec(knobs=KNOBS))


def measured(space: SearchSpace, *, level: float) -> tuple[tuple[Workload, Trial], ...]:
    """Every config of a space, `level` times as slow as predicted."""
    steps = level * np.asarray(estimate(space.workload, space.table).step_time_s)
    return tuple(
        (
            space.workload,
            Trial(
                config=config,
                number=number,
                status=TrialStatus.COMPLETED,
                measurement=Measurement(
                    step_times_s=(float(step_s),), tokens_per_step=1, num_ranks=8
                ),
            ),
        )
        for number, (config, step_s) in enumerate(zip(space, steps, strict=True))
    )


OURS = Problem(space=on("h100-sxm-4x8"))


def test_what_other_gpus_took_says_nothing_about_the_constants() -> None:
    problem = replace(OURS, history=measured(on("a100-80gb-1x8"), level=3.0))
    assert history_refit(problem).kind == "known"
    assert informed(problem) is problem


def test_what_the_same_gpus_took_does() -> None:
    problem = replace(OURS, history=measured(on("h100-sxm-1x8"), level=3.0))
    constants = present(informed(problem).calibration)
    assert constants.level > 1.5 * calibration_for(OURS.space.workload).level


def test_the_network_must_be_the_same_only_where_it_was_used() -> None:
    one, two = (measured(on(f"h100-sxm-{nodes}x8", "roce"), level=3.0) for nodes in (1, 2))
    assert history_refit(replace(OURS, history=one)).kind != "known"
    assert history_refit(replace(OURS, history=two)).kind == "known"


def test_of_a_workload_only_its_first_configs_are_looked_at() -> None:
    history = measured(on("h100-sxm-1x8"), level=3.0)
    assert len(history) > MOST_CONFIGS
    first = replace(OURS, history=history[:MOST_CONFIGS])
    assert (
        history_refit(replace(OURS, history=history)).calibration
        == history_refit(first).calibration
    )
