"""The parts of the surrogate against closed forms: acquisition, observations, corrected cost model,
failure rate, dominance."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from autotune.cost import estimate
from autotune.search.dominance import needs_as_much_memory
from autotune.search.surrogate.acquisition import (
    expected_maximum,
    log_expected_improvement,
    log_mixture_improvement,
)
from autotune.search.surrogate.corrected_gp import CorrectedGP, Prior, Rows, Scales
from autotune.search.surrogate.failure_rate import RATE, failure_rate
from autotune.search.surrogate.kernel import distances, matern52
from autotune.search.surrogate.model_average import ORDERING_PRIOR, UNINFORMED_PRIOR, ModelAverage
from autotune.search.surrogate.observations import OUTLIER_RATE, Observations
from autotune.search.surrogate.training_data import Z90, log_limits
from autotune.spec import ConfigTable, ParallelConfig
from autotune.testing.searchers import WORKLOAD, candidates, truth
from tests.matrix import examples


@pytest.mark.parametrize("z", [-8.0, -1.5, -1.0, -0.9, 0.0, 2.0])
def test_expected_improvement_is_the_integral(z: float) -> None:
    mean, sd, best = z * 0.3, 0.3, 0.0
    exact, _ = quad(
        lambda x: (x - best) * norm.pdf(x, mean, sd), best, best + 12 * sd, epsabs=0, epsrel=1e-10
    )
    found = log_expected_improvement(np.array([mean]), np.array([sd]), best)[0]
    assert found == pytest.approx(math.log(exact), abs=1e-6)


def test_the_improvement_of_a_mixture_is_the_weighted_mean() -> None:
    weights, mean, sd = (
        np.array([0.9, 0.1]),
        np.array([[0.1, -2.0], [-3.0, 1.0]]),
        np.array([[0.1, 0.1], [0.5, 2.0]]),
    )
    each = np.exp(log_expected_improvement(mean, sd, 0.2))
    assert np.exp(log_mixture_improvement(np.log(weights), mean, sd, 0.2)) == pytest.approx(
        weights @ each
    )


def test_expected_maximum_agrees_with_samples() -> None:
    mean, sd, runs, best = (
        np.array([0.0, -0.2, 0.1]),
        np.array([0.3, 0.5, 0.1]),
        np.array([1.0, 0.5, 0.8]),
        0.05,
    )
    rng = np.random.default_rng(0)
    drawn = np.where(
        rng.random((200_000, 3)) < runs, mean + sd * rng.standard_normal((200_000, 3)), -np.inf
    )
    assert expected_maximum(mean, sd, runs, best) == pytest.approx(
        np.maximum(drawn.max(axis=1) - best, 0).mean(), rel=0.01
    )
    alone = math.exp(log_expected_improvement(mean[:1], sd[:1], best)[0])
    assert expected_maximum(mean[:1], sd[:1], runs[:1], best) == pytest.approx(alone, rel=1e-3)
    assert expected_maximum(mean, sd, runs, 50.0) == 0.0


def test_the_nugget_keeps_one_config_s_error_from_its_neighbours() -> None:
    rows = Rows(
        parts=np.ones((3, 1)),
        points=np.array([[0.0], [1.0], [1.0]]),
        workloads=np.zeros(3, dtype=int),
    )
    prior = replace(_prior(1, residual_sd=0.3), factor_sds=np.zeros(1), common_sd=0.0)
    model = CorrectedGP(prior, rows.take([0, 1]), _values([0.0, 0.3]), scales=Scales(nugget=0.5))
    mean, sd = model.predict(rows)
    assert mean[1] == pytest.approx(0.3, abs=0.02)
    assert sd[1] < 0.05
    assert 0.05 < model.predict(replace(rows.take([2]), points=np.array([[2.0]])))[0][0] < 0.15


def test_expected_improvement_ranks_where_it_underflows() -> None:
    found = log_expected_improvement(-np.array([40.0, 1e3, 1e5, 1e8]), np.ones(4), 0.0)
    assert np.isfinite(found).all()
    assert (np.diff(found) < 0).all()


@settings(deadline=None, derandomize=True, max_examples=examples(30))
@given(st.integers(0, 10_000))
def test_covariance_is_positive_definite(seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 4, (12, 5)).astype(float)
    points = np.unique(points, axis=0)
    covariance = matern52(distances(points, points), 2.0)
    assert np.linalg.eigvalsh(covariance).min() > 0
    assert np.allclose(np.diag(covariance), 1.0)


def _prior(parts: int, *, residual_sd: float = 0.1) -> Prior:
    return Prior(
        factor_sds=np.full(parts, 0.5),
        common_sd=0.1,
        residual_sd=residual_sd,
        transfer_weights=np.array([1.0, 0.8]),
        residual_weights=np.array([1.0, 0.0]),
    )


def _rows(parts: np.ndarray, *, workload: int = 0) -> Rows:
    points = np.arange(len(parts), dtype=float)[:, None] * 3.0
    return Rows(parts=parts, points=points, workloads=np.full(len(parts), workload))


def _values(values: list[float]) -> Observations:
    return Observations(
        values=np.array(values), sides=np.zeros(len(values)), noise=np.full(len(values), 0.01)
    )


NOTHING = Observations(values=np.zeros(0), sides=np.zeros(0), noise=np.zeros(0))


def test_without_observations_the_posterior_is_the_prediction() -> None:
    rows = _rows(np.array([[1.0, 3.0], [2.0, 2.0]]))
    model = CorrectedGP(_prior(2), rows.take(slice(0, 0)), NOTHING)
    mean, sd = model.predict(rows)
    assert np.allclose(mean, math.log(4.0))
    # both parts equal: half of each factor's spread, the common spread, and the residual
    assert sd[1] == pytest.approx(math.sqrt(2 * 0.25 * 0.25 + 0.01 + 0.01))


def test_finds_which_part_is_wrong() -> None:
    """The second part takes three times as long as predicted; a few observations suffice to predict
    the others."""
    rng = np.random.default_rng(0)
    parts = rng.uniform(0.1, 1.0, (12, 2))
    real = np.log(parts @ np.array([1.0, 3.0]))
    rows = _rows(parts)
    model = CorrectedGP(
        _prior(2, residual_sd=0.03), rows.take(slice(0, 6)), _values(real[:6].tolist())
    )
    assert model.factors == pytest.approx([1.0, 3.0], rel=0.25)
    before = np.abs(np.log(parts.sum(axis=1)) - real)[6:].mean()
    assert np.abs(model.predict(rows)[0] - real)[6:].mean() < 0.15 * before


def test_gaussian_case_agrees_with_linear_algebra() -> None:
    """One part makes log time linear in its factor: the posterior is that of a plain Gaussian
    process."""
    rows = _rows(np.array([[1.0], [2.0], [4.0]]))
    prior, scales = _prior(1, residual_sd=0.2), Scales(factors=1.0, residual=1.0)
    seen, values = rows.take(slice(0, 2)), np.array([0.05, 0.65])
    model = CorrectedGP(prior, seen, _values(values.tolist()), scales=scales)
    covariance = 0.25 + 0.01 + 0.04 * scales.correlations(distances(rows.points, rows.points))
    inverse = np.linalg.inv(covariance[:2, :2] + 1e-4 * np.eye(2) / (1 - OUTLIER_RATE))
    expected = math.log(4.0) + covariance[2, :2] @ inverse @ (values - np.log([1.0, 2.0]))
    mean, sd = model.predict(rows.take([2]))
    assert mean[0] == pytest.approx(expected, abs=2e-3)
    assert sd[0] == pytest.approx(
        math.sqrt(covariance[2, 2] - covariance[2, :2] @ inverse @ covariance[:2, 2]), abs=2e-3
    )


def test_one_outlier_does_not_outweigh_the_other_trials() -> None:
    rng = np.random.default_rng(1)
    parts = rng.uniform(0.1, 1.0, (8, 2))
    real = np.log(parts.sum(axis=1))
    values = real.copy()
    values[3] += math.log(30.0)
    rows = _rows(parts)
    model = CorrectedGP(_prior(2), rows.take(slice(0, 7)), _values(values[:7].tolist()))
    assert model.predict(rows.take([7]))[0][0] == pytest.approx(real[7], abs=0.2)


def test_censored_observations_move_the_posterior_to_their_side() -> None:
    rows = _rows(np.array([[1.0], [1.0]]))
    for side, sign in ((1.0, 1), (-1.0, -1)):
        limit = Observations(
            values=np.array([0.3 * sign]), sides=np.array([side]), noise=np.array([0.02])
        )
        mean, _ = CorrectedGP(_prior(1), rows.take([0]), limit).predict(rows.take([0]))
        assert mean[0] * sign > 0.3
        assert mean[0] * sign < 2.0


def test_a_censored_observation_that_was_expected_changes_little() -> None:
    rows = _rows(np.array([[1.0]]))
    far = Observations(values=np.array([-5.0]), sides=np.array([1.0]), noise=np.array([0.02]))
    mean, _ = CorrectedGP(_prior(1), rows, far).predict(rows)
    assert mean[0] == pytest.approx(0.0, abs=1e-3)


def test_another_workload_informs_the_factors_only() -> None:
    parts = np.array([[1.0], [1.0]])
    theirs = _rows(parts, workload=1)
    model = CorrectedGP(_prior(1, residual_sd=0.05), theirs, _values([0.8, 0.8]))
    mean, _ = model.predict(_rows(parts[:1]))
    assert 0.3 < mean[0] < 0.8


def test_fantasies_reduce_the_uncertainty_and_keep_the_mean() -> None:
    rows = _rows(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]]))
    model = CorrectedGP(_prior(2), rows.take([0]), _values([1.2]))
    mean, sd = model.predict(rows)
    after_mean, after_sd = model.conditioned_on(rows.take([1]), mean[[1]], 0.01).predict(rows)
    assert np.allclose(after_mean, mean, atol=0.02)
    assert (after_sd <= sd + 1e-9).all()
    assert after_sd[1] < 0.3 * sd[1]


def _world(seed: int = 3) -> tuple[Rows, np.ndarray]:
    """Sixteen configs of two parts, and their log times by a model that is off by a tenth."""
    rng = np.random.default_rng(seed)
    parts = np.exp(rng.normal(0.0, 0.8, (16, 2)))
    return _rows(parts), np.log(parts.sum(axis=1)) + 0.1 * rng.standard_normal(16)


def _uninformed_weight(model: ModelAverage) -> float:
    return sum(
        math.exp(w)
        for w, m in zip(model.log_weights, model.models, strict=True)
        if m.level is not None
    )


def _corrected_weight(model: ModelAverage) -> float:
    """Of the models that correct the cost model by its parts."""
    corrected = [m.level is None and m.gp.scales.nugget < 1.0 for m in model.models]
    return float(np.exp(model.log_weights)[corrected].sum())


def test_a_model_that_predicts_well_gains_weight_with_every_trial() -> None:
    rows, real = _world()
    weights = [
        _corrected_weight(
            ModelAverage.of(
                _prior(2), rows.take(slice(0, n)), _values(real[:n].tolist()), candidates=rows
            )
        )
        for n in (1, 3, 6)
    ]
    prior = 1.0 - ORDERING_PRIOR - UNINFORMED_PRIOR
    assert weights[0] > prior
    worst = min(weights[1:])
    # the evidence alone, whatever the prior
    assert worst / (1.0 - worst) > 3.0 * prior / (1.0 - prior)


def test_a_model_that_predicts_nothing_loses_its_weight() -> None:
    """With the predictions of other configs the uncertainty elsewhere becomes as large as the
    spread of the configs."""
    rows, real = _world()
    shuffled = Rows(parts=rows.parts[::-1], points=rows.points, workloads=rows.workloads)
    model = ModelAverage.of(
        _prior(2), shuffled.take(slice(0, 8)), _values(real[:8].tolist()), candidates=shuffled
    )
    assert _uninformed_weight(model) > UNINFORMED_PRIOR
    mean, sd = model.predict(shuffled.take(slice(8, 16)))
    weights = np.exp(model.log_weights)[:, None]
    spread = np.sqrt((weights * (sd**2 + mean**2)).sum(axis=0) - (weights * mean).sum(axis=0) ** 2)
    assert (spread > 0.5 * real.std()).all()
    assert (np.abs((weights * mean).sum(axis=0) - real[8:]) < 3 * spread).all()


def test_weights_add_up_to_one_and_fantasies_do_not_change_them() -> None:
    rows, real = _world()
    model = ModelAverage.of(
        _prior(2), rows.take([0, 1]), _values(real[:2].tolist()), candidates=rows
    )
    after = model.fantasized(rows.take([5]), 0.01)
    assert np.exp(model.log_weights).sum() == pytest.approx(1.0)
    assert after.log_weights is model.log_weights
    assert (after.predict(rows.take([5]))[1] < model.predict(rows.take([5]))[1]).all()


def test_trials_of_other_workloads_do_not_enter_the_weights() -> None:
    rows, real = _world()
    theirs = Rows(parts=rows.parts, points=rows.points, workloads=np.ones(16, dtype=int))
    alone = ModelAverage.of(_prior(2), theirs, _values(real.tolist()), candidates=rows)
    assert len(alone.models) == 1
    assert alone.models[0].level is None
    ours = Rows.joined([theirs, rows.take([0])])
    model = ModelAverage.of(
        _prior(2), ours, _values([*real.tolist(), real[0] + 2.0]), candidates=rows
    )
    assert _corrected_weight(model) < 1.0 - ORDERING_PRIOR - UNINFORMED_PRIOR


def test_the_failure_rate_is_the_prior_far_away_and_high_beside_failures() -> None:
    points = np.array([[0.0], [1.0], [50.0]])
    found = failure_rate(points, np.array([[0.0]]), np.array([True]))
    assert found[0] > 0.4
    assert RATE < found[1] < found[0]
    assert found[2] == pytest.approx(RATE, abs=1e-6)
    assert failure_rate(points, np.zeros((0, 1)), np.zeros(0, dtype=bool)).tolist() == [RATE] * 3


def test_limits_are_where_the_estimate_says_that_runs_fail() -> None:
    table, capacity = ConfigTable.of(candidates()), WORKLOAD.cluster.gpu.memory_bytes
    predicted = estimate(WORKLOAD, table)
    limits = log_limits(predicted, capacity)
    sigma = np.log(predicted.peak_memory_high_bytes / predicted.peak_memory_low_bytes) / (2 * Z90)
    p = np.asarray(predicted.oom_probability)
    unsure = (p > 1e-6) & (p < 1 - 1e-6)
    # neither a limit nor an interval is said to lie above the capacity, which is then what stands
    # there
    capped = np.isclose(limits, math.log(capacity)) | (predicted.peak_memory_high_bytes == capacity)
    asked = unsure & ~capped
    assert (p[asked] > 0.5).any()
    assert (p[asked] < 0.5).sum() > 10
    assert norm.cdf((np.log(predicted.peak_memory_bytes) - limits) / sigma)[asked] == pytest.approx(
        p[asked], abs=1e-3
    )
    assert (limits[p > 0.5] <= math.log(capacity)).all()


def test_dominance_holds_in_the_contract_world() -> None:
    """Every config that an out-of-memory failure rules out needs as much memory."""
    configs = candidates()
    table = ConfigTable.of(configs)
    peaks = np.array([truth(WORKLOAD, c)[1] for c in configs])
    for i, config in enumerate(configs):
        mask = needs_as_much_memory(table, config)
        assert mask[i]
        worse = mask & (table.pp == config.pp)
        assert (peaks[worse] >= peaks[i] * (1 - 1e-9)).all()


def test_dominance_ignores_configs_that_differ_in_other_knobs() -> None:
    failed = ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=2)
    others = [
        ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4),
        ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=2, precision="fp8"),
        ParallelConfig(dp=4, tp=2, micro_batch_size=4, accumulation_steps=4),
        ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=2, zero_stage=1),
        ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=2, recompute="full"),
    ]
    assert not needs_as_much_memory(ConfigTable.of(others), failed).any()
    assert needs_as_much_memory(
        ConfigTable.of([ParallelConfig(dp=8, micro_batch_size=8)]), failed
    ).all()
