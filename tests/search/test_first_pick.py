"""What is said of the first pick of a target holds as often as it says, and is not said where it
cannot hold."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.search.first_pick import FARTHEST, Statement, likely_shortfall, statement

SCORES = {
    "with_proxies": [0.1 * k for k in range(1, 20)],
    "without": [0.2 * k for k in range(1, 20)],
}


def test_the_expected_shortfall_is_a_quantile_of_the_best_over_the_pick() -> None:
    rng = np.random.default_rng(0)
    mean, sd = np.array([0.0, -0.02, -0.1, -0.5]), np.array([0.1, 0.15, 0.2, 0.1])
    drawn = mean + sd * rng.standard_normal((200_000, 4))
    ahead = np.maximum(drawn[:, 1:].max(axis=1) - drawn[:, 0], 0.0)
    found = likely_shortfall(mean, sd, 0, np.array([1, 2, 3]))
    assert found == pytest.approx(float(np.quantile(ahead, 0.9)), rel=0.02)
    assert likely_shortfall(mean, sd, 0, np.array([], dtype=np.intp)) == 0.0


def test_the_statement_holds_for_nine_of_ten_picks_like_the_replays() -> None:
    rng = np.random.default_rng(1)
    held = []
    for _ in range(2000):
        scores = np.abs(rng.standard_normal(40)).tolist()
        said = statement(
            0.2,
            with_proxies=True,
            stall_probability=0.0,
            times=4.0,
            scores={"with_proxies": scores, "without": []},
        )
        assert isinstance(said, Statement)
        held.append(1.0 - np.exp(-0.2 * abs(rng.standard_normal())) <= said.within)
    assert 0.88 < np.mean(held) < 0.94


def test_proxies_and_small_expectations_make_it_sharper() -> None:
    def within(shortfall: float, *, with_proxies: bool = True) -> float:
        said = statement(
            shortfall, with_proxies=with_proxies, stall_probability=0.0, times=8.0, scores=SCORES
        )
        assert isinstance(said, Statement)
        assert (said.confidence, said.replays) == (0.9, 19)
        return said.within

    assert within(0.1) < within(0.15) < within(0.15, with_proxies=False)
    assert within(0.1) == pytest.approx(1.0 - np.exp(-0.1 * 1.8))


def test_what_leaves_half_the_speed_open_is_not_said() -> None:
    said = statement(0.9, with_proxies=False, stall_probability=0.0, times=8.0, scores=SCORES)
    assert isinstance(said, str)
    assert "the first config may be up to" in said


def test_a_pick_without_a_rival_is_not_said_to_be_the_best() -> None:
    said = statement(3e-7, with_proxies=False, stall_probability=0.0, times=8.0, scores=SCORES)
    assert isinstance(said, str)
    assert "no other config" in said


def test_a_stall_that_is_likelier_than_the_doubt_leaves_nothing_to_say() -> None:
    said = statement(0.1, with_proxies=True, stall_probability=0.12, times=8.0, scores=SCORES)
    assert isinstance(said, str)
    assert "12%" in said


def test_beyond_32_times_it_is_refused_with_the_reason() -> None:
    assert isinstance(
        statement(0.1, with_proxies=True, stall_probability=0.0, times=FARTHEST), Statement
    )
    said = statement(0.1, with_proxies=True, stall_probability=0.0, times=FARTHEST + 1)
    assert isinstance(said, str)
    assert "beyond a factor of 32" in said
