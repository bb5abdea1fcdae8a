"""Models that code builds: a function of the user's (`module`), or transformers' own class of a config.json (`hf`).

A user's code runs only where the spec is a file of this machine, and in a process of its own (`Inspect`). The shapes of transformers' classes follow from
the config.json; what no shape describes has to be built: a family that is not known, layers of several kinds, and a model with other towers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.schema.files import config_json, locate, model_name, name_of
from autotune.spec import ModelCode, ModelSpec
from autotune.spec.hugging_face import text_model, text_of
from autotune.spec.hugging_face_families import FAMILIES
from autotune.spec.hugging_face_plans import PIPELINE_SPLITS, TENSOR_PLANS
from autotune.spec.plain import canonical, fingerprint

Inspect = Callable[[ModelSpec], ModelSpec]
"""Builds the model of `ModelSpec.code`, and returns it with its shape, parameters, plans and fingerprint (`autotune.ports.DryRunner.inspect`)."""


def own_model(
    module: str, args: Mapping[str, Any], folder: str | None, *, name: str, base: Path | None, inspect: Inspect | None
) -> ModelSpec:
    """The model that the user's function builds. Raises `SpecError` where code may not be run, and what `inspect` raises."""
    if base is None or inspect is None:
        raise SpecError(
            f"building a model runs its code, which happens only where the spec is a file of your own machine, but this one names {module!r}",
            remedy="run `autotune tune SPEC` (or plan, fit) on your machine; elsewhere give the model's shape inline, or {hf: PATH} to a config.json",
            field="model.module",
        )
    code = ModelCode(module=module, args=canonical(args), folder=str(locate(folder or ".", base, field="model.folder")))
    return inspect(_unknown(name, code=code))


def transformers_model(text: str, source: str, *, base: Path | None, inspect: Inspect | None) -> ModelSpec:
    """transformers' own class of a config.json: of the file at that path, or of the JSON text `source`; then `text` is its name."""
    if source:
        document, name = _parsed(source), name_of(text)
    else:
        path = config_json(text, base)
        document, name = json.loads(path.read_text(encoding="utf-8")), model_name(path)
    family, _ = text_model(document)
    if family in FAMILIES and not FAMILIES[family].has_class:
        raise SpecError(
            f"transformers has no class for the family {family!r} of {name}: its code is beside the checkpoint",
            remedy="write `model: PATH` for the native decoder of the same sizes, or {module: PACKAGE.MODULE:FUNCTION} with a function that builds it",
            field="model.hf",
        )
    code = ModelCode(
        has_tensor_plan=family in TENSOR_PLANS,
        has_pipeline_split=family in PIPELINE_SPLITS,
        fingerprint=fingerprint([document, _version("transformers"), _version("torch")]),
    )
    can_build = inspect if base is not None else None
    if can_build is not None and (family not in FAMILIES or text_of(document) is not None):
        return can_build(replace(_unknown(name, code=code), source=canonical(document)))
    try:
        model = ModelSpec.from_hf(document, name=name)
    except SpecError:  # sizes that differ from layer to layer, layers of other kinds
        if can_build is None:
            raise
        return can_build(replace(_unknown(name, code=code), source=canonical(document)))
    cuts = model.num_layers - 1 if code.has_pipeline_split else 0
    return replace(model, source=canonical(document), code=replace(code, num_cuts=cuts))


def _unknown(name: str, *, code: ModelCode) -> ModelSpec:
    """A model whose shape is not known yet."""
    return ModelSpec(name=name, num_layers=1, hidden_size=1, num_attention_heads=1, vocab_size=1, code=code)


def _parsed(source: str) -> dict[str, Any]:
    try:
        document = json.loads(source)
    except ValueError as error:
        raise SpecError(f"the config.json is not JSON: {error}", field="model.source") from None
    if not isinstance(document, dict):
        raise SpecError(
            f"the config.json must hold a JSON object, but holds a {type(document).__name__}", field="model.source"
        )
    return document


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
