"""A small policy network: maps predictions and results so far to a probability for each candidate.

    N candidates    F features    H hidden units
    logits(x) = x w + tanh(x W + b) v        x (N, F), w (F,), W (F, H), b (H,), v (H,)

All features are dimensionless, so one policy works for all spaces, models and clusters.
`policy.json` holds the weights, trained on simulated clusters by `python -m research.train_policy`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, log_softmax

from autotune.cost.learn.uncertainty import memory_log_sigma
from autotune.search.surrogate.kernel import distances
from autotune.spec import Estimate

Array = NDArray[np.float64]

FILE = Path(__file__).with_name("policy.json")
FEATURES = (
    "gain",
    "log_fits",
    "headroom",
    "rank",
    "novelty",
    "near_out_of_memory",
    "near_failure",
    "near_best",
    "trials",
    "failed_share",
    "compute_share",
    "bubble_share",
    "tp_share",
    "dp_share",
)
"""features of a candidate, in the order of `SearchState.features`"""
LENGTH = 2.0
"""length scale over which results of candidates correlate, in doublings of a knob"""


@dataclass(slots=True, kw_only=True)
class SearchState:
    """Predictions for N candidates, and results of those that were tried."""

    predicted: Array
    """predicted log objective (`predicted_objective`), shape (N,)"""
    headroom: Array
    """log of (GPU memory / predicted peak), shape (N,)"""
    headroom_sd: float
    """standard deviation of the headroom"""
    shares: Array
    """shares of compute, bubble, tensor and data parallel communication in the predicted step,
    shape (N, 4)"""
    points: Array
    """coordinates, shape (N, d)"""
    tried: list[int] = field(default_factory=list)
    """indices of the candidates that were measured or failed"""
    scores: list[float] = field(default_factory=list)
    """their scores; nan for failures"""
    memory_errors: list[float] = field(default_factory=list)
    """log of (measured / predicted peak); for trials that ran out of memory a lower bound; nan if
    unknown"""
    out_of_memory: list[bool] = field(default_factory=list)
    """whether each of them ran out of memory"""

    @classmethod
    def of(
        cls, estimate: Estimate, predicted: Array, points: Array, capacity_bytes: float
    ) -> SearchState:
        """The state before any trial."""
        times, total = estimate.time_parts_s, np.asarray(estimate.step_time_s)
        parts = (times.compute, times.bubble, times.tp_comm, times.dp_comm)
        return cls(
            predicted=predicted,
            headroom=np.log(capacity_bytes / np.asarray(estimate.peak_memory_bytes)),
            headroom_sd=max(float(np.median(memory_log_sigma(estimate))), 1e-3),
            shares=np.stack([np.asarray(part) / total for part in parts], axis=1),
            points=points,
        )

    def add(
        self, index: int, score: float, *, log_peak_ratio: float | None, out_of_memory: bool
    ) -> None:
        """Add the result of a trial. `score`: nan if it failed; `log_peak_ratio`: log of (measured
        peak / GPU memory), None if unknown."""
        error = np.nan if log_peak_ratio is None else log_peak_ratio + float(self.headroom[index])
        if out_of_memory:
            error = max(float(self.headroom[index]), 0.0) + self.headroom_sd / 2
        self.tried.append(index)
        self.scores.append(score)
        self.memory_errors.append(float(error))
        self.out_of_memory.append(out_of_memory)

    @property
    def best(self) -> int | None:
        """Position in `tried` of the best measured candidate; None if none was measured."""
        scores = np.array(self.scores)
        return int(np.nanargmax(scores)) if np.isfinite(scores).any() else None

    def features(self) -> Array:
        """Features of all candidates in the order of `FEATURES`, scaled to about one, shape (N,
        F)."""
        similarity = np.exp(-distances(self.points, self.points[self.tried]) / LENGTH)
        scores, errors = np.array(self.scores), np.array(self.memory_errors)
        predicted = self.predicted + _expected_error(
            similarity, scores - self.predicted[self.tried]
        )
        headroom = (self.headroom - _expected_error(similarity, errors)) / self.headroom_sd
        best, count = self.best, len(self.tried)
        fits = np.maximum(log_ndtr(headroom), -5.0)
        reference = scores[best] if best is not None else float(np.max(predicted + fits))
        density = similarity.sum(axis=1)
        ran_out = np.array(self.out_of_memory, dtype=np.bool_)
        failed = np.isnan(scores) & ~ran_out
        columns = (
            np.clip(predicted - reference, -3.0, 1.0),
            fits,
            np.clip(headroom, -3.0, 3.0) / 3.0,
            np.argsort(np.argsort(-predicted)) / max(len(predicted) - 1, 1),
            1.0 / (1.0 + density),
            similarity @ ran_out / (1.0 + density),
            similarity @ failed / (1.0 + density),
            similarity[:, best] if best is not None else np.zeros(len(predicted)),
            np.full(len(predicted), np.log1p(count) / 3.0),
            np.full(len(predicted), np.isnan(scores).mean() if count else 0.0),
            *self.shares.T,
        )
        return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy's weights by name: w, W, b, v."""

    weights: Mapping[str, Array]

    def log_probabilities(self, features: Array, allowed: NDArray[np.bool_]) -> Array:
        """Log probability of each candidate, shape (N,); -inf for those not allowed."""
        w = self.weights
        logits = features @ w["w"] + np.tanh(features @ w["W"] + w["b"]) @ w["v"]
        return np.asarray(log_softmax(np.where(allowed, logits, -np.inf)))

    def gradient(
        self, features: Array, allowed: NDArray[np.bool_], chosen: int
    ) -> dict[str, Array]:
        """Gradient of the log probability of the chosen candidate with respect to each weight."""
        w = self.weights
        push = -np.exp(self.log_probabilities(features, allowed))
        push[chosen] += 1.0
        hidden = np.tanh(features @ w["W"] + w["b"])
        back = np.outer(push, w["v"]) * (1.0 - hidden**2)
        return {
            "w": push @ features,
            "W": features.T @ back,
            "b": back.sum(axis=0),
            "v": push @ hidden,
        }

    def moved(self, direction: Mapping[str, Array], step: float) -> Policy:
        """The policy with its weights moved by `step` along `direction`."""
        return Policy(
            weights={name: value + step * direction[name] for name, value in self.weights.items()}
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, rounded to five decimals."""
        return {name: np.round(value, 5).tolist() for name, value in self.weights.items()}

    @classmethod
    def initial(cls, hidden: int, rng: np.random.Generator) -> Policy:
        """An untrained policy, which uses only the predicted gain and probability to fit."""
        first = np.zeros(len(FEATURES))
        first[FEATURES.index("gain")] = 12.0
        first[FEATURES.index("log_fits")] = 1.0
        return cls(
            weights={
                "w": first,
                "W": rng.standard_normal((len(FEATURES), hidden)) / len(FEATURES) ** 0.5,
                "b": np.zeros(hidden),
                "v": np.zeros(hidden),
            }
        )

    @classmethod
    def trained(cls, path: Path = FILE) -> Policy:
        """The bundled trained policy."""
        values = json.loads(path.read_text(encoding="utf-8"))["weights"]
        return cls(weights={name: np.array(value) for name, value in values.items()})


def _expected_error(near: Array, errors: Array) -> Array:
    """Expected error of the prediction for each candidate, shape (N,), from the errors of those
    tried (nan: unknown). `near`: similarity of each candidate to each tried one.

    It is the mean of the known errors plus the kernel-weighted mean of their deviations from it,
    which shrinks to zero far from all of them.
    """
    known = np.isfinite(errors)
    if not known.any():
        return np.zeros(len(near))
    near, errors = near[:, known], errors[known]
    common = float(errors.mean())
    return np.asarray(common + near @ (errors - common) / (0.5 + near.sum(axis=1)))
