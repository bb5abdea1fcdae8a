"""The posterior of every candidate given the trials so far: its score, and the probability that it
runs.

    score = slope * (log tokens - log step time + log efficiency - log cost) + offset      (`autotune.search.objective_model`)
    runs  = P(peak <= limit) * (1 - failure rate)

The models of time and memory also learn from the history and from trials outside the space. The
gradient noise scale (for the efficiency), the offset (stability, the baseline's constant) and the
failure rate are learned only from trials of this workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import log_ndtr, logsumexp

from autotune.search.objective_model import log_cost, log_efficiency, offset_of, slope
from autotune.search.searcher import Problem
from autotune.search.surrogate import training_data
from autotune.search.surrogate.corrected_gp import Rows
from autotune.search.surrogate.failure_rate import failure_rate
from autotune.search.surrogate.kernel import distances, matern52, surrogate_points
from autotune.search.surrogate.model_average import ModelAverage
from autotune.search.surrogate.training_data import REPEAT_SD, DataPoint
from autotune.search.transfer import residual_transfer_weight, transfer_weight
from autotune.spec import ParallelConfig, Trial, Workload

Array = NDArray[np.float64]

MAX_HISTORY = 100
"""maximum number of trials of earlier studies, those with the greatest transfer weight"""
OFFSET_LENGTH = 3.0
"""length scale over which the offset correlates, in doublings of a knob"""


class Posterior:
    """Models of the N candidates, conditioned on trials and history."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._table = problem.space.table
        self._estimate = problem.predict()
        self._points = problem.space.coordinates()
        self._own = sum(len(knob.values) > 1 for knob in self._table.own)
        self._time_rows = training_data.time_rows(
            self._estimate, self._surrogate_points(self._points)
        )
        self._memory_rows = training_data.memory_rows(
            self._estimate, self._surrogate_points(self._points)
        )
        self._log_tokens = np.log(
            self._table.global_batch_size * problem.space.workload.tokens_per_sequence
        )
        self._log_cost = log_cost(problem.objective, self._table)
        self._log_limits = training_data.log_limits(
            self._estimate, problem.space.workload.cluster.gpu.memory_bytes
        )
        self._history, past = _nearest_history(problem)
        ours = problem.space.workload
        self._transfer_weights = np.array(
            [1.0, *(transfer_weight(ours, theirs) for theirs in past)]
        )
        self._residual_weights = np.array(
            [1.0, *(residual_transfer_weight(ours, theirs) for theirs in past)]
        )
        self._data: list[DataPoint] = list(self._history)
        self._fit()

    def update(self, trials: Sequence[tuple[int | None, Trial]]) -> None:
        """Condition on exactly these trials and the history."""
        self._data = [*self._history, *(self._data_point(index, trial) for index, trial in trials)]
        self._fit()

    def _data_point(self, index: int | None, trial: Trial) -> DataPoint:
        if index is None:
            return training_data.data_point(
                self._problem, self._problem.space.workload, trial, number=0
            )
        return DataPoint(
            trial=trial,
            workload=0,
            capacity_bytes=self._problem.space.workload.cluster.gpu.memory_bytes,
            estimate=self._estimate.take([index]),
            point=self._points[[index]],
        )

    def _fit(self) -> None:
        timed = [
            p
            for p in self._data
            if p.has_time and (p.workload == 0 or not self._problem.times_are_learnt)
        ]
        sized = [p for p in self._data if p.has_memory]
        at = self._surrogate_points
        rows = _joined(
            [training_data.time_rows(p.estimate, at(p.point), p.workload) for p in timed],
            self._time_rows,
        )
        weights = (self._transfer_weights, self._residual_weights)
        self.time = ModelAverage.of(
            training_data.time_prior(
                self._estimate,
                *weights,
                measured=any(p.workload == 0 for p in timed),
                own=self._own,
            ),
            rows,
            training_data.time_observations(timed),
            candidates=self._time_rows,
        )
        rows = _joined(
            [training_data.memory_rows(p.estimate, at(p.point), p.workload) for p in sized],
            self._memory_rows,
        )
        self.memory = ModelAverage.of(
            training_data.memory_prior(
                self._estimate, *weights, workload=self._problem.space.workload, own=self._own
            ),
            rows,
            training_data.memory_observations(sized),
            candidates=self._memory_rows,
        )
        self._ours = [p for p in self._data if p.workload == 0]
        self._our_trials = [p.trial for p in self._ours]
        self._log_efficiency = log_efficiency(
            self._problem.objective, self._table.global_batch_size, self._our_trials
        )
        self._rewarded = any(p.trial.reward is not None for p in self._ours)
        self.slope = slope(self._problem.objective, rewarded=self._rewarded)

    def score(
        self, candidates: NDArray[np.intp], pending: NDArray[np.intp]
    ) -> tuple[Array, Array, Array]:
        """Log weights of the models, shape (M,), and mean and standard deviation of the candidates'
        scores in each model, shape (M, N) each.

        The results of `pending` candidates are assumed to be their predicted means.
        """
        model = self.time
        if len(pending):
            model = model.fantasized(self._time_rows.take(pending), REPEAT_SD)
        mean, sd = model.predict(self._time_rows.take(candidates))
        throughput = (
            self._log_tokens[candidates]
            - mean
            + (self._log_efficiency - self._log_cost)[candidates]
        )
        offset, offset_sd = self._offset(self._points[candidates])
        return (
            model.log_weights,
            self.slope * throughput + offset,
            np.hypot(self.slope * sd, offset_sd),
        )

    def log_runs(self, candidates: NDArray[np.intp]) -> Array:
        """Log probability that each of the candidates runs, shape (N,)."""
        mean, sd = self.memory.predict(self._memory_rows.take(candidates))
        fits = log_ndtr((self._log_limits[candidates] - mean) / np.hypot(sd, REPEAT_SD))
        fits = logsumexp(self.memory.log_weights[:, None] + fits, axis=0)
        return np.asarray(
            fits + np.log1p(-failure_rate(self._points[candidates], *self._failure_data))
        )

    def fits(self, workload: Workload, configs: Sequence[ParallelConfig]) -> Array:
        """Probability that configs of another workload do not run out of memory, shape (n,). The
        factors learned for the parts of the searched workload's memory are applied to them."""
        predicted, points = training_data.predicted_trainings(self._problem, workload, configs)
        limits = training_data.log_limits(predicted, workload.cluster.gpu.memory_bytes)
        mean, sd = self.memory.predict(
            training_data.memory_rows(predicted, self._surrogate_points(points))
        )
        log_fits = log_ndtr((limits - mean) / np.hypot(sd, REPEAT_SD))
        return np.asarray(np.exp(logsumexp(self.memory.log_weights[:, None] + log_fits, axis=0)))

    def _surrogate_points(self, points: Array) -> Array:
        return surrogate_points(points, self._table.own)

    @cached_property
    def _no_points(self) -> Array:
        return np.zeros((0, self._points.shape[1]))

    @property
    def _failure_data(self) -> tuple[Array, NDArray[np.bool_]]:
        """Coordinates of this workload's trials that ran or failed for reasons other than memory,
        and a mask of those that failed."""
        seen = [p for p in self._ours if p.has_time or p.failed_otherwise]
        points = np.concatenate([self._no_points, *(p.point for p in seen)])
        return points, np.array([p.failed_otherwise for p in seen], dtype=np.bool_)

    def _offset(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the offset at `points`, shape (N,) each: a Gaussian process
        with the mean of the measured offsets."""
        seen = [p for p in self._ours if p.trial.is_measured and p.trial.reward is not None]
        if not seen:
            return np.zeros(len(points)), np.zeros(len(points))
        values = np.array(
            [offset_of(p.trial, self._problem.objective, self._our_trials) for p in seen]
        )
        measured_at = np.concatenate([p.point for p in seen])
        center, spread = float(values.mean()), max(float(values.std()), 1e-3)
        factor = cho_factor(
            spread**2 * matern52(distances(measured_at, measured_at), OFFSET_LENGTH)
            + 1e-2 * spread**2 * np.eye(len(measured_at))
        )
        across = spread**2 * matern52(distances(points, measured_at), OFFSET_LENGTH)
        variance = spread**2 - np.einsum("ni,in->n", across, cho_solve(factor, across.T))
        return center + across @ cho_solve(factor, values - center), np.sqrt(
            np.maximum(variance, 0.0)
        )


def _joined(rows: list[Rows], like: Rows) -> Rows:
    """Concatenate rows; `like` provides the shapes if there are none."""
    return Rows.joined([like.take(slice(0, 0)), *rows])


def _nearest_history(problem: Problem) -> tuple[list[DataPoint], list[Workload]]:
    """The history's trials with the greatest transfer weight, and its workloads in that order. The
    number of a workload is its position in that list, from 1."""
    ours = problem.space.workload
    by_name = {repr(workload): workload for workload, _ in problem.history}
    names = sorted(by_name, key=lambda name: -transfer_weight(ours, by_name[name]))
    nearest = sorted(problem.history, key=lambda pair: names.index(repr(pair[0])))[:MAX_HISTORY]
    data = [
        training_data.data_point(problem, w, t, number=1 + names.index(repr(w))) for w, t in nearest
    ]
    return data, [by_name[name] for name in names]
