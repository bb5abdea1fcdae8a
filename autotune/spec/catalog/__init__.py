"""Models, GPUs and clusters by name: one YAML file each, read on first use.

    models/NAME.yaml    the fields of `ModelSpec`, or `config`: the model's published config.json, without keys that affect neither its weights nor its
                        computation; and `hub`: the model's id on Hugging Face's hub, if it has one
    gpus/NAME.yaml      the fields of `GpuSpec` (memory as GiB), and the hardware around it: the links intra_node and inter_node, gpus_per_node if it is
                        not 8, and gpus_per_domain if NVLink reaches beyond a node
    clusters            GPU-NODESxGPUS, of any size: `a100-80gb-16x8` is 16 nodes of 8 GPUs

Assumptions: peaks are dense (no sparsity). Memory is what CUDA reports, a little less than the
product name says. Link bandwidths are per GPU in each direction. Prices are public list prices,
which change. To add a model or a GPU, add its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from autotune.spec.catalog_files import entry_names, read_entry, texts_of
from autotune.spec.cluster import ClusterSpec, GpuSpec
from autotune.spec.hugging_face.reading import fields_of
from autotune.spec.model import ModelSpec

HUB = "hub"
"""key in a catalog file for the model's id on the Hugging Face Hub"""
CONFIG = "config"
"""key in a catalog file for the model's config.json"""
_LISTED_NODES = (1, 4, 16, 128)
"""numbers of nodes in `cluster_names`, for GPUs whose NVLink domain is a node"""


def model_names() -> tuple[str, ...]:
    """Return all models, by family and size."""
    return entry_names("models")


def gpu_names() -> tuple[str, ...]:
    """Return all GPU types."""
    return entry_names("gpus")


def cluster_names() -> tuple[str, ...]:
    """Return common sizes of every GPU type. `cluster` accepts any other size too."""
    listed = []
    for name in gpu_names():
        if name != "cpu":
            nodes = usual_cluster(name, num_gpus=1 << 20).nodes_per_domain
            sizes = _LISTED_NODES if nodes == 1 else (1, nodes, 2 * nodes, 8 * nodes)
            listed += [f"{name}-{size}x{gpus_per_node(name)}" for size in sizes]
    return (*listed, "cpu-1x4")


def gpus_per_node(gpu_type: str) -> int:
    """Return the usual number of GPUs per node for this GPU type."""
    return int(read_entry("gpus", gpu_type, field="gpu").get("gpus_per_node", 8))


def usual_cluster(gpu_type: str, *, num_gpus: int) -> ClusterSpec:
    """Return a cluster of at least `num_gpus` GPUs in whole nodes of the usual size, or one smaller
    node if it is large enough."""
    per_node = min(gpus_per_node(gpu_type), num_gpus)
    return cluster_of(gpu_type, num_nodes=-(-num_gpus // per_node), gpus_per_node=per_node)


@cache
def model(name: str) -> ModelSpec:
    """Return the model with this name, or with this id on the Hugging Face Hub (`Qwen/Qwen2.5-7B`).
    For an unknown name, `CatalogError` suggests the nearest name."""
    known = hub_models().get(name.lower(), name) if "/" in name else name
    entry = read_entry("models", known, field="model")
    fields = (
        fields_of(entry[CONFIG])
        if CONFIG in entry
        else {key: entry[key] for key in entry if key != HUB}
    )
    return ModelSpec(name=known, **fields)


def published_config(spec: ModelSpec) -> Mapping[str, Any] | None:
    """Return the config.json of a catalog model, given a model with its name and shape; None for
    other models, and for models whose config.json is not in the catalog.

    Learned positions, tied embeddings and multi-token prediction layers may differ, because a study
    with longer sequences needs more positions, and trainers differ in the other two.
    """
    if spec.source or spec.name not in model_names():
        return None
    known = model(spec.name)
    ignored = {
        name: getattr(known, name) for name in ("max_positions", "tied_embeddings", "mtp_layers")
    }
    if replace(spec, **ignored) != known:
        return None
    config: Mapping[str, Any] | None = read_entry("models", spec.name, field="model").get(CONFIG)
    return config


@cache
def hub_models() -> Mapping[str, str]:
    """Return model names by their lower-case id on the Hugging Face Hub."""
    return {hub.lower(): name for name, hub in hub_ids().items()}


def hub_ids() -> Mapping[str, str]:
    """Return ids on the Hugging Face Hub by model name, for models that are on the Hub."""
    return texts_of("models", HUB)


@cache
def gpu(name: str) -> GpuSpec:
    """Return the GPU type with this name. For an unknown name, `CatalogError` suggests the nearest
    name."""
    return GpuSpec.of(name)


def cluster_of(
    gpu_type: str | GpuSpec, *, num_nodes: int = 1, gpus_per_node: int = 8
) -> ClusterSpec:
    """Return a cluster with a GPU from the catalog (or your own), and with its links; see
    `ClusterSpec.of`."""
    spec = gpu(gpu_type) if isinstance(gpu_type, str) else gpu_type
    return ClusterSpec.of(spec, num_nodes=num_nodes, gpus_per_node=gpus_per_node)


def cluster(name: str) -> ClusterSpec:
    """Return the cluster for a name like `h100-sxm-4x8`, of any size and GPU type. Raises
    `CatalogError` for any other name."""
    return ClusterSpec.named(name)
