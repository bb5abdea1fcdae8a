"""Bayesian search keeps the contract, finds the best config of a known world in a few trials, and
estimates when to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import load_study
from autotune.cost import estimate
from autotune.search import Problem, make_searcher
from autotune.search.bayesian import BayesianSearcher
from autotune.search.model_based import Array
from autotune.space import SearchSpace
from autotune.spec import Estimate, FailureKind, Objective, Reward, Trial, TrialStatus
from autotune.testing.searchers import (
    MODEL,
    WORKLOAD,
    SearcherContract,
    candidates,
    failed,
    measured,
)
from tests.search.playing import BEST, SPACE, play, share_of_best
from tests.shortcuts import present


class TestBayesian(SearcherContract):
    searcher = "bayesian"
    budget: ClassVar[int] = 10


def test_finds_the_best_config_of_a_world_that_the_cost_model_does_not_describe() -> None:
    assert share_of_best(play(make_searcher("bayesian", SPACE), 10)) > 0.95


def _tight_space() -> SearchSpace:
    study = load_study({
        "model": "llama-8b", "cluster": "h100-sxm-1x8", "workload": {"seq_len": 4096, "global_batch_size": 64},
        "space": {"micro_batch_size": [1, 2, 4, 8], "recompute": ["full"], "zero_stage": [1, 2, 3], "compile": [False, True]},
        "trainer": "hf_trainer", "runner": "simulated",
    })  # fmt: skip
    return SearchSpace.of_study(study)


@pytest.mark.thorough
def test_the_first_config_that_is_tried_probably_runs() -> None:
    """The fastest of these are predicted to run out of memory with 33 and 44%, and to be 10%
    faster."""
    space = _tight_space()
    (first,) = BayesianSearcher(Problem(space=space)).ask(1)
    fastest = estimate(space.workload, list(space)).tokens_per_s.max()
    found = estimate(space.workload, first)
    assert float(found.oom_probability) <= 0.25
    assert float(found.tokens_per_s) < fastest, "the fastest is too risky to begin with"


def test_the_expected_gain_falls_towards_zero() -> None:
    searcher = make_searcher("bayesian", SPACE)
    assert searcher.expected_gain() is None
    play(searcher, 2)
    early = searcher.expected_gain()
    gains = [searcher.expected_gain(trials) or 0.0 for trials in range(1, searcher.LOOKAHEAD + 1)]
    assert gains == sorted(gains)
    assert 0 < gains[0] < gains[-1] == early
    play(searcher, 12)
    late = searcher.expected_gain()
    assert early is not None
    assert late is not None
    assert late < early
    assert late < 0.05


class _Ahead(BayesianSearcher):
    """One model, sure of one candidate that is faster than the best by this factor."""

    factor = 1.0

    def predict(self, candidates: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        mean = np.full((1, len(candidates)), (self.best_score() or 0.0) - 5.0)
        mean[0, -1] = (self.best_score() or 0.0) + np.log(self.factor)
        return np.zeros(1), mean, np.full(mean.shape, 1e-6), np.zeros(len(candidates))


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.25, "expected gain 25.0% over the best so far"),
        (3.25, "expected 3.25x the speed of the best so far"),
    ],
)
def test_a_reason_gives_a_small_gain_as_a_share_and_a_large_one_as_a_factor(
    factor: float, said: str
) -> None:
    searcher = _Ahead(Problem(space=SPACE))
    searcher.factor = factor
    searcher.tell([measured(next(config for config in SPACE if measured(config).is_measured))])
    (asked,) = searcher.ask(1)
    assert searcher.reason(asked) == f"{said}, 100% likely to run"


class _TwoModels(BayesianSearcher):
    """Two models: the likelier one expects a small gain of the first candidate only, the other a
    large gain of the last."""

    def predict(self, candidates: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        best = self.best_score() or 0.0
        mean = np.full((2, len(candidates)), best - 5.0)
        mean[0, 0], mean[1, -1] = best, best + 1.0
        return np.log([0.8, 0.2]), mean, np.full(mean.shape, 0.01), np.zeros(len(candidates))


def test_proposes_the_candidate_that_keeps_it_from_stopping_whichever_model_expects_the_gain() -> (
    None
):
    searcher = _TwoModels(Problem(space=SPACE))
    runs = next(config for config in SPACE if measured(config).is_measured)
    searcher.tell([measured(runs)])
    gain = present(searcher.expected_gain())
    assert gain > 0.1
    expected = SPACE[int(searcher.eligible()[-1])]
    assert searcher.ask(1) == [expected]


def _until_it_stops(predicted: Estimate) -> list[Trial]:
    searcher = make_searcher("bayesian", SPACE, estimate=predicted)
    trials: list[Trial] = []
    while (gain := searcher.expected_gain()) is None or gain >= 0.01:
        trials = play(searcher, len(trials) + 1, trials)
    return trials


@pytest.mark.thorough
def test_searches_longer_when_the_cost_model_is_useless() -> None:
    """With the predictions shuffled between configs it stops later than with the right ones."""
    predicted = estimate(WORKLOAD, SPACE.table)
    orders = [np.random.default_rng(seed).permutation(len(SPACE)) for seed in range(2)]
    misled = [_until_it_stops(predicted.take(order)) for order in orders]
    assert min(map(len, misled)) > len(_until_it_stops(predicted))
    assert np.mean([share_of_best(trials) for trials in misled]) > 0.9


def test_learns_from_memory_what_will_not_fit() -> None:
    """With a cost model that predicts half of the memory, trials run out of memory, but not again
    and again."""
    predicted = estimate(WORKLOAD, SPACE.table)
    low = replace(
        predicted,
        peak_memory_bytes=predicted.peak_memory_bytes * 0.5,
        memory_parts_bytes=type(predicted.memory_parts_bytes)(
            **{
                n: v * 0.5
                for n, v in zip(
                    predicted.memory_parts_bytes.to_dict(), _parts(predicted), strict=True
                )
            }
        ),
        oom_probability=np.zeros(len(SPACE)),
    )
    trials = play(make_searcher("bayesian", SPACE, estimate=low), 12)
    assert sum(t.failure is not None for t in trials) <= 5
    assert share_of_best(trials) > 0.9


def _parts(predicted: object) -> list[np.ndarray]:
    parts = predicted.memory_parts_bytes  # type: ignore[attr-defined]
    return [np.asarray(getattr(parts, name)) for name in parts.to_dict()]


@pytest.mark.thorough
def test_out_of_memory_rules_out_what_needs_more() -> None:
    searcher = make_searcher("bayesian", SPACE)
    worst = next(c for c in candidates() if c.micro_batch_size == 1 and c.tp * c.pp == 1)
    searcher.tell([failed(worst, FailureKind.OUT_OF_MEMORY)])
    asked = {t.config for t in play(searcher, 20)}
    assert not any(c.tp * c.pp == 1 and c.zero_stage <= worst.zero_stage for c in asked)


def test_other_failures_make_their_neighbourhood_less_likely() -> None:
    searcher = make_searcher("bayesian", SPACE)
    (first,) = searcher.ask(1)
    searcher.tell([failed(first, FailureKind.HANG)])
    (second,) = searcher.ask(1)
    again = make_searcher("bayesian", SPACE)
    again.ask(1)
    again.tell([failed(first, FailureKind.WORKER_LOST)])
    (blameless,) = again.ask(1)

    def steps(config: object) -> int:
        return sum(
            getattr(config, n) != getattr(first, n)
            for n in ("tp", "pp", "dp", "micro_batch_size", "zero_stage")
        )

    assert steps(second) >= steps(blameless)


def test_rewards_decide_where_there_are_any() -> None:
    """A config that trains unstably loses to a slightly slower one: the rest of the reward is
    learnt too."""

    def rewarded(trial: Trial) -> Trial:
        if not trial.is_measured or trial.measurement is None:
            return trial
        throughput = float(np.log(trial.measurement.tokens_per_s / BEST))
        stability = 0.2 if trial.config.micro_batch_size >= 4 else 1.0
        reward = Reward(
            total=0.5 * throughput + 0.5 * stability, throughput=throughput, stability=stability
        )
        return replace(trial, reward=reward)

    searcher = make_searcher("bayesian", SPACE, objective=Objective(stability_weight=0.5))
    played: list[Trial] = []
    while len(played) < 10 and (asked := searcher.ask(1)):
        played.append(rewarded(measured(asked[0], number=len(played))))
        searcher.tell(played[-1:])
    assert sum(t.config.micro_batch_size < 4 for t in played[4:]) >= 4


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        pytest.param(replace(MODEL, name="another", num_layers=24), marks=pytest.mark.thorough),
    ],
)
def test_earlier_studies_do_no_harm(model: object) -> None:
    theirs = replace(WORKLOAD, model=model, cluster=replace(WORKLOAD.cluster, num_nodes=1))
    history = [(theirs, measured(c, theirs)) for c in candidates(theirs)]
    history = [(w, t) for w, t in history if t.is_measured][::7]
    assert history
    assert share_of_best(play(make_searcher("bayesian", SPACE, history=history), 10)) > 0.95


@pytest.mark.thorough
def test_a_misleading_history_loses_its_weight() -> None:
    """In the history tensor parallelism was far slower than predicted; here it is not."""
    theirs = replace(WORKLOAD, model=replace(MODEL, name="another", num_layers=24))

    def slowed(trial: Trial) -> Trial:
        assert trial.measurement is not None
        times = tuple(t * trial.config.tp**1.5 for t in trial.measurement.step_times_s)
        return replace(trial, measurement=replace(trial.measurement, step_times_s=times))

    ran = [t for t in (measured(c, theirs) for c in candidates(theirs)) if t.is_measured]
    searcher = make_searcher("bayesian", SPACE, history=[(theirs, slowed(t)) for t in ran[::5]])
    assert isinstance(searcher, BayesianSearcher)
    trials = play(searcher, 3)
    assert all(t.config.tp == 1 for t in trials[:1])
    trials = play(searcher, 12, trials)
    assert share_of_best(trials) > 0.95
    time = searcher.posterior.time
    alone = np.array([model.subset is not None for model in time.models])
    assert np.exp(time.log_weights)[alone].sum() > 0.8


def test_pending_trials_count_as_predicted_and_reduce_the_uncertainty_of_their_neighbours() -> None:
    searcher = make_searcher("bayesian", SPACE)
    assert isinstance(searcher, BayesianSearcher)
    play(searcher, 2)
    free = searcher.eligible()
    _, mean, sd, _ = searcher.predict(free)
    asked = SPACE.index_of(searcher.ask(1)[0])
    _, mean_after, sd_after, _ = searcher.predict(free)
    at = int(np.flatnonzero(free == asked)[0])
    assert (sd_after[:, at] < 0.5 * sd[:, at]).all()
    assert np.allclose(mean_after[:, at], mean[:, at], atol=0.02)
    assert (sd_after.mean(axis=1) < sd.mean(axis=1)).all()


def test_a_failure_that_is_no_lack_of_memory_makes_its_neighbours_less_likely_to_run() -> None:
    def runs(kind: FailureKind) -> np.ndarray:
        searcher = make_searcher("bayesian", SPACE)
        assert isinstance(searcher, BayesianSearcher)
        searcher.tell([failed(searcher.ask(1)[0], kind)])
        return searcher.posterior.log_runs(np.arange(len(SPACE)))

    hung, lost = runs(FailureKind.HANG), runs(FailureKind.WORKER_LOST)
    assert (hung < lost).all()
    assert (lost - hung).max() > 0.3
    assert (lost - hung).min() < 0.1 * (lost - hung).max(), "far away it has no effect"


def test_a_measured_peak_above_the_prediction_makes_what_needs_more_less_likely_to_run() -> None:
    def runs(factor: float) -> np.ndarray:
        searcher = make_searcher("bayesian", SPACE)
        assert isinstance(searcher, BayesianSearcher)
        predicted = estimate(WORKLOAD, SPACE.table)
        for number, config in enumerate(searcher.ask(4)):
            index = present(SPACE.index_of(config))
            trial = measured(config, number=number)
            assert trial.measurement is not None
            peak = factor * float(predicted.row(index).peak_memory_bytes)
            searcher.tell(
                [replace(trial, measurement=replace(trial.measurement, peak_memory_bytes=peak))]
            )
        return searcher.posterior.log_runs(np.arange(len(SPACE)))

    more, less = runs(1.5), runs(0.7)
    assert (more <= less + 1e-9).all()
    assert (less - more).max() > 1.0


def test_one_peak_tells_most_of_the_others_where_no_peak_of_the_trainer_was_fitted() -> None:
    space = _tight_space()
    predicted = estimate(space.workload, space.table)
    risky = (predicted.oom_probability > 0.15) & (predicted.oom_probability < 0.45)

    def runs(factor: float | None) -> np.ndarray:
        searcher = BayesianSearcher(Problem(space=space))
        if factor is not None:
            (first,) = searcher.ask(1)
            index = present(space.index_of(first))
            run = present(measured(candidates()[-1]).measurement)
            peak = factor * float(predicted.row(index).peak_memory_bytes)
            run = replace(run, peak_memory_bytes=peak)
            searcher.tell(
                [Trial(config=first, number=0, status=TrialStatus.COMPLETED, measurement=run)]
            )
        return np.exp(searcher.posterior.log_runs(np.flatnonzero(risky)))

    before, less, more = runs(None), runs(0.9), runs(1.15)
    assert (less > before + 0.15).all()
    assert (more < before - 0.15).all()


def test_a_batch_spreads_out() -> None:
    batch = make_searcher("bayesian", SPACE).ask(4)
    assert len({(c.tp, c.pp, c.micro_batch_size) for c in batch}) >= 3
