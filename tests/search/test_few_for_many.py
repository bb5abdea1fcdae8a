"""The replay of few GPUs for many: what counts as a target and its proxies, a sample of it, and its
table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from autotune.search import Problem
from autotune.search.target_searcher import TargetSearcher
from autotune.space import SearchSpace
from autotune.spec import TrialStatus
from tests.benchmarks.few_for_many import (
    PROXIES,
    Outcome,
    SweptProxies,
    Task,
    constants_of,
    replay_task,
    tasks,
)
from tests.benchmarks.few_for_many_table import goals, summary
from tests.shortcuts import present

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def every_task() -> list[Task]:
    return tasks()


def test_targets_have_more_gpus_than_their_proxies_or_more_layers(every_task: list[Task]) -> None:
    assert Counter(t.kind for t in every_task) == {"near": 28, "layers": 16, "far": 2, "quarter": 2}
    assert len({t.name for t in every_task}) == len(every_task)
    for task in every_task:
        meant = task.target.workload
        for rung in task.rungs:
            held = rung.cells[0].workload
            if task.kind == "layers":
                assert held.model.num_layers == 12 < meant.model.num_layers
                assert held.cluster.num_gpus == meant.cluster.num_gpus
            else:
                assert held.model == meant.model
                assert held.cluster.num_gpus < meant.cluster.num_gpus


def test_a_run_of_the_sweep_stands_for_a_config_with_its_tensor_degree_and_micro_batch(
    every_task: list[Task],
) -> None:
    task = next(t for t in every_task if t.kind == "far")
    sweep = SweptProxies(task.rungs[0])
    config = next(c for c in task.target.rows if (c.tp, c.pp, c.micro_batch_size) == (2, 2, 4))
    proxy = sweep(task.target.workload, config, task.rungs[0].cluster)
    kept = (proxy.config.tp, proxy.config.pp, proxy.config.micro_batch_size)
    assert kept == (2, 2, 4)
    assert proxy.config.world_size == task.rungs[0].cluster.num_gpus
    trial = sweep.trial(proxy, config, 0)
    assert present(trial.stands_for).config == config


def test_proxies_mend_wrong_constants_in_a_sample(every_task: list[Task]) -> None:
    task = next(t for t in every_task if t.name.startswith("gpt-h2048-l12, 4 GPUs, batch 16 by 2"))
    (fitted,) = constants_of([task]).values()
    without, told = replay_task(task, "wrong", 0, fitted)
    assert (without.with_proxies, told.with_proxies) == (False, True)
    assert told.measured + told.failed == PROXIES
    assert told.error < 0.5 * without.error
    assert list(told.regrets) == sorted(told.regrets, reverse=True)


def test_a_proxy_that_runs_counts_for_the_next_one_also_after_a_restart(
    every_task: list[Task],
) -> None:
    task = next(t for t in every_task if t.name.startswith("gpt-h2048-l24, 8 GPUs, batch 8 by 8"))
    target, sweep = task.target.workload, SweptProxies(task.rungs[0])
    problem = Problem(space=SearchSpace.of(target, list(task.target.rows)), seed=0)

    def made() -> TargetSearcher:
        return TargetSearcher(problem, task.rungs[0].cluster, worth=0.0, stand_in=sweep)

    searcher, again = made(), made()
    first, second = searcher.ask(2)
    assert "most informative" in searcher.reason(second)
    again.tell(
        [
            replace(
                sweep.trial(again.proxy_for(first), first, 0),
                status=TrialStatus.RUNNING,
                measurement=None,
            )
        ]
    )
    assert again.ask(1) == [second]


def outcome(
    kind: str, *, told: bool, state: str = "wrong", error: float = 0.05, third: float = 0.0
) -> Outcome:
    return Outcome(
        task=f"gpt {kind}", kind=kind, state=state, seed=0, with_proxies=told, measured=5 if told else 0, failed=0,
        error=error, inside=0.9, first=0.2, regrets=(0.2, 0.1, third), statement=None,
    )  # fmt: skip


def test_a_goal_is_met_or_said_not_to_be() -> None:
    kinds = ("near", "far", "quarter", "layers")
    some = [
        outcome(
            kind,
            told=told,
            state=state,
            error=0.08 if kind == "near" else 0.04,
            third=0.03 if told else 0.0,
        )
        for kind in kinds
        for told in (False, True)
        for state in ("right", "wrong")
    ]
    by_name = {goal.what: goal for goal in goals(some)}
    error = next(g for name, g in by_name.items() if name.startswith("up to 8 times, 5 proxies"))
    assert (error.figure, error.met) == ("8.0%", False)
    trials = next(g for name, g in by_name.items() if "constants wrong: first real" in name)
    assert (trials.figure, trials.met) == ("0% / 100%", False)
    harm = next(g for name, g in by_name.items() if name.startswith("harm"))
    assert (harm.figure, harm.met) == ("by 3.0, 8 cells by more than 2", False)
    assert next(g for name, g in by_name.items() if name.startswith("a quarter")).met
    assert any(
        "| vTrain | 16 times | wrong | 5.0, 0.0 failed | 1 | 4.0% |" in line
        for line in summary(some)
    )
