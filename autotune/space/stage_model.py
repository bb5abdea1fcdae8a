"""The model of one pipeline stage: the same shape with the layers of one stage alone, between an embedding and a loss of its own.

The stage is the fullest one: that with most weights in its layers, which `autotune.trainers.layer_split` deals to the stages. Layers without experts are a
model's first ones, and layers of multi-token prediction are on the last stage.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, final

from autotune.errors import SpecError
from autotune.spec import ModelSpec, ParallelConfig
from autotune.spec.hugging_face import fields_of
from autotune.trainers.layer_split import cut_layers, layer_split


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """Layers of one rank of a pipeline, those of all its virtual stages together."""

    layers: int
    """decoder layers, those of multi-token prediction left out"""
    dense: int
    """those of them that have no experts in a model with experts"""
    mtp: int
    """layers of multi-token prediction"""


def fullest_stage(model: ModelSpec, config: ParallelConfig, trainer: str) -> StageLayers:
    """The layers of the stage with most weights; of equal ones the first."""
    split = "edges" if config.pp_split == "edges" else layer_split(trainer)
    stages, first = [], 0
    counts = [int(count) for count in cut_layers(model, config.pp, split)]
    for rank, count in enumerate(counts):
        dense = min(max(model.num_dense_layers - first, 0), count)
        stages.append(StageLayers(layers=count, dense=dense, mtp=model.mtp_layers if rank == len(counts) - 1 else 0))
        first += count
    return max(stages, key=lambda stage: _weights(model, stage))


def stage_model(model: ModelSpec, stage: StageLayers) -> ModelSpec:
    """A model with the layers of that stage. Raises `SpecError` where its builder or its config.json cannot be given another number of layers."""
    if (stage.layers, stage.mtp) == (model.num_layers, model.mtp_layers):
        return model
    if model.code is not None:
        raise SpecError(
            f"the number of layers of {model.name} must be known to its builder, but its code builds {model.num_layers} and a stage has {stage.layers}",
            remedy="use configs with pp=1, or give the shape of the model inline",
            field="model",
        )
    if model.num_experts and stage.dense == stage.layers:
        raise SpecError(
            f"a stage must have a layer with experts to stand for a model with experts, but all {stage.layers} of its layers are dense",
            remedy="use a smaller pp",
            field="pp",
        )
    cut = replace(
        model,
        name=f"{model.name}-{stage.layers}-layers",
        num_layers=stage.layers,
        num_dense_layers=stage.dense,
        dense_ffn_hidden_size=model.dense_ffn_hidden_size if stage.dense else 0,
        mtp_layers=stage.mtp,
    )
    return replace(cut, source=_cut_source(cut)) if model.source else cut


def _weights(model: ModelSpec, stage: StageLayers) -> int:
    plain = model.attention_parameters + model.norm_parameters + model.dense_mlp_parameters
    if not model.num_experts:
        return (stage.layers + stage.mtp) * plain
    return stage.dense * plain + (stage.layers - stage.dense + stage.mtp) * model.layer_parameters


def _cut_source(cut: ModelSpec) -> str:
    """The config.json of a model with fewer layers, as JSON text. Lists with one entry for each layer lose those of the layers that are gone."""
    document: dict[str, Any] = json.loads(cut.source)
    whole = fields_of(document)["num_layers"]
    for key, value in document.items():
        if "layer" not in key:
            continue
        if isinstance(value, list) and len(value) == whole:
            document[key] = value[: cut.num_layers] if cut.num_dense_layers else value[whole - cut.num_layers :]
        elif value == whole:
            document[key] = cut.num_layers
    for key in ("first_k_dense_replace", "moe_layer_start_index"):
        if key in document:
            document[key] = cut.num_dense_layers
    read = fields_of(document)
    if (read["num_layers"], read.get("num_dense_layers", 0)) != (cut.num_layers, cut.num_dense_layers):
        raise SpecError(
            f"the config.json of {cut.name} must say which layers are dense by their number, but it reads as "
            f"{read['num_layers']} layers with {read.get('num_dense_layers', 0)} dense ones where {cut.num_layers} and {cut.num_dense_layers} are meant",
            remedy="give the shape of the model inline",
            field="model",
        )
    return json.dumps(document)
