"""transformers' own class of a config.json, with random weights in fp32.

The class is the one that the file names under `architectures`; where it names none, that of causal language models for its `model_type`. The
plans are the class's own: `_tp_plan`, and a cut before every layer where it has a `_pp_plan`.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from autotune.errors import ConfigError, MissingExtraError
from autotune.spec import ModelSpec
from autotune.spec.hugging_face_alike import as_alike
from autotune_workers.own_model.blocks import repeated_blocks
from autotune_workers.own_model.built_model import BuiltModel
from autotune_workers.own_model.tensor_plan import is_supported


def build_class(model: ModelSpec) -> BuiltModel:
    """The model of `ModelSpec.source`, on the default device. Raises `ConfigError` for what transformers does not build."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            f"transformers' own class of {model.name} needs transformers: {error}",
            remedy="pip install transformers, or write `model: PATH` for the native decoder of the same shape",
            field="model.hf",
        ) from error
    document = dict(as_alike(json.loads(model.source)))
    try:
        config = transformers.AutoConfig.for_model(document["model_type"]).from_dict(document)
        config.use_cache = False
        _reach(config, model.max_positions)
        module = _class(transformers, config, document)._from_config(config, dtype=torch.float32)
    except Exception as error:  # a config may be wrong in any way
        first, *_ = " ".join(str(error).split()).partition(". Should contain one of ")  # some 300 names
        raise ConfigError(
            f"transformers {transformers.__version__} cannot build {model.name}: {type(error).__name__}: {first[:300]}",
            remedy="correct the config.json, install the release of transformers that knows it, or build it by {module: PACKAGE.MODULE:FUNCTION}",
            field="model.hf",
        ) from error
    module.train()
    return with_own_plans(BuiltModel(model=module))


def with_own_plans(built: BuiltModel) -> BuiltModel:
    """The model with the plans that a transformers class brings, where the builder gave none."""
    module = built.model
    layers = built.layers or repeated_blocks(module)
    plan: dict[str, Any] = dict(built.tp_plan)
    if not plan and is_transformers(module):
        own = dict(module.tp_plan or {})  # with that of the classification head or the output projection
        plan = own if is_supported(own) else {}
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
    """Whether it is a class of transformers, which takes `input_ids` and `labels`. Imports nothing."""
    return any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__)


def _class(transformers: Any, config: Any, document: dict[str, Any]) -> Any:
    named = [name for name in document.get("architectures") or () if isinstance(name, str)]
    for name in named:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    if named:
        raise ValueError(
            f"it has no class {' or '.join(named)}, which the file names under `architectures`; without that key the class of causal language "
            f"models for {document['model_type']} is built"
        )
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _reach(config: Any, positions: int) -> None:
    """Learnt positions reach as far as the sequence."""
    for name in ("max_position_embeddings", "n_positions"):
        if 0 < getattr(config, name, positions) < positions:
            setattr(config, name, positions)
