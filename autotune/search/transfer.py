"""Transfer between workloads: the assumed correlation of the cost model's errors on two workloads,
0 to 1.

The factors are rough. The cost model's constants are fitted for each GPU type and trainer, so its
errors are mostly shared where both are the same and partly where one is. Whether a history helps at
all is decided by the data: `surrogate.model_average` weighs models with and without it.
"""

from __future__ import annotations

from autotune.spec import Workload


def transfer_weight(ours: Workload, theirs: Workload) -> float:
    """Correlation of the cost model's errors on another workload with those on ours: less for each
    difference, 0 between CPU and GPU."""
    if ours.cluster.gpu.is_cpu != theirs.cluster.gpu.is_cpu:
        return 0.0
    return (
        0.95
        * (1.0 if ours.model == theirs.model else 0.85)
        * (1.0 if ours.cluster.num_gpus == theirs.cluster.num_gpus else 0.9)
        * (1.0 if ours.cluster.gpu.name == theirs.cluster.gpu.name else 0.5)
        * (1.0 if ours.trainer == theirs.trainer else 0.5)
    )


def residual_transfer_weight(ours: Workload, theirs: Workload) -> float:
    """The same for the residual, which no factor explains: it transfers between workloads of the
    same model only."""
    return transfer_weight(ours, theirs) if ours.model == theirs.model else 0.0
