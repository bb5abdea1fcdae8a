"""Shapes that families describe with their own keys: latent attention, patterns of layers with
experts, heads and widths.

Each function takes the file with the defaults of its family, and the fields of `ModelSpec` so far,
and returns the fields that change.

What transformers' own classes provide for parallel training: a plan for tensor parallelism, and
places where a pipeline can split the class.

A class counts as having a tensor plan if the native trainer supports the style of every entry,
which excludes plans for experts. Apertus is excluded, because its activation has two learned
scalars, and no rank has the full gradients of these scalars.

The facts about the families come from transformers 5.23, `base_model_tp_plan` and
`base_model_pp_plan` of `models/*/configuration_*.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import SpecError

Document = Mapping[str, Any]

INLINE = (
    "write the model's fields inline: num_layers, hidden_size, num_attention_heads, vocab_size, ..."
)
"""remedy for a file that cannot be read"""
BUILT = (
    "install transformers and set `model: {hf: PATH}`, which builds the model's class and counts its weights, or set {module: ...} for your own code; "
    f"otherwise, for an approximation, {INLINE}"
)
"""remedy for a file with layers that no shape describes"""


def _latent_attention(asked: Document) -> dict[str, Any]:
    """DeepSeek's latent attention (arXiv:2405.04434, section 2.1): keys and values from a narrow
    latent, with separate rotary parts. If the latent is null, attention is plain."""
    if not asked.get("kv_lora_rank"):
        return {}
    nope, rope = asked["qk_nope_head_dim"], asked["qk_rope_head_dim"]
    return {
        "attention_head_dim": nope + rope,
        "q_lora_rank": asked.get("q_lora_rank") or 0,
        "kv_lora_rank": asked["kv_lora_rank"],
        "qk_rope_head_dim": rope,
        "v_head_dim": asked["v_head_dim"],
        "num_kv_heads": asked["num_attention_heads"],
    }


def first_dense(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Experts in all layers except the first few, in addition to shared experts (DeepSeek, GLM,
    Kimi)."""
    if not fields.get("num_experts"):
        return {}
    if asked.get("moe_layer_freq", 1) != 1:
        raise SpecError(
            f"moe_layer_freq must be 1, but is {asked['moe_layer_freq']}; other patterns of experts are not supported",
            remedy=INLINE,
            field="model",
        )
    width, listed = asked["moe_intermediate_size"], asked.get("mlp_layer_types")
    dense = (
        listed.count("dense")
        if isinstance(listed, list)
        else asked.get("first_k_dense_replace") or 0
    )
    return {
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": (asked.get("n_shared_experts") or 0) * width,
        "num_dense_layers": dense,
        "dense_ffn_hidden_size": asked["intermediate_size"] if dense else 0,
    }


