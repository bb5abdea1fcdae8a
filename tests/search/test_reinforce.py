"""The policy keeps the contract, its gradient is right, and it learns from outcomes."""

from __future__ import annotations

import json

import numpy as np

from autotune.search import make_searcher
from autotune.search.policy import FEATURES, FILE, Policy, SearchState
from autotune.testing.searchers import SearcherContract, measured
from tests.search.playing import SPACE, play, share_of_best


class TestReinforce(SearcherContract):
    searcher = "reinforce"


def test_the_expected_gain_ends_the_search() -> None:
    searcher = make_searcher("reinforce", SPACE)
    assert searcher.expected_gain() is None
    gains: list[float] = []
    while len(gains) < 15 and (not gains or gains[-1] >= 0.03):
        searcher.tell([measured(config) for config in searcher.ask(1)])
        gains += [gain for gain in [searcher.expected_gain()] if gain is not None]
    assert len(gains) > 1
    assert gains[-1] < 0.03 < max(gains)


def _case(seed: int = 0) -> tuple[Policy, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    policy = Policy.initial(4, rng)
    policy = policy.moved({n: rng.standard_normal(v.shape) for n, v in policy.weights.items()}, 0.3)
    allowed = np.array([True, True, False, True, True])
    return policy, rng.standard_normal((5, len(FEATURES))), allowed


def test_gradient_agrees_with_differences() -> None:
    policy, features, allowed = _case()
    exact = policy.gradient(features, allowed, 3)
    for name, value in policy.weights.items():
        for at in range(value.size):
            nudge = {n: np.zeros_like(v) for n, v in policy.weights.items()}
            nudge[name].flat[at] = 1.0
            up, down = (
                policy.moved(nudge, s).log_probabilities(features, allowed)[3]
                for s in (1e-6, -1e-6)
            )
            assert np.isclose((up - down) / 2e-6, exact[name].flat[at], atol=1e-6)


def test_probabilities_of_allowed_candidates_add_up_to_one() -> None:
    policy, features, allowed = _case(1)
    logs = policy.log_probabilities(features, allowed)
    assert np.isneginf(logs[2])
    assert np.isclose(np.exp(logs).sum(), 1.0)


def test_a_good_outcome_makes_its_action_more_probable() -> None:
    policy, features, allowed = _case(2)
    before = policy.log_probabilities(features, allowed)[1]
    after = policy.moved(policy.gradient(features, allowed, 1), 0.05).log_probabilities(
        features, allowed
    )[1]
    assert after > before


def test_shipped_weights_match_the_features_and_name_the_command_that_made_them() -> None:
    document = json.loads(FILE.read_text(encoding="utf-8"))
    assert tuple(document["features"]) == FEATURES
    assert document["made_by"].startswith("python -m research.train_policy")
    assert document["regret"]["trained"] <= document["regret"]["untrained"]
    assert Policy.trained().weights["w"].shape == (len(FEATURES),)
    assert FILE.stat().st_size < 20_000


def test_features_are_finite_after_any_outcome() -> None:
    state = SearchState(
        predicted=np.array([1.0, 2.0, 3.0]),
        headroom=np.array([0.5, -2.0, 0.1]),
        headroom_sd=0.1,
        shares=np.full((3, 4), 0.25),
        points=np.arange(6.0).reshape(3, 2),
    )
    assert np.isfinite(state.features()).all()
    state.add(1, np.nan, log_peak_ratio=None, out_of_memory=True)
    state.add(2, np.nan, log_peak_ratio=None, out_of_memory=False)
    state.add(0, 1.5, log_peak_ratio=-0.2, out_of_memory=False)
    assert np.isfinite(state.features()).all()
    assert state.best == 2


def test_finds_the_best_of_a_known_world() -> None:
    assert share_of_best(play(make_searcher("reinforce", SPACE), 12)) > 0.85
