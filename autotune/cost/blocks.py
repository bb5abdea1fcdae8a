"""Differences between families of transformers models in the tensors that a layer keeps for the
backward pass; `activations.py` covers what they share with Llama.

norm        bytes per element that a norm keeps beside its output. Its input in fp32 is 4, unless torch's own kernel reads it as it is (layer). Behind it the
            normalized input, for the gradient of a trained gain: in the precision of the norm's input (gained), or in fp32 (wide), there with the
            centred input (centred). A norm without a gain keeps none (bare)
products    an output in fp32 is cast to 16 bits for each product by itself: autocast keeps casts of weights alone
joined      heads that are rotated in part are joined in a new tensor, laid out otherwise, and so is attention's output, which the projection copies
fused       queries, keys and values are cut out of one tensor, which values keep whole where queries and keys are rotated
experts     `grouped_mm` is none of autocast's operators: beside weights in fp32 all that experts compute is in fp32

Read in transformers 5.24, `models/*/modeling_*.py` and `integrations/moe.py`, and checked with live
tensors (`python -m research.live_memory architectures`). Neglected: masks of dropouts, statistics
of norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, final

from autotune.spec import ModelSpec
from autotune.spec.hugging_face.figures import figures_of, text_document

WIDE = frozenset(
    {"flex_olmo", "gemma", "gemma2", "gemma3_text", "gpt_oss", "olmo2", "olmo3", "vaultgemma"}
)  # fmt: skip
"""families whose norms keep the normalized input in fp32"""
LAYER = frozenset({"dbrx", "phimoe", "stablelm"})
"""families with a gated MLP and torch's layer norm"""
FOUR_NORMS = frozenset({"gemma2", "gemma3_text", "glm4"})
"""families that normalize the inputs and the outputs of attention and MLP"""
NORMS_BEHIND = frozenset({"exaone4", "olmo2", "olmo3", "flex_olmo"})
"""families that normalize the outputs of attention and MLP, but not the inputs"""
NORMED_HEADS = frozenset({"exaone_moe", "flex_olmo", "minimax_m2", "olmoe"})
"""families that normalize queries and keys, beside those of `figures.QK_NORM`, which exports
know"""
ONE_NORM = frozenset({"codegen", "cohere", "cohere2", "gptj", "phi"})
"""families whose attention and MLP read the output of one norm"""
FUSED = frozenset({"bloom", "codegen", "dbrx", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "phi3"})  # fmt: skip
"""families with one product for queries, keys and values"""
UNROTATED = frozenset({"bloom", "gpt2", "gpt_bigcode", "mpt"})
JOINED = frozenset({"glm", "glm4", "gpt_neox", "nemotron", "persimmon", "phi", "phi3", "stablelm"})
"""families that by default rotate a part of a head, or join heads however much is rotated"""
USUAL = {**dict.fromkeys(("codegen", "gpt2", "gpt_neo", "gptj", "phi"), "gelu_new"), "opt": "relu"}
"""activation functions of families whose config files omit it"""
ACTIVATIONS = {"gelu_new": 3.0, "gelu_fast": 5.0, "quick_gelu": 1.0, "relu": -1.0}
"""tensors of the MLP's width that an activation function keeps beside its input and output"""
GPT_OSS_KEPT = 3.0
"""additional tensors of gpt-oss's experts: clamped gate, sigmoid, and the operand with 1 added"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What a layer of a family keeps."""

    norm: str = "gained"
    """gained, wide, centred, bare or layer"""
    inputs: float = 2.0
    """number of tensors that attention and MLP read"""
    before: float = 2.0
    """number of norms of these"""
    behind: float = 0.0
    """number of norms of the outputs of attention and MLP"""
    of_heads: bool = False
    """whether queries and keys are normalized"""
    is_fused: bool = False
    """whether queries, keys and values are one product"""
    more_heads: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """tensors kept in addition to those of attention's kernel, as multiples of the widths of
    queries, of keys and of the output"""
    activation: float = 0.0
    """tensors of the MLP's width that the activation function keeps beside its input and output"""
    routes_in_fp32: bool = False
    """whether the router reads its input in fp32"""
    caps_scores: bool = False
    caps_logits: bool = False

    def norm_bytes(self, read: Any, trained: bool) -> Any:
        """Return the bytes per element that a norm of an input of `read` bytes keeps."""
        if self.norm == "layer":
            return read
        gained = {"gained": read, "wide": 4.0, "centred": 8.0, "bare": 0.0}[self.norm]
        return 4.0 + gained * trained

    def casts(self, model: ModelSpec) -> float:
        """Return the products and routers that each cast a layer's inputs."""
        if self.is_fused:
            return 2.0
        attention = 2.0 if model.is_latent else 3.0
        if model.num_experts:
            return attention + 1.0 + 2.0 * (model.shared_ffn_hidden_size > 0)
        return attention + 1.0 + model.gated_mlp


PLAIN = Block(norm="bare")
"""a layer of other programs: nothing is known beside casts of its norms and whether heads are
normalized"""


@cache
def block_of(model: ModelSpec) -> Block:
    """Return the layer of the model's family; for a model known only by its shape, Llama's or
    GPT-2's."""
    figures = figures_of(model)
    usual = "gained" if model.gated_mlp else "layer"
    if figures is None:
        return Block(norm=usual)
    family, document = figures.family, text_document(model)
    kinds = {**dict.fromkeys(WIDE, "wide"), **dict.fromkeys(LAYER, "layer"), "olmo": "bare"}
    kinds |= dict.fromkeys(("cohere", "cohere2"), "centred")
    is_joined = model.is_latent or figures.rotary_share < 1.0 or family in JOINED
    cut = float(family in FUSED - UNROTATED)
    inputs = 1.0 if family in ONE_NORM else 2.0
    return Block(
        norm=kinds.get(family, usual),
        inputs=inputs,
        before=0.0 if family in NORMS_BEHIND else inputs,
        behind=2.0 if family in FOUR_NORMS | NORMS_BEHIND else 0.0,
        of_heads=figures.qk_norm or family in NORMED_HEADS,
        is_fused=family in FUSED,
        more_heads=(cut, cut, float(is_joined)),
        activation=_activation(model, family, document),
        routes_in_fp32=figures.router is not None,
        caps_scores=bool(document.get("attn_logit_softcapping", family == "gemma2")),
        caps_logits=bool(document.get("final_logit_softcapping", family == "gemma2")),
    )


def _activation(model: ModelSpec, family: str, document: Mapping[str, Any]) -> float:
    """Return the tensors of the MLP's width that the activation function keeps beside input and
    output."""
    if model.gated_mlp:
        return GPT_OSS_KEPT if family == "gpt_oss" else 0.0
    written = document.get("hidden_act") or document.get("activation_function")
    return ACTIVATIONS.get(str(written or USUAL.get(family)), 0.0)
