"""A model as flags of Megatron-LM's pretrain_gpt.py: its shape, its experts, its latent attention,
and what a config.json says beside the shape.

    latent attention   Megatron's multi-latent attention; YaRN's beta_fast, beta_slow and original length have no flags: they are DeepSeek's 32, 1 and 4096
    dense layers       come first (--moe-layer-freq names 0 or 1 for each layer)
    shared experts     one MLP as wide as all of them together; Qwen2's has a gate
    further tokens     layers behind the last one (multi-token prediction), each like it, with Megatron's weight of their losses

The load of experts is balanced by a loss of weight 0.01, of routers with a bias by one of 0.0001
(arXiv:2412.19437, section 4.2), unless the file says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face.figures import (
    LLAMA3_SCALING,
    YARN,
    figures_of,
    llama3_scaling,
    yarn_scaling,
)
from autotune.trainers.base.limit import Limit, Rule, broken

USUAL_LOSS, SIGMOID_LOSS = 0.01, 0.0001
"""weights of the loss that balances the load"""
WITHOUT_FLAG = ("beta_fast", "beta_slow", "original_max_position_embeddings")
"""figures of YaRN"""


def model_limits(workload: Workload, c: ParallelConfig) -> list[Limit]:
    """Dense layers that are not the first ones: Qwen's files place them freely, and the shape only
    counts them. And what attends to a window.

    Facts of Transformer Engine: pytorch/attention/dot_product_attention/context_parallel.py,
    attn_forward_func_with_cp.
    """
    model, figures = workload.model, figures_of(workload.model)
    window, family = (figures.window, figures.family) if figures is not None else (0, "")
    return broken(
        workload,
        c,
        Rule(
            c.cp > 1 and c.cp_style == "ring" and 0 < window < workload.seq_len,
            "cp_style",
            f"ring attention covers whole sequences, but the model attends only to the last {window} tokens",
            "gather",
        ),
        Rule(
            model.mtp_layers and not model.gated_mlp,
            "model.mtp_layers",
            "multi-token prediction supports only rotary positions, not learned positions",
            0,
        ),
        Rule(
            model.num_dense_layers and family.startswith("qwen"),
            "model.num_dense_layers",
            "launches place the layers without experts first, but config.json places these layers elsewhere",
            remedy="use megatron_bridge, which reads the config.json itself",
        ),
    )


def model_notes(model: ModelSpec) -> Iterator[str]:
    """Figures of the model's rotary scaling that have no flags."""
    if {**(llama3_scaling(model) or LLAMA3_SCALING), "factor": 8.0} != LLAMA3_SCALING:
        yield "only the factor of the model's rotary scaling is carried over, because its other parameters differ from Llama 3.1's"
    scaling = yarn_scaling(model)
    if scaling and not model.kv_lora_rank:
        yield "the rotary scaling 'yarn' in the model's config.json is carried over only with latent attention; set it in the trainer"
    elif scaling and (lost := [name for name in WITHOUT_FLAG if scaling[name] != YARN[name]]):
        said = ", ".join(f"{name}={scaling[name]:g}" for name in lost)
        yield f"Megatron-LM has no flag for {said} in the model's YaRN scaling, and uses {', '.join(f'{YARN[name]:g}' for name in lost)} instead"


def model_flags(model: ModelSpec, seq_len: int) -> dict[str, Any]:
    """The flags that make the model; those of False and None are not given."""
    is_grouped = model.num_kv_heads != model.num_attention_heads
    flags: dict[str, Any] = {
        "num-layers": model.num_layers,
        "hidden-size": model.hidden_size,
        "ffn-hidden-size": model.dense_ffn_hidden_size or model.ffn_hidden_size,
        "num-attention-heads": model.num_attention_heads,
        "kv-channels": model.v_head_dim or model.head_dim,
        "seq-length": seq_len,
        "max-position-embeddings": max(model.max_positions, seq_len),
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "group-query-attention": is_grouped,
        "num-query-groups": model.num_kv_heads if is_grouped else None,
        "swiglu": model.gated_mlp,
        "normalization": "RMSNorm" if model.gated_mlp else "LayerNorm",
        "position-embedding-type": "rope" if model.gated_mlp else "learned_absolute",
        "disable-bias-linear": model.gated_mlp,
        "untie-embeddings-and-output-weights": not model.tied_embeddings,
        **(_expert_flags(model) if model.num_experts else {}),
        **(_latent_flags(model) if model.kv_lora_rank else {}),
        "mtp-num-layers": model.mtp_layers or None,
    }
    return {**flags, **_figure_flags(model, seq_len)}


