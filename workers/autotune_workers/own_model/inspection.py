"""What only a model's code can tell: its shape, parameters, plans and fingerprint. It is built for
that, on the meta device where it can be.

Shapes are, in this order: those that the builder gives (`shapes`), those of the module's
transformers config, what can be counted (repeated blocks, rows and width of the first embedding,
and whether an output projection shares it). The rest are those of a decoder with the same number of
weights, and are named in `ModelCode.guessed`: formulas come near with them, and no law relies on
them.

What is told is held against the weights that were built. Where the shape has other weights, its
layers are counted by kind (`layer_kinds`), and what lies outside of the language model is
`ModelCode.other_parameters`.

The repeated layers of a module by kind, and the shape of a decoder with the same weights, kind by
kind.

    D   weights of a layer without its routed experts, averaged over its kinds          A, N   weights of attention and norms of the shape
    E   routed experts of a layer          X   weights of all of them          h   hidden size          3 h f   weights of a gated MLP of width f

    width of an expert    f = X / (3 h E)
    shared width          f = (D - A - N - h E) / (3 h)      of layers with experts
    dense width           f = (D - A - N) / (3 h)            of layers without

What a mixer of another kind (state space, linear attention, convolution) has more than attention is
in the width of the MLP: matmul FLOPs follow from weights, so they are right too. Neglected:
rounding to whole widths, at most 1.5 h weights a layer.

Digest of what decides which model is built: the user's code, its arguments, and the releases of the
packages that it uses.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import nn

from autotune.errors import ConfigError, DryRunError, SpecError
from autotune.spec import LayerKind, ModelCode, ModelSpec
from autotune.spec.hugging_face.defaults import SIZE_KEYS
from autotune.spec.hugging_face.reading import fields_of
from autotune.spec.plain import fingerprint
from autotune_workers.own_model.builder import build_without_memory
from autotune_workers.own_model.built_model import (
    BuiltModel,
    attention_modules,
    block_names,
    check_plan,
    is_transformers,
    language_config,
    with_own_plans,
)

_OTHER_MIXERS = ("linear", "lightning", "delta", "mamba", "recurrent", "conv", "ssm")
"""words in the names of layers that mix tokens without scores"""
_GATE = 3
"""matrices of a gated MLP"""


def layer_kinds(blocks: Sequence[nn.Module]) -> tuple[LayerKind, ...]:
    """The blocks by what they are made of, in the order of their first appearance. Weights that two
    blocks share count in the first."""
    seen: set[int] = set()
    groups: dict[tuple[Any, ...], int] = {}
    for block in blocks:
        own = [
            (name, parameter)
            for name, parameter in block.named_parameters()
            if id(parameter) not in seen
        ]
        seen.update(id(parameter) for _, parameter in own)
        experts = sum(parameter.numel() for name, parameter in own if "experts" in name.split("."))
        made_of = tuple(type(child).__name__ for child in block.children()) or (
            type(block).__name__,
        )
        key = (made_of, sum(parameter.numel() for _, parameter in own), experts, _attends(block))
        groups[key] = groups.get(key, 0) + 1
    everywhere = (
        set.intersection(*(set(made_of) for made_of, *_ in groups)) if len(groups) > 1 else set()
    )
    return tuple(
        LayerKind(
            name=_name(made_of, everywhere),
            count=count,
            parameters=weights,
            expert_parameters=experts,
            attends=attends,
        )
        for (made_of, weights, experts, attends), count in groups.items()
    )


def decoder_of_kinds(kinds: Sequence[LayerKind], told: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fields of a decoder with the weights of these layers. `told`: hidden_size and vocab_size, and
    what else is known. None where no decoder has so few weights a layer, or nothing tells how many
    experts there are or a token visits."""
    hidden = int(told["hidden_size"])
    with_experts = [kind for kind in kinds if kind.expert_parameters]
    without = [kind for kind in kinds if not kind.expert_parameters]
    experts, visited = int(told.get("num_experts") or 0), int(told.get("experts_per_token") or 0)
    if with_experts and not (experts and visited):
        return None
    kept = (
        "hidden_size",
        "vocab_size",
        "num_attention_heads",
        "num_kv_heads",
        "attention_head_dim",
        "tied_embeddings",
    )
    base: dict[str, Any] = {
        "num_layers": sum(kind.count for kind in kinds),
        "num_attention_heads": 1,
        "gated_mlp": True,
        **{name: told[name] for name in (*kept, "max_positions") if told.get(name)},
    }
    for narrower in ({}, {"num_kv_heads": 1}, {"num_kv_heads": 1, "attention_head_dim": 1}):
        sizes = {**base, **narrower}
        try:
            shape = ModelSpec(name="decoder", ffn_hidden_size=1, **sizes)
        except SpecError:
            return None
        fixed = shape.attention_parameters + shape.norm_parameters
        dense = _width(_average(without, "parameters") - fixed, hidden)
        router = hidden * experts
        shared = _width(
            _average(with_experts, "parameters")
            - _average(with_experts, "expert_parameters")
            - fixed
            - router,
            hidden,
        )
        if (not without or dense >= 1) and (not with_experts or shared >= 0):
            break
    else:
        return None
    if not with_experts:
        return {**sizes, "ffn_hidden_size": dense}
    found = {
        **sizes,
        "num_experts": experts,
        "experts_per_token": visited,
        "ffn_hidden_size": max(
            1, _width(_average(with_experts, "expert_parameters") / experts, hidden)
        ),
        "shared_ffn_hidden_size": shared,
    }
    if without:
        found |= {
            "num_dense_layers": sum(kind.count for kind in without),
            "dense_ffn_hidden_size": dense,
        }
    return found


