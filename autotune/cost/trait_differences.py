"""Why two trainers hold different memory for the same config: the traits in which they differ, in words, by category of memory.

A reason is listed only where the config makes it act: selective recomputation where the config recomputes, a gathered input under sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.cost.traits import Traits, traits_of
from autotune.spec import ParallelConfig

_SELECTIVE = {
    "scores": "recomputes attention scores",
    "attention": "recomputes the attention block",
    "operators": "recomputes all operators but attention and every second matmul",
}
_LOSS = {
    "full": "keeps all logits for the loss",
    "parallel": "computes the loss on logits that tensor parallelism cuts",
    "copied": "copies the logits for the loss",
    "chunked": "computes the loss in chunks",
    "kernel": "computes the loss in one kernel",
    "fused": "writes the gradient of the loss over the logits",
}
_REDUCTION = {
    "each": "reduces gradients after each micro-batch",
    "last": "keeps whole gradients until the last micro-batch",
    "pipeline": "keeps whole gradients until the last micro-batch under a pipeline",
    "end": "reduces gradients at the end of the step",
}


def memory_differences(trainer: str, other: str, config: ParallelConfig) -> Mapping[str, tuple[str, ...]]:
    """What `trainer` does in this config that `other` does not, by category (weights, gradients, optimizer, activations). Empty for equal traits."""
    mine, theirs = (_habits(traits_of(name), config) for name in (trainer, other))
    found = {
        category: tuple(words for name, words in habits.items() if words != theirs[category].get(name))
        for category, habits in mine.items()
    }
    return {category: words for category, words in found.items() if words}


def _habits(traits: Traits, config: ParallelConfig) -> Mapping[str, Mapping[str, str]]:
    """What the trainer does, as category -> trait -> words."""
    mixed, sharded = config.precision in ("bf16", "fp16", "fp8"), config.zero_stage >= 2
    activations = {
        "loss": _LOSS[traits.loss],
        "gated_kept": f"keeps {traits.gated_kept:g} widths of a gated MLP",
        "repeats_keys": "copies keys and values to all heads" if traits.repeats_keys else "keeps one copy of keys and values",
    }  # fmt: skip
    if config.recompute == "selective":
        activations["selective"] = _SELECTIVE[traits.selective]
    if config.recompute == "full":
        activations["stops_early"] = (
            "stops recomputation at the last tensor that is needed" if traits.stops_early else "recomputes whole layers"
        )
    if config.compile or traits.fused:
        activations["fused"] = "fuses norms and activation functions into kernels that keep fewer tensors"
    else:
        activations["fused"] = "keeps what norms and activation functions save in eager mode"
    if config.sequence_parallel:
        activations["keeps_gathered"] = (
            "keeps gathered inputs of matmuls" if traits.keeps_gathered else "gathers inputs of matmuls again"
        )
    gradients = {
        "drops": "frees gradients after the optimizer step" if traits.drops_gradients else "keeps its gradient buffer between steps",
    }  # fmt: skip
    weights, optimizer = dict[str, str](), dict[str, str]()
    if mixed:
        gradients["bytes"] = f"keeps gradients in {traits.gradient_bytes:g} bytes a weight"
        weights["master"] = (
            "keeps 16-bit weights beside fp32 ones in the optimizer" if traits.master_weights else "keeps fp32 weights"
        )
        weights["casts"] = (
            "keeps 16-bit copies of weights until the backward pass" if traits.casts_weights else "keeps no copies of cast weights"
        )  # fmt: skip
        optimizer["step"] = (
            f"copies gradients to fp32 for the optimizer step ({traits.step_bytes:g} bytes a weight)" if traits.step_bytes else "steps on gradients as they are"
        )  # fmt: skip
    if sharded:
        gradients["reduction"] = _REDUCTION[traits.reduction]
    optimizer["foreach"] = "runs AdamW as a chain of kernels" if traits.foreach else "runs a fused AdamW"
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer, "activations": activations}