def _figure_flags(model: ModelSpec, seq_len: int) -> dict[str, Any]:
    """What its config.json says beside the sizes."""
    if (figures := figures_of(model)) is None:
        return {}
    base, scaling = figures.rotary_base, llama3_scaling(model)
    # tokens to the left and to the right
    window = f"{figures.window - 1},0" if 0 < figures.window < seq_len else None
    return {
        "rotary-base": None if base is None else int(base),
        "norm-epsilon": figures.norm_epsilon,
        "add-qkv-bias": figures.qkv_bias and model.gated_mlp,
        **({"qk-layernorm": True} if figures.qk_norm else {}),  # else as latent attention has it
        "rotary-percent": figures.rotary_share if figures.rotary_share < 1 else None,
        "window-size": window,
        "use-rope-scaling": scaling is not None,
        "rope-scaling-factor": scaling and scaling["factor"],
    }


def _expert_flags(model: ModelSpec) -> dict[str, Any]:
    figures = figures_of(model)
    router = figures.router if figures else None
    is_sigmoid = router is not None and router.is_sigmoid
    dense, loss = model.num_dense_layers, SIGMOID_LOSS if is_sigmoid else USUAL_LOSS
    if figures and figures.router_loss is not None:
        loss = figures.router_loss
    flags: dict[str, Any] = {
        "num-experts": model.num_experts,
        # experts stay whole: its default, the tensor-parallel size, would cut narrow matrices
        # further
        "expert-tensor-parallel-size": 1,
        "moe-router-topk": model.experts_per_token,
        "moe-ffn-hidden-size": model.ffn_hidden_size,
        "moe-router-load-balancing-type": "seq_aux_loss" if router else "aux_loss",
        "moe-aux-loss-coeff": loss,
        "moe-layer-freq": f"([0]*{dense}+[1]*{model.num_layers - dense})" if dense else None,
        "moe-shared-expert-intermediate-size": model.shared_ffn_hidden_size or None,
        "moe-shared-expert-gate": figures is not None and figures.family == "qwen2_moe",
        # the weight of one expert alone is 1, which nothing trains
        "moe-router-pre-softmax": not is_sigmoid
        and (model.experts_per_token == 1 or (figures is not None and figures.softmax_over_all)),
    }
    if router is None:
        return flags
    is_grouped = router.groups > 1
    return {
        **flags,
        "moe-router-score-function": "sigmoid" if is_sigmoid else None,
        "moe-router-enable-expert-bias": is_sigmoid,
        "moe-router-dtype": "fp32",
        "moe-router-num-groups": router.groups if is_grouped else None,
        "moe-router-group-topk": router.chosen_groups if is_grouped else None,
        "moe-router-topk-scaling-factor": router.scale if router.scale != 1 else None,
    }


def _latent_flags(model: ModelSpec) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "multi-latent-attention": True,
        "q-lora-rank": model.q_lora_rank or None,
        "kv-lora-rank": model.kv_lora_rank,
        "qk-head-dim": model.head_dim - model.qk_rope_head_dim,
        "qk-pos-emb-head-dim": model.qk_rope_head_dim,
        "v-head-dim": model.v_head_dim,
        "qk-layernorm": True,  # of the latents
    }
    if scaling := yarn_scaling(model):
        names = {
            "factor": "rotary-scaling-factor",
            "mscale": "mscale",
            "mscale_all_dim": "mscale-all-dim",
        }
        return {
            **flags,
            "rope-type": "yarn",
            **{flag: scaling[name] for name, flag in names.items()},
        }
    return {**flags, "rope-type": "rope", "no-rope-fusion": True}  # the fused kernel is YaRN's
