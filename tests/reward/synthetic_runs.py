"""Synthetic runs: measurements made from a few traits, and the expert's order of them
(`expert_ranking.toml`).

Series are drawn from a generator seeded by name, steps and seed. What the data do (noise of a
batch, spikes, growth) is drawn from a generator that all runs share, because all see the same
batches; the fp32 reference has seen them too.

    n   measured steps      s   place in the run, 0 to 1
"""

from __future__ import annotations

import math
import tomllib
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.spec import Measurement

TABLE = Path(__file__).with_name("expert_ranking.toml")
BASELINE = "baseline"
"""name of the run that rewards are relative to"""
STEP_S = 0.1
"""seconds of an undisturbed step of the baseline"""
SPIKE = 30.0
"""times the usual gradient norm"""
Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticRun:
    """A run by its traits; the defaults are healthy."""

    tier: int
    """place in the expert's order, best first"""
    name: str
    """unique"""
    kind: str
    """healthy, spiking, skipping, slow-tailed, lucky, short, drifting or diverging"""
    reason: str
    """why the expert ranks it so"""
    speed: float
    """tokens/s of an undisturbed step, times the baseline's"""
    steps: int | None = None
    """measured steps at most; None: as many as the others"""
    step_noise: float = 0.01
    """relative standard deviation of a step's time"""
    slow_share: float = 0.0
    """share of slow steps"""
    slow_factor: float = 1.0
    """times the usual step"""
    fast_share: float = 0.0
    """share of quick steps, at the beginning"""
    fast_factor: float = 1.0
    """times the speed of the usual step"""
    time_growth: float = 1.0
    """time of the last step over that of the first"""
    losses: bool = True
    """whether losses and gradient norms are told"""
    reference: bool = True
    """whether an fp32 reference was measured"""
    flat: bool = False
    """whether the data cannot be learnt in so few steps"""
    stands_still: bool = False
    """whether only this run does not learn"""
    loss_noise: float = 0.001
    """relative, of this run alone"""
    shared_noise: float = 0.02
    """relative, of the batches"""
    shared_growth: float = 1.0
    """by which the data become harder, to the end"""
    loss_growth: float = 1.0
    """by which the loss of this run alone grows, to the end"""
    loss_drift: float = 0.0
    """relative distance from fp32's loss at the end, growing linearly"""
    loss_above: float = 0.0
    """relative distance above fp32's loss at every step"""
    shared_spikes: tuple[float, ...] = ()
    """places s at which the data make the gradient spike, the reference's too"""
    own_spikes: tuple[float, ...] = ()
    """places at which only this run's spikes"""
    own_spike_share: float = 0.0
    """share of steps that spike in this run only"""
    skipped_share: float = 0.0
    """share of steps that loss scaling skips"""
    memory: float = 0.5
    """peak over capacity"""
    nan_at: float | None = None
    """place of a loss that is not a number"""
    inf_norm_at: float | None = None
    """place of an infinite gradient norm"""

    def measured(self, steps: int, seed: int = 0) -> Measurement:
        """The measurement of so many steps."""
        n = min(steps, self.steps or steps)
        own = np.random.default_rng([zlib.crc32(self.name.encode()), steps, seed])
        measurement = Measurement(
            step_times_s=tuple(self._times(n, own)),
            tokens_per_step=4096,
            num_ranks=4,
            skipped_steps=_count(self.skipped_share, n),
            peak_memory_bytes=self.memory * 80e9,
            memory_capacity_bytes=80e9,
        )
        if not self.losses:
            return measurement
        data = np.random.default_rng([1, steps, seed])
        common, norms = self._data(steps, data)
        losses, own_norms = (
            self._learns(common[:n], own),
            norms[:n] * np.exp(own.normal(0, 0.05, n)),
        )
        for place in self.own_spikes:
            own_norms[_at(place, n)] *= SPIKE
        own_norms[_spread(self.own_spike_share, n)] *= SPIKE
        if self.nan_at is not None:
            losses[_at(self.nan_at, n)] = math.nan
        if self.inf_norm_at is not None:
            own_norms[_at(self.inf_norm_at, n)] = math.inf
        told = replace(measurement, losses=tuple(losses), grad_norms=tuple(own_norms))
        if not self.reference:
            return told
        return replace(told, reference_losses=tuple(common), reference_grad_norms=tuple(norms))

    def _times(self, n: int, rng: np.random.Generator) -> Series:
        times = STEP_S / self.speed * np.exp(rng.normal(0, self.step_noise, n))
        times[_spread(self.slow_share, n)] *= self.slow_factor
        times[: _count(self.fast_share, n)] /= self.fast_factor
        if self.time_growth != 1.0:
            ramp = self.time_growth ** np.linspace(0, 1, n)
            times *= ramp / ramp.mean()
        return times

    def _data(self, n: int, rng: np.random.Generator) -> tuple[Series, Series]:
        """Losses and gradient norms of fp32."""
        s = np.linspace(0, 1, n)
        learnt = np.ones(n) if self.flat else 0.65 + 0.35 * np.exp(-4 * s)
        losses = (
            5.5
            * learnt
            * np.exp(rng.normal(0, self.shared_noise, n))
            * (1 + (self.shared_growth - 1) * s)
        )
        norms = (1 + np.exp(-3 * s)) * np.exp(rng.normal(0, 0.1, n))
        for place in self.shared_spikes:
            norms[_at(place, n)] *= SPIKE
        return losses, norms

    def _learns(self, common: Series, rng: np.random.Generator) -> Series:
        """This run's losses."""
        n = len(common)
        s = np.linspace(0, 1, n)
        losses = np.full(n, 5.5) if self.stands_still else common.copy()
        losses *= np.exp(rng.normal(0, self.loss_noise, n))
        losses *= self.loss_growth**s
        return np.asarray(losses * (1 + self.loss_drift * s) * (1 + self.loss_above))


@cache
def expert_ranking() -> tuple[SyntheticRun, ...]:
    """All runs, best first."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["run"]
    runs = (
        SyntheticRun(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
        for row in rows
    )
    return tuple(sorted(runs, key=lambda run: run.tier))


def _count(share: float, n: int) -> int:
    """Steps of a share, rounded; one at least where the share is not zero."""
    return max(1, round(share * n)) if share else 0


def _spread(share: float, n: int) -> list[int]:
    """So many steps at even distances."""
    k = _count(share, n)
    return [int((i + 0.5) * n / k) for i in range(k)]


def _at(place: float, n: int) -> int:
    return min(n - 1, round(place * (n - 1)))
