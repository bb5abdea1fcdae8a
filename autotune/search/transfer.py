"""Transfer between workloads: the assumed correlation of the cost model's errors on two workloads,
0 to 1.

The factors are rough guesses. The cost model's constants are fitted per GPU type and trainer, so
its errors are mostly shared if both are the same, and partly if one is. Whether a history helps at
all depends on the data: `surrogate.model_average` weights models with and without it.
"""

from __future__ import annotations

from autotune.spec import Workload


def transfer_weight(ours: Workload, theirs: Workload) -> float:
    """Correlation of the cost model's errors on two workloads; smaller for each difference, 0
    between CPU and GPU."""
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
    """Correlation of the residuals, which no factor explains: 0 between workloads of different
    models."""
    return transfer_weight(ours, theirs) if ours.model == theirs.model else 0.0
