"""Refits the cost model's constants to earlier studies, before the first trial of a study.

Trials with the same GPU type and trainer, on one node or on the same network, refit the constants
(`autotune.cost.learn.correction`), if the refit predicts left-out trials better than the given
constants. The study and its history are then predicted with the refitted constants, and the
surrogate models the remaining errors.
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
"""maximum number of workloads of the history, the first ones"""
MOST_CONFIGS = 20
"""maximum number of configs per workload, the first ones; a refit to many more takes seconds"""
CHECKED = 16
"""number of candidates to check whether a given estimate was made with the problem's constants"""


def informed(problem: Problem) -> Problem:
    """The problem with constants refitted to its history. If proxies of its configs ran, its
    estimate is also corrected by their measured times (`transferred`). The problem is unchanged if
    the history has no comparable trials, the refit is not better, or the given estimate was made
    with other constants."""
    if not problem.history or not _uses_its_constants(problem):
        return problem
    refit = history_refit(problem)
    refitted = with_refit(problem, refit)
    has_proxies = any(trial.stands_for for _, trial in problem.history)
    if not has_proxies or not any(b.conditioned for b in refit.posteriors):
        return refitted
    predicted, workload, table = refitted.predict(), problem.space.workload, problem.space.table
    shift = transferred_mean(workload, table, refit) - np.log(np.asarray(predicted.step_time_s))
    shared = np.asarray(predicted.level_sigma)
    corrected = moved(predicted, shift, np.hypot(config_sigma(predicted), shared), shared)
    return replace(refitted, estimate=corrected, times_are_learnt=True)


def history_refit(problem: Problem) -> Refitted:
    """Refit the problem's constants to its history."""
    constants = problem.calibration or calibration_for(problem.space.workload)
    return guarded_refit(constants, _comparable(problem))


def with_refit(problem: Problem, refit: Refitted) -> Problem:
    """The problem predicted with refitted constants; unchanged if the refit kept the known ones."""
    if refit.kind == "known":
        return problem
    constants = refit.calibration
    predicted = estimate(problem.space.workload, problem.space.table, calibration=constants)
    return replace(problem, calibration=constants, estimate=predicted)


def _comparable(problem: Problem) -> list[Measured]:
    """The measured workloads of the history with the same GPU type and trainer, on one node or with
    the same network between nodes."""
    ours = problem.space.workload
    comparable = [
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
        for m in measured_workloads(comparable)[:MOST_WORKLOADS]
    ]


def _uses_its_constants(problem: Problem) -> bool:
    """Whether the problem's estimate, if given, was made with the problem's constants."""
    if problem.estimate is None:
        return True
    rows = np.unique(np.linspace(0, len(problem.space) - 1, CHECKED).astype(int))
    expected = estimate(
        problem.space.workload, problem.space.table.take(rows), calibration=problem.calibration
    )
    return bool(
        np.allclose(expected.step_time_s, np.asarray(problem.estimate.step_time_s)[rows], rtol=1e-6)
    )
