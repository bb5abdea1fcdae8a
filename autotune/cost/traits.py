"""Traits: facts about a trainer that need no measurement, such as what it keeps in memory, fuses
and overlaps.

They are taken from the code and documentation of the training loops. Quantities that must be
measured are constants of the calibration instead.

Also explains why two trainers need different memory for the same config: texts about the traits in
which they differ, by category of memory. A trait is listed only if it has an effect in the config,
for example selective recomputation if the config recomputes selectively.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.spec import ParallelConfig, Workload
from autotune.trainers.base.layer_split import layer_split
from autotune.trainers.base.training_loop import training_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Facts about one trainer."""

    gradient_bytes: float = 4.0
    """bytes per weight of the gradient buffer under mixed precision"""
    reduce_bytes: float = 4.0
    """bytes per weight that the gradient reduction carries under mixed precision"""
    fp16_reduce_bytes: float = 4.0
    """the same under fp16, and the maximum size of the gradient buffer there, because the buffer
    itself is reduced"""
    pure_reduce_bytes: float = 2.0
    """the same if nothing is kept in fp32 (`Workload.pure_bf16`), and for gradients that wait for a
    sharded reduction"""
    master_weights: bool = True
    """whether fp32 master weights exist in addition to 16-bit weights; otherwise weights are fp32
    and cast when they are used"""
    split: str = "even"
    """how layers are split into pipeline stages: 'even', or 'by_cost' (stages of equal weight,
    output projection included)"""
    vocab_parallel: bool = True
    """tensor parallelism cuts the output projection and the loss along the vocabulary"""
    fused: bool = True
    """fused norm, rotary and activation kernels, which keep fewer intermediate tensors"""
    scattered_sends: bool = False
    """pipeline boundaries are sent in tensor-parallel shards and gathered by the receiver (arXiv
    2104.04473, section 4.1)"""
    overlapped_sends: bool = False
    """interleaved schedules send to the neighbor while the next stage computes (Megatron-Core:
    overlap_p2p_comm)"""
    gated_kept: float = 4.0
    """multiples of the MLP width that a gated MLP keeps: both inputs of the product, the activation
    and the product; 3 with a fused kernel that recomputes one"""
    is_transformers: bool = False
    """it trains models of transformers, whose code determines what their layers keep
    (`blocks.py`)"""
    repeats_keys: bool = False
    """keys and values are copied to all query heads before attention, which keeps the copies
    (torchtitan's `repeat_kv`)"""
    keeps_gathered: bool = False
    """with sequence parallelism, matrix products keep their gathered input; others keep their shard
    and gather it again in the backward pass (DTensor's parallel styles)"""
    discards_outputs: bool = True
    """recomputation of norms and activation functions discards their outputs too (Megatron-Core's
    `CheckpointWithoutOutput`). With torch's checkpoint, the following matrix products keep these as
    inputs"""
    ring_sums_fp32: bool = False
    """a context-parallel ring sends gradients of keys and values in fp32, with one more step than
    for keys and values, so that they return to their owner"""
    ring_gathers: bool = False
    """a context-parallel ring gathers all keys and values at once, overlapped only with its first
    kernel (torch's `context_parallel`, whose default is `_AllGatherRotater`)"""
    chunks_again: bool = False
    """a chunked loss recomputes the logits of a chunk in the backward pass"""
    loss: str = "full"
    """how the trainer computes the loss by default, see `memory/loss.py`"""
    liger: bool = False
    """its fused loss is that of Liger's kernels for transformers' models, which never hold whole
    logits (`memory/loss.py`)"""
    tiles_mlp: bool = False
    """with activations on the host, the MLP is computed and recomputed in tiles with as many tokens
    as the hidden width has elements (DeepSpeed's `TiledMLP`, arXiv 2506.13996, section 3.1)"""
    casts_logits: bool = True
    """logits are cast to fp32 for a full or chunked loss: by autocast, or by the program if it
    keeps nothing in fp32 (`Workload.pure_bf16`)"""
    holds_logits: bool = True
    """the program holds the 16-bit logits during the backward pass; HF Trainer's `training_step`
    has released the model's outputs by then"""
    may_cut_logits: bool = False
    """it is unknown whether tensor parallelism splits the loss: the additional memory of whole
    logits enters the risk of running out of memory with the probability `memory.HOLDS`"""
    drops_gradients: bool = False
    """gradients are freed after the optimizer's step (torch's `zero_grad` since 2.0), so that none
    exist during the forward pass of the first micro-batch"""
    loss_metrics: float = 0.0
    """number of training metrics that compute the cross-entropy of all logits again"""
    placeholder_gradients: bool = False
    """weight gradients are added to the gradient buffer by the matmul itself; autograd gets one
    16-bit placeholder per shape of weight, which is kept (TransformerEngine, `get_dummy_wgrad`),
    and one for the output projection (Megatron-LM,
    `LinearWithGradAccumulationAndAsyncCommunication`)"""
    stores_narrow_inputs: bool = False
    """matrix products in 8 or 4 bits keep their inputs in that format"""
    narrow_weights: str = "none"
    """memory of weights in 8 or 4 bits: 'none' (cast when they are used), 'beside' (kept in both
    layouts in addition to the 16-bit ones) or 'primary' (8-bit weights in both layouts instead of
    16-bit ones)"""
    bucket_weights: float = 0.0
    """weights per bucket of the reduction; two buckets exist at once, in 16 bits"""
    weighs_inside: bool = False
    """the router's weights are applied inside the experts, so that their outputs need not be
    kept"""
    weighs_in_fp32: bool = False
    """the outputs of experts are weighted and summed in fp32, and both their casts and the products
    are kept"""
    casts_weights: bool = False
    """autocast keeps a 16-bit copy of fp32 weights until the backward pass, unless ZeRO gathers
    them in 16 bits anyway"""
    sums_in_fp32: bool = False
    """fp32 weights are cast by autocast, which keeps sums in fp32, so that the residual stream is
    in fp32; the native loop's decoder casts the output of its embedding"""
    moment_bytes: float = 8.0
    """bytes per weight of AdamW's two moments"""
    one_edge_unit: bool = False
    """FSDP wraps only layers, so that embedding and output projection form one unit: the
    projection's gradient, which is computed first, is kept whole until the embedding's, which is
    the last"""
    reduction: str = "each"
    """when ZeRO-2 and ZeRO-3 reduce and shard gradients: after 'each' micro-batch; after the 'last'
    one, until which they are whole; 'pipeline': like 'last' with a pipeline, else like 'each'; or
    at the 'end' of the step, so that with ZeRO-2 all are whole at the peak"""
    may_reduce_each: bool = False
    """it is unknown whether the program reduces after each micro-batch, the default of FSDP: the
    additional memory of whole gradients enters the risk of running out of memory with the
    probability `memory.HOLDS`"""
    step_bytes: float = 0.0
    """bytes per weight of an fp32 copy of 16-bit gradients that the optimizer's step makes"""
    foreach: bool = False
    """AdamW is torch's default on a GPU, a chain of kernels that allocates a tensor of the size of
    a moment in addition to its states (`time/step.py`)"""
    step_weights: float = math.inf
    """number of weights per rank that the optimizer updates at once under ZeRO-3 (DeepSpeed:
    `sub_group_size`)"""
    expandable_segments: bool = False
    """the trainer sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which leaves little
    fragmentation"""
    selective: str = "scores"
    """what selective recomputation recomputes: 'scores', 'attention' or 'operators' (see
    `recompute.py`)"""
    stops_early: bool = False
    """full recomputation by torch's non-reentrant checkpoint, which stops at the last tensor that
    the backward pass needs"""
    flash_needs_bf16: bool = False
    """its fused attention is that of flash-attn or TransformerEngine, which need a GPU with bf16
    (Ampere or newer); on older ones it stores the score matrix"""
    attention_speed: float = 1.0
    """speed of its attention kernel relative to FlashAttention-2 at the same time
    (`attention_efficiency`)"""
    attention_kernel: str = ""
    """its attention kernel: 'flash2' (FlashAttention-2, torch's own), 'cudnn'
    (TransformerEngine's), 'triton' (FlashAttention in Triton of 2023) or '' if the user chooses it
    (`attention.py`)"""
    async_tp_hidden: float = 1.0
    """share of the communication that `async_tp` actually hides behind the pieces of a product,
    because copies use memory bandwidth and smaller products are slower"""
    async_linear: bool = False
    """with sequence parallelism, collectives of the backward pass overlap with matrix products
    (`traffic.hidden_rings_s`)"""
    checkpoint_host: float = 1.0 / 3.0
    """additional host time of a layer under full recomputation, relative to its forward and
    backward pass; torch's checkpoint adds more than the forward pass (`time/step.py`)"""
    shard_hooks: float = 0.0
    """host time of the hooks with which ZeRO-3 gathers and releases a layer's weights module by
    module, relative to its forward and backward pass"""
    gathers_again: bool = False
    """full recomputation encloses the modules that FSDP wraps, so that the repeated forward pass
    gathers their weights again (`traffic.py`)"""
    peft: bool = False
    """adapters are those of Hugging Face's PEFT, which keeps them in fp32, and with 4-bit weights
    the residual stream too (`trainable.py`)"""
    program: str = "cut"
    """kind of program, which determines the assumed level of one without a fit: 'sharded' (a plain
    torch loop under FSDP) or 'cut' (with tensor and pipeline parallelism)"""
    collectives_per_layer: float = 1.0
    """number of collectives into which ZeRO's gather (or reduction) of one layer's weights is
    split"""


