"""The search space that ships for a model and a cluster, where nobody named one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.schema.files import is_model_file, read_model
from autotune.schema.located import located
from autotune.spec import ClusterSpec, ModelSpec, catalog


def usual_space(document: Mapping[str, Any], *, base: Path | None = None) -> str:
    """The name of the space for a spec's `model` (a name or a file) and `cluster` (a name). Raises `SpecError` or `CatalogError` for one that nobody knows."""
    model, cluster = str(document["model"]), str(document["cluster"])
    read = located("model", lambda: read_model(model, base) if is_model_file(model) else catalog.model(model))
    return space_for(read, located("cluster", lambda: catalog.cluster(cluster)))


def space_for(model: ModelSpec, cluster: ClusterSpec) -> str:
    """By experts, nodes and GPUs."""
    if cluster.num_gpus == 1:
        return "single-gpu"
    if model.num_experts:
        return "moe-multi-node"
    return "dense-single-node" if cluster.num_nodes == 1 else "dense-multi-node"
