"""A decoder-only transformer, by its shape.

    L num_layers   h hidden_size   f ffn_hidden_size   a num_attention_heads   k num_kv_heads   V vocab_size   E num_experts

Two families are modelled: GPT-2 (LayerNorm with bias, learnt positions, two-matrix MLP, biases) and Llama (RMSNorm, rotary positions, gated MLP,
no biases). `gated_mlp` distinguishes them. Experts replace the MLP of every layer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.spec.checks import positive_int

NOT_DECODERS = frozenset(
    {"bert", "roberta", "distilbert", "electra", "deberta", "deberta-v2", "albert", "t5", "mt5", "bart", "vit", "clip"}
)
"""values of Hugging Face's `model_type` that are not decoder-only"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a decoder; counts are whole numbers >= 1."""

    name: str
    """what people call it"""
    num_layers: int
    """transformer layers"""
    hidden_size: int
    """width of the residual stream"""
    num_attention_heads: int
    """query heads per layer"""
    vocab_size: int
    """tokens in the vocabulary"""
    ffn_hidden_size: int = 0
    """inner width of the MLP (of one expert); 0 means 4 * hidden_size"""
    num_kv_heads: int = 0
    """key and value heads per layer (GQA); 0 means num_attention_heads"""
    gated_mlp: bool = False
    """three-matrix gated MLP, RMSNorm, rotary positions and no biases (Llama style)"""
    tied_embeddings: bool = False
    """the output projection shares the input embedding's weights"""
    num_experts: int = 0
    """experts per layer; 0 means a dense model"""
    experts_per_token: int = 0
    """experts that each token visits; 0 in a dense model"""
    max_positions: int = 0
    """learnt position embeddings; 0 means none (rotary)"""
    attention_head_dim: int = 0
    """size of one head; 0 means hidden_size / num_attention_heads"""

    def __post_init__(self) -> None:
        if not self.ffn_hidden_size and isinstance(self.hidden_size, int):
            object.__setattr__(self, "ffn_hidden_size", 4 * self.hidden_size)
        if not self.num_kv_heads:
            object.__setattr__(self, "num_kv_heads", self.num_attention_heads)
        for name in (
            "num_layers",
            "hidden_size",
            "ffn_hidden_size",
            "num_attention_heads",
            "num_kv_heads",
            "vocab_size",
        ):
            positive_int(name, getattr(self, name), at_most=1 << 24)
        for name in ("num_experts", "experts_per_token", "max_positions", "attention_head_dim"):
            positive_int(name, getattr(self, name), at_most=1 << 24, least=0)
        if not self.attention_head_dim and self.hidden_size % self.num_attention_heads:
            raise SpecError(
                "hidden_size must be a multiple of num_attention_heads, "
                f"but hidden_size={self.hidden_size} and num_attention_heads={self.num_attention_heads}",
                remedy="set attention_head_dim if it differs from hidden_size / num_attention_heads",
                field="num_attention_heads",
            )
        if self.num_attention_heads % self.num_kv_heads:
            raise SpecError(
                f"num_kv_heads must divide num_attention_heads, but num_kv_heads={self.num_kv_heads} "
                f"and num_attention_heads={self.num_attention_heads}",
                field="num_kv_heads",
            )
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            raise SpecError(
                f"experts_per_token must be 1 to num_experts={self.num_experts}, but is {self.experts_per_token}",
                field="experts_per_token",
            )
        if self.experts_per_token and not self.num_experts:
            raise SpecError(f"experts_per_token={self.experts_per_token} needs num_experts", field="num_experts")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.attention_head_dim or self.hidden_size // self.num_attention_heads

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention: query, key, value and output projections (with biases in the GPT-2 style)."""
        q, kv = self.num_attention_heads * self.head_dim, 2 * self.num_kv_heads * self.head_dim
        biases = 0 if self.gated_mlp else q + kv + self.hidden_size
        return self.hidden_size * (q + kv) + q * self.hidden_size + biases

    @property
    def mlp_parameters(self) -> int:
        """Weights of one MLP, or of one expert."""
        matrices = 3 if self.gated_mlp else 2
        biases = 0 if self.gated_mlp else self.ffn_hidden_size + self.hidden_size
        return matrices * self.hidden_size * self.ffn_hidden_size + biases

    @property
    def norm_parameters(self) -> int:
        """Weights of one layer's two norms."""
        return 2 * self.hidden_size * (1 if self.gated_mlp else 2)

    @property
    def router_parameters(self) -> int:
        """Weights of one layer's router; 0 in a dense model."""
        return self.hidden_size * self.num_experts

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, with all its experts."""
        return (
            self.attention_parameters
            + self.norm_parameters
            + self.router_parameters
            + self.mlp_parameters * max(1, self.num_experts)
        )

    @property
    def embedding_parameters(self) -> int:
        """Weights of the input embedding, with learnt positions."""
        return (self.vocab_size + self.max_positions) * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All weights: layers, embeddings, final norm and output projection (once when tied)."""
        head = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        return self.num_layers * self.layer_parameters + self.embedding_parameters + self.norm_parameters // 2 + head

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses: `num_parameters` without the experts that it does not visit."""
        idle = max(0, self.num_experts - self.experts_per_token) * self.mlp_parameters
        return self.num_parameters - self.num_layers * idle

    @classmethod
    def from_hf(cls, config: Mapping[str, Any] | str | Path, *, name: str = "") -> ModelSpec:
        """The model of a Hugging Face `config.json` (its path, or the parsed document): GPT-2, Llama, Mistral, Qwen, Mixtral and similar models.

        Raises `SpecError` when the file is missing, is not a JSON object, or lacks a size.
        """
        document = _read_json(config) if isinstance(config, str | Path) else config
        label = name or str(document.get("_name_or_path") or document.get("model_type") or "model")

        def first(*keys: str, default: Any = None) -> Any:
            return next((document[k] for k in keys if document.get(k) is not None), default)

        sizes = {
            "num_layers": first("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
            "hidden_size": first("hidden_size", "n_embd", "d_model"),
            "num_attention_heads": first("num_attention_heads", "n_head", "n_heads"),
            "vocab_size": first("vocab_size"),
        }
        family = str(document.get("model_type") or "")
        if family in NOT_DECODERS or document.get("is_encoder_decoder"):
            raise SpecError(
                f"the model's config.json is of {family or 'an encoder-decoder'}, which is not a decoder-only transformer",
                remedy="give the model's fields inline if it is trained like one",
                field="model",
            )
        keys = {
            "num_layers": "num_hidden_layers",
            "hidden_size": "hidden_size",
            "num_attention_heads": "num_attention_heads",
            "vocab_size": "vocab_size",
        }
        missing = [keys[name] for name, value in sizes.items() if value is None]
        if missing:
            raise SpecError(
                f"the model's config.json lacks {', '.join(missing)}",
                remedy="give the model's fields inline",
                field="model",
            )
        gpt_style = (
            document.get("model_type") in {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom"}
            or "n_embd" in document
        )
        return cls(
            name=label,
            **sizes,
            ffn_hidden_size=first("intermediate_size", "n_inner", "ffn_dim", "moe_intermediate_size", default=0),
            num_kv_heads=first("num_key_value_heads", default=0),
            gated_mlp=not gpt_style,
            tied_embeddings=bool(first("tie_word_embeddings", default=gpt_style)),
            num_experts=first("num_local_experts", "num_experts", "n_routed_experts", default=0),
            experts_per_token=first("num_experts_per_tok", default=0),
            max_positions=first("n_positions", "max_position_embeddings", default=0) if gpt_style else 0,
            attention_head_dim=first("head_dim", default=0),
        )


def _read_json(path: str | Path) -> Mapping[str, Any]:
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"the model file {path} cannot be read: {error.strerror or error}", field="model") from None
    except ValueError as error:
        raise SpecError(f"the model file {path} is not JSON: {error}", field="model") from None
    if not isinstance(document, dict):
        raise SpecError(
            f"the model file {path} must hold a JSON object, but holds a {type(document).__name__}",
            field="model",
        )
    return document