TRITON_ATTENTION = 0.55
"""Speed of FlashAttention in Triton as a multiple of FlashAttention-2's (Dao, arXiv 2307.08691,
section 4.1)"""

MEGATRON = Traits(
    attention_kernel="cudnn", gated_kept=3.0, scattered_sends=True, fp16_reduce_bytes=2.0, flash_needs_bf16=True, loss="parallel", placeholder_gradients=True,
    stores_narrow_inputs=True, narrow_weights="beside", weighs_inside=True,
    overlapped_sends=True,
)  # fmt: skip
BRIDGE = replace(MEGATRON, narrow_weights="primary", loss="fused")
NVIDIA_RECIPES = replace(BRIDGE, gradient_bytes=2.0, reduce_bytes=2.0, expandable_segments=True)
REENTRANT, NON_REENTRANT = 0.9, 1.4
"""`Traits.checkpoint_host` of torch's reentrant checkpoint, which calls autograd again, and of the
non-reentrant one, which uses hooks for saved tensors; measured (`time/step.py`)"""
FSDP_HOOKS = 2.0
"""`Traits.shard_hooks` of FSDP with a unit per layer, measured (`time/step.py`)"""
SYMMETRIC_MEMORY = 0.4
"""`Traits.async_tp_hidden` of torch's async tensor parallelism: 0.18 to 0.64 in eight pairs of runs
published by torchtitan, median 0.37 (five are in `tests/cost/time/test_knob_times.py`)"""
MODULE_HOOKS = 4.4
"""`Traits.shard_hooks` of DeepSpeed, measured (`time/step.py`)"""
EAGER = Traits(
    program="sharded",
    liger=True,
    checkpoint_host=NON_REENTRANT,
    master_weights=False,
    fused=False,
    stops_early=True,
    casts_weights=True,
    reduction="last",
    discards_outputs=False,
    drops_gradients=True,
    one_edge_unit=True,
)
NATIVE = replace(
    EAGER,
    liger=False,
    attention_kernel="flash2",
    one_edge_unit=False,
    selective="attention",
    keeps_gathered=True,
    ring_sums_fp32=True,
    chunks_again=True,
    weighs_in_fp32=True,
)

