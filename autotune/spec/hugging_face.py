"""Shapes from a Hugging Face `config.json`, family by family (`model_type`).

A file leaves out what equals the default of its class in transformers, so each family states these defaults. A key that looks like a size and that
nothing here reads is an error: a wrong shape would make every prediction wrong without any warning. Multimodal models are read by their `text_config`;
their other towers are not counted. Layers for multi-token prediction are not counted either.

Facts of the families: transformers 5.23, `models/*/configuration_*.py` and `modeling_*.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from autotune.errors import SpecError
from autotune.spec.checks import nearest
from autotune.spec.hugging_face_defaults import SIZE_KEYS, with_class_defaults

Document = Mapping[str, Any]

INLINE = "give the model's fields inline: num_layers, hidden_size, num_attention_heads, vocab_size, ..."
NOT_DECODERS = frozenset(
    {"bert", "roberta", "distilbert", "electra", "deberta", "deberta-v2", "albert", "t5", "mt5", "bart", "vit", "clip"}
)
"""values of `model_type` that name other architectures"""
_TEXT_OF = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
"""families of text models, where a multimodal file's `text_config` does not name its own"""
_SHAPE = re.compile(
    r"(_size|_dim|_rank|_ratio|_replace|_step)$|^(n|num)_|experts?|heads|^d_|layers|inner|multi_query|gated|_freq$"
)
"""what keys that hold a shape look like"""
_HARMLESS = re.compile(
    r"label|beam|num_return|repeat|chunk_size|aux_loss|window|rope|rotary|types?$|qk_head_dim|n_positions|n_ctx|n_group|topk|nextn|mtp|pretraining|"
    r"batch_size|patch|image|ln_in_parallel|n_special|routing|router|norm|attention_layers|feature|jitter|output|num_logits|ep_size|layers_block|"
    r"kv_cache|summary|return|scal"
)
"""those among them that change no weights of the decoder"""
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a `model_type` means."""

    gated_mlp: bool = True
    """three-matrix MLP"""
    tied: bool = False
    """whether the output projection shares the embedding where the file does not say"""
    positions: str = ""
    """key of the number of learnt positions; empty where positions have no weights"""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """values of keys that a file may leave out"""
    special: Callable[[Document, dict[str, Any]], dict[str, Any]] | None = None
    """fields that follow from the family's own keys: (file with defaults, fields so far) -> fields that change"""
    reads: tuple[str, ...] = ()
    """the family's own keys that `special` reads"""


def fields_of(document: Document) -> dict[str, Any]:
    """The fields of `ModelSpec`, without the name, that a parsed `config.json` stands for.

    Raises `SpecError` for what is no decoder, a family that is not known, a size that is missing and a size that nothing reads.
    """
    family_name, document = text_model(document)
    family = _family(family_name, document)
    asked = with_class_defaults(document, family.defaults)

    def first(name: str) -> Any:
        return next((asked[key] for key in SIZE_KEYS[name] if asked.get(key) is not None), None)

    found = {name: first(name) for name in SIZE_KEYS}
    missing = [SIZE_KEYS[name][0] for name in _REQUIRED if found[name] is None]
    if missing:
        raise SpecError(f"the model's config.json lacks {', '.join(missing)}", remedy=INLINE, field="model")
    fields = {name: value for name, value in found.items() if value is not None}
    fields["gated_mlp"] = family.gated_mlp
    fields["tied_embeddings"] = bool(asked.get("tie_word_embeddings", family.tied))
    if family.positions:
        fields["max_positions"] = asked.get(family.positions) or 0
    if not fields.get("num_experts"):
        fields.pop("num_experts", None)
        fields.pop("experts_per_token", None)
    if family.special is not None:
        fields |= family.special(asked, fields)
    _refuse_unread(family_name, family, document)
    return {name: value for name, value in fields.items() if value is not None}


def text_model(document: Document) -> tuple[str, Document]:
    """The family's name, and the document of the language model: the file itself, or its `text_config`."""
    name = str(document.get("model_type") or "")
    text = document.get("text_config")
    if isinstance(text, Mapping):
        family = str(text.get("model_type") or _TEXT_OF.get(name, name))
        tied = document.get("tie_word_embeddings")
        shared = {} if tied is None else {"tie_word_embeddings": tied}
        return family, {**shared, **text, "model_type": family}
    if not name:
        name = "gpt2" if "n_embd" in document else "llama"
    return name, document


