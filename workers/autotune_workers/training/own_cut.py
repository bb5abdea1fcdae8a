"""A model that code builds, cut into the stages of a pipeline.

A stage is the module with everything that other stages run replaced by `Skip`, which hands on what it is given: so the module's own forward pass runs over
what is left, and weights keep their names. What runs before and after a cut follows from the order in which the module registers its parts. A class of
transformers takes the stream as `inputs_embeds`; its plan (`base_model_pp_plan`) names what the first and the last stage hold beside layers, and all stages
but the last run its base model alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from autotune.errors import ConfigError
from autotune_workers.own_model.blocks import block_names
from autotune_workers.own_model.built_model import BuiltModel
from autotune_workers.own_model.transformers_class import is_transformers
from autotune_workers.own_model.users_line import said
from autotune_workers.training.own_stage import Skip

REMEDY = "name other places under `pp_split`, or return it as a function (model, stage, num_stages) -> the module of that stage"


def cut(built: BuiltModel, stage: int, num_stages: int) -> BuiltModel:
    """The model of that stage. Changes `built.model`. Raises `ConfigError` where it cannot be cut so."""
    if num_stages == 1:
        return built
    if callable(built.pp_split):
        return _by_function(built, stage, num_stages)
    places = tuple(built.pp_split or ())
    if num_stages > len(places) + 1:
        raise ConfigError(
            f"{num_stages} stages need {num_stages - 1} places to cut, but the model names {len(places)}",
            remedy="use a smaller pp, or name more places under `pp_split`",
            field="pp",
        )
    stages = _stages(built, cut_places(places, num_stages))
    _check_shared(built.model, stages, num_stages)
    for name, number in stages.items():
        if number != stage:
            parent, _, key = name.rpartition(".")
            setattr(built.model.get_submodule(parent), key, Skip())
    if stage and is_transformers(built.model) and hasattr(built.model.base_model, "embedding_multiplier"):
        built.model.base_model.embedding_multiplier = (
            1.0  # Granite scales whatever comes as `inputs_embeds`: the first stage has done so
        )
    return built


def _by_function(built: BuiltModel, stage: int, num_stages: int) -> BuiltModel:
    """The stage that the builder's own function makes of the model. Its parts may have other names than in the whole model."""
    assert callable(built.pp_split)
    try:
        part = built.pp_split(built.model, stage, num_stages)
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"`pp_split` raised {said(error)} for stage {stage} of {num_stages}",
            remedy="correct the line",
            field="model.pp_split",
        ) from error
    if not isinstance(part, nn.Module):
        raise ConfigError(
            f"`pp_split` must return the module of a stage, but returned a {type(part).__name__} for stage {stage} of {num_stages}",
            remedy="it is called with (model, stage, num_stages)",
            field="model.pp_split",
        )
    names = {name for name, _ in part.named_modules()}
    return replace(built, model=part, layers=tuple(name for name in built.layers if name in names))


def cut_places(places: Sequence[str], num_stages: int) -> list[str]:
    """The places that are used: those that part the model as evenly as there are places to part it; the longer stages come first."""
    units = len(places) + 1
    sizes = [units // num_stages + (i < units % num_stages) for i in range(num_stages)]
    return [places[end - 1] for end in itertools.accumulate(sizes[:-1])]


def aliases(module: nn.Module) -> dict[str, str]:
    """Other names of shared weights, each with the first one."""
    first: dict[nn.Parameter, str] = {}
    found = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if first.setdefault(parameter, name) != name:
            found[name] = first[parameter]
    return found


def _stages(built: BuiltModel, places: Sequence[str]) -> dict[str, int]:
    """The stage of each part of the module, of parts that lie in one stage whole; parts that every stage runs are left out."""
    if is_transformers(built.model) and built.pp_split == block_names(built)[1:]:
        return _stages_of_class(built, places)
    names = [name for name, _ in built.model.named_modules() if name]
    number, stage_of = 0, {}
    for name in names:
        number += name in places
        stage_of[name] = number
    found: dict[str, int] = {}
    for name in names:
        inner = {n for other, n in stage_of.items() if other == name or other.startswith(f"{name}.")}
        if len(inner) == 1 and not name.startswith(tuple(f"{n}." for n in found)):
            found[name] = inner.pop()
    kept = [
        name for name, _ in built.model.named_parameters() if not name.startswith(tuple(f"{part}." for part in found))
    ]
    if kept:
        raise ConfigError(
            f"the weight {kept[0]} belongs to a module that every stage of the pipeline runs, and so to no stage",
            remedy="put it into a module of its own, or return `pp_split` as a function (model, stage, num_stages) -> the module of that stage",
            field="model.pp_split",
        )
    return found


def _stages_of_class(built: BuiltModel, places: Sequence[str]) -> dict[str, int]:
    module: Any = built.model
    last = len(places)
    prefix = "" if module.base_model is module else f"{module.base_model_prefix}."
    layers = block_names(built)
    found = {layer: sum(layers.index(place) <= i for place in places) for i, layer in enumerate(layers)}
    holder = layers[0].rpartition(".")[0]
    seen = False
    for key in module.base_model._pp_plan or module.config.base_model_pp_plan:
        if f"{prefix}{key}" == holder:
            seen = True
        else:
            found[f"{prefix}{key}"] = last if seen else 0
    heads: Iterable[str] = (name for name, _ in module.named_children()) if prefix else ()
    return found | {name: last for name in heads if f"{name}." != prefix}


def _check_shared(module: nn.Module, stages: dict[str, int], num_stages: int) -> None:
    """Only the first and the last stage may share a weight: a tied embedding."""
    for other, name in aliases(module).items():
        held = {n for part, n in stages.items() for weight in (other, name) if weight.startswith(f"{part}.")}
        if len(held) > 1 and held != {0, num_stages - 1}:
            raise ConfigError(
                f"the stages {', '.join(map(str, sorted(held)))} of {num_stages} share the weight {name}, and only the first and the last may share one",
                remedy=REMEDY,
                field="model.pp_split",
            )
