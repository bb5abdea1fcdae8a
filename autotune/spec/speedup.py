"""Speedups as text, with their interval."""

from __future__ import annotations


def format_speedup(speedup: float, low: float | None, high: float | None, *, times: str = "x") -> str:
    """`1.18x (95%: 1.14 to 1.22)`; without the ends of an interval `1.18x`. `times`: what stands behind the number."""
    interval = f" (95%: {low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    return f"{speedup:.2f}{times}{interval}"
