"""Speedups as text, with their interval."""

from __future__ import annotations

DEFAULT_IS_BEST = "the baseline is the best"


def format_speedup(
    speedup: float, low: float | None, high: float | None, *, times: str = "x", over: str = "", is_open: bool = False
) -> str:
    """`1.18x (95% CI 1.14-1.22)`; without the ends of an interval `1.18x`; `DEFAULT_IS_BEST` where it is the baseline's own.

    `times`: what stands behind the number. `over`: what stands behind it all. `is_open`: the study goes on, so that the baseline is the best so far only.
    """
    if speedup == low == high == 1.0:
        return DEFAULT_IS_BEST + (" so far" if is_open else "")
    interval = f" (95% CI {low:.2f}-{high:.2f})" if low is not None and high is not None else ""
    return f"{speedup:.2f}{times}{interval}{over}"
