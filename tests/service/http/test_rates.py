"""Token buckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.service.http import fair_use
from autotune.service.http.fair_use import Limiter
from autotune.service.options import Rate


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_then_a_steady_pace() -> None:
    clock = Clock()
    limiter = Limiter(Rate(per_s=2.0, burst=3), monotonic=clock)
    assert [limiter.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limiter.wait_s("b") == 0
    clock.now_s = 0.5
    assert limiter.wait_s("a", take=False) == 0
    assert [limiter.wait_s("a") for _ in range(2)] == [0, 0.5]


@given(st.lists(st.floats(0, 5), max_size=60))
def test_the_rate_never_exceeds_burst_plus_elapsed_time(pauses: list[float]) -> None:
    clock = Clock()
    limiter = Limiter(Rate(per_s=1.5, burst=4), monotonic=clock)
    passed = 0
    for pause in pauses:
        clock.now_s += pause
        passed += limiter.wait_s("a") == 0
        assert passed <= 4 + 1.5 * clock.now_s + 1e-6


def test_the_least_recent_callers_are_dropped_first() -> None:
    limiter = Limiter(Rate(per_s=1e-9, burst=1))
    for number in range(fair_use.MAX_CALLERS + 1):
        assert limiter.wait_s(str(number)) == 0
    assert limiter.wait_s(str(fair_use.MAX_CALLERS)) > 0
    assert limiter.wait_s("0") == 0
