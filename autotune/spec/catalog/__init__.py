"""Models, GPUs and clusters by name: one YAML file each, read when it is asked for.

    models/NAME.yaml    the fields of `ModelSpec`
    gpus/NAME.yaml      the fields of `GpuSpec` (memory as GiB), with the links that come with it: intra_node, inter_node
    clusters            GPU-NODESxGPUS, of any size: `a100-80gb-16x8` is 16 nodes of 8 GPUs

Assumptions: peaks are dense; memory is what CUDA reports, a little less than the name says; links are per GPU and direction; prices are
public list prices, which change. To add a model or a GPU, add its file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from autotune.errors import CatalogError
from autotune.spec.checks import nearest
from autotune.spec.cluster import ClusterSpec, GpuSpec, LinkSpec
from autotune.spec.model import ModelSpec

GIB = 1 << 30
_HERE = Path(__file__).parent
_CLUSTER_NAME = re.compile(r"(?P<gpu>[a-z0-9-]+)-(?P<nodes>[0-9]{1,7})x(?P<gpus>[0-9]{1,4})")
_LISTED_SIZES = ((1, 8), (4, 8), (16, 8), (128, 8))


def model_names() -> tuple[str, ...]:
    """All models, by size as far as the family goes, then by name."""
    return _names("models")


def gpu_names() -> tuple[str, ...]:
    """All GPU types."""
    return _names("gpus")


def cluster_names() -> tuple[str, ...]:
    """The common sizes of every GPU type; `cluster` knows all others as well."""
    listed = [f"{gpu}-{n}x{g}" for gpu in gpu_names() if gpu != "cpu" for n, g in _LISTED_SIZES]
    return (*listed, "cpu-1x4")


@cache
def model(name: str) -> ModelSpec:
    """The model of that name; `CatalogError` names the nearest one when there is none."""
    return ModelSpec(name=name, **_read("models", name, field="model"))


@cache
def gpu(name: str) -> GpuSpec:
    """The GPU type of that name; `CatalogError` names the nearest one when there is none."""
    values = dict(_read("gpus", name, field="gpu"))
    del values["intra_node"], values["inter_node"]
    return GpuSpec(name=name, memory_bytes=float(round(values.pop("memory_gib") * GIB)), **values)


def cluster_of(gpu_type: str | GpuSpec, *, num_nodes: int = 1, gpus_per_node: int = 8) -> ClusterSpec:
    """A cluster of a catalog GPU (or of one's own) with the links that come with it.

    A GPU that the catalog does not know gets the default links of `ClusterSpec`: give links of your own with `dataclasses.replace`.
    """
    spec = gpu(gpu_type) if isinstance(gpu_type, str) else gpu_type
    links: dict[str, Any] = {}
    if spec.name in gpu_names():
        values = _read("gpus", spec.name, field="gpu")
        links = {link: LinkSpec(**values[link]) for link in ("intra_node", "inter_node")}
    name = f"{spec.name}-{num_nodes}x{gpus_per_node}"
    return ClusterSpec(name=name, gpu=spec, num_nodes=num_nodes, gpus_per_node=gpus_per_node, **links)


def cluster(name: str) -> ClusterSpec:
    """The cluster of a name like `h100-sxm-4x8`: any size of any GPU type. `CatalogError` when it is no such name."""
    found = _CLUSTER_NAME.fullmatch(name)
    if not found:
        raise CatalogError(
            f"no cluster is called {name!r}",
            remedy=nearest(name, cluster_names()) or "write GPU-NODESxGPUS, e.g. h100-sxm-4x8 for 4 nodes of 8",
            field="cluster",
        )
    if found["gpu"] not in gpu_names():
        known = ", ".join(gpu_names())
        raise CatalogError(
            f"no GPU is called {found['gpu']!r} (in cluster {name!r})",
            remedy=nearest(found["gpu"], gpu_names()) or f"there are {known}",
            field="cluster",
        )
    return cluster_of(found["gpu"], num_nodes=int(found["nodes"]), gpus_per_node=int(found["gpus"]))


@cache
def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted((path.stem for path in (_HERE / kind).glob("*.yaml")), key=_by_size))


def _by_size(name: str) -> tuple[str, float, str]:
    """Sorts llama-8b before llama-70b and gpt2-small before gpt2-xl."""
    words = {"small": 0.0, "medium": 1.0, "large": 2.0, "xl": 3.0}
    family, _, size = name.rpartition("-")
    number = re.fullmatch(r"([0-9.]+)b", size)
    return (family or name, float(number[1]) if number else words.get(size, 0.0), name)


@cache
def _read(kind: str, name: str, *, field: str) -> Mapping[str, Any]:
    names = _names(kind)
    if name not in names:
        what = {"models": "model", "gpus": "GPU"}[kind]
        raise CatalogError(
            f"no {what} is called {name!r}",
            remedy=nearest(name, names) or f"there are {', '.join(names)}",
            field=field,
        )
    import yaml

    values: dict[str, Any] = yaml.safe_load((_HERE / kind / f"{name}.yaml").read_text(encoding="utf-8"))
    return values
