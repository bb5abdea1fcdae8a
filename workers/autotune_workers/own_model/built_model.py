"""The result of a builder: a module and how to train it.

input      (micro_batch_size, seq_len) -> arguments of the module: one tensor, a tuple, or a mapping of keywords
loss       (output, inputs) -> mean loss of the micro-batch, a scalar
tp_plan    module name pattern (`*` matches one part of a name) -> "colwise", "rowwise", ... or a torch ParallelStyle
pp_split   names of the modules before which the model may be split, or (model, stage, num_stages) -> the module of that stage
layers     names of the repeated blocks; default: the entries of the longest ModuleList
shapes     fields of `ModelSpec` by name, needed by constraints and formulas

Repeated blocks are the units of recomputation, compilation, FSDP gathering and pipeline stages.

Without a builder, the model is the transformers class of a config.json, with random fp32 weights:
the class named under `architectures`, otherwise the causal language model class of its
`model_type`. Its plans are those of the class: `_tp_plan`, and a split before every layer if it has
a `_pp_plan`.

Styles of a tensor plan, named as in transformers:

    colwise                               the outputs of a Linear are sharded and stay sharded
    colwise_gather_output, colwise_rep    ... and are gathered again
    rowwise                               the inputs are sharded, the outputs are summed
    rowwise_split_input, rowwise_rep      ... for an input that is not sharded yet
    embedding_rowwise                     the vocabulary of an Embedding is sharded
    replicated_with_grad_allreduce        replicated weights with sharded inputs
    replicate                             nothing is sharded

A key is the name of a module, or a pattern in which `*` matches one part: "layers.*.mlp.up_proj". A
torch `ParallelStyle` is used unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from autotune.errors import ConfigError, MissingExtraError
from autotune.spec import ModelSpec
from autotune.spec.checks import nearest
from autotune.spec.hugging_face.equivalents import as_equivalent


def block_names(built: BuiltModel) -> tuple[str, ...]:
    """Names of the repeated blocks in execution order: those of the builder, otherwise
    `repeated_blocks`."""
    return built.layers or repeated_blocks(built.model)


def repeated_blocks(module: nn.Module) -> tuple[str, ...]:
    """Names of the entries of the longest ModuleList. For multimodal transformers classes only the
    language model is searched, as other towers may have more blocks."""
    language = language_config(module)
    if language is not None:
        for prefix, part in module.named_modules():
            if type(getattr(part, "config", None)) is type(language):
                return tuple(f"{prefix}.{name}" for name in longest_list(part))
    return longest_list(module)


def language_config(module: nn.Module) -> Any:
    """The config of the language model inside of a multimodal transformers class; None for other
    modules."""
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "get_text_config"):
        return None
    language = config.get_text_config()
    return None if type(language) is type(config) else language


def longest_list(module: nn.Module) -> tuple[str, ...]:
    """Names of the entries of the longest ModuleList, or Sequential of modules of one class, that
    is not inside of an entry of another; empty if there is none."""
    longest: tuple[str, ...] = ()
    for name, inner in module.named_modules():
        is_repeated = isinstance(inner, nn.ModuleList) or (
            isinstance(inner, nn.Sequential) and len({type(entry) for entry in inner}) == 1
        )
        if (
            is_repeated
            and len(inner) > max(1, len(longest))
            and not name.startswith(tuple(f"{n}." for n in longest))
        ):
            longest = tuple(f"{name}.{i}" if name else str(i) for i in range(len(inner)))
    return longest


def attention_modules(module: nn.Module, blocks: Sequence[str]) -> tuple[str, ...]:
    """Names of the outermost modules inside of the blocks whose name or class contains "attn" or
    "attention"."""
    names: list[str] = []
    inside = tuple(f"{name}." for name in blocks)
    for name, inner in module.named_modules():
        last = f"{name.rpartition('.')[2]} {type(inner).__name__}".lower()
        is_attention = ("attn" in last or "attention" in last) and "norm" not in last
        if (
            is_attention
            and inside
            and name.startswith(inside)
            and not name.startswith(tuple(f"{n}." for n in names))
        ):
            names.append(name)
    return tuple(names)


KEYS = ("model", "input", "loss", "tp_plan", "pp_split", "layers", "shapes")
"""keys of the mapping that a builder may return"""
_SHAPES = tuple(f.name for f in fields(ModelSpec) if f.name not in ("name", "source", "code"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A module and how to train it; see the module docstring."""

    model: nn.Module
    """the whole model"""
    input: Callable[[int, int], Any] | None = None
    """makes the arguments of the module; None: tokens, or as for transformers classes"""
    loss: Callable[[Any, Any], Any] | None = None
    """None: the `.loss` of the module's output, or the cross entropy of its logits"""
    tp_plan: Mapping[str, Any] = field(default_factory=dict)
    """empty: no tensor parallelism"""
    pp_split: Sequence[str] | Callable[..., nn.Module] | None = None
    """None: no pipeline"""
    layers: tuple[str, ...] = ()
    """names of the repeated blocks, in execution order"""
    shapes: Mapping[str, int | bool] = field(default_factory=dict)
    """fields of `ModelSpec` that the builder gave"""