def _family(name: str, document: Document) -> Family:
    if name in NOT_DECODERS or document.get("is_encoder_decoder"):
        raise SpecError(
            f"the model's config.json is of {name or 'an encoder-decoder'}, which is no decoder-only transformer",
            remedy="give the model's fields inline if it is trained like one",
            field="model",
        )
    if name not in FAMILIES:
        near = nearest(name, FAMILIES)
        raise SpecError(
            f"the family {name!r} of the model's config.json is not known; known are {', '.join(sorted(FAMILIES))}",
            remedy=f"{near}; else {INLINE}" if near else INLINE,
            field="model",
        )
    return FAMILIES[name]


def _refuse_unread(name: str, family: Family, document: Document) -> None:
    read = {key for keys in SIZE_KEYS.values() for key in keys} | {*family.reads, family.positions}
    for key, value in document.items():
        plain = isinstance(value, int | float | list) and bool(value)
        if plain and key not in read and _SHAPE.search(key) and not _HARMLESS.search(key):
            raise SpecError(
                f"the model's config.json has {key}={value!r:.40}, which no {name} model is known to have: its shape would be misread",
                remedy=f"remove the key if it changes no weights, else {INLINE}",
                field="model",
            )


def _latent_attention(asked: Document) -> dict[str, Any]:
    """DeepSeek's latent attention (arXiv:2405.04434, section 2.1): keys and values from a narrow latent, rotary parts apart."""
    nope, rope = asked["qk_nope_head_dim"], asked["qk_rope_head_dim"]
    return {
        "attention_head_dim": nope + rope,
        "q_lora_rank": asked.get("q_lora_rank") or 0,
        "kv_lora_rank": asked["kv_lora_rank"],
        "qk_rope_head_dim": rope,
        "v_head_dim": asked["v_head_dim"],
        "num_kv_heads": asked["num_attention_heads"],
    }


