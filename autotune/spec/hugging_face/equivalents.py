"""Families that are equivalent to another transformers family with other names. Their `config.json`
is read and exported as the other family's.

    internlm2, Yi, exaone, ...    Llama                        minicpm       Granite: factors of embedding, residuals and logits
    qwen (version 1)              Qwen2 with as many key heads as heads      chatglm (versions 2 and 3)   GLM-4
    language models of Qwen-VL and GLM-V with positions in three dimensions, which are equal in text

The facts about the families come from the code next to their checkpoints (`modeling_*.py`), or for
families in transformers 5.23 from `models/*/modeling_*.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from autotune.spec.hugging_face.defaults import with_class_defaults

Document = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """How a family maps to an equivalent family."""

    family: str
    """`model_type` of the other family"""
    keys: Mapping[str, str] = field(default_factory=dict)
    """key of this family -> key of the other family"""
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """function that computes derived keys: (file with the other family's keys) -> changed keys;
    None removes a key"""


def as_equivalent(document: Document) -> Document:
    """Return the file translated to the equivalent family; the same object if there is none."""
    name = str(document.get("model_type") or "")
    equivalent = EQUIVALENTS.get(name)
    if equivalent is None:
        return document
    own = {
        key: value
        for key, value in with_class_defaults(document, {}).items()
        if key not in _CODE_KEYS
    }
    renamed = {key: value for key, value in own.items() if key not in equivalent.keys}
    renamed |= {equivalent.keys[key]: value for key, value in own.items() if key in equivalent.keys}
    renamed["model_type"] = equivalent.family
    changed = renamed | (equivalent.change(renamed) if equivalent.change is not None else {})
    return {
        key: value for key, value in changed.items() if value is not None or key not in _REMOVED
    }


_CODE_KEYS = ("auto_map", "architectures", "attn_implementation")
"""keys that name the family's own classes and kernels"""
_REMOVED = ("multi_query_attention", "multi_query_group_num", "rope_scaling", "no_bias")
"""keys that `change` removes"""


def _qwen(own: dict[str, Any]) -> dict[str, Any]:
    """Return the changed keys of Qwen version 1, whose MLP width counts gate and projection
    together."""
    return {
        "intermediate_size": own["intermediate_size"] // 2,
        "num_key_value_heads": own["num_attention_heads"],
        "no_bias": None,
    }


def _chatglm(own: dict[str, Any]) -> dict[str, Any]:
    """Return the changed keys of ChatGLM: key-value heads and rotary positions."""
    heads = (
        own.get("multi_query_group_num")
        if own.get("multi_query_attention")
        else own.get("num_attention_heads")
    )
    return {
        "num_key_value_heads": heads,
        "rope_theta": 10000.0 * (own.get("rope_ratio") or 1),
        "partial_rotary_factor": 0.5,
        "multi_query_attention": None,
        "multi_query_group_num": None,
    }


def _minicpm(own: dict[str, Any]) -> dict[str, Any]:
    """Return the changed keys of MiniCPM: its scaling factors, and experts if there are any."""
    width, layers = own["hidden_size"], own["num_hidden_layers"]
    experts = (
        {"model_type": "granitemoe", "num_local_experts": own["num_experts"]}
        if own.get("num_experts")
        else {}
    )
    return {
        "embedding_multiplier": own.get("scale_emb", 1),
        "residual_multiplier": own.get("scale_depth", 1) / math.sqrt(layers),
        "logits_scaling": width / own.get("dim_model_base", 1),
        "attention_multiplier": (width / own["num_attention_heads"]) ** -0.5,
        "tie_word_embeddings": own.get("tie_word_embeddings", True),
        **experts,
    }


def _text_positions(own: dict[str, Any]) -> dict[str, Any]:
    """Return the changed keys of rotary positions in three dimensions, which are equal in text."""
    rope, scaling = own.get("rope_parameters"), own.get("rope_scaling")
    changed: dict[str, Any] = {}
    if isinstance(rope, Mapping) and "mrope_section" in rope:
        changed["rope_parameters"] = {
            **{key: value for key, value in rope.items() if not key.startswith("mrope")},
            "rope_type": "default",
        }
    if isinstance(scaling, Mapping) and "mrope_section" in scaling:
        changed["rope_scaling"] = None
    return changed


_BIAS = {"bias": "attention_bias"}
EQUIVALENTS: Mapping[str, Equivalent] = {
    **dict.fromkeys(
        ("Yi", "aquila", "internlm", "internlm2", "skywork", "xverse"),
        Equivalent(family="llama", keys=_BIAS),
    ),
    "code_llama": Equivalent(family="llama"),
    "exaone": Equivalent(
        family="llama",
        keys={"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps"},
    ),
    "mimo": Equivalent(family="qwen2"),
    "qwen": Equivalent(
        family="qwen2",
        keys={
            "layer_norm_epsilon": "rms_norm_eps",
            "rotary_emb_base": "rope_theta",
            "kv_channels": "head_dim",
        },
        change=_qwen,
    ),
    "chatglm": Equivalent(
        family="glm",
        keys={
            "num_layers": "num_hidden_layers",
            "padded_vocab_size": "vocab_size",
            "ffn_hidden_size": "intermediate_size",
            "kv_channels": "head_dim",
            "layernorm_epsilon": "rms_norm_eps",
            "add_qkv_bias": "attention_bias",
            "seq_length": "max_position_embeddings",
        },
        change=_chatglm,
    ),
    "minicpm": Equivalent(family="granite", change=_minicpm),
    **dict.fromkeys(("phi4mm", "phi4_multimodal"), Equivalent(family="phi3")),
    "stablelm_epoch": Equivalent(
        family="stablelm", keys={"rope_pct": "partial_rotary_factor", "norm_eps": "layer_norm_eps"}
    ),
    "kimi_k2": Equivalent(family="deepseek_v3"),
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"),
        Equivalent(family="qwen2", change=_text_positions),
    ),
    "qwen3_vl_text": Equivalent(family="qwen3", change=_text_positions),
    "qwen3_vl_moe_text": Equivalent(family="qwen3_moe", change=_text_positions),
    "glm4v_text": Equivalent(family="glm4", change=_text_positions),
    "glm4v_moe_text": Equivalent(family="glm4_moe", change=_text_positions),
}
"""families that are equivalent to another one, by `model_type`"""