TRAITS = {
    "nanotron": Traits(
        attention_kernel="flash2",
        split=layer_split("nanotron"),
        collectives_per_layer=6.0,
        loss="copied",
        async_linear=True,
    ),
    "megatron": MEGATRON,
    "megatron_bridge": BRIDGE,
    "nvidia_recipes": NVIDIA_RECIPES,
    "nemo": replace(NVIDIA_RECIPES, loss="parallel", expandable_segments=False),
    "deepspeed": Traits(
        gradient_bytes=2.0,
        reduce_bytes=2.0,
        fp16_reduce_bytes=2.0,
        loss="parallel",
        liger=True,
        tiles_mlp=True,
        bucket_weights=5e8,
        step_bytes=4.0,
        step_weights=1e9,
        shard_hooks=MODULE_HOOKS,
        peft=True,
    ),
    "torchtitan": Traits(
        attention_kernel="flash2",
        async_tp_hidden=SYMMETRIC_MEMORY,
        pure_reduce_bytes=4.0,
        program="sharded",
        checkpoint_host=NON_REENTRANT,
        master_weights=False,
        fused=False,
        selective="operators",
        stops_early=True,
        loss="chunked",
        drops_gradients=True,
        reduction="pipeline",
        repeats_keys=True,
        keeps_gathered=True,
        ring_sums_fp32=True,
        ring_gathers=True,
    ),
    "composer": Traits(
        attention_kernel="triton",
        program="sharded",
        checkpoint_host=NON_REENTRANT,
        master_weights=False,
        stops_early=True,
        drops_gradients=True,
        one_edge_unit=True,
        loss="kernel",
        loss_metrics=2.0,
        attention_speed=TRITON_ATTENTION,
    ),
    "internevo": Traits(gradient_bytes=2.0, reduce_bytes=2.0, loss="copied", step_bytes=4.0),
    "alpa": Traits(
        gradient_bytes=2.0,
        reduce_bytes=2.0,
        fp16_reduce_bytes=2.0,
        loss="parallel",
        reduction="end",
    ),
    "accelerate": replace(
        EAGER,
        shard_hooks=FSDP_HOOKS,
        peft=True,
        foreach=True,
        is_transformers=True,
        sums_in_fp32=True,
    ),
    "hf_trainer": replace(
        EAGER,
        shard_hooks=FSDP_HOOKS,
        gathers_again=True,
        checkpoint_host=REENTRANT,
        holds_logits=False,
        peft=True,
        foreach=True,
        is_transformers=True,
        sums_in_fp32=True,
    ),
    "lightning": replace(EAGER, foreach=True, sums_in_fp32=True),
    "native": NATIVE,
    "command": replace(
        NATIVE,
        attention_kernel="",
        may_reduce_each=True,
        casts_logits=False,
        may_cut_logits=True,
        weighs_in_fp32=False,
    ),
}
"""traits by trainer; a trainer that is not listed counts as `USUAL`, which its constants say
(`Calibration.source`). composer, nemo, nvidia_recipes, internevo and alpa are loops of published
runs, no trainers

gradients    Megatron-LM accumulates in fp32 with bf16 (`--accumulate-allreduce-grads-in-fp32`, which bf16 implies and fp16 does not), and so does Megatron-Bridge, whose `bf16_mixed`
             a launch names; NVIDIA's performance recipes reduce in bf16 (`grad_reduce_in_fp32 = False` in its scripts/performance); DeepSpeed keeps them in 16 bits
8 bits       Megatron-LM keeps bf16 weights and TransformerEngine caches them in both layouts; the recipes gather 8-bit weights (`fp8_param_gather`)
async        nanotron under `tp_linear_async_communication`, which is set with sequence parallelism (`_ColumnLinearAsyncCommunication`)
reduction    Alpa compiles a step into one program, which XLA reduces at its end; Accelerate, HF Trainer and Lightning accumulate under FSDP without
             reducing (`no_sync`, `GradientAccumulationPlugin.sync_each_batch` is off by default), as do torch's pipeline schedules and the native loop;
             torchtitan's FSDP sums and reduces in fp32 (`mixed_precision_reduce`) even gradients of weights in bf16 (`training.dtype`)
attention    torch's own kernel on Hopper is FlashAttention-2, and so is what nanotron calls; TransformerEngine calls cuDNN's; transformers calls what its user asked for
step         DeepSpeed's and InternEvo's ZeRO optimizers cast the flat gradients to fp32 for their step; DeepSpeed's ZeRO-3 those of one group of weights at a time
foreach      the programs of launches of Accelerate and Lightning make torch.optim.AdamW without `fused`, HF Trainer's arguments say adamw_torch; the native loop, nanotron
             (`torch_adam_is_fused`) and torchtitan fuse. Nothing says what a program of one's own does: counted as fused
logits       transformers' models cast them to fp32 for their loss, and torchtitan does; torch's `cross_entropy` takes them as they are
loss         torchtitan cuts projection and loss into chunks from release 0.3 on (`ChunkedLossWrapper`); Megatron-Bridge fuses by TransformerEngine; llm-foundry uses flash-attn's kernel, and its MPT models compute
             LanguageCrossEntropy and LanguagePerplexity of every micro-batch (`train_metrics` of ComposerMPTCausalLM); InternEvo casts its output to fp32 (NaiveAMPModel)
"""