def _average(kinds: Sequence[LayerKind], name: str) -> float:
    layers = sum(kind.count for kind in kinds)
    return sum(kind.count * getattr(kind, name) for kind in kinds) / layers if layers else 0.0


def _width(weights: float, hidden: int) -> int:
    return round(weights / (_GATE * hidden))


def _attends(block: nn.Module) -> bool:
    """Whether a module inside computes scores of tokens: it is called attention, and no other kind
    of mixer."""
    return any(
        ("attention" in name or name.endswith("attn"))
        and not any(word in name for word in (*_OTHER_MIXERS, "norm"))
        for name in (type(module).__name__.lower() for module in block.modules())
    )


def _name(made_of: Sequence[str], everywhere: set[str]) -> str:
    """The classes that set the layers apart, without norms; all of them where nothing does."""
    plain = [name for name in dict.fromkeys(made_of) if "Norm" not in name]
    return " + ".join([name for name in plain if name not in everywhere] or plain or list(made_of))


_ALWAYS = ("torch", "transformers")
"""packages whose release counts in any case"""


def code_fingerprint(model: ModelSpec, loaded: Iterable[str]) -> str:
    """Of the model's code; `loaded`: names of the modules that its import and its building brought
    in."""
    assert model.code is not None
    names = set(loaded)
    packages = {name.partition(".")[0] for name in names} | set(_ALWAYS)
    versions = {name: version for name in packages if (version := _version(name))}
    return fingerprint(
        [model.code.module, model.code.args, model.source, _digests(names, model.code), versions]
    )


def _digests(names: Iterable[str], code: ModelCode) -> list[list[str]]:
    """Name and digest of each loaded file of the user's: those in the spec's folder, and those of
    the builder's own package."""
    own = code.module.partition(":")[0].partition(".")[0]
    found = []
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or not Path(file).is_file():
            continue
        in_folder = bool(code.folder) and Path(file).resolve().is_relative_to(
            Path(code.folder).resolve()
        )
        is_installed = "site-packages" in Path(file).parts
        if name.partition(".")[0] == own or (in_folder and not is_installed):
            found.append(
                [name, hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()]
            )
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


_TOKENS = "input_ids"


def _takes(built: BuiltModel) -> str:
    """What a class of transformers takes in place of tokens; empty for tokens and for other
    models."""
    is_open = built.input is None and is_transformers(built.model)
    main = str(getattr(built.model, "main_input_name", _TOKENS)) if is_open else _TOKENS
    return "" if main == _TOKENS else main


_GUESSED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "ffn_hidden_size")
"""fields that every model needs, and that are guessed where nothing tells them"""
NEAR = 0.01
"""share of the weights within which a shape is that of the module: biases, norms and small factors
that no shape has"""


