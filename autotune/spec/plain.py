"""A study, and its parts, as plain JSON values and back: what the store keeps and the wire carries.

Every field of every part is written, under its own name, so that a stored study means the same after a default has changed. Reading
is strict: a key that no field has is an error, because dropping it would change what was asked.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from autotune.errors import SpecError
from autotune.spec.checks import nearest
from autotune.spec.cluster import ClusterSpec, GpuSpec, LinkSpec
from autotune.spec.config import ParallelConfig
from autotune.spec.dry_run import (
    CollectiveCall,
    DryRun,
    MatrixProduct,
    MemorySample,
    ModuleCost,
    Moment,
)
from autotune.spec.lengths import Lengths
from autotune.spec.model import ModelSpec
from autotune.spec.model_code import ModelCode
from autotune.spec.post_training import PostTraining, Rollout
from autotune.spec.study import Budget, MeasureSpec, Objective, SpaceSpec, Study
from autotune.spec.workload import Peft, Workload

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
    """All of a study as plain values: dicts, lists, text, numbers, true, false and null. A study without a target has no `at_hand`, so its fingerprint is
    what it was before there were targets."""
    values: dict[str, Any] = to_plain(study)
    return values if study.at_hand is not None else {k: v for k, v in values.items() if k != "at_hand"}


def is_same_study(kept: Study, kept_spec: Mapping[str, Any], study: Study, spec: Mapping[str, Any]) -> bool:
    """Whether a study of the same values, or of the same spec where there is one, was kept. A model whose code has changed makes another study."""
    is_same = study_to_dict(kept) == study_to_dict(study) or (bool(spec) and to_plain(kept_spec) == to_plain(spec))
    return is_same and kept.workload.model.code == study.workload.model.code


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
        "filled_in": tuple,
        "enqueue": lambda part: tuple(ParallelConfig.from_dict(config) for config in part),
        "at_hand": lambda part: None if part is None else cluster_from_dict(part),
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
            "model": model_from_dict(plain["model"]),
            "cluster": cluster_from_dict(plain["cluster"]),
            "global_batch_size": tuple(sizes) if isinstance(sizes, list) else sizes,
            **({"peft": _build(Peft, plain["peft"])} if plain.get("peft") else {}),
            **({"rl": _post_training(plain["rl"])} if plain.get("rl") else {}),
        },
    )


def _post_training(values: Mapping[str, Any]) -> PostTraining:
    lengths = {
        name: _build(Lengths, {**values[name], "values": tuple(values[name]["values"])})
        for name in ("prompt_lengths", "response_lengths")
    }
    rollout, critic = values.get("rollout"), values.get("critic")
    rates = tuple((int(tp), float(rate)) for tp, rate in rollout["tokens_per_s_per_gpu"]) if rollout else ()
    return _build(
        PostTraining,
        {
            **values,
            **lengths,
            "rollout": _build(Rollout, {**rollout, "tokens_per_s_per_gpu": rates}) if rollout else None,
            "critic": model_from_dict(critic) if critic else None,
        },
    )


def model_from_dict(values: Mapping[str, Any]) -> ModelSpec:
    """The model of plain values, with its code."""
    code = values.get("code")
    return _build(ModelSpec, {**values, "code": _build(ModelCode, code)} if code else values)


def dry_run_from_dict(values: Mapping[str, Any]) -> DryRun:
    """The dry run of `to_plain`'s values."""
    kinds = {"modules": ModuleCost, "products": MatrixProduct}
    parts: dict[str, Any] = {
        name: tuple(_build(kind, part) for part in values.get(name, ())) for name, kind in kinds.items()
    }
    calls = ({**call, "ranks": tuple(call["ranks"])} for call in values["collectives"])
    samples = {name: tuple(_sample(part) for part in values[name]) for name in ("phase_peaks", "timeline")}
    parts |= {**samples, "peak": _sample(values["peak"]), "guesses": tuple(values.get("guesses", ()))}
    return _build(DryRun, {**values, **parts, "collectives": tuple(_build(CollectiveCall, call) for call in calls)})


def _sample(values: Mapping[str, Any]) -> MemorySample:
    return _build(MemorySample, {**values, "moment": _build(Moment, values["moment"])})


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
    """`fingerprint` of the values that say something: without those that are null, false, zero or empty, and without what the catalog adds to a GPU's
    datasheet.

    A field that is added later, with such a value as its default, changes no identity; nor does what becomes known of a GPU that was stored before.
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


_ADDED = frozenset({"host_bytes_per_s", "measured_flops_per_s", "rated_watts", "usual_fabric"})
"""fields of `GpuSpec` that say more of the same GPU than stores hold of it"""


def _said(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: said for key, item in value.items() if key not in _ADDED and (said := _said(item))}
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
            raise SpecError(
                f"{kind.__name__} has no field called {name!r}",
                remedy=nearest(name, known) or "was it written by a newer release?",
                field=str(name),
            )
    return kind(**values)
