"""Declares the parts of a reward: their names, the values that are scored, and the limits.

    part          scored value                                                              good   bad
    finite        share of steps with a non-finite loss or gradient, skipped ones aside     0      0.05
    trend         growth of x / r (of x without r) beyond its noise                         1.05   1.5
    fidelity      the worst of: 1 - correlation(x, r), p                                    0.05   0.5
                                |mean of the last quarter of x and of r, relative|          0.03   0.15
                                share of steps with |x - r| > 5% of r, p                    0.1    0.5
    equal_tokens  (excess - noise) of the loss / loss of the other configs                  0.03   0.15
    spikes        share of steps with g[i] > 4 * median of its up to six neighbors, p      0      0.2
    skipped       share of steps that dynamic loss scaling skipped, p                       0.02   0.5
    headroom      peak memory / capacity of the rank with the highest peak                  0.92   1.0
    slowing       step time at the end / in the middle, by the median slope, p              1.03   1.2
    jitter        1.4826 * median absolute deviation of the step time / median, p           0.15   1.0

    x[i]   loss of step i      r[i]   loss of an fp32 reference at the same step      g[i]   global gradient norm of step i, spikes of the reference aside
    p      posterior mean whose prior is worth ten steps of a healthy run (`evidence.py`): one fault among 5 steps is weaker evidence than six among 30

`fidelity` requires that all configs see the same batches in the same order. Otherwise
`equal_tokens` replaces it (`equal_tokens.py`).

A value scores 1 up to `good`, 0 from `bad` on, and linearly between. `stability.py` computes the
values.

If the final loss exceeds that of fp32 by the `bad` limit of `final_loss` beyond its noise, the
trial counts as diverged, and no speed compensates for that.

The limits of `fidelity` (0.95, 3%, 10% outliers) are those of Megatron-Bridge's convergence check,
and `equal_tokens` uses the same limits as its final loss. The margin of `headroom` is for
fragmentation: the allocator's reserve grows in long runs. The other limits are autotune's own
choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SPIKE_FACTOR = 4.0
"""a gradient norm above this multiple of the median of neighboring steps is a spike"""
POINTWISE = 0.05
"""relative difference from the reference that makes a step an outlier"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredValue:
    """A value that is scored between two limits."""

    meaning: str
    """description of the value"""
    good: float
    """values up to this limit score 1"""
    bad: float
    """values from this limit on score 0"""

    @property
    def formula(self) -> str:
        """How the value is scored, in words."""
        return (
            f"{self.meaning}: 1 {'up to' if self.good else 'at'} {self.good:g}, 0 from {self.bad:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityPart:
    """A part of stability. Its score is the worst of its values' scores."""

    label: str
    """its name in tables"""
    values: Mapping[str, ScoredValue]
    """by name; names are unique among all parts"""
    exponent: float = 1.0
    """its exponent in the product of all parts"""

    @property
    def formula(self) -> str:
        """How the part is scored, in words."""
        return ("the smallest of " if len(self.values) > 1 else "") + "; ".join(
            v.formula for v in self.values.values()
        )


STABILITY_PARTS: Mapping[str, StabilityPart] = {
    "finite": StabilityPart(
        label="finite losses and gradients",
        values={
            "finite": ScoredValue(
                meaning="share of steps with a non-finite loss or gradient", good=0.0, bad=0.05
            )
        },
    ),
    "trend": StabilityPart(
        label="loss does not grow",
        values={
            "trend": ScoredValue(
                meaning="growth of the loss beyond its noise, relative to fp32's if known",
                good=1.05,
                bad=1.5,
            ),
        },
    ),
    "fidelity": StabilityPart(
        label="loss follows fp32",
        values={
            "correlation": ScoredValue(
                meaning="1 - correlation with the losses in fp32", good=0.05, bad=0.5
            ),
            "final_loss": ScoredValue(
                meaning="difference between the final loss and that of fp32", good=0.03, bad=0.15
            ),
            "outliers": ScoredValue(
                meaning=f"share of steps with a loss more than {POINTWISE:.0%} away from fp32's",
                good=0.1,
                bad=0.5,
            ),
        },
    ),
    "equal_tokens": StabilityPart(
        label="loss at the same number of tokens",
        values={
            "excess": ScoredValue(
                meaning="how far the loss exceeds the other configs' loss at the same number of tokens, minus noise, as a fraction of the other configs' loss",
                good=0.03,
                bad=0.15,
            )
        },
    ),
    "spikes": StabilityPart(
        label="no spikes of the gradient norm",
        values={
            "spikes": ScoredValue(
                meaning=f"share of steps with a gradient norm above {SPIKE_FACTOR:g} times the median of neighboring steps, unless the fp32 norm is as high",
                good=0.0,
                bad=0.2,
            )
        },
    ),
    "skipped": StabilityPart(
        label="no steps skipped by loss scaling",
        values={
            "skipped": ScoredValue(
                meaning="share of steps that loss scaling skipped", good=0.02, bad=0.5
            )
        },
    ),
    "headroom": StabilityPart(
        label="memory headroom",
        values={"headroom": ScoredValue(meaning="peak memory / capacity", good=0.92, bad=1.0)},
    ),
    "slowing": StabilityPart(
        label="steps do not become slower",
        values={
            "slowing": ScoredValue(
                meaning="step time at the end relative to the middle of the run", good=1.03, bad=1.2
            )
        },
    ),
    "jitter": StabilityPart(
        label="steady step time",
        values={
            "jitter": ScoredValue(meaning="relative spread of the step time", good=0.15, bad=1.0)
        },
        exponent=0.25,
    ),
}
"""the factors of stability, each 0 to 1"""
SCORED_VALUES: Mapping[str, ScoredValue] = {
    name: value for part in STABILITY_PARTS.values() for name, value in part.values.items()
}
"""the scored values of all parts by name"""
STABILITY_RULE = "stability = product of the rows above; steady step time enters as its fourth root"
THROUGHPUT_TERMS: Mapping[str, str] = {
    "tokens_per_s_ratio": "tokens/s, relative to {whose}",
    "efficiency": "statistical efficiency, relative to {whose}",
    "noise_scale": "gradient noise scale, sequences",
    "cost_ratio": "cost per token, relative to {whose}",
}
"""labels of the terms of a reward's throughput; `{whose}`: the trial it is relative to, as a
possessive"""
