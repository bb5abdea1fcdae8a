"""Writes configuration files for trainers: TOML, YAML, JSON, and a model's `config.json` for
Hugging Face."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from autotune.spec import ModelSpec
from autotune.spec.hugging_face.figures import figures_of, text_document

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_json(document: Mapping[str, Any]) -> str:
    """The document as JSON text."""
    return json.dumps(document, indent=2) + "\n"


def to_yaml(document: Mapping[str, Any]) -> str:
    """The document as YAML, with its keys in order."""
    import yaml  # imported here because it is slow to import and only needed to write a launch

    # libyaml's dumper is ten times as fast, but not always installed
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(dict(document), Dumper=dumper, sort_keys=False, default_flow_style=False)
    return text


def to_yaml_documents(*documents: Mapping[str, Any]) -> str:
    """The documents as one YAML stream, with their keys in order. Texts with several lines are
    literal blocks, to be readable."""
    import yaml

    class Blocks(yaml.SafeDumper):
        """Writes texts of several lines as literal blocks."""

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None
        )

    Blocks.add_representer(str, text)
    Blocks.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]
    stream: str = yaml.dump_all(
        map(dict, documents), Dumper=Blocks, sort_keys=False, default_flow_style=False
    )
    return stream


def to_toml(document: Mapping[str, Any]) -> str:
    """The document as TOML 1.0: values first, then each section. Keys with the value None are left
    out, because TOML has no null."""
    lines: list[str] = []
    _write_table(document, (), lines)
    return "\n".join(lines)


def _write_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    sections = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    plain = {
        key: value for key, value in table.items() if key not in sections and value is not None
    }
    if path and (plain or not sections):
        lines.append(f"[{'.'.join(map(_toml_key, path))}]")
    lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in plain.items()]
    if plain or (path and not sections):
        lines.append("")
    for key, section in sections.items():
        _write_table(section, (*path, key), lines)


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    """A value as TOML. Texts, numbers and flags are written as in JSON; a mapping inside a list is
    an inline table."""
    if isinstance(value, Mapping):
        pairs = (
            f"{_toml_key(key)} = {_toml_value(inner)}"
            for key, inner in value.items()
            if inner is not None
        )
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(inner) for inner in value if inner is not None) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


LAYER_CLASSES: Mapping[str, str] = {
    "gpt2": "GPT2Block",
    "gpt_neo": "GPTNeoBlock",
    "gpt_neox": "GPTNeoXLayer",
    "gptj": "GPTJBlock",
    "gpt_bigcode": "GPTBigCodeBlock",
    "opt": "OPTDecoderLayer",
    "bloom": "BloomBlock",
    "mpt": "MptBlock",
    "llama4_text": "Llama4TextDecoderLayer",
    "granitemoe": "GraniteMoeDecoderLayer",
    "smollm3": "SmolLM3DecoderLayer",
    "stablelm": "StableLmDecoderLayer",
    "ernie4_5": "Ernie4_5DecoderLayer",
    "hunyuan_v1_dense": "HunYuanDenseV1DecoderLayer",
    "internlm3": "LlamaDecoderLayer",
    "iquestcoder": "LlamaDecoderLayer",
    "minicpm3": "MiniCPM3DecoderLayer",
    "minimax_m2": "MiniMaxM2DecoderLayer",
    "dbrx": "DbrxBlock",
    "codegen": "CodeGenBlock",
    "openai-gpt": "Block",
    "xglm": "XGLMDecoderLayer",
    "biogpt": "BioGptDecoderLayer",
    "vaultgemma": "VaultGemmaDecoderLayer",
    "bitnet": "BitNetDecoderLayer",
    "hy_v3": "HYV3DecoderLayer",
    "hyperclovax": "HyperCLOVAXDecoderLayer",
    "nanochat": "NanoChatDecoderLayer",
    "hunyuan_v1_moe": "HunYuanMoEV1DecoderLayer",
    "ernie4_5_moe": "Ernie4_5_MoeDecoderLayer",
    "granitemoeshared": "GraniteMoeSharedDecoderLayer",
    "granitemoehybrid": "GraniteMoeHybridDecoderLayer",
}
"""layer classes of transformers 5.23 whose name does not follow from the family"""


_GPT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NO_DROPOUT: Mapping[str, Mapping[str, float]] = {
    "gpt2": _GPT_DROPOUT,
    "gpt_bigcode": _GPT_DROPOUT,
    "opt": {"dropout": 0.0},
}
"""dropout settings of families that use dropout by default; trials switch it off, so that losses of
configs can be compared"""
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""keys for the number of positions, by family"""


def hf_config(model: ModelSpec, seq_len: int) -> dict[str, Any]:
    """The model as Hugging Face's `config.json`: the user's own unchanged, if there is one; the
    published one for a model of the catalog; or else that of Mixtral for a model with experts,
    Llama for a gated MLP, or GPT-2."""
    if model.source:
        return text_document(model)
    if figures := figures_of(model):
        document = text_document(model)
        reach = {key: max(document[key], seq_len) for key in POSITIONS if key in document}
        asked = {"tie_word_embeddings": model.tied_embeddings, "use_cache": False}
        return {**document, **reach, **NO_DROPOUT.get(figures.family, {}), **asked}
    if not model.gated_mlp:
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_layer": model.num_layers,
            "n_embd": model.hidden_size,
            "n_head": model.num_attention_heads,
            "n_inner": model.ffn_hidden_size,
            "n_positions": max(model.max_positions, seq_len),
            "vocab_size": model.vocab_size,
            "tie_word_embeddings": model.tied_embeddings,
            **NO_DROPOUT["gpt2"],
            "use_cache": False,
            "bos_token_id": model.vocab_size - 1,
            "eos_token_id": model.vocab_size - 1,
        }
    document = {
        "model_type": "mixtral" if model.num_experts else "llama",
        "architectures": ["MixtralForCausalLM" if model.num_experts else "LlamaForCausalLM"],
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": max(model.max_positions, seq_len),
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "attention_dropout": 0.0,
        "use_cache": False,
        "bos_token_id": 0,
        "eos_token_id": model.vocab_size - 1,
    }
    if model.num_experts:
        document |= {
            "num_local_experts": model.num_experts,
            "num_experts_per_tok": model.experts_per_token,
        }
    return document


def hf_layer_class(model: ModelSpec) -> str:
    """Name of the layer class in `transformers` that FSDP wraps."""
    if figures := figures_of(model):
        return (
            LAYER_CLASSES.get(figures.family)
            or f"{figures.family.removesuffix('_text').title().replace('_', '')}DecoderLayer"
        )
    if not model.gated_mlp:
        return "GPT2Block"
    return "MixtralDecoderLayer" if model.num_experts else "LlamaDecoderLayer"
