"""What is known about a trainer without measuring it: what it keeps in memory, what it fuses, what it overlaps.

Facts of the training loops' code and documents; whatever must be measured is a constant of the calibration instead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """A trainer's habits."""

    gradient_bytes: float = 4.0
    """bytes per weight of the gradient buffer under mixed precision"""
    reduce_bytes: float = 4.0
    """bytes per weight that the gradient reduction carries under mixed precision"""
    master_weights: bool = True
    """fp32 master weights apart from the 16-bit ones that kernels read; otherwise weights are fp32 and cast where they are used"""
    split: str = "even"
    """layers over pipeline stages: 'even', or 'by_cost' (stages of equal weight, the output projection counted)"""
    vocab_parallel: bool = True
    """tensor parallelism cuts the output projection and the loss along the vocabulary"""
    fused: bool = True
    """fused norm, rotary and activation kernels, which keep fewer intermediate tensors"""
    sharded_accumulation: bool = True
    """under ZeRO-2 and -3 gradients are kept sharded between micro-batches"""


TRAITS = {
    "nanotron": Traits(split="by_cost", fused=False),
    "megatron": Traits(),
    "deepspeed": Traits(gradient_bytes=2.0, reduce_bytes=2.0),
    "torchtitan": Traits(master_weights=False, fused=False),
    "accelerate": Traits(master_weights=False, fused=False),
    "hf_trainer": Traits(master_weights=False, fused=False),
    "native": Traits(master_weights=False, fused=False),
}
"""Traits by trainer; others are taken for `native`."""


def traits_of(trainer: str) -> Traits:
    """The traits of that trainer."""
    return TRAITS.get(trainer, TRAITS["native"])
