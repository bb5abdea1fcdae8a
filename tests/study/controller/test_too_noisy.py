"""A machine on which the runs of the baseline disagree: nothing is claimed, and the spread is
said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autotune.spec import MeasureSpec, ParallelConfig, Trial, TrialPurpose
from autotune.study.controller import TooNoisy, decide
from autotune.study.controller.finals.too_noisy import LIMIT, too_noisy
from tests.shortcuts import present
from tests.study.controller.test_changing_machine import BEST, Runs
from tests.study.controller.test_finals import A, final, run
from tests.study.controller.world import BASELINE, study

TOKENS = 256
"""of a step in this world"""


def defaults(speeds: Sequence[float], searched: int = 1) -> list[Trial]:
    """Runs of the baseline at these tokens/s, the first ones during the search."""
    return [
        run(
            n,
            BASELINE,
            TOKENS / v,
            purpose=TrialPurpose.BASELINE if n < searched else TrialPurpose.FINAL,
        )
        for n, v in enumerate(speeds)
    ]


@pytest.mark.parametrize(
    "speeds",
    [
        (10_500, 5_190, 4_120),
        (3_990, 5_510, 14_000, 21_200),
        (1_000, 1_310),
        (1_000, 2_000, 1_000, 2_000, 1_000, 2_000),
        (1_000, 1_000, 1_000, 400),
    ],
)
def test_runs_that_agree_with_nobody_are_noise(speeds: tuple[float, ...]) -> None:
    trials = defaults(speeds)
    found = present(too_noisy(trials, trials[0]))
    assert (found.slowest, found.fastest, found.runs) == (
        pytest.approx(min(speeds)),
        pytest.approx(max(speeds)),
        len(speeds),
    )


@pytest.mark.parametrize(
    ("speeds", "why"),
    [
        ((1_000,), "one run says nothing"),
        ((1_000, 1_290), f"within a factor of {LIMIT}"),
        ((1_000, 400, 410), "the machine changed before the second run, and stayed"),
        ((1_000, 1_010, 400, 410, 990, 1_000), "it changed, and came back"),
        ((1_000, 1_010, 400, 1_000, 990), "one run in five was disturbed"),
    ],
)
def test_a_steady_machine_and_one_that_changed_are_not_noisy(
    speeds: tuple[float, ...], why: str
) -> None:
    trials = defaults(speeds)
    assert too_noisy(trials, trials[0]) is None, why


@pytest.mark.parametrize(
    ("speeds", "is_noisy"),
    [
        ((1_780, 1_810, 1_790, 1_770), False),
        ((1_780, 1_810), True),
        ((1_780, 1_810, 1_790, 1_600), True),
    ],
)
def test_steady_finals_are_not_noisy_whatever_the_search_saw(
    speeds: tuple[float, ...], is_noisy: bool
) -> None:
    search = [
        run(n, BASELINE, TOKENS / v, purpose=TrialPurpose.BASELINE)
        for n, v in enumerate((1_050, 1_400, 1_910, 1_500))
    ]
    again = [final(n, BASELINE, TOKENS / v) for n, v in enumerate(speeds, start=len(search))]
    assert (too_noisy([*search, *again], search[0]) is not None) == is_noisy


def test_nothing_is_claimed_and_the_default_config_stays() -> None:
    first = [run(0, BASELINE, TOKENS / 10_500, purpose=TrialPurpose.BASELINE), run(1, A, 0.01)]
    again = [
        final(n, config, TOKENS / v)
        for n, (config, v) in enumerate(
            [(BASELINE, 5_190), (A, 12_100), (A, 11_900), (BASELINE, 4_120)], start=2
        )
    ]
    winner = decide([*first, *again], study(measure=MeasureSpec(finalists=1, final_rounds=2)))
    assert present(winner.best).config == BASELINE
    assert (winner.speedup, winner.speedup_low, winner.speedup_high) == (None, None, None)
    assert winner.too_noisy == TooNoisy(
        slowest=pytest.approx(4_120), fastest=pytest.approx(10_500), runs=3
    )
    assert (
        str(winner.too_noisy)
        == "too noisy to tell: the baseline ran between 4.1k and 10.5k tokens/s"
    )
    assert "stop other jobs" in winner.notes[-1]
    assert present(winner.too_noisy).to_dict()["factor"] == pytest.approx(2.55, abs=0.01)


def finals(*runs: tuple[ParallelConfig, float]) -> list[Trial]:
    """Runs of the finals in this order at these tokens/s."""
    return [final(n, config, TOKENS / v) for n, (config, v) in enumerate(runs, start=2)]


def test_a_gain_that_is_clear_of_the_noise_is_claimed_with_the_range_of_all_runs() -> None:
    first = [
        run(0, BASELINE, TOKENS / 1_900, purpose=TrialPurpose.BASELINE),
        run(1, A, TOKENS / 6_000),
    ]
    again = finals((BASELINE, 1_000), (A, 5_000), (A, 4_400), (BASELINE, 1_400))
    winner = decide([*first, *again], study(measure=MeasureSpec(finalists=1, final_rounds=2)))
    assert present(winner.best).config == A
    assert winner.too_noisy is None
    assert (winner.speedup_low, winner.speedup_high) == (
        pytest.approx(4_400 / 1_900),
        pytest.approx(6_000 / 1_000),
    )
    assert 2.3 < present(winner.speedup) < 6.0
    assert "the baseline ran between 1.0k and 1.9k tokens/s in its 3 runs" in winner.notes[-1]
    assert "2.3 times as fast as the fastest run of the baseline" in winner.notes[-1]


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        (
            ((BASELINE, 1_000), (A, 5_000), (A, 3_500), (BASELINE, 1_400)),
            "one run is within the noise",
        ),
        (((BASELINE, 1_000), (A, 5_000)), "two runs of each say too little"),
    ],
)
def test_a_gain_that_is_not_clear_of_the_noise_is_not_claimed(
    runs: tuple[tuple[ParallelConfig, float], ...], why: str
) -> None:
    first = [
        run(0, BASELINE, TOKENS / 1_900, purpose=TrialPurpose.BASELINE),
        run(1, A, TOKENS / 6_000),
    ]
    winner = decide(
        [*first, *finals(*runs)], study(measure=MeasureSpec(finalists=1, final_rounds=2))
    )
    assert present(winner.best).config == BASELINE, why
    assert winner.speedup is None


def test_a_study_on_a_busy_machine_ends_with_the_spread_of_the_default_config() -> None:
    slow = (1.0, 2.3, 1.4, 3.1, 1.0, 2.6, 1.7)
    end = Runs(lambda n: slow[n % len(slow)]).all().end
    assert end.speedup is None
    assert end.result["too_noisy"]["factor"] > LIMIT
    assert end.result["speedup_low"] is None
    quiet = Runs(lambda n: 1.0 + 0.05 * (n % 2)).all()
    assert quiet.end.result["too_noisy"] is None
    assert quiet.winner == BEST
