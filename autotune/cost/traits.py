"""Traits: facts about a trainer that need no measurement, such as what it keeps in memory, fuses and overlaps.

They come from the code and documentation of the training loops. Quantities that must be measured are constants of the calibration instead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Facts about one trainer."""

    gradient_bytes: float = 4.0
    """bytes per weight of the gradient buffer under mixed precision"""
    reduce_bytes: float = 4.0
    """bytes per weight that the gradient reduction carries under mixed precision"""
    fp16_reduce_bytes: float = 4.0
    """the same under fp16"""
    master_weights: bool = True
    """whether fp32 master weights exist beside 16-bit weights; otherwise weights are fp32 and cast where they are used"""
    split: str = "even"
    """how layers are split into pipeline stages: 'even', or 'by_cost' (stages of equal weight, output projection included)"""
    vocab_parallel: bool = True
    """tensor parallelism cuts the output projection and the loss along the vocabulary"""
    fused: bool = True
    """fused norm, rotary and activation kernels, which keep fewer intermediate tensors"""
    scattered_sends: bool = False
    """pipeline boundaries are sent in tensor-parallel shards and gathered by the receiver (arXiv 2104.04473, section 4.1)"""
    gated_kept: float = 4.0
    """multiples of the MLP width that a gated MLP keeps: both inputs of the product, the activation and the product; 3 with a fused kernel that recomputes one"""
    logit_bytes: float = 10.0
    """bytes per logit that the loss keeps: the 16-bit output, its fp32 copy and its gradient"""
    selective: str = "scores"
    """what selective recomputation computes again: 'scores', 'attention' or 'operators' (see `recompute.py`)"""
    stops_early: bool = False
    """full recomputation by torch's non-reentrant checkpoint, which stops at the last tensor that the backward pass needs"""
    scores_kept_in: tuple[str, ...] = ()
    """precisions in which attention stores the score matrix (`score_bytes`): those whose measurements predate FlashAttention in this trainer"""
    collectives_per_layer: float = 1.0
    """number of collectives into which ZeRO's gather (or reduction) of one layer's weights is split"""


MEGATRON = Traits(gated_kept=3.0, scattered_sends=True, fp16_reduce_bytes=2.0, scores_kept_in=("fp16",))

TRAITS = {
    "nanotron": Traits(split="by_cost", collectives_per_layer=6.0),
    "megatron": MEGATRON,
    "megatron_bridge": MEGATRON,
    "deepspeed": Traits(gradient_bytes=2.0, reduce_bytes=2.0, fp16_reduce_bytes=2.0),
    "torchtitan": Traits(master_weights=False, fused=False, selective="operators", stops_early=True),
    "accelerate": Traits(master_weights=False, fused=False, stops_early=True),
    "hf_trainer": Traits(master_weights=False, fused=False, stops_early=True),
    "lightning": Traits(master_weights=False, fused=False, stops_early=True),
    "native": Traits(master_weights=False, fused=False, selective="attention", stops_early=True),
}
"""traits by trainer; a trainer that is not listed has those of `native`"""


def traits_of(trainer: str) -> Traits:
    """The traits of that trainer."""
    return TRAITS.get(trainer, TRAITS["native"])
