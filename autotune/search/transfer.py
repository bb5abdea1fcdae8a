"""How much the measurements of one workload tell about another's: the correlation of the cost model's errors, 0 to 1.

The factors are rough: constants are fitted for each GPU and trainer, so what they miss is mostly shared where both are the same, and partly
where one of them is. Whether a history helps is not left to them: `surrogate.averaged` weighs it against none.
"""

from __future__ import annotations

from autotune.spec import Workload


def transfer_weight(ours: Workload, theirs: Workload) -> float:
    """How far the cost model's errors on another workload tell of those on ours: less for each thing that differs, nothing between CPU and GPU."""
    if ours.cluster.gpu.is_cpu != theirs.cluster.gpu.is_cpu:
        return 0.0
    return (
        0.95
        * (1.0 if ours.model == theirs.model else 0.85)
        * (1.0 if ours.cluster.num_gpus == theirs.cluster.num_gpus else 0.9)
        * (1.0 if ours.cluster.gpu.name == theirs.cluster.gpu.name else 0.5)
        * (1.0 if ours.trainer == theirs.trainer else 0.5)
    )


def likeness(ours: Workload, theirs: Workload) -> float:
    """How far what the factors leave unexplained carries over: as the errors do between workloads of one model, else not at all."""
    return transfer_weight(ours, theirs) if ours.model == theirs.model else 0.0