def deepseek(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    return {**_latent_attention(asked), **first_dense(asked, fields)}


def ernie_experts(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Experts from a given layer through the last layer: `moe_layer_end_index` is -1, or not before
    the last layer."""
    last, end = fields["num_layers"] - 1, asked.get("moe_layer_end_index", -1)
    if end != -1 and end < last:
        raise SpecError(
            f"moe_layer_end_index must be the index of the last layer, {last}, but is {end}; dense layers after layers with experts are not supported",
            remedy=INLINE,
            field="model",
        )
    return first_dense(asked, fields)


def hunyuan_experts(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """The shared experts are as wide as the routed experts."""
    return {
        "shared_ffn_hidden_size": (asked.get("n_shared_experts") or 0) * fields["ffn_hidden_size"]
    }


def granite_experts(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """One shared MLP in addition to the experts; without experts, the shared MLP is the layer's
    MLP."""
    width = asked.get("shared_intermediate_size") or 0
    return {"shared_ffn_hidden_size" if fields.get("num_experts") else "ffn_hidden_size": width}


def granite_hybrid(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Granite 4 in the sizes with attention in every layer; other sizes have `mamba` in
    `layer_types`."""
    if not isinstance(asked.get("layer_types", asked.get("layers_block_type")), list):
        raise SpecError(
            "layer_types must list the kind of each layer, but is missing, so transformers would treat every layer as a state-space layer",
            remedy=BUILT,
            field="model",
        )
    return granite_experts(asked, fields)


def qwen_experts(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Experts in every `decoder_sparse_step`-th layer, but not in `mlp_only_layers`."""
    layers, every, plain = (
        fields["num_layers"],
        asked["decoder_sparse_step"] or 1,
        asked.get("mlp_only_layers") or [],
    )
    sparse = (
        sum((i + 1) % every == 0 and i not in plain for i in range(layers))
        if fields.get("num_experts")
        else 0
    )
    return {
        "ffn_hidden_size": asked["moe_intermediate_size"] if sparse else asked["intermediate_size"],
        "shared_ffn_hidden_size": asked.get("shared_expert_intermediate_size") or 0,
        "num_dense_layers": layers - sparse if sparse else 0,
        "dense_ffn_hidden_size": asked["intermediate_size"] if sparse < layers else 0,
    }


def llama4(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Experts in every `interleave_moe_layer_step`-th layer, each with one shared expert."""
    layers, step = fields["num_layers"], asked["interleave_moe_layer_step"] or 0
    listed = asked.get("moe_layers")
    if isinstance(listed, list):
        sparse = len(listed)
    else:
        sparse = len(range(step - 1, layers, step)) if step else 0
    return {
        "shared_ffn_hidden_size": asked["intermediate_size"],
        "num_dense_layers": layers - sparse,
        "dense_ffn_hidden_size": asked["intermediate_size_mlp"] if sparse < layers else 0,
    }


def falcon(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    heads = fields["num_attention_heads"]
    if asked["new_decoder_architecture"]:
        return {"num_kv_heads": asked.get("num_kv_heads") or heads}
    return {"num_kv_heads": 1 if asked["multi_query"] else heads}


def one_key_head(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    return {"num_kv_heads": 1 if asked["multi_query"] else fields["num_attention_heads"]}


def mpt(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    inner = asked.get("attn_config")
    kv = inner.get("kv_n_heads") if isinstance(inner, Mapping) else None
    return {
        "ffn_hidden_size": int(asked["expansion_ratio"] * fields["hidden_size"]),
        "num_kv_heads": kv,
    }


def opt(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    if asked.get("word_embed_proj_dim", fields["hidden_size"]) != fields["hidden_size"]:
        raise SpecError(
            f"word_embed_proj_dim must equal hidden_size, but is {asked['word_embed_proj_dim']} and hidden_size={fields['hidden_size']}",
            remedy=INLINE,
            field="model",
        )
    return padded_positions(asked, fields)


def padded_positions(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """The first two rows of learned positions are padding."""
    return {"max_positions": asked["max_position_embeddings"] + 2}


TENSOR_PLANS = frozenset(
    {
        *("arcee", "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2"),
        *(
            "gemma3_text",
            "glm",
            "glm4",
            "gpt_neox",
            "granite",
            "helium",
            "hyperclovax",
            "internlm3",
        ),
        *(
            "iquestcoder",
            "jais2",
            "llama",
            "ministral",
            "ministral3",
            "mistral",
            "nanochat",
            "nemotron",
        ),
        *(
            "olmo",
            "olmo2",
            "olmo3",
            "phi",
            "phi3",
            "qwen2",
            "qwen3",
            "seed_oss",
            "smollm3",
            "starcoder2",
        ),
        *("vaultgemma", "youtu"),
    }
)
"""values of `model_type` whose class has a tensor-parallel plan"""
PIPELINE_SPLITS = frozenset(
    {
        *(
            "apertus",
            "arcee",
            "cohere",
            "cohere2",
            "cwm",
            "deepseek_v2",
            "deepseek_v3",
            "dots1",
            "ernie4_5",
        ),
        *(
            "ernie4_5_moe",
            "exaone4",
            "exaone_moe",
            "flex_olmo",
            "gemma",
            "gemma2",
            "gemma3_text",
            "glm",
        ),
        *("glm4", "glm4_moe", "glm4_moe_lite", "gpt_neox", "gpt_oss", "granite", "helium", "hy_v3"),
        *(
            "hyperclovax",
            "internlm3",
            "iquestcoder",
            "jais2",
            "llama",
            "minicpm3",
            "minimax_m2",
            "ministral",
        ),
        *(
            "ministral3",
            "mistral",
            "mixtral",
            "olmo",
            "olmo2",
            "olmo3",
            "phi",
            "phi3",
            "qwen2",
            "qwen2_moe",
        ),
        *(
            "qwen3",
            "qwen3_moe",
            "seed_oss",
            "smollm3",
            "solar_open",
            "starcoder2",
            "vaultgemma",
            "youtu",
        ),
    }
)
"""values of `model_type` whose class names its embedding, layers and final norm, so that it can be
split between any two layers"""
