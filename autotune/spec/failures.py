"""The time that failures and checkpoints take from a training run, and the best checkpoint
interval.

    delta   time that a checkpoint blocks training, s
    R       time from a failure until training continues, s
    M       mean time between failures of all nodes in use, s: that of one node / number of nodes
    tau     time between two checkpoints, s
    n       number of replica groups that can continue without each other

    tau = sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta   if delta < 2M, else M   Daly 2006, eq. 37
    remaining fraction of time = tau / (M exp(R / M) (exp((tau + delta) / M) - 1))                        Daly 2006, eq. 20

The first term alone is Young's (1974, eq. 3). Daly: "A higher order estimate of the optimum
checkpoint interval for restart dumps", FGCS 22(3).

With n > 1 groups of identical weights (HSDP with torchft), a failure stops one group for R seconds,
which is a fraction R / (n M) of the work. No work is lost, because the other groups continue, and
the failed group gets their weights. A checkpoint is needed only if all groups fail within R: M_all
= M / (prod_{k=1}^{n-1} R (n - k) / (n M)). M_all is years if groups fail independently. But a power
failure or a faulty release stops all groups at once, so tau is at most `MAX_INTERVAL_S`.

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

MAX_INTERVAL_S = 86_400.0
"""maximum interval between two checkpoints of replica groups, s"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often a cluster fails, and how long checkpoints and restarts take."""

    node_mtbf_s: float
    """mean time between failures of one node, in seconds"""
    checkpoint_s: float | None = None
    """time for which a checkpoint blocks training, in seconds; None means the checkpoint's size
    divided by the bandwidth"""
    checkpoint_bytes: float | None = None
    """size of a checkpoint"""
    write_bytes_per_s: float | None = None
    """write bandwidth of the storage for the whole job"""
    restart_s: float
    """time from a failure until training continues, in seconds"""
    replicas: int = 1
    """number of groups with identical weights that can continue without each other"""

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
        """Time that a checkpoint blocks training (delta), in seconds."""
        if self.checkpoint_s is not None:
            return self.checkpoint_s
        assert self.checkpoint_bytes is not None
        assert self.write_bytes_per_s is not None
        return self.checkpoint_bytes / self.write_bytes_per_s

    def policy(self, nodes: int, step_s: float | None = None) -> CheckpointPolicy:
        """Return the checkpoint interval that loses the least time on this many nodes, and the lost
        time. `step_s`: step time, to give the interval in steps."""
        mtbf_s, delta, stopped_share = self.node_mtbf_s / max(1, nodes), self.saving_s, 0.0
        loss_mtbf_s = mtbf_s  # mean time between failures that lose work
        n = self.replicas
        if n > 1:
            stopped_share = min(1.0, self.restart_s / (n * mtbf_s))
            for k in range(1, n):
                loss_mtbf_s /= min(1.0, self.restart_s * (n - k) / (n * mtbf_s))
        ratio = delta / (2 * loss_mtbf_s)
        tau = (
            math.sqrt(2 * delta * loss_mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delta
            if ratio < 1
            else loss_mtbf_s
        )
        if n > 1:
            tau = min(tau, MAX_INTERVAL_S)
        # avoid overflow: a job that fails faster than it saves makes no progress
        exponent, restart = (tau + delta) / loss_mtbf_s, self.restart_s / loss_mtbf_s
        remaining = (
            0.0
            if max(exponent, restart) > 500
            else tau / (loss_mtbf_s * math.exp(restart) * math.expm1(exponent))
        )
        return CheckpointPolicy(
            interval_s=tau,
            interval_steps=max(1, round(tau / step_s)) if step_s else None,
            lost_share=1 - remaining * (1 - stopped_share),
            failures_per_day=86_400 / mtbf_s,
            checkpoint_s=delta,
            is_capped=n > 1 and tau == MAX_INTERVAL_S,
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
    """time that a checkpoint blocks training, in seconds"""
    is_capped: bool = False
    """whether the interval is capped at `MAX_INTERVAL_S`, although replica groups that continue
    without each other would allow a longer interval"""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the paper or code that the formula comes from."""
        return {
            **Plain.to_dict(self),
            "source": "Daly 2006, eq. 37 and 20 (Young 1974, eq. 3, to first order)",
        }

    @property
    def text(self) -> str:
        """The plan as a sentence."""
        steps = f" ({number_of(self.interval_steps, 'step')})" if self.interval_steps else ""
        if self.is_capped:
            return f"checkpoints: once a day{steps} is enough, because the other replicas continue when one fails; {self.lost_share:.1%} of the time is lost to saving and restarts, at {self.failures_per_day:.2g} failures a day (Daly 2006)"
        return f"checkpoints: best every {format_duration(self.interval_s)}{steps}; {self.lost_share:.1%} of the time is lost to saving, repeated work and restarts, at {self.failures_per_day:.2g} failures a day (Daly 2006)"
