"""What transformers' own classes bring for parallel training: a plan for tensor parallelism, and places where a pipeline can cut them.

A class counts as having a tensor plan when all its entries are of a style that the native trainer applies; plans of experts are not among them. Apertus is left out:
its activation learns two figures, whose gradients no rank has whole.

Facts of the families: transformers 5.23, `base_model_tp_plan` and `base_model_pp_plan` of `models/*/configuration_*.py`.
"""

from __future__ import annotations

TENSOR_PLANS = frozenset(
    {
        *("arcee", "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2"),
        *("gemma3_text", "glm", "glm4", "gpt_neox", "granite", "helium", "hyperclovax", "internlm3"),
        *("iquestcoder", "jais2", "llama", "ministral", "ministral3", "mistral", "nanochat", "nemotron"),
        *("olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "starcoder2"),
        *("vaultgemma", "youtu"),
    }
)
"""values of `model_type` whose class brings a tensor plan"""
PIPELINE_SPLITS = frozenset(
    {
        *("apertus", "arcee", "cohere", "cohere2", "cwm", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5"),
        *("ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "gemma", "gemma2", "gemma3_text", "glm"),
        *("glm4", "glm4_moe", "glm4_moe_lite", "gpt_neox", "gpt_oss", "granite", "helium", "hy_v3"),
        *("hyperclovax", "internlm3", "iquestcoder", "jais2", "llama", "minicpm3", "minimax_m2", "ministral"),
        *("ministral3", "mistral", "mixtral", "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen2_moe"),
        *("qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "starcoder2", "vaultgemma", "youtu"),
    }
)
"""those whose class names its embedding, layers and last norm, so that it can be cut between any two layers"""
