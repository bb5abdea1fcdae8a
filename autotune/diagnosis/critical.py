"""Step times of all ranks as arrays, and how much faster a step would be without one of its parts.

    u_rt = T_rt - q_rt             step t of rank r without its time on the run queue
    own_rt                         the part of u_rt in which the rank works itself
    wait_rt = u_rt - own_rt        the part in which it waits for other ranks: blocked in the backward pass, where gradients are reduced (with sharded weights in
                                   the forward pass too), or in a collective that it calls itself
    shared_t = min_r wait_rt       the wait of the rank that waits least, which is the time of the collectives themselves
    gain_t(x) = max_r own_rt - max_r (own_rt - x_rt)        time saved without x: all ranks wait for the slowest one

If the part is a phase, such as loading, its gain includes the time on the run queue and is a share
of max_r T_rt, because load from other processes stretches the phase as much as the step. If ranks
are compared, the run queue is excluded, and the gain is a share of max_r u_rt.

A rank that is stopped from outside is blocked in passes without collectives too. The ratio of wall
to processor time in its forward pass, w_f / c_f, shows how much longer its backward pass takes for
that reason. 95% intervals come from the means of up to `BATCHES` batches of steps (Student's t), so
that an event every tenth step does not count as noise.
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.diagnosis.evidence import PHASES, Evidence, Rank
from autotune.reward.student_t import t_quantile

Series = NDArray[np.float64]
"""values in seconds, shape (ranks, steps) or (steps,)"""
BATCHES = 8
"""maximum number of batches of steps for an interval"""
LEAST_STEPS = 4
"""minimum number of steps for a diagnosis"""
USUAL = 0.7
"""minimum share of steps with an evaluation for it to be a part of every step, not a pause"""
LOOKS = 4.0
"""minimum number of stack samples in a phase to split it by kind of work"""


@final
class Steps:
    """Times of all ranks in arrays of shape (ranks, steps), aligned at the last step."""

    def __init__(self, evidence: Evidence) -> None:
        ranks = [rank for rank in evidence.ranks if rank.phases]
        self.ranks = ranks
        self.count = min((len(rank.step_times_s) for rank in ranks), default=0)
        count = self.count
        self.time = _array([rank.step_times_s[-count:] for rank in ranks], count)
        spent = {
            name: np.array(
                [[*rank.phases.get(name, ((0.0, 0.0, 0.0),) * count)][-count:] for rank in ranks]
            ).reshape(len(ranks), count, 3)
            for name in PHASES
        }
        for at, rank in enumerate(ranks):
            queued = _queued_for_others(rank, spent, at)
            for values in spent.values():
                values[at, :, 2] *= queued
        # a reference or teacher model runs without gradients, but belongs to every step
        for at in range(len(ranks)):
            if count and (spent["evaluation"][at, :, 0] > 0).mean() >= USUAL:
                spent["forward"][at] += spent["evaluation"][at]
                spent["evaluation"][at] = 0.0
        self.delay: Series = np.sum([values[:, :, 2] for values in spent.values()], axis=0)
        self.free = {
            name: np.maximum(0.0, values[:, :, 0] - values[:, :, 2])
            for name, values in spent.items()
        }
        """by phase: wall time without the run queue"""
        self.wall: dict[str, Series] = {name: values[:, :, 0] for name, values in spent.items()}
        self.busy = {name: values[:, :, 1] for name, values in spent.items()}
        self.is_sharded = any(
            str(name).startswith("FSDP") for name in evidence.facts.get("wrappers", ())
        ) or ((evidence.facts.get("zero_stage") or 0) >= 3)
        self.is_together = evidence.world > 1
        self.wait = self._waits()
        self.own: Series = np.maximum(0.0, np.sum(list(self.free.values()), axis=0) - self.wait)
        self.slowest = self.time.max(axis=0) if count else np.zeros(0)
        self.undisturbed = (
            np.maximum(0.0, self.time - self.delay).max(axis=0) if count else np.zeros(0)
        )

    @property
    def is_enough(self) -> bool:
        """Whether there are at least `LEAST_STEPS` steps."""
        return self.count >= LEAST_STEPS

    def _waits(self) -> Series:
        """Return the time that each rank waits for other ranks, shape (ranks, steps)."""
        if not self.is_together or not self.count:
            return np.zeros_like(self.time)
        forward, backward = self.free["forward"], self.free["backward"]
        stretch = np.ones((len(self.ranks), 1))
        waits: Series = self.free["collective"].copy()
        if self.is_sharded:
            waits += np.maximum(0.0, forward - self.busy["forward"])
        else:
            busy = self.busy["forward"].sum(axis=1, keepdims=True)
            stretch = np.where(
                busy > 0,
                np.maximum(1.0, forward.sum(axis=1, keepdims=True) / np.maximum(busy, 1e-12)),
                1.0,
            )
        waits += np.maximum(0.0, backward - stretch * self.busy["backward"])
        return waits + self.within("rest", "collective") + self.within("optimizer", "collective")

    def within(self, phase: str, *kinds: str, wall: bool = False) -> Series:
        """Return the time of a phase that was spent on these kinds of work, estimated from the
        stack samples; shape (ranks, steps). `wall`: with the time on the run queue."""
        shares = [[share_of(rank, phase, *kinds)] for rank in self.ranks]
        return np.asarray(
            (self.wall if wall else self.free)[phase]
            * np.array(shares).reshape(len(self.ranks), 1),
            dtype=float,
        )

    @property
    def shared_wait(self) -> Series:
        """By step, the wait of the rank that waits least, shape (steps,)."""
        return np.asarray(
            self.wait.min(axis=0) if self.is_together and self.count else np.zeros(self.count)
        )

    def gain(self, part: Series) -> Series:
        """Return by step the seconds saved without this part of the ranks' own time. `part`: shape
        (ranks, steps), without the run queue."""
        return np.asarray(self.own.max(axis=0) - np.maximum(0.0, self.own - part).max(axis=0))

    def share_of_phase(self, part: Series) -> tuple[float, float, float]:
        """Return the share of the step time that would be saved without this part, with its 95%
        interval. `part`: shape (ranks, steps), with the run queue."""
        own = np.maximum(0.0, self.time - self.wait)
        return self.share(np.asarray(own.max(axis=0) - np.maximum(0.0, own - part).max(axis=0)))

    def share_of_work(self, part: Series) -> tuple[float, float, float]:
        """Return the share of an undisturbed step that would be saved without this part, with its
        95% interval. `part`: shape (ranks, steps), without the run queue."""
        return self.share(self.gain(part), self.undisturbed)

    def share(self, seconds: Series, of: Series | None = None) -> tuple[float, float, float]:
        """Return the share of these seconds in the step time: (mean, low, high) with a 95%
        interval. `of`: step times to divide by, by default those of the slowest rank."""
        steps = self.slowest if of is None else of
        whole = float(steps.sum())
        if whole <= 0:
            return 0.0, 0.0, 0.0
        share = float(seconds.sum()) / whole
        batches = min(BATCHES, self.count // 2)
        if batches < 2:
            return share, 0.0, min(1.0, 2 * share)
        parts = np.array([s.sum() for s in np.array_split(seconds, batches)], dtype=float)
        wholes = np.array([s.sum() for s in np.array_split(steps, batches)], dtype=float)
        means = parts / np.maximum(wholes, 1e-12)
        half = t_quantile(batches - 1, 0.975) * float(means.std(ddof=1)) / math.sqrt(batches)
        return share, max(0.0, share - half), min(1.0, share + half)


def share_of(rank: Rank, phase: str, *kinds: str) -> float:
    """Return the share of the stack samples in a rank's phase that show these kinds of work; 0 with
    fewer than `LOOKS` samples."""
    places = [place for place in rank.places if place.phase == phase]
    total = sum(place.share for place in places)
    if total <= 0 or (rank.looks and total * rank.looks < LOOKS):
        return 0.0
    return float(sum(place.share for place in places if place.kind in kinds)) / total


def _queued_for_others(rank: Rank, spent: dict[str, Series], at: int) -> float:
    """Return the share of a rank's time on the run queue in which other processes used the
    processor. Since Linux 6.18 the queue time includes the time in which the rank's own cgroup
    quota throttles it, which is subtracted here."""
    throttled_s = max(0.0, rank.throttled_s - rank.stopped_s)
    wall_s, queued_s = (
        float(sum(values[at, :, part].sum() for values in spent.values())) for part in (0, 2)
    )
    if throttled_s <= 0 or queued_s <= 0 or rank.elapsed_s <= 0:
        return 1.0
    return max(0.0, 1.0 - throttled_s / rank.elapsed_s * wall_s / queued_s)


def _array(rows: Any, count: int) -> Series:
    return np.array([list(row) for row in rows], dtype=float).reshape(len(rows), count)
