"""What only a model's code can tell: its shape, parameters, plans and fingerprint. It is built for that, on the meta device where it can be.

Shapes are, in this order: those that the builder gives (`shapes`), those of the module's transformers config, what can be counted (repeated blocks, rows
and width of the first embedding, and whether an output projection shares it). The rest are those of a decoder with as many weights, and are named in `ModelCode.guessed`: formulas come near with them, and no law
relies on them.

What is told is held against the weights that were built. Where the shape has other weights, its layers are counted by kind (`layer_kinds`), and what lies
outside of the language model is `ModelCode.other_parameters`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn

from autotune.errors import ConfigError, DryRunError, SpecError
from autotune.spec import LayerKind, ModelSpec
from autotune.spec.hugging_face import fields_of
from autotune.spec.hugging_face_defaults import SIZE_KEYS
from autotune_workers.own_model.blocks import attention_modules, block_names, language_config
from autotune_workers.own_model.builder import build_without_memory
from autotune_workers.own_model.built_model import BuiltModel
from autotune_workers.own_model.fingerprint import code_fingerprint
from autotune_workers.own_model.layer_kinds import decoder_of_kinds, layer_kinds
from autotune_workers.own_model.tensor_plan import check_plan
from autotune_workers.own_model.transformers_class import is_transformers, with_own_plans

_GUESSED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "ffn_hidden_size")
"""fields that every model needs, and that are guessed where nothing tells them"""
NEAR = 0.01
"""share of the weights within which a shape is that of the module: biases, norms and small factors that no shape has"""


def inspect(model: ModelSpec) -> ModelSpec:
    """The model with what its code tells. Runs that code here: call it in a process of its own. Raises `DryRunError` with the line that failed."""
    before = set(sys.modules)
    try:
        built = with_own_plans(build_without_memory(model))
        if built.tp_plan:
            check_plan(built)
    except ConfigError as error:
        raise DryRunError(error.message, remedy=error.remedy, field=error.field) from error
    assert model.code is not None
    told = _told(built)
    total = sum(parameter.numel() for parameter in built.model.parameters())
    blocks = tuple(built.model.get_submodule(name) for name in block_names(built))
    kinds = layer_kinds(blocks) if blocks else ()
    sizes, other = _shape(built, told, kinds, total)
    is_plain = sizes is told and all(kind.attends for kind in kinds)
    split = built.pp_split
    code = replace(
        model.code,
        num_parameters=total,
        has_tensor_plan=bool(built.tp_plan),
        has_pipeline_split=bool(split),
        has_attention=bool(attention_modules(built.model, block_names(built))),
        num_cuts=(int(told.get("num_layers", 1)) - 1 if callable(split) else len(split)) if split else 0,
        guessed=tuple(
            name for name in _GUESSED if name not in told or (sizes is not told and name == "ffn_hidden_size")
        ),
        layers=() if is_plain else kinds,
        other_parameters=other,
        reads_tokens=built.input is None and built.loss is None,
        fingerprint=code_fingerprint(model, set(sys.modules) - before),
    )
    try:
        return ModelSpec(name=model.name, source=model.source, code=code, **sizes)
    except SpecError as error:
        raise DryRunError(
            f"the shape of {model.name} is none: {error.message}",
            remedy="correct `shapes` of the builder, or the module's config",
            field="model.shapes",
        ) from error


def _shape(
    built: BuiltModel, told: dict[str, Any], kinds: Sequence[LayerKind], total: int
) -> tuple[dict[str, Any], int]:
    """Fields of `ModelSpec`, and weights that lie outside of them. What is told, where it has the weights that were built, or where the builder says it
    (`shapes`); else the decoder of the same layers by kind; else one of as many weights."""
    is_told = all(name in told for name in _GUESSED)
    shape = _weights(told) if is_told else 0
    if is_told and (built.shapes or abs(shape - total) <= NEAR * total):
        return told, 0
    if (
        is_told
        and language_config(built.model) is not None
        and abs(shape - _language_weights(kinds, told)) <= NEAR * shape < total
    ):
        return told, total - shape
    if kinds and "hidden_size" in told and "vocab_size" in told and not built.shapes and built.input is None:
        found = decoder_of_kinds(kinds, told)
        if found is not None:
            return found, max(0, total - _weights(found))
    return _like_a_decoder(
        built, {name: size for name, size in told.items() if not is_told or name != "ffn_hidden_size"}
    ), 0


def _language_weights(kinds: Sequence[LayerKind], told: Mapping[str, Any]) -> int:
    """Of the layers of the language model, its embedding and its output projection."""
    tables = 1 if told.get("tied_embeddings") else 2
    return sum(kind.count * kind.parameters for kind in kinds) + tables * told["vocab_size"] * told["hidden_size"]


def _weights(sizes: Mapping[str, Any]) -> int:
    """Of a decoder of these sizes; 0 for sizes that are none."""
    try:
        return ModelSpec(name="decoder", **sizes).shape_parameters
    except SpecError:
        return 0


def _told(built: BuiltModel) -> dict[str, Any]:
    """The fields of `ModelSpec` that builder, config or module tell."""
    blocks = block_names(built)
    counted: dict[str, Any] = {"num_layers": len(blocks)} if blocks else {}
    embeddings = [m for m in built.model.modules() if isinstance(m, nn.Embedding)]
    if embeddings and built.input is None:
        counted["vocab_size"] = embeddings[0].num_embeddings
        counted["hidden_size"] = embeddings[0].embedding_dim
        table = embeddings[0].weight
        counted["tied_embeddings"] = any(isinstance(m, nn.Linear) and m.weight is table for m in built.model.modules())
    known = {f.name for f in fields(ModelSpec)} - {"name", "source", "code"}
    from_config = {name: value for name, value in _config_fields(built.model).items() if name in known}
    return {**counted, **from_config, **built.shapes}


def _config_fields(module: nn.Module) -> dict[str, Any]:
    """Of the module's transformers config: by its family, or the sizes alone where the family is not known."""
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return {}
    document: Mapping[str, Any] = config.to_dict()
    language = language_config(module)
    sized = document if language is None else language.to_dict()
    if is_transformers(module):
        try:
            return fields_of(document)
        except (SpecError, KeyError, TypeError):
            pass
    sizes = {
        name: next((sized[key] for key in keys if _is_size(sized.get(key))), None) for name, keys in SIZE_KEYS.items()
    }
    found = {name: size for name, size in sizes.items() if size is not None}
    return found if "num_experts" in found else {n: size for n, size in found.items() if n != "experts_per_token"}


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _like_a_decoder(built: BuiltModel, told: Mapping[str, Any]) -> dict[str, Any]:
    """What is told, and the other sizes of a decoder with as many weights, as `ModelSpec` counts them. A width that nothing tells is a multiple of the heads,
    and that of 12 h^2 weights in each of L layers, with an embedding and an output projection of V h each; the width of the MLP makes up for the rest."""
    layers, vocabulary, heads = (int(told.get(n, 1)) for n in ("num_layers", "vocab_size", "num_attention_heads"))
    total = sum(parameter.numel() for parameter in built.model.parameters())
    width = (math.sqrt(vocabulary**2 + 12 * layers * total) - vocabulary) / (12 * layers)
    sizes: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": heads * max(1, round(width / heads)),
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        **told,
    }
    if "ffn_hidden_size" not in told:
        one, two = (ModelSpec(name="decoder", ffn_hidden_size=n, **sizes).num_parameters for n in (1, 2))
        sizes["ffn_hidden_size"] = min(max(1, 1 + round((total - one) / (two - one))), 1 << 24)
    return sizes
