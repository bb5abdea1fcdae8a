"""How much time failures and checkpoints take from a training run, and how often to save.

    delta   seconds that a checkpoint blocks training               R    seconds from a failure
    until training continues
    M       mean seconds between failures of the nodes in use: that of one node / nodes
    tau     seconds between two checkpoints             n    replica groups, each able to train on without the others

    tau = sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta   where delta < 2M, else M        Daly 2006, eq. 37
    share that is left = tau / (M exp(R / M) (exp((tau + delta) / M) - 1))                                       Daly 2006, eq. 20

The first term alone is Young's (1974, eq. 3). Daly: "A higher order estimate of the optimum
checkpoint interval for restart dumps", FGCS 22(3).

With n > 1 groups that hold the same weights (HSDP with torchft) a failure stops one group for R
seconds, a share R / (n M) of the work. No work is lost, because the other groups continue, and the
failed group gets the weights from them. The last checkpoint is needed only if all groups fail
within R: M_all = M / (prod_{k=1}^{n-1} R (n - k) / (n M)). M_all is years if groups fail
independently of each other. A power cut or a faulty release stops all groups at once, so tau is at
most `LONGEST_S`.

Neglected: failures that come in clusters, checkpoints that overlap with training (set delta to the
seconds by which they still delay training), detection time beyond R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autotune.errors import SpecError
from autotune.spec.plain import Plain
from autotune.spec.texts.as_text import format_duration, number_of

LONGEST_S = 86_400.0
"""longest interval between two checkpoints of replica groups"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often a cluster fails, and how long checkpoints and restarts take."""

    node_mtbf_s: float
    """mean time between failures of one node, in seconds"""
    checkpoint_s: float | None = None
    """time that a checkpoint blocks training, in seconds; None means the checkpoint's size divided
    by the bandwidth"""
    checkpoint_bytes: float | None = None
    write_bytes_per_s: float | None = None
    """write bandwidth of the storage for the whole job"""
    restart_s: float
    """time from a failure until training continues, in seconds"""
    replicas: int = 1
    """groups with identical weights that can continue without each other"""

    def __post_init__(self) -> None:
        if self.checkpoint_s is None and (
            self.checkpoint_bytes is None or self.write_bytes_per_s is None
        ):
            raise SpecError(
                "the time that a checkpoint takes is missing",
                remedy="set failures.checkpoint_s, e.g. to 60 s, or checkpoint_bytes and write_bytes_per_s",
                field="failures.checkpoint_s",
            )

    @property
    def saving_s(self) -> float:
        """delta."""
        if self.checkpoint_s is not None:
            return self.checkpoint_s
        assert self.checkpoint_bytes is not None
        assert self.write_bytes_per_s is not None
        return self.checkpoint_bytes / self.write_bytes_per_s

    def policy(self, nodes: int, step_s: float | None = None) -> CheckpointPolicy:
        """The checkpoint interval with the least lost time on this many nodes, and the time
        lost."""
        apart_s, delta, lost_by_groups = self.node_mtbf_s / max(1, nodes), self.saving_s, 0.0
        between_s = apart_s
        n = self.replicas
        if n > 1:
            lost_by_groups = min(1.0, self.restart_s / (n * apart_s))
            for k in range(1, n):
                between_s /= min(1.0, self.restart_s * (n - k) / (n * apart_s))
        ratio = delta / (2 * between_s)
        tau = (
            math.sqrt(2 * delta * between_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delta
            if ratio < 1
            else between_s
        )
        if n > 1:
            tau = min(tau, LONGEST_S)
        # expm1 of a huge exponent: a job that fails faster than it saves does not get on
        exponent, restart = (tau + delta) / between_s, self.restart_s / between_s
        left = (
            0.0
            if max(exponent, restart) > 500
            else tau / (between_s * math.exp(restart) * math.expm1(exponent))
        )
        return CheckpointPolicy(
            interval_s=tau,
            interval_steps=max(1, round(tau / step_s)) if step_s else None,
            lost_share=1 - left * (1 - lost_by_groups),
            failures_per_day=86_400 / apart_s,
            checkpoint_s=delta,
            is_capped=n > 1 and tau == LONGEST_S,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy(Plain):
    """How often to save a checkpoint, and the time still lost to failures and saving."""

    interval_s: float
    """seconds between two checkpoints"""
    interval_steps: int | None
    """optimizer steps between two checkpoints, if the step time is known"""
    lost_share: float
    """fraction of time, 0 to 1, lost to saving, repeated work and restarts"""
    failures_per_day: float
    """failures per day across the nodes in use"""
    checkpoint_s: float
    is_capped: bool = False
    """whether the interval is capped at `LONGEST_S`, although replica groups that continue without
    each other would allow a longer interval"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with the paper or code that the formula comes from."""
        return {
            **Plain.to_dict(self),
            "source": "Daly 2006, eq. 37 and 20 (Young 1974, eq. 3, to first order)",
        }

    @property
    def text(self) -> str:
        """As a sentence."""
        steps = f" ({number_of(self.interval_steps, 'step')})" if self.interval_steps else ""
        if self.is_capped:
            return f"checkpoints: once a day{steps} is enough, because the other replicas continue when one fails; {self.lost_share:.1%} of the time is lost to saving and restarts, at {self.failures_per_day:.2g} failures a day (Daly 2006)"
        return f"checkpoints: best every {format_duration(self.interval_s)}{steps}; {self.lost_share:.1%} of the time is lost to saving, repeated work and restarts, at {self.failures_per_day:.2g} failures a day (Daly 2006)"
