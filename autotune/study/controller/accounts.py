"""Running time of a study, without pauses, and the used part of its budget, over all of its
controllers.

now_s        monotonic clock of this controller, s
elapsed_s    running time of earlier controllers up to their last checkpoint, plus that of this one, s
"""

from __future__ import annotations

from autotune.study.controller.attempts import Attempts
from autotune.study.controller.budget import Spent
from autotune.study.controller.infeasible import InfeasibleConfigs
from autotune.study.controller.trial_index import TrialIndex


class Accounts:
    """Adds up the time and rank-seconds of one study."""

    def __init__(
        self,
        index: TrialIndex,
        attempts: Attempts,
        infeasible: InfeasibleConfigs,
        *,
        elapsed_s: float,
        gpu_s: float | None,
    ) -> None:
        """`elapsed_s`, `gpu_s`: values of the last checkpoint. `gpu_s` None: add up the measured
        trials."""
        self.now_s = 0.0
        self.elapsed_s = elapsed_s
        self.has_begun = False
        """whether `pass_time` was called"""
        self._index, self._attempts, self._infeasible = index, attempts, infeasible
        self._past_gpu_s = index.measured_gpu_s if gpu_s is None else gpu_s

    def pass_time(self, now_s: float) -> None:
        """Advance the clock to `now_s`. Time before the first call is not counted."""
        if self.has_begun:
            self.elapsed_s += max(0.0, now_s - self.now_s)
        self.now_s = max(self.now_s, now_s) if self.has_begun else now_s
        self.has_begun = True

    @property
    def spent(self) -> Spent:
        """The used part of the budget."""
        return Spent(
            trials=self._index.asked,
            failed=self._index.failed,
            refused=self._infeasible.refused,
            wall_s=self.elapsed_s,
            gpu_s=self._past_gpu_s + self._attempts.gpu_s(self.now_s),
        )
