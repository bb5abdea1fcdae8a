"""The decoder families that autotune reads: one entry for each `model_type`, and a sentence for
each family that has other layers.

A file omits values that equal the default of its class in transformers, so each family states these
defaults.

The facts about the families come from transformers 5.23, `models/*/configuration_*.py` and
`modeling_*.py`, or for families without a class in transformers from the code next to their
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from autotune.spec.hugging_face.shapes import (
    Document,
    deepseek,
    ernie_experts,
    falcon,
    first_dense,
    granite_experts,
    granite_hybrid,
    hunyuan_experts,
    llama4,
    mpt,
    one_key_head,
    opt,
    padded_positions,
    qwen_experts,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How to read the config.json of a `model_type`."""

    gated_mlp: bool = True
    """three-matrix MLP"""
    tied: bool = False
    """whether the output projection shares the embedding if the file does not specify it"""
    positions: str = ""
    """key with the number of learned positions; empty if positions have no weights"""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """values of keys that a file may omit"""
    special: Callable[[Document, dict[str, Any]], dict[str, Any]] | None = None
    """function that computes fields from the family's own keys: (file with defaults, fields so far)
    -> changed fields"""
    reads: tuple[str, ...] = ()
    """family-specific keys that `special` reads"""
    keys: Mapping[str, str] = field(default_factory=dict)
    """the family's own names for common keys; `a.b` is b inside a"""
    has_class: bool = True
    """whether transformers has a class for the family; otherwise the code comes with the
    checkpoint"""


_LLAMA = Family(reads=("mlp_bias",))
_LLAMA_CODE = Family(has_class=False)
_GEMMA = Family(tied=True, defaults={"head_dim": 256})
_GPT = Family(gated_mlp=False, tied=True, positions="n_positions", defaults={"n_positions": 1024})
_QWEN_MOE_KEYS = (
    *("decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size"),
    *("shared_expert_intermediate_size", "num_experts", "num_local_experts"),
)
_MOE_KEYS = (
    "moe_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "moe_layer_freq",
    "mlp_layer_types",
)
_DEEPSEEK_KEYS = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    *_MOE_KEYS,
)
_DEEPSEEK = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
} | {"v_head_dim": 128}


def _first_dense(
    experts: int,
    visited: int,
    width: int,
    shared: int,
    dense: int,
    *,
    has_class: bool = True,
    **more: Any,
) -> Family:
    """Return a family with experts in all layers except the first `dense` layers. `experts`: number
    of experts; `visited`: experts per token; `width`: of one expert; `shared`: number of shared
    experts."""
    counts = {
        "n_routed_experts": experts,
        "num_experts_per_tok": visited,
        "moe_intermediate_size": width,
    }
    values = {**counts, "n_shared_experts": shared, "first_k_dense_replace": dense, **more}
    defaults = {key: value for key, value in values.items() if value}
    keys = {"num_shared_experts": "n_shared_experts"}
    # the width of a shared expert is always moe_intermediate_size
    reads = (*_MOE_KEYS, "moe_shared_expert_intermediate_size")
    return Family(
        special=first_dense, reads=reads, defaults=defaults, keys=keys, has_class=has_class
    )


FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "granite", "olmo", "olmo2", "olmo3", "phi3", "stablelm"),
        _LLAMA,
    ),
    **dict.fromkeys(
        ("qwen2", "glm", "glm4", "seed_oss", "exaone4", "hunyuan_v1_dense", "bitnet"), Family()
    ),
    **dict.fromkeys(
        ("phi", "nemotron", "gpt_neox", "gptj", "codegen", "persimmon"), Family(gated_mlp=False)
    ),
    **dict.fromkeys(("apertus", "jais2"), Family(gated_mlp=False, reads=("mlp_bias",))),
    **dict.fromkeys(
        ("cwm", "internlm3", "iquestcoder", "ministral3"), Family(defaults={"head_dim": 128})
    ),
    "hyperclovax": _LLAMA,
    "baichuan": _LLAMA_CODE,
    "orion": _LLAMA_CODE,
    "solar": Family(defaults={"head_dim": 128}, has_class=False),
    "phi3small": Family(
        tied=True,
        keys={"ff_intermediate_size": "intermediate_size"},
        reads=("blocksparse_block_size", "dense_attention_every_n_layers"),
        has_class=False,
    ),
    "smollm3": Family(tied=True),
    "helium": Family(defaults={"head_dim": 128}, reads=("mlp_bias",)),
    "ernie4_5": Family(tied=True, defaults={"head_dim": 128}),
    "arcee": Family(gated_mlp=False, reads=("mlp_bias",)),
    "qwen3": Family(defaults={"head_dim": 128}),
    "cohere": Family(tied=True),
    "cohere2": Family(tied=True),
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "vaultgemma": _GEMMA,
    "starcoder2": Family(gated_mlp=False, tied=True),
    "nanochat": Family(gated_mlp=False),
    "gpt2": _GPT,
    "openai-gpt": Family(
        gated_mlp=False, tied=True, positions="n_positions", defaults={"n_positions": 512}
    ),
    "gpt_bigcode": Family(
        gated_mlp=False,
        tied=True,
        positions="n_positions",
        defaults={"n_positions": 1024, "multi_query": True},
        special=one_key_head,
        reads=("multi_query",),
    ),
    "gpt_neo": Family(
        gated_mlp=False,
        tied=True,
        positions="max_position_embeddings",
        defaults={"max_position_embeddings": 2048},
    ),
    "opt": Family(
        gated_mlp=False,
        tied=True,
        positions="max_position_embeddings",
        defaults={"max_position_embeddings": 2048},
        special=opt,
        reads=("word_embed_proj_dim",),
    ),
    "biogpt": Family(
        gated_mlp=False,
        tied=True,
        positions="max_position_embeddings",
        defaults={"max_position_embeddings": 1024},
        special=padded_positions,
    ),
    "xglm": Family(gated_mlp=False, tied=True, keys={"attention_heads": "num_attention_heads"}),
    "bloom": Family(gated_mlp=False, tied=True),
    "mpt": Family(
        gated_mlp=False,
        tied=True,
        defaults={"expansion_ratio": 4},
        special=mpt,
        reads=("expansion_ratio",),
    ),
    "falcon": Family(
        gated_mlp=False,
        tied=True,
        defaults={"multi_query": True, "new_decoder_architecture": False},
        special=falcon,
        reads=("multi_query", "new_decoder_architecture"),
    ),
    "minicpm3": Family(
        tied=True,
        special=deepseek,
        reads=_DEEPSEEK_KEYS,
        defaults={
            "q_lora_rank": 768,
            "kv_lora_rank": 256,
            "qk_rope_head_dim": 32,
            "qk_nope_head_dim": 64,
        }
        | {"v_head_dim": 64},
    ),
    "youtu": Family(tied=True, special=deepseek, reads=_DEEPSEEK_KEYS, defaults=_DEEPSEEK),
    "mixtral": Family(defaults={"num_local_experts": 8, "num_experts_per_tok": 2}),
    "granitemoe": Family(defaults={"num_local_experts": 8, "num_experts_per_tok": 2}),
    **{
        name: Family(
            special=special,
            reads=("shared_intermediate_size", "mamba_n_heads"),
            defaults={
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "shared_intermediate_size": shared,
            },
        )
        for name, special, shared in (
            ("granitemoeshared", granite_experts, 0),
            ("granitemoehybrid", granite_hybrid, 1024),
        )
    },
    "phimoe": Family(defaults={"num_local_experts": 16, "num_experts_per_tok": 2}),
    "olmoe": Family(defaults={"num_experts": 64, "num_experts_per_tok": 8}),
    "flex_olmo": Family(defaults={"num_experts": 7, "num_experts_per_tok": 5}),
    "grok-1": Family(
        tied=True, has_class=False, defaults={"num_experts": 8, "num_experts_per_tok": 2}
    ),
    "gpt_oss": Family(
        defaults={"num_local_experts": 128, "num_experts_per_tok": 4, "head_dim": 64}
    ),
    "minimax_m2": Family(
        defaults={"num_local_experts": 256, "num_experts_per_tok": 8, "head_dim": 128}
    ),
    "dbrx": Family(
        keys={
            "attn_config.kv_n_heads": "num_key_value_heads",
            "ffn_config.ffn_hidden_size": "intermediate_size",
            "ffn_config.moe_num_experts": "num_experts",
            "ffn_config.moe_top_k": "num_experts_per_tok",
        },
        defaults={"intermediate_size": 3584, "num_experts": 4, "num_experts_per_tok": 1},
    ),
    "hunyuan_v1_moe": Family(
        special=hunyuan_experts,
        reads=("n_shared_experts", "moe_intermediate_size", "attention_head_dim"),
        defaults={"num_experts": 1, "num_experts_per_tok": 1, "n_shared_experts": 1},
        keys={"moe_topk": "num_experts_per_tok", "num_shared_expert": "n_shared_experts"},
    ),
    "qwen2_moe": Family(
        defaults={
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
        special=qwen_experts,
        reads=_QWEN_MOE_KEYS,
    ),
    "qwen3_moe": Family(
        defaults={
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
        },
        special=qwen_experts,
        reads=_QWEN_MOE_KEYS,
    ),
    "ernie4_5_moe": Family(
        tied=True,
        special=ernie_experts,
        reads=(*_MOE_KEYS, "moe_layer_end_index"),
        defaults={
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1536,
            "n_shared_experts": 2,
        }
        | {"first_k_dense_replace": 1},
        keys={
            "moe_num_experts": "num_experts",
            "moe_k": "num_experts_per_tok",
            "moe_num_shared_experts": "n_shared_experts",
            "moe_layer_start_index": "first_k_dense_replace",
            "moe_layer_interval": "moe_layer_freq",
        },
    ),
    "deepseek": _first_dense(0, 0, 1407, 0, 0, has_class=False),
    "bailing_moe": _first_dense(0, 0, 0, 0, 0, has_class=False),
    "bailing_moe_v2": _first_dense(0, 0, 0, 0, 0, has_class=False),
    "glm4_moe": _first_dense(128, 8, 1408, 1, 1),
    "exaone_moe": _first_dense(64, 8, 1024, 1, 1),
    "hy_v3": _first_dense(192, 8, 1536, 1, 1, head_dim=128),
    "solar_open": _first_dense(128, 8, 1280, 1, 0, head_dim=128),
    "dots1": _first_dense(0, 0, 1408, 0, 0),
    "glm4_moe_lite": Family(
        special=deepseek,
        reads=_DEEPSEEK_KEYS,
        defaults={
            "q_lora_rank": 768,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 192,
        }
        | {
            "v_head_dim": 256,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 64,
            "num_experts_per_tok": 4,
        }
        | {"n_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    "deepseek_v2": Family(
        special=deepseek,
        reads=_DEEPSEEK_KEYS,
        defaults={
            **_DEEPSEEK,
            "moe_intermediate_size": 1407,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
        },
    ),
    "deepseek_v3": Family(
        special=deepseek,
        reads=_DEEPSEEK_KEYS,
        defaults={
            **_DEEPSEEK,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
        }
        | {"num_experts_per_tok": 8, "first_k_dense_replace": 3},
    ),
    "llama4_text": Family(
        defaults={
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 16384,
            "head_dim": 128,
        },
        special=llama4,
        reads=("interleave_moe_layer_step", "intermediate_size_mlp", "moe_layers"),
    ),
}
"""supported families, by `model_type`"""

_NO_ATTENTION = "mixes state-space, linear or convolution layers with attention"
_INDEXED = "attends to tokens chosen by an indexer"
_SEVERAL_WIDTHS = "has layers of several widths"
UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("bamba", "bailing_hybrid", "bailing_moe_linear", "falcon_h1", "falcon_mamba", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba"),
            *("mamba2", "minimax", "minimax_m1", "minimax_text_01", "nemotron_h", "olmo_hybrid", "plamo2", "qwen3_5_moe_text"),
            *("qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "zamba", "zamba2"),
        ),
        _NO_ATTENTION,
    ),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "glm_moe_dsa"), _INDEXED),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "mimo_v2_flash", "nemotron-nas", "openelm"), _SEVERAL_WIDTHS),
    **dict.fromkeys(("afmoe", "laguna"), "multiplies its attention output by gates with their own weights"),
    "gemma3n_text": "has several residual streams and an embedding in every layer",
    "longcat_flash": "has two attention blocks per layer, and experts that compute nothing",
    "mllama_text_model": "attends to images in some layers with separate weights",
    "jetmoe": "has experts in its attention",
    "arctic": "has a dense MLP with its own norms next to the experts of each layer",
}  # fmt: skip
"""how the layers of a family differ from a decoder's, by `model_type`, for families that
`ModelSpec` cannot describe"""