USUAL = "native"
"""the trainer whose traits are assumed for one that is not listed"""


def traits_of(trainer: str) -> Traits:
    """Return the traits of a trainer; those of `USUAL` if it is not listed."""
    return TRAITS.get(trainer, TRAITS[USUAL])


ENGINE_LOOPS = {"fsdp": "accelerate", "megatron": "megatron", "deepspeed": "deepspeed"}
"""the loop whose constants and traits are used for a post-trainer, by its engine: transformers'
models under FSDP, Megatron-Core, DeepSpeed"""
POST_TRAINERS = ("verl", "nemo_rl", "openrlhf", "trl")


def loop_of(workload: Workload) -> str:
    """Return the trainer whose constants apply to the workload: its trainer, the one whose loop its
    program runs, or for post-training that of the training engine."""
    if workload.loop or workload.rl is None or workload.trainer not in POST_TRAINERS:
        return training_loop(workload)
    return ENGINE_LOOPS[workload.rl.engine]


def loop_traits(workload: Workload) -> Traits:
    """Return the traits of the workload's training loop.

    Post-trainers under FSDP call backward for each micro-batch without `no_sync`, so gradients are
    reduced after each (verl: `dp_actor.py`). verl computes log-probabilities of all tokens with
    flash-attn's kernel, on logits that it does not cast (`logprobs_from_logits_flash_attn`); an
    entropy in the loss, which is off by default, adds a gradient.
    """
    traits, rl = traits_of(loop_of(workload)), workload.rl
    if workload.attention_kernel:
        traits = replace(traits, attention_kernel=workload.attention_kernel)
    if rl is None or rl.engine != "fsdp" or workload.trainer not in POST_TRAINERS:
        return traits
    loss = "kernel" if workload.trainer == "verl" else traits.loss
    return replace(traits, reduction="each", loss=loss)


