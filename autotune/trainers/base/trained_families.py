"""The families of a `config.json` that each bundled trainer trains exactly, so that messages can name
trainers for a family.

megatron           families that pretrain_gpt.py has flags for       megatron_bridge    families with a bridge in AutoBridge (`register_bridge`, release 0.3)
nanotron           its classes Llama and Qwen2                       torchtitan         families of release 0.3, with the builder of an export
transformers'      all families with a class in transformers
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.spec.hugging_face.families import FAMILIES

MEGATRON = frozenset({
    "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3",
    "glm4_moe", "gpt2",
})  # fmt: skip
MEGATRON_BRIDGE = frozenset({
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "gemma", "gemma2", "gemma3_text", "deepseek_v2", "deepseek_v3",
    "glm4_moe", "gpt_oss", "olmoe", "nemotron",
})  # fmt: skip
NANOTRON = frozenset({"llama", "mistral", "qwen2"})
TORCHTITAN: Mapping[str, str] = {
    **dict.fromkeys(("llama", "mistral"), "llama"),
    **dict.fromkeys(("qwen3", "qwen3_moe"), "qwen3"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), "deepseek_v3"),
    "gpt_oss": "gpt_oss",
}
"""builders by family; a model given only by its shape is a Llama"""
OF_TRANSFORMERS = ("accelerate", "deepspeed", "hf_trainer", "lightning")
"""trainers that build transformers' own class, as native does for `model: {hf: PATH}`"""
SAME_SIZES = "native for a decoder with the same sizes (`model: PATH`)"
OWN_PROGRAM = "command with your own program"
_OWN_LOOPS = {
    "megatron": MEGATRON,
    "megatron_bridge": MEGATRON_BRIDGE,
    "nanotron": NANOTRON,
    "torchtitan": TORCHTITAN,
}


def who_trains(family: str, *, but: str = "") -> str:
    """Text that lists the trainers for a family. `but`: the trainer that rejects it."""
    known = FAMILIES.get(family)
    by_class = (
        (*OF_TRANSFORMERS, "native ({hf: PATH})")
        if known is None or known.has_class
        else (SAME_SIZES,)
    )
    own = [name for name, families in _OWN_LOOPS.items() if family in families]
    return ", ".join([name for name in (*own, *by_class) if name != but] + [f"or {OWN_PROGRAM}"])
