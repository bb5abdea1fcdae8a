"""Lengths of sequences as a distribution. The times for packing, balancing and a rank's longest
response depend on the distribution, not only on the mean.

    stored    up to `POINTS` equally probable values, in ascending order
    read      one number, a mean with percentiles, a histogram, or the lengths themselves

Between two percentiles with lengths a and b, the lengths are a + (b - a) * u ** g, with u from 0 to
1. One exponent g is used for all intervals, and is chosen so that the mean is the specified mean.
Beyond the outermost percentiles lengths are log-normal. If only a mean is specified, the
distribution is log-normal with a standard deviation of `DEFAULT_SPREAD` times the mean, and answers
list this assumption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.errors import SpecError

POINTS = 1024
"""maximum number of stored values"""
DEFAULT_SPREAD = 0.75
"""standard deviation of lengths as a fraction of their mean, if only the mean is specified"""
_MAX_EXPONENT = 24.0
"""largest exponent between two percentiles, and the inverse of the smallest"""
_LOWEST, _HIGHEST = 0.0, 100.0
_NORMAL = NormalDist()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens per sequence, as equally probable values in ascending order."""

    values: tuple[float, ...]
    """tokens, >= 0"""
    most: float = 0.0
    """length of the longest possible sequence in tokens, if it exceeds the last value"""
    assumed: str = ""
    """assumptions about the lengths; empty if nothing was assumed"""

    def __post_init__(self) -> None:
        if not self.values or min(self.values) < 0 or not all(map(math.isfinite, self.values)):
            raise SpecError(
                "lengths must be numbers of tokens, 0 or more, and there must be at least one"
            )

    @property
    def mean(self) -> float:
        """Mean number of tokens."""
        return float(np.mean(self.values))

    @property
    def longest(self) -> float:
        """Tokens of the longest possible sequence."""
        return max(self.values[-1], self.most)

    def at(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the lengths at these quantiles (0 to 1), in whole tokens."""
        middles = (np.arange(len(self.values)) + 0.5) / len(self.values)
        return np.rint(np.interp(shares, middles, self.values))

    @classmethod
    def of(cls, lengths: Iterable[float]) -> Lengths:
        """Return the distribution of observed lengths."""
        values = np.sort(np.asarray(list(lengths), dtype=np.float64))
        most = float(values[-1]) if len(values) else 0.0
        if len(values) > POINTS:
            values = np.quantile(values, (np.arange(POINTS) + 0.5) / POINTS)
        return cls(values=tuple(np.round(values, 1).tolist()), most=most)

    @classmethod
    def of_histogram(cls, counts: Mapping[float, float]) -> Lengths:
        """Return the distribution in a histogram, which maps each length to a number of
        sequences."""
        lengths = sorted(counts)
        weights = np.array([counts[length] for length in lengths], dtype=np.float64)
        if not len(weights) or weights.min() < 0 or weights.sum() <= 0:
            raise SpecError(
                "a histogram must have at least one length, and no count may be below 0"
            )
        ends = np.cumsum(weights) / weights.sum()
        indices = np.searchsorted(ends, (np.arange(POINTS) + 0.5) / POINTS, side="left")
        values = tuple(float(lengths[min(int(i), len(lengths) - 1)]) for i in indices)
        return cls(values=values, most=float(max(length for length in lengths if counts[length])))

    @classmethod
    def of_percentiles(
        cls, percentiles: Mapping[float, float], mean: float | None = None
    ) -> Lengths:
        """Return the distribution with these lengths at these percentiles (0: shortest, 100:
        longest), and with this mean unless it is None.

        Raises `SpecError` for decreasing percentiles, and for a mean that is impossible with
        them.
        """
        if not percentiles or set(percentiles) == {_HIGHEST}:
            if mean is None:
                raise SpecError(
                    "lengths need a mean or percentiles",
                    remedy="use, for instance, {mean: 900, p50: 700, p95: 2600, max: 8192}",
                )
            return _of_mean(mean, percentiles.get(_HIGHEST))
        knots = sorted(percentiles.items())
        values = [length for _, length in knots]
        if any(later < earlier for earlier, later in pairwise(values)):
            given = ", ".join(f"p{p:g}={length:g}" for p, length in knots)
            raise SpecError(f"lengths must not decrease as percentiles increase, but {given}")
        sigma = _spread(knots)
        if knots[0][0] > _LOWEST:
            knots.insert(0, (_LOWEST, _beyond(knots[0], 0.5 / POINTS, sigma)))
        assumed = ""
        if knots[-1][0] < _HIGHEST:
            longest = _beyond(knots[-1], 1.0 - 0.5 / POINTS, sigma)
            knots.append((_HIGHEST, longest))
            assumed = f"the longest sequence is assumed to have {longest:,.0f} tokens, because `max` is not set"
        shares = (np.arange(POINTS) + 0.5) / POINTS
        ends = np.array([p / 100.0 for p, _ in knots])
        place = np.clip(np.searchsorted(ends, shares, side="right") - 1, 0, len(knots) - 2)
        low, high = (
            np.array([length for _, length in knots])[place],
            np.array([length for _, length in knots])[place + 1],
        )
        within = (shares - ends[place]) / np.maximum(ends[place + 1] - ends[place], 1e-12)

        def lengths_with(exponent: float) -> NDArray[np.float64]:
            return np.asarray(low + (high - low) * within**exponent)

        exponent = 1.0
        if mean is not None:
            least, most = (
                float(lengths_with(_MAX_EXPONENT).mean()),
                float(lengths_with(1.0 / _MAX_EXPONENT).mean()),
            )
            if not least <= mean <= most:
                given = ", ".join(f"p{p:g}={length:g}" for p, length in sorted(percentiles.items()))
                raise SpecError(
                    f"lengths with {given} have a mean between {least:,.0f} and {most:,.0f} tokens, but mean={mean:g}",
                    remedy="fix the mean or the percentiles, or use a length file",
                )
            above, below = 1.0 / _MAX_EXPONENT, _MAX_EXPONENT
            for _ in range(60):
                exponent = math.sqrt(above * below)
                above, below = (
                    (exponent, below)
                    if float(lengths_with(exponent).mean()) > mean
                    else (above, exponent)
                )
        return cls(
            values=tuple(np.round(np.sort(lengths_with(exponent)), 1).tolist()),
            most=knots[-1][1],
            assumed=assumed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return mean and percentiles, in spec notation."""
        quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        return {"mean": round(self.mean, 1)} | {
            name: float(self.at(np.array([share]))[0]) for name, share in quantiles.items()
        } | {"max": self.longest}  # fmt: skip


def _of_mean(mean: float, longest: float | None) -> Lengths:
    """Return log-normal lengths with this mean, truncated at the longest length. Truncation lowers
    the mean, so the scale is raised until the mean is right."""
    if longest is not None and mean > longest:
        raise SpecError(
            f"the mean cannot exceed the longest length, but mean={mean:g} and max={longest:g}"
        )
    sigma = math.sqrt(math.log1p(DEFAULT_SPREAD**2))
    shape = np.exp(sigma * np.array([_NORMAL.inv_cdf((i + 0.5) / POINTS) for i in range(POINTS)]))
    most = math.inf if longest is None else longest
    low, high = 0.0, max(mean, 1.0) * 1e3
    for _ in range(80):
        scale = 0.5 * (low + high)
        low, high = (
            (low, scale) if float(np.minimum(scale * shape, most).mean()) > mean else (scale, high)
        )
    values = np.minimum(0.5 * (low + high) * shape, most)
    assumed = f"lengths are assumed log-normal with a standard deviation of {DEFAULT_SPREAD:.0%} of the mean, because only the mean is set"
    return Lengths(values=tuple(np.round(values, 1).tolist()), most=longest or 0.0, assumed=assumed)


def _spread(knots: Sequence[tuple[float, float]]) -> float:
    """Return the standard deviation of ln(length) implied by the outermost two percentiles, if
    lengths are log-normal; the default if there are fewer than two percentiles."""
    inner = [
        (share, length) for share, length in knots if _LOWEST < share < _HIGHEST and length > 0
    ]
    if len(inner) < 2 or inner[0][1] == inner[-1][1]:
        return math.sqrt(math.log1p(DEFAULT_SPREAD**2))
    (low, least), (high, most) = inner[0], inner[-1]
    return math.log(most / least) / (_NORMAL.inv_cdf(high / 100.0) - _NORMAL.inv_cdf(low / 100.0))


def _beyond(knot: tuple[float, float], share: float, sigma: float) -> float:
    """Return the length at a share beyond the outermost percentile, if lengths are log-normal
    there."""
    known = min(max(knot[0] / 100.0, 0.5 / POINTS), 1.0 - 0.5 / POINTS)
    return knot[1] * math.exp(sigma * (_NORMAL.inv_cdf(share) - _NORMAL.inv_cdf(known)))
