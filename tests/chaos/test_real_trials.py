"""Disturbed studies with real trials, on local ranks and on Ray, whose ranks may be killed too.

Their measurements differ from run to run; everything else must not."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.arena import play_all
from tests.chaos.conftest import Place
from tests.chaos.schedule import REAL, Disturbance, Schedule
from tests.ray_roles import played_head

MANY = int(os.environ.get("CHAOS_REAL_SCHEDULES", "10"))
SPEC: dict[str, Any] = {
    "name": "real",
    "model": "nano-gpt",
    "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 2},
    "workload": {"seq_len": 32, "global_batch_size": 8},
    "space": {"tp": [1, 2], "micro_batch_size": [1, 2, 4], "precision": ["fp32"]},
    "objective": {"stability_weight": 0},
    "budget": {"max_trials": 4, "min_gain": 0},
    "measure": {"warmup_steps": 1, "min_steps": 4, "max_steps": 8, "finalists": 0},
    "searcher": "grid",
}

pytestmark = [
    pytest.mark.alone,
    pytest.mark.chaos,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def disturbed(seed: int, runner: dict[str, Any]) -> Schedule:
    """One to three disturbances of five trials."""
    draw = random.Random(seed)
    disturbances = [
        Disturbance(
            kind=draw.choice(REAL),
            after=draw.randrange(3, 8),
            for_s=0.5,
            jump_s=draw.choice((-60.0, 60.0)),
            which=draw.randrange(6),
        )
        for _ in range(draw.randrange(1, 4))
    ]
    return Schedule(
        seed=seed,
        spec=SPEC | {"runner": runner},
        disturbances=tuple(disturbances),
        is_real=True,
        lease_s=3.0,
    )


def played_through(schedules: list[Schedule], places: list[Place], folder: Path) -> None:
    played = play_all(schedules, places, folder)
    for one in played:
        print(
            f"{one.schedule}: met {one.met}, {one.controllers} controllers, {one.terms} terms, {one.fenced} fenced, {one.took_s:.0f} s"
        )
    assert [sentence for one in played for sentence in one.wrong] == []
    configs = {
        tuple(dict.fromkeys(one.trials)) for one in played
    }  # how often the baseline is re-measured hangs on the measurements
    (asked,) = configs
    assert len(asked) == 5, "the baseline and what the budget allows"
    assert any(one.met for one in played)


def test_real_trials_on_ranks_of_this_machine(
    tmp_path: Path, files: Callable[[int], list[Place]]
) -> None:
    runner = {"kind": "local", "max_ranks": 2, "device": "cpu"}
    played_through([disturbed(seed, runner) for seed in range(MANY)], files(1), tmp_path)


def test_real_trials_on_a_ray_cluster_that_goes_on(
    tmp_path: Path, files: Callable[[int], list[Place]]
) -> None:
    """Where gangs outlive their controllers: trials are adopted, or launched again, and either way
    they count once."""
    with played_head() as (_, address):
        runner = {"kind": "ray", "address": address}
        played_through([disturbed(seed, runner) for seed in range(MANY)], files(1), tmp_path)


def test_real_trials_on_ray(tmp_path: Path, files: Callable[[int], list[Place]]) -> None:
    runner = {"kind": "ray", "num_cpus": 2}
    played_through([disturbed(seed, runner) for seed in range(MANY)], files(1), tmp_path)
