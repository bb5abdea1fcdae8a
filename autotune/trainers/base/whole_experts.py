"""Trainers whose tensor parallelism does not split experts: each rank holds different experts, and
ranks exchange their tokens.

Megatron's --expert-tensor-parallel-size 1, as in NVIDIA's recipes. In other trainers, tensor
parallelism splits each expert like a dense layer.
"""

from __future__ import annotations

from autotune.spec.workload import Workload
from autotune.trainers.base.training_loop import training_loop

WHOLE_EXPERTS = frozenset({"megatron", "megatron_bridge", "nemo", "nvidia_recipes"})
"""names of the trainers; nemo and nvidia_recipes are loops of published runs"""


def keeps_experts_whole(workload: Workload) -> bool:
    """Whether tensor-parallel ranks hold different experts. For programs that support both layouts,
    a post-training workload decides (`PostTraining.whole_experts`)."""
    rl = workload.rl
    is_told = rl is not None and rl.engine == "megatron" and rl.whole_experts
    return is_told or training_loop(workload) in WHOLE_EXPERTS
