"""Determines shape, parameters, plans and fingerprint of a model by running its code, on the meta
device if possible.

Sizes are taken from, in this order: the builder (`shapes`), the module's transformers config, and
the module itself (number of repeated blocks, rows and width of the first embedding, tied output
projection). Missing sizes are those of a decoder with the same number of weights, and are listed in
`ModelCode.guessed`: they are good enough for formulas, and constraints do not use them.

The sizes are checked against the number of weights of the module. If it differs, layers are counted
by kind (`layer_kinds`) and the sizes are those of a decoder with the same weights in each kind;
weights outside of the language model are `ModelCode.other_parameters`.

    D   weights of a layer without routed experts, averaged over kinds of layers
    A, N   weights of attention and norms of a decoder layer
    E   routed experts of a layer
    X   weights of all of them
    h   hidden size
    3 h f   weights of a gated MLP of width f

    width of an expert    f = X / (3 h E)
    shared width          f = (D - A - N - h E) / (3 h)      for layers with experts
    dense width           f = (D - A - N) / (3 h)            for other layers

If a layer has another mixer than attention (state space, linear attention, convolution), the
difference in weights is added to the width of the MLP. FLOPs of matrix products are proportional to
weights, so they are right too. Neglected: rounding of widths, at most 1.5 h weights per layer.

The fingerprint covers what determines the model: the user's code, its arguments, and the versions
of the packages that it uses.
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
"""words in the class names of mixers other than softmax attention"""
_GATED_MATRICES = 3
"""number of matrices of a gated MLP"""


_COPIED = (
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_kv_heads",
    "attention_head_dim",
    "tied_embeddings",
    "max_positions",
)
"""known fields that `decoder_of_kinds` keeps"""


def layer_kinds(blocks: Sequence[nn.Module]) -> tuple[LayerKind, ...]:
    """Groups the blocks by child classes and number of weights, in order of first appearance.
    Weights shared by several blocks count in the first one."""
    seen: set[int] = set()
    groups: dict[tuple[Any, ...], int] = {}
    for block in blocks:
        new = {
            name: parameter
            for name, parameter in block.named_parameters()
            if id(parameter) not in seen
        }
        seen.update(map(id, new.values()))
        classes = tuple(type(child).__name__ for child in block.children())
        key = (
            classes or (type(block).__name__,),
            sum(parameter.numel() for parameter in new.values()),
            sum(
                parameter.numel() for name, parameter in new.items() if "experts" in name.split(".")
            ),
            _attends(block),
        )
        groups[key] = groups.get(key, 0) + 1
    in_all: set[str] = set()
    if len(groups) > 1:
        in_all = set.intersection(*(set(classes) for classes, *_ in groups))
    return tuple(
        LayerKind(
            name=_name(classes, in_all),
            count=count,
            parameters=weights,
            expert_parameters=experts,
            attends=attends,
        )
        for (classes, weights, experts, attends), count in groups.items()
    )


def decoder_of_kinds(kinds: Sequence[LayerKind], known: Mapping[str, Any]) -> dict[str, Any] | None:
    """`ModelSpec` fields of a decoder with the weights of these layers. `known`: known fields, at
    least hidden_size and vocab_size. None if the layers have too few weights for a decoder, or the
    number of experts, or of experts per token, is unknown."""
    expert_kinds = [kind for kind in kinds if kind.expert_parameters]
    dense_kinds = [kind for kind in kinds if not kind.expert_parameters]
    num_experts = int(known.get("num_experts") or 0)
    per_token = int(known.get("experts_per_token") or 0)
    if expert_kinds and not (num_experts and per_token):
        return None
    base: dict[str, Any] = {
        "num_layers": sum(kind.count for kind in kinds),
        "num_attention_heads": 1,
        "gated_mlp": True,
        **{name: known[name] for name in _COPIED if known.get(name)},
    }
    for narrower in ({}, {"num_kv_heads": 1}, {"num_kv_heads": 1, "attention_head_dim": 1}):
        sizes = {**base, **narrower}
        try:
            shape = ModelSpec(name="decoder", ffn_hidden_size=1, **sizes)
        except SpecError:
            return None
        dense = _dense_width(dense_kinds, shape)
        shared = _shared_width(expert_kinds, shape, num_experts)
        if (not dense_kinds or dense >= 1) and (not expert_kinds or shared >= 0):
            break
    else:
        return None
    if not expert_kinds:
        return {**sizes, "ffn_hidden_size": dense}
    one_expert = _average(expert_kinds, "expert_parameters") / num_experts
    sizes |= {
        "num_experts": num_experts,
        "experts_per_token": per_token,
        "ffn_hidden_size": max(1, _width(one_expert, shape.hidden_size)),
        "shared_ffn_hidden_size": shared,
    }
    if dense_kinds:
        sizes |= {
            "num_dense_layers": sum(kind.count for kind in dense_kinds),
            "dense_ffn_hidden_size": dense,
        }
    return sizes


def _dense_width(kinds: Sequence[LayerKind], shape: ModelSpec) -> int:
    """MLP width of layers without experts, given the attention and norms of `shape`."""
    attention = shape.attention_parameters + shape.norm_parameters
    return _width(_average(kinds, "parameters") - attention, shape.hidden_size)


def _shared_width(kinds: Sequence[LayerKind], shape: ModelSpec, num_experts: int) -> int:
    """Shared MLP width of layers with experts, given the attention and norms of `shape`."""
    attention = shape.attention_parameters + shape.norm_parameters
    router = shape.hidden_size * num_experts
    routed = _average(kinds, "expert_parameters")
    weights = _average(kinds, "parameters") - routed - attention - router
    return _width(weights, shape.hidden_size)


def _average(kinds: Sequence[LayerKind], name: str) -> float:
    layers = sum(kind.count for kind in kinds)
    return sum(kind.count * getattr(kind, name) for kind in kinds) / layers if layers else 0.0


def _width(weights: float, hidden: int) -> int:
    return round(weights / (_GATED_MATRICES * hidden))


def _attends(block: nn.Module) -> bool:
    """Whether a module inside is softmax attention, judging by its class name."""
    return any(
        ("attention" in name or name.endswith("attn"))
        and not any(word in name for word in (*_OTHER_MIXERS, "norm"))
        for name in (type(module).__name__.lower() for module in block.modules())
    )


def _name(classes: Sequence[str], in_all: set[str]) -> str:
    """Name of a kind of layer: the child classes that not all kinds have, without norms; all
    classes if there is no such class."""
    plain = [name for name in dict.fromkeys(classes) if "Norm" not in name]
    return " + ".join([name for name in plain if name not in in_all] or plain or list(classes))


_ALWAYS = ("torch", "transformers")
"""packages whose version is always part of the fingerprint"""


def code_fingerprint(model: ModelSpec, loaded: Iterable[str]) -> str:
    """Fingerprint of the model's code. `loaded`: names of the modules that building the model
    imported."""
    assert model.code is not None
    names = set(loaded)
    packages = {name.partition(".")[0] for name in names} | set(_ALWAYS)
    versions = {name: version for name in packages if (version := _version(name))}
    return fingerprint(
        [model.code.module, model.code.args, model.source, _digests(names, model.code), versions]
    )


def _digests(names: Iterable[str], code: ModelCode) -> list[list[str]]:
    """[module name, digest] of each loaded user file: files in `code.folder` and in the builder's
    package."""
    package = code.module.partition(":")[0].partition(".")[0]
    digests = []
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or not Path(file).is_file():
            continue
        in_folder = bool(code.folder) and Path(file).resolve().is_relative_to(
            Path(code.folder).resolve()
        )
        is_installed = "site-packages" in Path(file).parts
        if name.partition(".")[0] == package or (in_folder and not is_installed):
            digest = hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
            digests.append([name, digest])
    return digests


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


_TOKENS = "input_ids"


def _takes(built: BuiltModel) -> str:
    """Name of the main input of a transformers model if it is not tokens; empty for tokens and for
    other models."""
    if built.input is not None or not is_transformers(built.model):
        return ""
    main_input = str(getattr(built.model, "main_input_name", _TOKENS))
    return "" if main_input == _TOKENS else main_input


_GUESSED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "ffn_hidden_size")
"""required fields, which are guessed if unknown"""
NEAR = 0.01
"""relative difference in the number of weights up to which a shape fits the module; allows for
biases, norms and other small weights that shapes do not include"""


def inspect(model: ModelSpec) -> ModelSpec:
    """The model with what running its code shows. Runs user code, so call it in a separate process.
    Raises `DryRunError` that names the line that failed."""
    before = set(sys.modules)
    try:
        built = with_own_plans(build_without_memory(model))
        if built.tp_plan:
            check_plan(built)
    except ConfigError as error:
        raise DryRunError(error.message, remedy=error.remedy, field=error.field) from error
    assert model.code is not None
    known = _known_fields(built)
    total = sum(parameter.numel() for parameter in built.model.parameters())
    blocks = tuple(built.model.get_submodule(name) for name in block_names(built))
    kinds = layer_kinds(blocks) if blocks else ()
    sizes, other_parameters = _shape(built, known, kinds, total)
    is_plain = sizes is known and all(kind.attends for kind in kinds)
    split = built.pp_split
    code = replace(
        model.code,
        num_parameters=total,
        has_tensor_plan=bool(built.tp_plan),
        has_pipeline_split=bool(split),
        has_attention=bool(attention_modules(built.model, block_names(built))),
        num_cuts=_num_cuts(split, int(known.get("num_layers", 1))) if split else 0,
        guessed=tuple(
            name
            for name in _GUESSED
            if name not in known or (sizes is not known and name == "ffn_hidden_size")
        ),
        layers=() if is_plain else kinds,
        other_parameters=other_parameters,
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
    built: BuiltModel, known: dict[str, Any], kinds: Sequence[LayerKind], total: int
) -> tuple[dict[str, Any], int]:
    """`ModelSpec` fields, and the number of weights that they do not include. `known`: known
    fields; `total`: weights of the module.

    The first that applies: the known fields, if the builder gave `shapes` or they have as many
    weights as the module; the decoder with the same kinds of layers; a decoder with the same number
    of weights.
    """
    is_complete = all(name in known for name in _GUESSED)
    expected = _weights(known) if is_complete else 0
    if is_complete and (built.shapes or abs(expected - total) <= NEAR * total):
        return known, 0
    if (
        is_complete
        and language_config(built.model) is not None
        and abs(expected - _language_weights(kinds, known)) <= NEAR * expected < total
    ):
        return known, total - expected
    if (
        kinds
        and "hidden_size" in known
        and "vocab_size" in known
        and not built.shapes
        and built.input is None
    ):
        decoder = decoder_of_kinds(kinds, known)
        if decoder is not None:
            return decoder, max(0, total - _weights(decoder))
    reliable = {
        name: size for name, size in known.items() if not is_complete or name != "ffn_hidden_size"
    }
    return _like_a_decoder(built, reliable), 0


def _language_weights(kinds: Sequence[LayerKind], known: Mapping[str, Any]) -> int:
    """Weights of the language model: layers, embedding and output projection."""
    tables = 1 if known.get("tied_embeddings") else 2
    return (
        sum(kind.count * kind.parameters for kind in kinds)
        + tables * known["vocab_size"] * known["hidden_size"]
    )


def _weights(sizes: Mapping[str, Any]) -> int:
    """Weights of a decoder of these sizes; 0 if the sizes are not valid."""
    try:
        return ModelSpec(name="decoder", **sizes).shape_parameters
    except SpecError:
        return 0


def _num_cuts(split: Sequence[str] | Callable[..., nn.Module], num_layers: int) -> int:
    """Number of places where the model may be split into stages; a function may split between any
    two layers."""
    return num_layers - 1 if callable(split) else len(split)


def _known_fields(built: BuiltModel) -> dict[str, Any]:
    """The `ModelSpec` fields known from the builder, the transformers config or the module."""
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
    """`ModelSpec` fields from the module's transformers config; only sizes if its model family is
    not known."""
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return {}
    document: Mapping[str, Any] = config.to_dict()
    language = language_config(module)
    text_document = document if language is None else language.to_dict()
    if is_transformers(module):
        try:
            return fields_of(document)
        except (SpecError, KeyError, TypeError):
            pass
    sizes: dict[str, Any] = {}
    for name, keys in SIZE_KEYS.items():
        values = [text_document[key] for key in keys if _is_size(text_document.get(key))]
        if values:
            sizes[name] = values[0]
    if "num_experts" not in sizes:
        sizes.pop("experts_per_token", None)
    return sizes


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _like_a_decoder(built: BuiltModel, known: Mapping[str, Any]) -> dict[str, Any]:
    """The known sizes, completed to a decoder with as many weights as the module. An unknown hidden
    size h solves 12 h^2 L + 2 V h = weights, rounded to a multiple of the heads; the width of the
    MLP makes up for the rest."""
    layers, vocabulary, heads = (
        int(known.get(n, 1)) for n in ("num_layers", "vocab_size", "num_attention_heads")
    )
    total = sum(parameter.numel() for parameter in built.model.parameters())
    width = (math.sqrt(vocabulary**2 + 12 * layers * total) - vocabulary) / (12 * layers)
    sizes: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": heads * max(1, round(width / heads)),
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        **known,
    }
    if "ffn_hidden_size" not in known:
        one, two = (
            ModelSpec(name="decoder", ffn_hidden_size=n, **sizes).num_parameters for n in (1, 2)
        )
        sizes["ffn_hidden_size"] = min(max(1, 1 + round((total - one) / (two - one))), 1 << 24)
    return sizes
