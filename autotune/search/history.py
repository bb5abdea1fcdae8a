"""What earlier studies say about the constants of the cost model, before the first trial of a
study.

Trials of the same GPU type and trainer, on one node or on the same network, refit the constants
(`autotune.cost.learn.correction`), where that predicts left-out trials better than the constants
that were given. Predictions of the study and of its history are then made with the refitted ones;
what these leave over is left to the surrogate, as before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.cost import calibration_for, estimate
from autotune.cost.learn.correction import Refitted, guarded_refit, measured_workloads, moved
from autotune.cost.learn.refit import Measured
from autotune.cost.learn.transferred import transferred_mean
from autotune.cost.learn.uncertainty import config_sigma
from autotune.search.searcher import Problem

MOST_WORKLOADS = 30
"""workloads of the history that are looked at, the first ones"""
MOST_CONFIGS = 20
"""configs of each of them that are looked at, the first ones; a refit to many more takes seconds"""
CHECKED = 16
"""candidates by which a given estimate is told from one of the cost model's constants"""


def informed(problem: Problem) -> Problem:
    """The problem with the constants that its history speaks for, and where proxies of its configs
    ran, with the times that these lead to (`transferred`); the same where the history has none of
    its kind, where these constants are no better, or where the estimate that was given is not made
    of them."""
    if not problem.history or not _is_made_of_its_constants(problem):
        return problem
    found = history_refit(problem)
    refitted = with_refit(problem, found)
    if not any(b.said for b in found.believed) or not any(
        trial.stands_for for _, trial in problem.history
    ):
        return refitted
    predicted, workload, table = refitted.predict(), problem.space.workload, problem.space.table
    center = transferred_mean(workload, table, found) - np.log(np.asarray(predicted.step_time_s))
    shared = np.asarray(predicted.level_sigma)
    carried = moved(predicted, center, np.hypot(config_sigma(predicted), shared), shared)
    return replace(refitted, estimate=carried, times_are_learnt=True)


def history_refit(problem: Problem) -> Refitted:
    """What the history says about the constants of the problem."""
    constants = problem.calibration or calibration_for(problem.space.workload)
    return guarded_refit(constants, _kin(problem))


def with_refit(problem: Problem, found: Refitted) -> Problem:
    """The problem predicted with refitted constants; the same where they did not move."""
    if found.kind == "known":
        return problem
    constants = found.calibration
    predicted = estimate(problem.space.workload, problem.space.table, calibration=constants)
    return replace(problem, calibration=constants, estimate=predicted)


def _kin(problem: Problem) -> list[Measured]:
    """What the history measured with the same GPU type and trainer: on one node, or on several of
    the same network."""
    ours = problem.space.workload
    kin = [
        (theirs, trial)
        for theirs, trial in problem.history
        if (theirs.cluster.gpu.name, theirs.trainer) == (ours.cluster.gpu.name, ours.trainer)
        and (
            theirs.cluster.num_nodes == 1
            or theirs.cluster.inter_node.fabric == ours.cluster.inter_node.fabric
        )
    ]
    return [
        replace(
            m,
            table=m.table.take(np.arange(len(m.table))[:MOST_CONFIGS]),
            step_time_s=m.step_time_s[:MOST_CONFIGS],
        )
        for m in measured_workloads(kin)[:MOST_WORKLOADS]
    ]


def _is_made_of_its_constants(problem: Problem) -> bool:
    """Whether the estimate that was given, if any, is that of the problem's constants."""
    if problem.estimate is None:
        return True
    rows = np.unique(np.linspace(0, len(problem.space) - 1, CHECKED).astype(int))
    anew = estimate(
        problem.space.workload, problem.space.table.take(rows), calibration=problem.calibration
    )
    return bool(
        np.allclose(anew.step_time_s, np.asarray(problem.estimate.step_time_s)[rows], rtol=1e-6)
    )
