"""Trainers whose tensor parallelism leaves experts whole: its ranks hold different experts, and each sends its share of the tokens to them.

Megatron's --expert-tensor-parallel-size 1, as in NVIDIA's recipes. Elsewhere tensor parallelism cuts each expert like a dense layer.
"""

from __future__ import annotations

WHOLE_EXPERTS = frozenset({"megatron", "megatron_bridge", "nemo", "nvidia_recipes"})
"""names of the trainers; nemo and nvidia_recipes are loops of published runs"""


def keeps_experts_whole(trainer: str) -> bool:
    """Whether the tensor-parallel ranks of this trainer hold different experts."""
    return trainer in WHOLE_EXPERTS
