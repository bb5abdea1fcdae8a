"""A loss comparison: how a trial's loss stands to that of other configs which saw other batches, after equally many tokens.

It is made once, when the trial is scored, from the trials that had ended by then, and stored with the measurement: later trials never change it.
The statistics are in `autotune.reward.equal_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComparison:
    """The loss at equal tokens against the other configs'."""

    excess: float
    """loss of this trial minus that of the others; below 0 where it is better"""
    noise: float
    """by how much a healthy trial may be above the others through chance alone, at most; in the loss's unit, >= 0"""
    loss: float
    """loss of the other configs at the same place, > 0"""
    tokens: int
    """seen by the others there, those of warm-up included"""
    curves: int
    """number of other trials that it was compared with, >= 1"""

    @property
    def unexplained(self) -> float:
        """The part of the excess that noise does not explain, relative to the others' loss; >= 0."""
        return max(0.0, self.excess - self.noise) / self.loss