_SELECTIVE = {
    "scores": "recomputes attention scores",
    "attention": "recomputes the attention block",
    "operators": "recomputes all operators except attention and every second matmul",
}
_LOSS = {
    "full": "keeps all logits for the loss",
    "parallel": "computes the loss on logits split by tensor parallelism",
    "copied": "copies the logits for the loss",
    "chunked": "computes the loss in chunks",
    "kernel": "computes the loss in one kernel",
    "fused": "overwrites the logits with the gradient of the loss",
}
_REDUCTION = {
    "each": "synchronizes gradients after each micro-batch",
    "last": "keeps whole gradients until the last micro-batch",
    "pipeline": "keeps whole gradients until the last micro-batch if there is a pipeline",
    "end": "synchronizes gradients at the end of the step",
}


def memory_differences(
    trainer: str, other: str, config: ParallelConfig
) -> Mapping[str, tuple[str, ...]]:
    """Return texts about what `trainer` does in this config that `other` does not, by category
    (weights, gradients, optimizer, activations). Empty for equal traits."""
    mine, theirs = (_habits(traits_of(name), config) for name in (trainer, other))
    differences = {
        category: tuple(
            words for name, words in habits.items() if words != theirs[category].get(name)
        )
        for category, habits in mine.items()
    }
    return {category: words for category, words in differences.items() if words}


def _habits(traits: Traits, config: ParallelConfig) -> Mapping[str, Mapping[str, str]]:
    """Return texts about what the trainer does: category -> trait -> text."""
    mixed, sharded = config.precision in ("bf16", "fp16", "fp8"), config.zero_stage >= 2
    activations = {
        "loss": _LOSS[traits.loss],
        "gated_kept": f"keeps tensors {traits.gated_kept:g} times as wide as the inner layer of a gated MLP",
        "repeats_keys": "copies keys and values to all heads" if traits.repeats_keys else "keeps one copy of keys and values",
    }  # fmt: skip
    if config.recompute == "selective":
        activations["selective"] = _SELECTIVE[traits.selective]
    if config.recompute == "full":
        activations["stops_early"] = (
            "stops recomputation at the last needed tensor"
            if traits.stops_early
            else "recomputes whole layers"
        )
    if config.compile or traits.fused:
        activations["fused"] = (
            "fuses norms and activation functions into kernels that keep fewer tensors"
        )
    else:
        activations["fused"] = (
            "keeps all tensors that norms and activation functions save in eager mode"
        )
    if config.sequence_parallel:
        activations["keeps_gathered"] = (
            "keeps gathered inputs of matmuls"
            if traits.keeps_gathered
            else "gathers inputs of matmuls again"
        )
    gradients = {
        "drops": "frees gradients after the optimizer step" if traits.drops_gradients else "keeps its gradient buffer between steps",
    }  # fmt: skip
    weights, optimizer = dict[str, str](), dict[str, str]()
    if mixed:
        gradients["bytes"] = f"keeps gradients at {traits.gradient_bytes:g} bytes per weight"
        weights["master"] = (
            "keeps 16-bit weights in addition to the optimizer's fp32 weights"
            if traits.master_weights
            else "keeps fp32 weights"
        )
        weights["casts"] = (
            "keeps 16-bit copies of weights until the backward pass" if traits.casts_weights else "keeps no copies of cast weights"
        )  # fmt: skip
        optimizer["step"] = (
            f"copies gradients to fp32 for the optimizer step ({traits.step_bytes:g} bytes per weight)" if traits.step_bytes else "uses gradients unchanged in the optimizer step"
        )  # fmt: skip
    if sharded:
        gradients["reduction"] = _REDUCTION[traits.reduction]
    optimizer["foreach"] = (
        "runs AdamW as a chain of kernels" if traits.foreach else "runs a fused AdamW"
    )
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
    }