def built_model(returned: Any, by: str) -> BuiltModel:
    """Checks what a builder returned. `by`: name of the builder. Raises `ConfigError` if it is not
    valid."""
    if isinstance(returned, nn.Module):
        return BuiltModel(model=returned)
    if not isinstance(returned, Mapping):
        raise _wrong(
            by,
            f"must return an nn.Module, or a mapping with an nn.Module under `model`, but returned {_kind(returned)}",
        )
    for key in returned:
        if key not in KEYS:
            raise _wrong(
                by,
                f"returned the key {key!r}, but the valid keys are {', '.join(KEYS)}",
                nearest(key, KEYS),
            )
    given = {key: value for key, value in returned.items() if value is not None}
    if not isinstance(given.get("model"), nn.Module):
        raise _wrong(
            by, f"must return an nn.Module under `model`, but returned {_kind(given.get('model'))}"
        )
    for key in ("input", "loss"):
        if key in given and not callable(given[key]):
            raise _wrong(
                by, f"returned {_kind(given[key])} under `{key}`, which must be a function"
            )
    return BuiltModel(
        **{**given, **_names(given, by), "shapes": _shapes(given.get("shapes", {}), by)}
    )


def _names(given: Mapping[str, Any], by: str) -> dict[str, Any]:
    """`layers` and `pp_split` as tuples of module names. Raises `ConfigError` for a name that does
    not exist."""
    known = {name for name, _ in given["model"].named_modules() if name}
    checked: dict[str, Any] = {}
    for key in ("layers", "pp_split"):
        names = given.get(key)
        if names is None or (key == "pp_split" and callable(names)):
            continue
        if isinstance(names, str):
            names = [names]
        for name in names:
            if name not in known:
                raise _wrong(
                    by,
                    f"names {name!r} under `{key}`, but the model has no module of that name",
                    nearest(name, known),
                )
        checked[key] = tuple(names)
    return checked


def _shapes(given: Any, by: str) -> dict[str, int | bool]:
    if not isinstance(given, Mapping):
        raise _wrong(by, f"must return a mapping under `shapes`, but returned {_kind(given)}")
    for name, value in given.items():
        if name not in _SHAPES or not isinstance(value, int):
            wrong = f"returned {name}={value!r} under `shapes`, which may contain only whole numbers for {', '.join(_SHAPES)}"
            raise _wrong(by, wrong, nearest(name, _SHAPES))
    return dict(given)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _wrong(by: str, what: str, remedy: str = "") -> ConfigError:
    return ConfigError(
        f"the builder {by} {what}",
        remedy=remedy
        or "see the page `Train your own module` in the documentation for what a builder returns",
        field="model.module",
    )