def inspect(model: ModelSpec) -> ModelSpec:
    """The model with what its code tells. Runs that code here: call it in a process of its own.
    Raises `DryRunError` with the line that failed."""
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
        num_cuts=_num_cuts(split, int(told.get("num_layers", 1))) if split else 0,
        guessed=tuple(
            name
            for name in _GUESSED
            if name not in told or (sizes is not told and name == "ffn_hidden_size")
        ),
        layers=() if is_plain else kinds,
        other_parameters=other,
        reads_tokens=built.input is None and built.loss is None,
        takes=_takes(built),
        fingerprint=code_fingerprint(model, set(sys.modules) - before),
    )
    try:
        return ModelSpec(name=model.name, source=model.source, code=code, **sizes)
    except SpecError as error:
        raise DryRunError(
            f"the shape of {model.name} is not valid: {error.message}",
            remedy="fix the builder's `shapes`, or the module's config",
            field="model.shapes",
        ) from error


def _shape(
    built: BuiltModel, told: dict[str, Any], kinds: Sequence[LayerKind], total: int
) -> tuple[dict[str, Any], int]:
    """Fields of `ModelSpec`, and weights that lie outside of them. What is told, where it has the
    weights that were built, or where the builder says it (`shapes`); else the decoder of the same
    layers by kind; else one of as many weights."""
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
    if (
        kinds
        and "hidden_size" in told
        and "vocab_size" in told
        and not built.shapes
        and built.input is None
    ):
        found = decoder_of_kinds(kinds, told)
        if found is not None:
            return found, max(0, total - _weights(found))
    return _like_a_decoder(
        built,
        {name: size for name, size in told.items() if not is_told or name != "ffn_hidden_size"},
    ), 0


def _language_weights(kinds: Sequence[LayerKind], told: Mapping[str, Any]) -> int:
    """Of the layers of the language model, its embedding and its output projection."""
    tables = 1 if told.get("tied_embeddings") else 2
    return (
        sum(kind.count * kind.parameters for kind in kinds)
        + tables * told["vocab_size"] * told["hidden_size"]
    )


def _weights(sizes: Mapping[str, Any]) -> int:
    """Of a decoder of these sizes; 0 for sizes that are none."""
    try:
        return ModelSpec(name="decoder", **sizes).shape_parameters
    except SpecError:
        return 0


def _num_cuts(split: Sequence[str] | Callable[..., nn.Module], num_layers: int) -> int:
    """Places where the model may be cut into stages: a function cuts between any two layers."""
    return num_layers - 1 if callable(split) else len(split)


def _told(built: BuiltModel) -> dict[str, Any]:
    """The fields of `ModelSpec` that builder, config or module tell."""
    blocks = block_names(built)
    counted: dict[str, Any] = {"num_layers": len(blocks)} if blocks else {}
    embeddings = [m for m in built.model.modules() if isinstance(m, nn.Embedding)]
    if embeddings and built.input is None:
        counted["vocab_size"] = embeddings[0].num_embeddings
        counted["hidden_size"] = embeddings[0].embedding_dim
        table = embeddings[0].weight
        counted["tied_embeddings"] = any(
            isinstance(m, nn.Linear) and m.weight is table for m in built.model.modules()
        )
    known = {f.name for f in fields(ModelSpec)} - {"name", "source", "code"}
    from_config = {
        name: value for name, value in _config_fields(built.model).items() if name in known
    }
    return {**counted, **from_config, **built.shapes}


def _config_fields(module: nn.Module) -> dict[str, Any]:
    """Of the module's transformers config: by its family, or the sizes alone where the family is
    not known."""
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
        name: next((sized[key] for key in keys if _is_size(sized.get(key))), None)
        for name, keys in SIZE_KEYS.items()
    }
    found = {name: size for name, size in sizes.items() if size is not None}
    return (
        found
        if "num_experts" in found
        else {n: size for n, size in found.items() if n != "experts_per_token"}
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _like_a_decoder(built: BuiltModel, told: Mapping[str, Any]) -> dict[str, Any]:
    """What is told, and the other sizes of a decoder with the same number of weights, as
    `ModelSpec` counts them. A width that nothing tells is a multiple of the heads, and that of 12
    h^2 weights in each of L layers, with an embedding and an output projection of V h each; the
    width of the MLP makes up for the rest."""
    layers, vocabulary, heads = (
        int(told.get(n, 1)) for n in ("num_layers", "vocab_size", "num_attention_heads")
    )
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
        one, two = (
            ModelSpec(name="decoder", ffn_hidden_size=n, **sizes).num_parameters for n in (1, 2)
        )
        sizes["ffn_hidden_size"] = min(max(1, 1 + round((total - one) / (two - one))), 1 << 24)
    return sizes
