"""The steps of all ranks side by side, and what a step would take without a part of it.

    u_rt = T_rt - q_rt             a rank's step without the time that it waited for a processor
    own_rt                         of that, what the rank needs itself
    wait_rt = u_rt - own_rt        it waited for others: blocked in its backward pass (where gradients are reduced; with sharded weights in the forward pass too), or
                                   in a collective that it called itself
    shared_t = min_r wait_rt       even the slowest rank waits so long: that is the collectives' own time
    gain_t(x) = max_r own_rt - max_r (own_rt - x_rt)        what a step gains without x: all ranks wait for the slowest one

The gain of a part that is a phase, such as loading, is counted with the time on the run queue, in
T: others' load stretches it as it stretches the step. What is compared between ranks is counted
without, and is a share of max_r u_rt.

A rank that is stopped from outside is blocked where no collective is: its forward pass, w_f / c_f
times as long as its processor time, tells how much longer its backward pass takes by itself. Their
intervals are those of the means of up to `BATCHES` batches of steps (Student's t), because what
happens every tenth step is no noise.
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.diagnosis.evidence import PHASES, Evidence, Rank
from autotune.reward.student_t import t_quantile

Series = NDArray[np.float64]
BATCHES = 8
LEAST_STEPS = 4
"""of a run about which anything is said"""
USUAL = 0.7
"""share of the steps from which on what happens in them is no pause"""
LOOKS = 4.0
"""looks at a phase below which its places are not told apart"""


@final
class Steps:
    """Arrays of shape (ranks, steps), aligned at the last step."""

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
        # a reference model, a teacher: passes without gradients that belong to each step
        for at in range(len(ranks)):
            if count and (spent["evaluation"][at, :, 0] > 0).mean() >= USUAL:
                spent["forward"][at] += spent["evaluation"][at]
                spent["evaluation"][at] = 0.0
        self.delay: Series = np.sum([values[:, :, 2] for values in spent.values()], axis=0)
        self.free = {
            name: np.maximum(0.0, values[:, :, 0] - values[:, :, 2])
            for name, values in spent.items()
        }
        """of a phase without the time on the run queue"""
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
        """Whether there are steps enough to say something."""
        return self.count >= LEAST_STEPS

    def _waits(self) -> Series:
        if not self.is_together or not self.count:
            return np.zeros_like(self.time)
        forward, backward = self.free["forward"], self.free["backward"]
        longer = np.ones((len(self.ranks), 1))
        waits: Series = self.free["collective"].copy()
        if self.is_sharded:
            waits += np.maximum(0.0, forward - self.busy["forward"])
        else:
            busy = self.busy["forward"].sum(axis=1, keepdims=True)
            longer = np.where(
                busy > 0,
                np.maximum(1.0, forward.sum(axis=1, keepdims=True) / np.maximum(busy, 1e-12)),
                1.0,
            )
        waits += np.maximum(0.0, backward - longer * self.busy["backward"])
        return waits + self.within("rest", "collective") + self.within("optimizer", "collective")

    def within(self, phase: str, *kinds: str, wall: bool = False) -> Series:
        """The time in a phase that was spent on these kinds of work, by how often it was seen
        there."""
        shares = [[share_of(rank, phase, *kinds)] for rank in self.ranks]
        return np.asarray(
            (self.wall if wall else self.free)[phase]
            * np.array(shares).reshape(len(self.ranks), 1),
            dtype=float,
        )

    @property
    def shared_wait(self) -> Series:
        """By step: what even the rank that waits least waits."""
        return np.asarray(
            self.wait.min(axis=0) if self.is_together and self.count else np.zeros(self.count)
        )

    def gain(self, part: Series) -> Series:
        """By step: what it would gain if this part (ranks, steps) of the ranks' own time, without
        the run queue, were not there."""
        return np.asarray(self.own.max(axis=0) - np.maximum(0.0, self.own - part).max(axis=0))

    def share_of_phase(self, part: Series) -> tuple[float, float, float]:
        """Share of a step that it would gain without this part, which is counted with the time on
        the run queue."""
        own = np.maximum(0.0, self.time - self.wait)
        return self.share(np.asarray(own.max(axis=0) - np.maximum(0.0, own - part).max(axis=0)))

    def share_of_work(self, part: Series) -> tuple[float, float, float]:
        """Share of an undisturbed step that it would gain without this part, which is counted
        without the run queue."""
        return self.share(self.gain(part), self.undisturbed)

    def share(self, seconds: Series, of: Series | None = None) -> tuple[float, float, float]:
        """Mean share of a step that these seconds of each step are, with its 95% interval; `of`:
        the steps, where they are not those that were taken."""
        steps = self.slowest if of is None else of
        whole = float(steps.sum())
        if whole <= 0:
            return 0.0, 0.0, 0.0
        share = float(seconds.sum()) / whole
        batches = min(BATCHES, self.count // 2)
        if batches < 2:
            return share, 0.0, min(1.0, 2 * share)
        means = np.array(
            [
                float(s.sum()) / max(float(t.sum()), 1e-12)
                for s, t in zip(
                    np.array_split(seconds, batches), np.array_split(steps, batches), strict=True
                )
            ]
        )
        half = t_quantile(batches - 1, 0.975) * float(means.std(ddof=1)) / math.sqrt(batches)
        return share, max(0.0, share - half), min(1.0, share + half)


def share_of(rank: Rank, phase: str, *kinds: str) -> float:
    """Share of the looks at a rank's phase that found it at these kinds of work; 0 where it was
    looked at less than `LOOKS` times."""
    places = [place for place in rank.places if place.phase == phase]
    all_of_it = sum(place.share for place in places)
    if all_of_it <= 0 or (rank.looks and all_of_it * rank.looks < LOOKS):
        return 0.0
    return float(sum(place.share for place in places if place.kind in kinds)) / all_of_it


def _queued_for_others(rank: Rank, spent: dict[str, Series], at: int) -> float:
    """Share of a rank's time on the run queue in which others had the processor. From Linux 6.18
    on, a process that a quota holds is on the queue too: that is time of its own."""
    held_s = max(0.0, rank.throttled_s - rank.stopped_s)
    wall_s, queued_s = (
        float(sum(values[at, :, part].sum() for values in spent.values())) for part in (0, 2)
    )
    if held_s <= 0 or queued_s <= 0 or rank.elapsed_s <= 0:
        return 1.0
    return max(0.0, 1.0 - held_s / rank.elapsed_s * wall_s / queued_s)


def _array(rows: Any, count: int) -> Series:
    return np.array([list(row) for row in rows], dtype=float).reshape(len(rows), count)