def build_class(model: ModelSpec) -> BuiltModel:
    """Builds the transformers model of `ModelSpec.source` on the default device. Raises
    `ConfigError` if transformers cannot build it."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            f"transformers' class for {model.name} needs transformers: {error}",
            remedy="run pip install transformers, or set `model: PATH` for the native decoder with the same shape",
            field="model.hf",
        ) from error
    document = dict(as_equivalent(json.loads(model.source)))
    try:
        config = transformers.AutoConfig.for_model(document["model_type"]).from_dict(document)
        config.use_cache = False
        _extend_positions(config, model.max_positions)
        module = _class(transformers, config, document)._from_config(config, dtype=torch.float32)
    except Exception as error:  # transformers may raise anything for a bad config
        # drops a list of some 300 model types
        first, *_ = " ".join(str(error).split()).partition(". Should contain one of ")
        raise ConfigError(
            f"transformers {transformers.__version__} cannot build {model.name} ({type(error).__name__}: {first[:300]})",
            remedy="correct the config.json, install a transformers release that supports it, or build the model with {module: PACKAGE.MODULE:FUNCTION}",
            field="model.hf",
        ) from error
    module.train()
    return with_own_plans(BuiltModel(model=module))


def with_own_plans(built: BuiltModel) -> BuiltModel:
    """The model with the plans of its transformers class, if the builder gave none."""
    module = built.model
    layers = built.layers or repeated_blocks(module)
    plan: dict[str, Any] = dict(built.tp_plan)
    if not plan and is_transformers(module):
        # includes the plan of the classification head or output projection
        class_plan = dict(module.tp_plan or {})
        plan = class_plan if is_supported(class_plan) else {}
    split = built.pp_split
    if split is None and is_transformers(module) and module.supports_pp_plan:
        split = layers[1:]
    return BuiltModel(
        model=module,
        input=built.input,
        loss=built.loss,
        tp_plan=plan,
        pp_split=split,
        layers=layers,
        shapes=built.shapes,
    )


def is_transformers(module: nn.Module) -> bool:
    """Whether the module is a transformers model, which takes `input_ids` and `labels`. Does not
    import transformers."""
    return any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__)


def _class(transformers: Any, config: Any, document: dict[str, Any]) -> Any:
    named = [name for name in document.get("architectures") or () if isinstance(name, str)]
    for name in named:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    if named:
        raise ValueError(
            f"the file's `architectures` names {' or '.join(named)}, which transformers does not have; remove `architectures` to build the causal language model class for {document['model_type']}"
        )
    causal_lm = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if causal_lm is None:
        raise ValueError(
            f"{document['model_type']} has no causal language model, and the file has no `architectures` with a class name"
        )
    return causal_lm


def _extend_positions(config: Any, positions: int) -> None:
    """Raises the config's number of positions to at least this."""
    for name in ("max_position_embeddings", "n_positions"):
        if 0 < getattr(config, name, positions) < positions:
            setattr(config, name, positions)


STYLES = (
    *(
        "colwise",
        "rowwise",
        "colwise_gather_output",
        "colwise_rep",
        "rowwise_split_input",
        "rowwise_rep",
    ),
    *("embedding_rowwise", "replicated_with_grad_allreduce", "replicate"),
)
"""names of the styles that the training loop supports"""


def planned(built: BuiltModel) -> Mapping[str, Any]:
    """The styles of modules by module name, as the tensor plan defines them, in the order of the
    model."""
    patterns = [(re.compile(_expression(key)), style) for key, style in built.tp_plan.items()]
    styles: dict[str, Any] = {}
    for name, _ in built.model.named_modules():
        for pattern, style in patterns:
            if name and pattern.fullmatch(name):
                styles[name] = style
    return styles


def check_plan(built: BuiltModel) -> None:
    """Raises `ConfigError` if the tensor plan has an unknown style, or a pattern that no module or
    parameter matches."""
    names = [name for name, _ in built.model.named_modules()]
    parameters = [name for name, _ in built.model.named_parameters()]
    for key, style in built.tp_plan.items():
        if isinstance(style, str) and style not in STYLES:
            raise ConfigError(
                f"the tensor plan gives {key!r} the style {style!r}, which the native trainer does not support",
                remedy=nearest(style, STYLES)
                or f"use {', '.join(STYLES)}, or a torch ParallelStyle",
                field="model.tp_plan",
            )
        if not any(re.fullmatch(_expression(key), name) for name in (*names, *parameters)):
            raise ConfigError(
                f"the tensor plan names {key!r}, but the model has no module of that name",
                remedy=nearest(key, names) or "a `*` in a pattern matches only one part of a name",
                field="model.tp_plan",
            )


def is_supported(plan: Mapping[str, Any]) -> bool:
    """Whether all styles of a tensor plan are supported."""
    return all(not isinstance(style, str) or style in STYLES for style in plan.values())


def _expression(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", r"[^.]+")
