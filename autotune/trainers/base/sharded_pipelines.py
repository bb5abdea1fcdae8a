"""Trainers whose pipelines shard gradients and optimizer states beside whole 16-bit weights (ZeRO 2), and reduce once in a step.

torchtitan keeps weights gathered in a pipeline by default (`get_fsdp_reshard_after_forward_policy`), and torch's pipeline schedules let FSDP reduce gradients after the
last micro-batch alone (`backward_maybe_with_nosync` of `torch.distributed.pipelining`). Elsewhere every micro-batch would reduce them again, which
DeepSpeed and Megatron-LM refuse.
"""

from __future__ import annotations

SHARDED_PIPELINES = frozenset({"torchtitan"})
"""names of the trainers"""


def shards_in_pipelines(trainer: str) -> bool:
    """Whether this trainer has ZeRO 2 beside pipeline stages."""
    return trainer in SHARDED_PIPELINES
