"""A decoder-only transformer, described by its shape.

    L num_layers   h hidden_size   f ffn_hidden_size   a num_attention_heads   k num_kv_heads   V vocab_size   E num_experts

There are two styles, which `gated_mlp` distinguishes: GPT-2's (LayerNorm with bias, two-matrix MLP,
biases) and Llama's (RMSNorm, gated MLP, no biases). Biases and norms of other combinations are
neglected, because they are less than 0.2% of the weights. Experts replace the MLP in every layer
except `num_dense_layers` layers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.spec.checks import positive_int
from autotune.spec.hugging_face.reading import fields_of, guessed_family, text_of
from autotune.spec.model_code import ModelCode
from autotune.spec.plain import Plain
from autotune.spec.texts.json_text import read_json

_ASPECT, _HEAD = 64, 64
"""hidden width per layer, and head width, of the decoder that represents a model with a known
number of weights and no other known size"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Plain):
    """Shape of a decoder; counts are whole numbers >= 1."""

    name: str
    """name of the model"""
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
    """gated MLP with three matrices, RMSNorm, rotary positions and no biases (Llama style)"""
    tied_embeddings: bool = False
    """the output projection shares the input embedding's weights"""
    num_experts: int = 0
    """experts per layer; 0 means a dense model"""
    experts_per_token: int = 0
    """experts per token; 0 in a dense model"""
    max_positions: int = 0
    """learned position embeddings; 0 means none (rotary)"""
    attention_head_dim: int = 0
    """size of one head (of its queries and keys); 0 means hidden_size / num_attention_heads"""
    num_dense_layers: int = 0
    """number of layers that have a dense MLP, in a model whose other layers have experts"""
    dense_ffn_hidden_size: int = 0
    """inner width of the dense MLPs in these layers"""
    shared_ffn_hidden_size: int = 0
    """inner width of the shared experts, taken together; 0 means none"""
    kv_lora_rank: int = 0
    """width of the key-value latent (latent attention, arXiv:2405.04434); 0 if keys and values are
    projected directly"""
    q_lora_rank: int = 0
    """width of the query latent; 0 if queries are projected directly"""
    qk_rope_head_dim: int = 0
    """rotated part of a head, with keys shared by all heads; only with latent attention"""
    v_head_dim: int = 0
    """size of one head's values, if it differs from `attention_head_dim`; only with latent
    attention"""
    mtp_layers: int = 0
    """layers after the last one that each predict one more token, with their own loss (multi-token
    prediction, arXiv:2412.19437, section 2.2). A config.json gives their number
    (`num_nextn_predict_layers`), but most trainers omit these layers: set the number if your
    trainer trains them"""
    source: str = ""
    """the Hugging Face config.json that the shape was read from, as JSON text; empty if the shape
    was specified directly. Exports carry this file over"""
    code: ModelCode | None = None
    """the code that builds the model, if the model is not the built-in decoder"""

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
        for name in (
            *("num_experts", "experts_per_token", "attention_head_dim"),
            *("num_dense_layers", "dense_ffn_hidden_size", "shared_ffn_hidden_size"),
            *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "mtp_layers"),
        ):
            positive_int(name, getattr(self, name), at_most=1 << 24, least=0)
        # the same maximum as for seq_len
        positive_int("max_positions", self.max_positions, at_most=1 << 27, least=0)
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
        for name in ("experts_per_token", "num_dense_layers", "shared_ffn_hidden_size"):
            if getattr(self, name) and not self.num_experts:
                raise SpecError(
                    f"{name}={getattr(self, name)} needs num_experts", field="num_experts"
                )
        if self.num_dense_layers >= self.num_layers or bool(self.num_dense_layers) != bool(
            self.dense_ffn_hidden_size
        ):
            raise SpecError(
                "num_dense_layers must be below num_layers and needs dense_ffn_hidden_size, "
                f"but num_dense_layers={self.num_dense_layers}, num_layers={self.num_layers} and dense_ffn_hidden_size={self.dense_ffn_hidden_size}",
                field="num_dense_layers",
            )
        latent = (self.kv_lora_rank, self.qk_rope_head_dim, self.v_head_dim)
        if (any(latent) and not all(latent)) or (self.q_lora_rank and not self.kv_lora_rank):
            raise SpecError(
                "latent attention needs kv_lora_rank, qk_rope_head_dim and v_head_dim, "
                f"but they are {', '.join(map(str, latent))}",
                field="kv_lora_rank",
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.attention_head_dim or self.hidden_size // self.num_attention_heads

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are projected from a latent (latent attention)."""
        return self.kv_lora_rank > 0

    @property
    def expert_share(self) -> float:
        """Fraction of layers with experts, 0 to 1; 0 in a dense model."""
        return 1.0 - self.num_dense_layers / self.num_layers if self.num_experts else 0.0

    @property
    def attention_matrices(self) -> tuple[tuple[int, int, str], ...]:
        """(output width, input width, side split by tensor parallelism: n, k or none) for one
        layer's projections, with the output projection last."""
        h, q = self.hidden_size, self.num_attention_heads * self.head_dim
        if not self.is_latent:
            return ((q + 2 * self.num_kv_heads * self.head_dim, h, "n"), (h, q, "k"))
        heads, plain = self.num_attention_heads, self.head_dim - self.qk_rope_head_dim
        queries = (
            ((self.q_lora_rank, h, ""), (q, self.q_lora_rank, "n"))
            if self.q_lora_rank
            else ((q, h, "n"),)
        )
        return (
            *queries,
            (self.kv_lora_rank + self.qk_rope_head_dim, h, ""),
            (heads * (plain + self.v_head_dim), self.kv_lora_rank, "n"),
            (h, heads * self.v_head_dim, "k"),
        )

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention: all projections (with biases in the GPT-2 style)."""
        matrices = self.attention_matrices
        biases = 0 if self.gated_mlp else sum(n for n, _, _ in matrices)
        return sum(n * k for n, k, _ in matrices) + biases

    @property
    def mlp_parameters(self) -> int:
        """Weights of one MLP, or of one expert."""
        return self._mlp(self.ffn_hidden_size)

    @property
    def shared_parameters(self) -> int:
        """Number of weights in one layer's shared experts; 0 without shared experts."""
        return self._mlp(self.shared_ffn_hidden_size) if self.shared_ffn_hidden_size else 0

    @property
    def dense_mlp_parameters(self) -> int:
        """MLP weights of a layer without experts."""
        return self._mlp(self.dense_ffn_hidden_size) if self.num_experts else self.mlp_parameters

    @property
    def active_ffn_width(self) -> float:
        """Total inner width of the MLPs that process a token in one layer, averaged over layers."""
        if not self.num_experts:
            return float(self.ffn_hidden_size)
        visited = self.experts_per_token * self.ffn_hidden_size + self.shared_ffn_hidden_size
        return self.expert_share * visited + (1.0 - self.expert_share) * self.dense_ffn_hidden_size

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
        common = self.attention_parameters + self.norm_parameters
        return (
            common
            + self.router_parameters
            + self.shared_parameters
            + self.mlp_parameters * max(1, self.num_experts)
        )

    @property
    def embedding_parameters(self) -> int:
        """Weights of the input embedding, with learned positions."""
        return (self.vocab_size + self.max_positions) * self.hidden_size

    @property
    def mtp_parameters(self) -> int:
        """Weights that a multi-token prediction layer has in addition to a decoder layer: a
        projection of two states into one, and three norms. The layer shares the embedding and the
        output projection."""
        return 2 * self.hidden_size**2 + self.norm_parameters * 3 // 2

    @property
    def num_parameters(self) -> int:
        """All weights: layers, embeddings, final norm and output projection (counted once if tied);
        for a model with its own code, the weights it built."""
        if self.code is not None and self.code.num_parameters:
            return self.code.num_parameters
        return self.shape_parameters

    @property
    def shape_parameters(self) -> int:
        """All weights of a decoder with this shape, regardless of the code that builds the
        model."""
        head = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        dense = (
            self.attention_parameters + self.norm_parameters + self._mlp(self.dense_ffn_hidden_size)
        )
        layers = (
            self.num_layers - self.num_dense_layers
        ) * self.layer_parameters + self.num_dense_layers * dense
        layers += self.mtp_layers * (self.layer_parameters + self.mtp_parameters)
        return layers + self.embedding_parameters + self.norm_parameters // 2 + head

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses: `num_parameters` without the experts that the token does not
        use."""
        idle = max(0, self.num_experts - self.experts_per_token) * self.mlp_parameters
        return (
            self.num_parameters - (self.num_layers - self.num_dense_layers + self.mtp_layers) * idle
        )

    @property
    def is_counted(self) -> bool:
        """Whether only the model's number of weights is known; the shape is then that of a decoder
        of this size."""
        return self.code is not None and not (self.code.module or self.source)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What predictions assume about a model other than the built-in decoder, as sentences."""
        code, assumptions = self.code, list[str]()
        if self.is_counted:
            predicted = "activations and times are predicted for a decoder of that size, so only trials show which config is fast and which one fits"
            counted = "its weights, gradients and optimizer states are counted"
            return (
                f"{self.name} is known only by its {self.num_parameters:,} weights; {counted}; {predicted}",
            )
        document = json.loads(self.source) if self.source else {}
        if document and text_of(document) is None and (family := guessed_family(document)):
            assumptions.append(
                f"the config.json of {self.name} has no model_type, so the file is read as a {family} model; "
                "add model_type if the model is of another family"
            )
        if text_of(document) is not None and not (code and code.num_parameters):
            assumptions.append(
                f"only the language model of {self.name} is counted; other parts of its config.json, "
                f"such as a vision tower, are not; "
                "`model: {hf: PATH}` on a machine with transformers counts these parts too"
            )
        if code is None:
            return tuple(assumptions)
        if code.takes:
            assumptions.append(
                f"{self.name} takes {code.takes}, not tokens; predictions count seq_len tokens for each sample, so set seq_len to the number of patches or frames per sample; "
                "the native trainer cannot train this model, so set `trainer` to your own program"
            )
        if code.layers:
            kinds = ", ".join(f"{kind.count} x {kind.name}" for kind in code.layers)
            assumptions.append(
                f"{self.name} has layers that a decoder does not have "
                f"({kinds}): weights and matmuls are counted by kind from the model's class; activations and times use the formulas for a decoder with the same number of weights per layer, so their intervals are wider"
            )
        elif code.guessed:
            assumptions.append(
                f"{', '.join(code.guessed)} of {self.name} {'is' if len(code.guessed) == 1 else 'are'} not known from its code, so predicted times assume a decoder with the same number of weights"
            )
        if code.has_towers:
            assumptions.append(
                f"{code.other_parameters / 1e6:,.1f}M of the {self.num_parameters / 1e6:,.1f}M weights of {self.name} are outside its language model; the memory and gradient traffic of these weights are counted, but not their compute and activations, because "
                f"the workload consists only of tokens"
            )
        return tuple(assumptions)

    def _mlp(self, width: int) -> int:
        """Return the number of weights in an MLP with this inner width."""
        biases = 0 if self.gated_mlp else width + self.hidden_size
        return (3 if self.gated_mlp else 2) * self.hidden_size * width + biases

    @classmethod
    def of_parameters(cls, parameters: int, *, name: str) -> ModelSpec:
        """Return a model known only by its parameter count, such as an image model; predictions use
        a decoder of about the same size."""
        positive_int("parameters", parameters, at_most=1 << 50)
        layers = max(1, round((parameters / (12 * _ASPECT**2)) ** (1 / 3)))
        width = max(1, math.isqrt(parameters // (12 * layers)))
        heads = max(1, width // _HEAD)
        width = width // heads * heads
        attention_parameters = 4 * width**2 + 2 * width
        decoder = cls(
            name=name,
            num_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            ffn_hidden_size=max(
                1, round((parameters / layers - attention_parameters) / (3 * width))
            ),
            vocab_size=1,
            gated_mlp=True,
            tied_embeddings=True,
        )
        code = ModelCode(
            num_parameters=parameters,
            guessed=("num_attention_heads", "ffn_hidden_size"),
            reads_tokens=False,
        )
        return replace(decoder, code=code)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any] | str | Path, *, name: str = "") -> ModelSpec:
        """Return the model of a Hugging Face `config.json` (its path, or the parsed document), read
        by family as in `autotune.spec.hugging_face.reading`.

        Raises `SpecError` if the file is missing or is not a JSON object, if the family is unknown,
        or if a size field is not understood.
        """
        document = read_config_json(config) if isinstance(config, str | Path) else config
        label = name or str(document.get("_name_or_path") or document.get("model_type") or "model")
        try:
            return cls(name=label, **fields_of(document))
        except SpecError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise SpecError(
                f"the config.json of {label} has a value of the wrong type: {error}", field="model"
            ) from None


def read_config_json(path: str | Path) -> Mapping[str, Any]:
    """Return the JSON object in a model's file. Raises `SpecError` if the file cannot be read or
    contains anything but an object."""
    try:
        document = read_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(
            f"the model file {path} cannot be read: {error.strerror or error}", field="model"
        ) from None
    except ValueError as error:
        raise SpecError(f"the model file {path} is not JSON: {error}", field="model") from None
    if not isinstance(document, dict):
        raise SpecError(
            f"the model file {path} must contain a JSON object, but contains a {type(document).__name__}",
            field="model",
        )
    return document