def _first_dense(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Experts in all layers but the first few, with experts that every token visits beside them (DeepSeek, GLM, Kimi)."""
    if not fields.get("num_experts"):
        return {}
    if asked.get("moe_layer_freq", 1) != 1:
        raise SpecError(
            f"moe_layer_freq must be 1, but is {asked['moe_layer_freq']}: other patterns of experts are not known",
            remedy=INLINE,
            field="model",
        )
    width, dense = asked["moe_intermediate_size"], asked.get("first_k_dense_replace") or 0
    return {
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": (asked.get("n_shared_experts") or 0) * width,
        "num_dense_layers": dense,
        "dense_ffn_hidden_size": asked["intermediate_size"] if dense else 0,
    }


def _deepseek(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    return {**_latent_attention(asked), **_first_dense(asked, fields)}


def _qwen_experts(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Experts in every `decoder_sparse_step`-th layer, but not in `mlp_only_layers`."""
    layers, every, plain = fields["num_layers"], asked["decoder_sparse_step"] or 1, asked.get("mlp_only_layers") or []
    sparse = sum((i + 1) % every == 0 and i not in plain for i in range(layers)) if fields.get("num_experts") else 0
    return {
        "ffn_hidden_size": asked["moe_intermediate_size"] if sparse else asked["intermediate_size"],
        "shared_ffn_hidden_size": asked.get("shared_expert_intermediate_size") or 0,
        "num_dense_layers": layers - sparse if sparse else 0,
        "dense_ffn_hidden_size": asked["intermediate_size"] if sparse < layers else 0,
    }


def _llama4(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    """Experts in every `interleave_moe_layer_step`-th layer, each such layer with one expert that every token visits."""
    layers, step = fields["num_layers"], asked["interleave_moe_layer_step"] or 0
    listed = asked.get("moe_layers")
    sparse = len(listed) if isinstance(listed, list) else len(range(step - 1, layers, step)) if step else 0
    return {
        "shared_ffn_hidden_size": asked["intermediate_size"],
        "num_dense_layers": layers - sparse,
        "dense_ffn_hidden_size": asked["intermediate_size_mlp"] if sparse < layers else 0,
    }


def _falcon(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    heads = fields["num_attention_heads"]
    if asked["new_decoder_architecture"]:
        return {"num_kv_heads": asked.get("num_kv_heads") or heads}
    return {"num_kv_heads": 1 if asked["multi_query"] else heads}


def _one_key_head(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    return {"num_kv_heads": 1 if asked["multi_query"] else fields["num_attention_heads"]}


def _mpt(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    inner = asked.get("attn_config")
    kv = inner.get("kv_n_heads") if isinstance(inner, Mapping) else None
    return {"ffn_hidden_size": int(asked["expansion_ratio"] * fields["hidden_size"]), "num_kv_heads": kv}


def _opt(asked: Document, fields: dict[str, Any]) -> dict[str, Any]:
    if asked.get("word_embed_proj_dim", fields["hidden_size"]) != fields["hidden_size"]:
        raise SpecError(
            f"word_embed_proj_dim must equal hidden_size, but is {asked['word_embed_proj_dim']} and hidden_size={fields['hidden_size']}",
            remedy=INLINE,
            field="model",
        )
    return {"max_positions": asked["max_position_embeddings"] + 2}  # the first two rows stand for padding


_LLAMA = Family(reads=("mlp_bias",))
_GEMMA = Family(tied=True, defaults={"head_dim": 256})
_GPT = Family(gated_mlp=False, tied=True, positions="n_positions", defaults={"n_positions": 1024})
_QWEN_MOE_KEYS = (
    *("decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size"),
    *("shared_expert_intermediate_size", "num_experts", "num_local_experts"),
)
_DEEPSEEK_KEYS = (
    *("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "moe_intermediate_size"),
    *("n_shared_experts", "first_k_dense_replace", "moe_layer_freq"),
)
_DEEPSEEK = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128} | {
    "v_head_dim": 128
}
_DEEPSEEK_V2 = Family(
    special=_deepseek,
    reads=_DEEPSEEK_KEYS,
    defaults={**_DEEPSEEK, "moe_intermediate_size": 1407, "n_routed_experts": 64, "n_shared_experts": 2},
)
_DEEPSEEK_V3 = Family(
    special=_deepseek,
    reads=_DEEPSEEK_KEYS,
    defaults={**_DEEPSEEK, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1}
    | {"num_experts_per_tok": 8, "first_k_dense_replace": 3},
)

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        ("llama", "code_llama", "mistral", "ministral", "granite", "olmo", "olmo2", "olmo3", "phi3", "stablelm"), _LLAMA
    ),
    **dict.fromkeys(("qwen2", "glm", "glm4", "seed_oss", "exaone4", "hunyuan_v1_dense"), Family()),
    **dict.fromkeys(("phi", "nemotron", "gpt_neox", "gptj"), Family(gated_mlp=False)),
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
    "starcoder2": Family(gated_mlp=False, tied=True),
    "gpt2": _GPT,
    "gpt_bigcode": Family(
        gated_mlp=False,
        tied=True,
        positions="n_positions",
        defaults={"n_positions": 1024, "multi_query": True},
        special=_one_key_head,
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
        special=_opt,
        reads=("word_embed_proj_dim",),
    ),
    "bloom": Family(gated_mlp=False, tied=True),
    "mpt": Family(
        gated_mlp=False, tied=True, defaults={"expansion_ratio": 4}, special=_mpt, reads=("expansion_ratio",)
    ),
    "falcon": Family(
        gated_mlp=False,
        tied=True,
        defaults={"multi_query": True, "new_decoder_architecture": False},
        special=_falcon,
        reads=("multi_query", "new_decoder_architecture"),
    ),
    "mixtral": Family(defaults={"num_local_experts": 8, "num_experts_per_tok": 2}),
    "granitemoe": Family(defaults={"num_local_experts": 8, "num_experts_per_tok": 2}),
    "phimoe": Family(defaults={"num_local_experts": 16, "num_experts_per_tok": 2}),
    "olmoe": Family(defaults={"num_experts": 64, "num_experts_per_tok": 8}),
    "gpt_oss": Family(defaults={"num_local_experts": 128, "num_experts_per_tok": 4, "head_dim": 64}),
    "qwen2_moe": Family(
        defaults={
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
        special=_qwen_experts,
        reads=_QWEN_MOE_KEYS,
    ),
    "qwen3_moe": Family(
        defaults={"num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "moe_intermediate_size": 768},
        special=_qwen_experts,
        reads=_QWEN_MOE_KEYS,
    ),
    "glm4_moe": Family(
        defaults={
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 1,
        }
        | {"first_k_dense_replace": 1},
        special=_first_dense,
        reads=_DEEPSEEK_KEYS,
    ),
    "dots1": Family(defaults={"moe_intermediate_size": 1408}, special=_first_dense, reads=_DEEPSEEK_KEYS),
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "llama4_text": Family(
        defaults={
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 16384,
            "head_dim": 128,
        },
        special=_llama4,
        reads=("interleave_moe_layer_step", "intermediate_size_mlp", "moe_layers"),
    ),
}
"""What is known, by `model_type`."""
