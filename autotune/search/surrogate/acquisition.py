"""Expected improvement of a normal quantity over the best so far, as a logarithm, so that it ranks
candidates even if it would underflow.

    EI = sd h(z)    z = (mean - best) / sd    h(z) = phi(z) + z Phi(z)        (Jones et al. 1998, eq. 15)

log h follows Ament et al. 2023 (arXiv:2310.20708), eq. 9, with erfcx where the two terms of h
cancel.

The average of several models is a mixture of normals. Expectation is linear, so its expected
improvement is the weighted mean:

    log EI = log sum_m w_m EI_m

The expected improvement by several candidates is that of their maximum, assuming that they are
independent:

    E max_i (Y_i - best)+ = integral over t > 0 of 1 - prod_i (1 - p_i Phi((mean_i - best - t) / sd_i))       p_i: probability that i runs

Scores correlate positively, so this is an upper bound (Slepian 1962). It is tight, because half of
the residual's variance is independent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, logsumexp, ndtr

Array = NDArray[np.float64]
_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_POINTS = np.linspace(0.0, 1.0, 129) ** 2
"""nodes of the integral relative to the largest t, denser near zero, where most of the mass is"""
_FARTHEST = 5.0
"""upper end of a candidate's density in the integral, in standard deviations above its mean"""


def log_expected_improvement(mean: Array, sd: Array, best: float) -> Array:
    """log EI, shape (N,); finite for z above -1e150."""
    z = (mean - best) / sd
    near = np.maximum(z, -1.0)
    plain = np.log(np.exp(-0.5 * near**2 - _LOG_SQRT_2PI) + near * ndtr(near))
    far = np.minimum(z, -1.0)
    # phi(z) (1 - |z| sqrt(pi/2) erfcx(|z|/sqrt 2)); beyond -1e4 the bracket is 1/z^2 to double
    # precision
    bracket = 1.0 - np.sqrt(np.pi / 2) * -far * erfcx(-far / np.sqrt(2))
    tail = np.where(far > -1e4, np.log(np.maximum(bracket, 1e-300)), -2.0 * np.log(-far))
    return np.asarray(np.log(sd) + np.where(z > -1.0, plain, -0.5 * far**2 - _LOG_SQRT_2PI + tail))


def log_mixture_improvement(log_weights: Array, mean: Array, sd: Array, best: float) -> Array:
    """log EI of the mixture of M models, shape (N,); `log_weights` (M,), `mean` and `sd` (M, N)."""
    return np.asarray(
        logsumexp(log_weights[:, None] + log_expected_improvement(mean, sd, best), axis=0)
    )


def expected_maximum(mean: Array, sd: Array, runs: Array, best: float) -> float:
    """Expected improvement by the best of N candidates, shape (N,) each; `runs`: probability that
    each runs."""
    farthest = max(float(np.max(mean - best + _FARTHEST * sd)), 0.0)
    t = _POINTS * farthest
    better = runs * ndtr((mean - best - t[:, None]) / sd)
    return float(np.trapezoid(1.0 - np.prod(1.0 - better, axis=1), t))
