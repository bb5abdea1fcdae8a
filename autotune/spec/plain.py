"""A study, and its parts, as plain JSON values and back: what the store keeps and the wire carries.

Every field of every part is written, under its own name, so that a stored study means the same after a default has changed. Reading
is strict: a key that no field has is an error, because dropping it would change what was asked.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from autotune.errors import SpecError
from autotune.spec.cluster import ClusterSpec, GpuSpec, LinkSpec
from autotune.spec.config import ParallelConfig
from autotune.spec.model import ModelSpec
from autotune.spec.study import Budget, MeasureSpec, Objective, SpaceSpec, Study
from autotune.spec.workload import Workload

Part = TypeVar("Part")


def to_plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, tuples as lists, all else as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def study_to_dict(study: Study) -> dict[str, Any]:
    """All of a study as plain values: dicts, lists, text, numbers, true, false and null."""
    return to_plain(study)  # type: ignore[no-any-return]


def study_from_dict(values: Mapping[str, Any]) -> Study:
    """The study of `study_to_dict`'s values. Raises `SpecError` for a key that it does not know, and what the parts raise."""
    plain = dict(values)
    readers: dict[str, Any] = {
        "workload": workload_from_dict,
        "space": _space,
        "objective": lambda part: _build(Objective, part),
        "budget": lambda part: _build(Budget, part),
        "measure": measure_from_dict,
        "baseline": lambda part: None if part is None else ParallelConfig.from_dict(part),
        "left_out": tuple,
        "enqueue": lambda part: tuple(ParallelConfig.from_dict(config) for config in part),
    }
    return _build(Study, {name: readers[name](value) if name in readers else value for name, value in plain.items()})


def workload_to_dict(workload: Workload) -> dict[str, Any]:
    """All of a workload as plain values."""
    return to_plain(workload)  # type: ignore[no-any-return]


def workload_from_dict(values: Mapping[str, Any]) -> Workload:
    """The workload of `workload_to_dict`'s values."""
    plain = dict(values)
    sizes = plain["global_batch_size"]
    return _build(
        Workload,
        {
            **plain,
            "model": _build(ModelSpec, plain["model"]),
            "cluster": cluster_from_dict(plain["cluster"]),
            "global_batch_size": tuple(sizes) if isinstance(sizes, list) else sizes,
        },
    )


def measure_from_dict(values: Mapping[str, Any]) -> MeasureSpec:
    """The measurement rules of plain values."""
    return _build(MeasureSpec, values)


def cluster_from_dict(values: Mapping[str, Any]) -> ClusterSpec:
    """The cluster of plain values, with its GPU and links."""
    parts = {
        "gpu": _build(GpuSpec, values["gpu"]),
        "intra_node": _build(LinkSpec, values["intra_node"]),
        "inter_node": _build(LinkSpec, values["inter_node"]),
    }
    return _build(ClusterSpec, {**values, **parts})


def canonical(values: Any) -> str:
    """Plain values as JSON text that is the same for equal values: sorted keys, no spaces, ASCII."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def fingerprint(values: Any) -> str:
    """32 hexadecimal digits that are the same for equal plain values."""
    return hashlib.blake2b(canonical(values).encode(), digest_size=16).hexdigest()


def identity(values: Any) -> str:
    """`fingerprint` of the values that say something: without those that are null, false, zero or empty.

    A field that is added later, with such a value as its default, changes no identity.
    """
    return fingerprint(_said(values))


def finite(values: Any) -> Any:
    """The values with null in place of every number that JSON cannot write (nan and infinities)."""
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {str(key): finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return values


def _said(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: said for key, item in value.items() if (said := _said(item))}
    return [_said(item) for item in value] if isinstance(value, list | tuple) else value


def _space(values: Mapping[str, Any]) -> SpaceSpec:
    knobs = {name: tuple(allowed) for name, allowed in values.get("knobs", {}).items()}
    extra = {name: tuple(allowed) for name, allowed in values.get("extra", {}).items()}
    sizes = tuple(values.get("world_sizes", ()))
    return _build(SpaceSpec, {**values, "knobs": knobs, "world_sizes": sizes, "extra": extra})


def _build(kind: type[Part], values: Mapping[str, Any]) -> Part:
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise SpecError(
                f"{kind.__name__} has no field called {name!r}",
                remedy=f"did you mean {near[0]}?" if near else "was it written by a newer release?",
                field=str(name),
            )
    return kind(**values)
