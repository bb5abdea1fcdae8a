"""What transformers' own classes bring for parallel training: a plan for tensor parallelism, and places where a pipeline can cut them.

A class counts as having a tensor plan when all its entries are of a style that the native trainer applies; plans of experts are not among them.

Facts of the families: transformers 5.23, `base_model_tp_plan` and `base_model_pp_plan` of `models/*/configuration_*.py`.
"""

from __future__ import annotations

TENSOR_PLANS = frozenset(
    {
        *("arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4"),
        *("gpt_neox", "granite", "helium", "llama"),
        *("ministral", "mistral", "nemotron", "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen3"),
        *("seed_oss", "smollm3", "starcoder2"),
    }
)
"""values of `model_type` whose class brings a tensor plan"""
PIPELINE_SPLITS = frozenset(
    {
        *("arcee", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "exaone4", "gemma"),
        *(
            "gemma2",
            "gemma3_text",
            "glm",
            "glm4",
            "helium",
            "glm4_moe",
            "gpt_neox",
            "gpt_oss",
            "granite",
            "llama",
            "ministral",
            "mistral",
            "mixtral",
            "olmo",
        ),
        *("olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3"),
        "starcoder2",
    }
)
"""those whose class names its embedding, layers and last norm, so that it can be cut between any two layers"""
