"""Sizes that a Hugging Face `config.json` omits: the defaults of its family's class.

transformers writes a nested `text_config` without the values that equal these defaults: Gemma 3's
lacks `vocab_size`, and LLaVA's lacks nearly all values.

The facts about the families come from transformers 5.23, the class attributes in
`models/*/configuration_*.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZE_KEYS = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocab_size": ("vocab_size",),
    "ffn_hidden_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "attention_head_dim": ("head_dim",),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
}
"""keys in a config.json by field of `ModelSpec`"""
_MAY_BE_NULL = frozenset(
    {
        "num_key_value_heads",
        "num_kv_heads",
        "head_dim",
        "q_lora_rank",
        "kv_lora_rank",
        "n_shared_experts",
        "n_routed_experts",
    }
)
"""keys whose null means that the model lacks the feature, regardless of the default:
DeepSeek-V2-Lite has `"q_lora_rank": null`"""
_NAMES = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "ffn_hidden_size",
    "num_kv_heads",
)
_CLASS_SIZES: Mapping[str, tuple[int, ...]] = {
    "apertus": (32, 4096, 32, 131072, 14336, 0),
    "arcee": (32, 2560, 32, 32000, 18432, 0),
    "biogpt": (24, 1024, 16, 42384, 4096, 0),
    "bitnet": (30, 2560, 20, 128256, 6912, 5),
    "bloom": (2, 64, 8, 250880, 0, 0),
    "code_llama": (32, 4096, 32, 32000, 11008, 0),
    "codegen": (28, 4096, 16, 50400, 0, 0),
    "cohere": (40, 8192, 64, 256000, 22528, 0),
    "cohere2": (40, 8192, 64, 256000, 22528, 0),
    "cwm": (64, 6144, 48, 128256, 21504, 8),
    "dbrx": (24, 2048, 16, 32000, 0, 1),
    "deepseek_v2": (32, 4096, 32, 102400, 11008, 0),
    "deepseek_v3": (61, 7168, 128, 129280, 18432, 128),
    "dots1": (62, 4608, 32, 152064, 10944, 32),
    "ernie4_5": (18, 1024, 16, 103424, 3072, 2),
    "ernie4_5_moe": (28, 2560, 20, 103424, 12288, 4),
    "exaone4": (32, 4096, 32, 102400, 16384, 32),
    "exaone_moe": (32, 4096, 32, 102400, 16384, 32),
    "falcon": (32, 4544, 71, 65024, 0, 0),
    "flex_olmo": (32, 4096, 32, 100352, 11008, 0),
    "gemma": (28, 3072, 16, 256000, 24576, 16),
    "gemma2": (26, 2304, 8, 256000, 9216, 4),
    "gemma3_text": (26, 2304, 8, 262208, 9216, 4),
    "glm": (40, 4096, 32, 151552, 13696, 2),
    "glm4": (40, 4096, 32, 151552, 13696, 2),
    "glm4_moe": (46, 4096, 96, 151552, 10944, 8),
    "glm4_moe_lite": (47, 2048, 20, 154880, 10240, 20),
    "glm4v_moe_text": (46, 4096, 96, 151424, 10944, 8),
    "glm4v_text": (40, 4096, 32, 151552, 13696, 2),
    "gpt2": (12, 768, 12, 50257, 0, 0),
    "gpt_bigcode": (12, 768, 12, 50257, 0, 0),
    "gpt_neo": (24, 2048, 16, 50257, 0, 0),
    "gpt_neox": (44, 6144, 64, 50432, 24576, 0),
    "gpt_oss": (36, 2880, 64, 201088, 2880, 8),
    "gptj": (28, 4096, 16, 50400, 0, 0),
    "granite": (32, 4096, 32, 32000, 11008, 0),
    "granitemoe": (32, 4096, 32, 32000, 11008, 0),
    "granitemoehybrid": (32, 4096, 32, 32000, 11008, 0),
    "granitemoeshared": (32, 4096, 32, 32000, 11008, 0),
    "helium": (24, 2560, 20, 48000, 7040, 20),
    "hunyuan_v1_dense": (32, 4096, 32, 290943, 11008, 0),
    "hunyuan_v1_moe": (32, 4096, 32, 290943, 11008, 0),
    "hy_v3": (80, 4096, 64, 120832, 13312, 8),
    "hyperclovax": (32, 4096, 32, 32000, 11008, 0),
    "internlm3": (48, 4096, 32, 128512, 10240, 2),
    "iquestcoder": (80, 5120, 40, 76800, 27648, 8),
    "jais2": (32, 3328, 26, 150272, 26624, 0),
    "kimi_k2": (61, 7168, 128, 129280, 18432, 128),
    "llama": (32, 4096, 32, 32000, 11008, 0),
    "llama4_text": (48, 5120, 40, 202048, 8192, 8),
    "minicpm3": (62, 2560, 40, 73448, 6400, 40),
    "minimax_m2": (62, 3072, 48, 200064, 1536, 8),
    "ministral": (32, 4096, 32, 32000, 14336, 8),
    "ministral3": (34, 4096, 32, 131072, 14336, 8),
    "mistral": (32, 4096, 32, 32000, 14336, 8),
    "mixtral": (32, 4096, 32, 32000, 14336, 8),
    "mpt": (24, 2048, 16, 50368, 0, 0),
    "nanochat": (12, 768, 6, 50304, 8192, 0),
    "nemotron": (32, 6144, 48, 256000, 24576, 0),
    "olmo": (32, 4096, 32, 50304, 11008, 0),
    "olmo2": (32, 4096, 32, 50304, 11008, 0),
    "olmo3": (32, 4096, 32, 50304, 11008, 0),
    "olmoe": (16, 2048, 16, 50304, 2048, 0),
    "openai-gpt": (12, 768, 12, 40478, 0, 0),
    "opt": (12, 768, 12, 50272, 3072, 0),
    "persimmon": (36, 4096, 64, 262144, 16384, 0),
    "phi": (24, 2048, 32, 51200, 8192, 0),
    "phi3": (32, 3072, 32, 32064, 8192, 0),
    "phi4_multimodal": (32, 3072, 32, 200064, 8192, 8),
    "phimoe": (32, 4096, 32, 32064, 6400, 8),
    "qwen2": (32, 4096, 32, 151936, 22016, 32),
    "qwen2_5_vl_text": (80, 8192, 64, 152064, 29568, 8),
    "qwen2_moe": (24, 2048, 16, 151936, 5632, 16),
    "qwen2_vl_text": (80, 8192, 64, 152064, 29568, 8),
    "qwen3": (32, 4096, 32, 151936, 22016, 32),
    "qwen3_moe": (24, 2048, 32, 151936, 6144, 4),
    "qwen3_vl_moe_text": (24, 2048, 16, 151936, 5632, 16),
    "qwen3_vl_text": (32, 4096, 32, 151936, 22016, 32),
    "seed_oss": (64, 4096, 80, 155136, 27648, 8),
    "smollm3": (36, 2048, 16, 128256, 11008, 4),
    "solar_open": (48, 4096, 64, 196608, 0, 8),
    "stablelm": (32, 2560, 32, 50304, 6912, 32),
    "starcoder2": (30, 3072, 24, 49152, 12288, 2),
    "vaultgemma": (26, 2304, 8, 256000, 9216, 4),
    "xglm": (24, 1024, 16, 256008, 4096, 0),
    "youtu": (32, 2048, 16, 128256, 6144, 16),
}
"""`_NAMES` by `model_type`; 0 if the class derives the size from other sizes"""


def with_class_defaults(document: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file completed with the family's `defaults` and the class's default sizes.

    A file without `model_type` gets no default sizes, because its family is only a guess.
    """
    present = {
        key: value for key, value in document.items() if value is not None or key in _MAY_BE_NULL
    }
    full = {**defaults, **present}
    sizes = _CLASS_SIZES.get(str(document.get("model_type")), ())
    for name, size in zip(_NAMES, sizes, strict=False):
        if size and not any(key in full for key in SIZE_KEYS[name]):
            full[SIZE_KEYS[name][0]] = size
    return full
