"""Shapes that families describe with their own keys: latent attention, patterns of layers with
experts, heads and widths.

Each function takes the file with the defaults of its family, and the fields of `ModelSpec` so far,
and returns the fields that change.

What transformers' own classes provide for parallel training: a plan for tensor parallelism, and
places where a pipeline can split the class.

A class counts as having a tensor plan if the native trainer supports the style of every entry, so
plans that cover experts do not count. Apertus is excluded, because its activation has two learned
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


def _latent_attention(document: Document) -> dict[str, Any]:
    """Return the fields of DeepSeek's latent attention (arXiv:2405.04434, section 2.1): keys and
    values from a narrow latent, with separate rotary parts. If the latent is null, attention is
    plain."""
    if not document.get("kv_lora_rank"):
        return {}
    nope, rope = document["qk_nope_head_dim"], document["qk_rope_head_dim"]
    return {
        "attention_head_dim": nope + rope,
        "q_lora_rank": document.get("q_lora_rank") or 0,
        "kv_lora_rank": document["kv_lora_rank"],
        "qk_rope_head_dim": rope,
        "v_head_dim": document["v_head_dim"],
        "num_kv_heads": document["num_attention_heads"],
    }


def first_dense(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for experts in all layers except the first few, in addition to shared
    experts (DeepSeek, GLM, Kimi)."""
    if not fields.get("num_experts"):
        return {}
    if document.get("moe_layer_freq", 1) != 1:
        raise SpecError(
            f"moe_layer_freq must be 1, but is {document['moe_layer_freq']}; other patterns of experts are not supported",
            remedy=INLINE,
            field="model",
        )
    width, listed = document["moe_intermediate_size"], document.get("mlp_layer_types")
    dense = (
        listed.count("dense")
        if isinstance(listed, list)
        else document.get("first_k_dense_replace") or 0
    )
    return {
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": (document.get("n_shared_experts") or 0) * width,
        "num_dense_layers": dense,
        "dense_ffn_hidden_size": document["intermediate_size"] if dense else 0,
    }


def deepseek(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of latent attention and of experts in all layers except the first few."""
    return {**_latent_attention(document), **first_dense(document, fields)}


def ernie_experts(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for experts from a given layer through the last layer:
    `moe_layer_end_index` is -1, or not before the last layer."""
    last, end = fields["num_layers"] - 1, document.get("moe_layer_end_index", -1)
    if end != -1 and end < last:
        raise SpecError(
            f"moe_layer_end_index must be the index of the last layer, {last}, but is {end}; dense layers after layers with experts are not supported",
            remedy=INLINE,
            field="model",
        )
    return first_dense(document, fields)


def hunyuan_experts(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the width of the shared experts, which are as wide as the routed experts."""
    return {
        "shared_ffn_hidden_size": (document.get("n_shared_experts") or 0)
        * fields["ffn_hidden_size"]
    }


def granite_experts(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return one shared MLP in addition to the experts; without experts, the shared MLP is the
    layer's MLP."""
    width = document.get("shared_intermediate_size") or 0
    return {"shared_ffn_hidden_size" if fields.get("num_experts") else "ffn_hidden_size": width}


def granite_hybrid(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of Granite 4 in the sizes with attention in every layer; other sizes have
    `mamba` in `layer_types`."""
    if not isinstance(document.get("layer_types", document.get("layers_block_type")), list):
        raise SpecError(
            "layer_types must list the kind of each layer, but is missing, so transformers would treat every layer as a state-space layer",
            remedy=BUILT,
            field="model",
        )
    return granite_experts(document, fields)


def qwen_experts(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for experts in every `decoder_sparse_step`-th layer, but not in
    `mlp_only_layers`."""
    layers, every, plain = (
        fields["num_layers"],
        document["decoder_sparse_step"] or 1,
        document.get("mlp_only_layers") or [],
    )
    sparse = (
        sum((i + 1) % every == 0 and i not in plain for i in range(layers))
        if fields.get("num_experts")
        else 0
    )
    return {
        "ffn_hidden_size": document["moe_intermediate_size"]
        if sparse
        else document["intermediate_size"],
        "shared_ffn_hidden_size": document.get("shared_expert_intermediate_size") or 0,
        "num_dense_layers": layers - sparse if sparse else 0,
        "dense_ffn_hidden_size": document["intermediate_size"] if sparse < layers else 0,
    }


def llama4(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for experts in every `interleave_moe_layer_step`-th layer, each with one
    shared expert."""
    layers, step = fields["num_layers"], document["interleave_moe_layer_step"] or 0
    listed = document.get("moe_layers")
    if isinstance(listed, list):
        sparse = len(listed)
    else:
        sparse = len(range(step - 1, layers, step)) if step else 0
    return {
        "shared_ffn_hidden_size": document["intermediate_size"],
        "num_dense_layers": layers - sparse,
        "dense_ffn_hidden_size": document["intermediate_size_mlp"] if sparse < layers else 0,
    }


def falcon(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the number of key-value heads, which depends on the architecture's version."""
    heads = fields["num_attention_heads"]
    if document["new_decoder_architecture"]:
        return {"num_kv_heads": document.get("num_kv_heads") or heads}
    return {"num_kv_heads": 1 if document["multi_query"] else heads}


def one_key_head(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the number of key-value heads: 1 with multi-query attention."""
    return {"num_kv_heads": 1 if document["multi_query"] else fields["num_attention_heads"]}


def mpt(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the MLP width and the number of key-value heads."""
    inner = document.get("attn_config")
    kv = inner.get("kv_n_heads") if isinstance(inner, Mapping) else None
    return {
        "ffn_hidden_size": int(document["expansion_ratio"] * fields["hidden_size"]),
        "num_kv_heads": kv,
    }


def opt(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the number of positions. Raises `SpecError` for an embedding of another width."""
    if document.get("word_embed_proj_dim", fields["hidden_size"]) != fields["hidden_size"]:
        raise SpecError(
            f"word_embed_proj_dim must equal hidden_size, but is {document['word_embed_proj_dim']} and hidden_size={fields['hidden_size']}",
            remedy=INLINE,
            field="model",
        )
    return padded_positions(document, fields)


def padded_positions(document: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the number of learned positions, whose first two rows are padding."""
    return {"max_positions": document["max_position_embeddings"] + 2}


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
