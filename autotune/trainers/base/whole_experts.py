"""Trainers whose tensor parallelism leaves experts whole: its ranks hold different experts, and
each sends its share of the tokens to them.

Megatron's --expert-tensor-parallel-size 1, as in NVIDIA's recipes. Elsewhere tensor parallelism
cuts each expert like a dense layer.
"""

from __future__ import annotations

from autotune.spec.workload import Workload
from autotune.trainers.base.training_loop import training_loop

WHOLE_EXPERTS = frozenset({"megatron", "megatron_bridge", "nemo", "nvidia_recipes"})
"""names of the trainers; nemo and nvidia_recipes are loops of published runs"""


def keeps_experts_whole(workload: Workload) -> bool:
    """Whether the tensor-parallel ranks of its trainer hold different experts. Where programs can
    do both, a workload of post-training says which."""
    rl = workload.rl
    is_told = rl is not None and rl.engine == "megatron" and rl.whole_experts
    return is_told or training_loop(workload) in WHOLE_EXPERTS
