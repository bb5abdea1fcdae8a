"""Models, GPUs and clusters by name: one YAML file each, read on first use.

    models/NAME.yaml    the fields of `ModelSpec`, or `config`: the model's published config.json, without what concerns neither its weights nor what it
                        computes; and `hub`: the model's id on Hugging Face's hub, where it has one
    gpus/NAME.yaml      the fields of `GpuSpec` (memory as GiB), with the links that come with it: intra_node, inter_node
    clusters            GPU-NODESxGPUS, of any size: `a100-80gb-16x8` is 16 nodes of 8 GPUs

Assumptions: peaks are dense (no sparsity). Memory is what CUDA reports, a little less than the product name says. Link bandwidths are per GPU
and direction. Prices are public list prices, which change. To add a model or a GPU, add its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from autotune.spec.catalog_files import entry_names, read_entry
from autotune.spec.cluster import ClusterSpec, GpuSpec
from autotune.spec.hugging_face import fields_of
from autotune.spec.model import ModelSpec

HUB = "hub"
"""key of a model's id on Hugging Face's hub"""
CONFIG = "config"
"""key of a model's config.json"""
_LISTED_SIZES = ((1, 8), (4, 8), (16, 8), (128, 8))


def model_names() -> tuple[str, ...]:
    """All models, by family and size."""
    return entry_names("models")


def gpu_names() -> tuple[str, ...]:
    """All GPU types."""
    return entry_names("gpus")


def cluster_names() -> tuple[str, ...]:
    """Common sizes of every GPU type. `cluster` accepts any other size too."""
    listed = [f"{gpu}-{n}x{g}" for gpu in gpu_names() if gpu != "cpu" for n, g in _LISTED_SIZES]
    return (*listed, "cpu-1x4")


@cache
def model(name: str) -> ModelSpec:
    """The model of that name, or of that id on Hugging Face's hub (`Qwen/Qwen2.5-7B`); `CatalogError` names the nearest one when there is none."""
    known = hub_models().get(name.lower(), name) if "/" in name else name
    entry = read_entry("models", known, field="model")
    fields = fields_of(entry[CONFIG]) if CONFIG in entry else {key: entry[key] for key in entry if key != HUB}
    return ModelSpec(name=known, **fields)


def published_config(spec: ModelSpec) -> Mapping[str, Any] | None:
    """The config.json of a model that has the name and the shape of one of the catalog; None for others, and where the catalog holds none.

    Learnt positions and tying may differ: a study with longer sequences has more positions, and a trainer that cannot tie trains the model untied.
    """
    if spec.source or spec.name not in model_names():
        return None
    known = model(spec.name)
    if replace(spec, max_positions=known.max_positions, tied_embeddings=known.tied_embeddings) != known:
        return None
    found: Mapping[str, Any] | None = read_entry("models", spec.name, field="model").get(CONFIG)
    return found


@cache
def hub_models() -> Mapping[str, str]:
    """Names of models by their id on Hugging Face's hub, in lower case."""
    return {hub.lower(): name for name, hub in hub_ids().items()}


@cache
def hub_ids() -> Mapping[str, str]:
    """Ids on Hugging Face's hub by the name of the model, where it has one."""
    ids = {name: read_entry("models", name, field="model").get(HUB) for name in model_names()}
    return {name: hub for name, hub in ids.items() if hub}


@cache
def gpu(name: str) -> GpuSpec:
    """The GPU type of that name; `CatalogError` names the nearest one when there is none."""
    return GpuSpec.of(name)


def cluster_of(gpu_type: str | GpuSpec, *, num_nodes: int = 1, gpus_per_node: int = 8) -> ClusterSpec:
    """A cluster of a catalog GPU (or of your own) with the links that come with it; see `ClusterSpec.of`."""
    spec = gpu(gpu_type) if isinstance(gpu_type, str) else gpu_type
    return ClusterSpec.of(spec, num_nodes=num_nodes, gpus_per_node=gpus_per_node)


def cluster(name: str) -> ClusterSpec:
    """The cluster of a name like `h100-sxm-4x8`: any size of any GPU type. Raises `CatalogError` for any other name."""
    return ClusterSpec.named(name)
