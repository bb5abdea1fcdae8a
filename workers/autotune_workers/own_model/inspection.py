"""What only a model's code can tell: its shape, parameters, plans and fingerprint. It is built for that, on the meta device where it can be.

Shapes are, in this order: those that the builder gives (`shapes`), those of the module's transformers config, what can be counted (repeated blocks, rows
and width of the first embedding, and whether an output projection shares it). The rest are those of a decoder with as many weights, and are named in `ModelCode.guessed`: formulas come near with them, and no law
relies on them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from torch import nn

from autotune.errors import ConfigError, DryRunError, SpecError
from autotune.spec import ModelSpec
from autotune.spec.hugging_face import fields_of
from autotune.spec.hugging_face_defaults import SIZE_KEYS
from autotune_workers.own_model.blocks import attention_modules, block_names
from autotune_workers.own_model.builder import build_without_memory
from autotune_workers.own_model.built_model import BuiltModel
from autotune_workers.own_model.fingerprint import code_fingerprint
from autotune_workers.own_model.tensor_plan import check_plan
from autotune_workers.own_model.transformers_class import is_transformers, with_own_plans

_GUESSED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "ffn_hidden_size")
"""fields that every model needs, and that are guessed where nothing tells them"""


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
    guessed = tuple(name for name in _GUESSED if name not in told)
    split = built.pp_split
    code = replace(
        model.code,
        num_parameters=sum(parameter.numel() for parameter in built.model.parameters()),
        has_tensor_plan=bool(built.tp_plan),
        has_pipeline_split=bool(split),
        has_attention=bool(attention_modules(built.model, block_names(built))),
        num_cuts=(int(told.get("num_layers", 1)) - 1 if callable(split) else len(split)) if split else 0,
        guessed=guessed,
        reads_tokens=built.input is None and built.loss is None,
        fingerprint=code_fingerprint(model, set(sys.modules) - before),
    )
    try:
        return ModelSpec(name=model.name, source=model.source, code=code, **_like_a_decoder(built, told))
    except SpecError as error:
        raise DryRunError(
            f"the shape of {model.name} is none: {error.message}",
            remedy="correct `shapes` of the builder, or the module's config",
            field="model.shapes",
        ) from error


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
    if is_transformers(module):
        try:
            return fields_of(document)
        except (SpecError, KeyError, TypeError):
            pass
    sizes = {
        name: next((document[key] for key in keys if _is_size(document.get(key))), None)
        for name, keys in SIZE_KEYS.items()
        if name not in ("num_experts", "experts_per_token")
    }
    return {name: size for name, size in sizes.items() if size is not None}


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
