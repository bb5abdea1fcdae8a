"""Where studies and stores come from: files, mappings, addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import SpecError
from autotune.ports import Store
from autotune.spec import ClusterSpec, Estimate, ParallelConfig, Study

if TYPE_CHECKING:
    from autotune.plan import Plan, WhatIf


def load_study(
    source: str | Path | Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None, base: Path | None = None
) -> Study:
    """The study of a spec file (YAML or JSON; `-`: standard input) or of a spec as a mapping.

    `overrides` replace keys of the document; a dotted key reaches inside: `{"budget.max_trials": 5}`. `base`: folder of the paths in a
    mapping (None: paths are refused); those in a file are relative to the file. Raises `SpecError`.
    """
    from autotune.schema import parse_study

    document = read_document(source, overrides=overrides)
    if not isinstance(source, Mapping):
        base = Path.cwd() if str(source) == "-" else Path(source).absolute().parent
    return parse_study(document, base=base, local_cluster=_local_cluster)


def read_document(
    source: str | Path | Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The spec as a document of plain values, with the overrides in place. Raises `SpecError`."""
    from autotune.schema import read_spec

    document = deepcopy(dict(source)) if isinstance(source, Mapping) else read_spec(source)
    for key, value in (overrides or {}).items():
        *path, last = key.split(".")
        inner: Any = document
        for name in path:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SpecError(f"{key!r} reaches into {name!r}, which is {inner!r} and no mapping", field=name)
        inner[last] = value
    return document


def open_store(url: str | Path | None = None) -> Store:
    """The results database at `url` (None: AUTOTUNE_STORE, else an SQLite file in the user's data folder). Raises `StoreError`."""
    from autotune.store import open_store as open_sql

    return open_sql(url)


def plan_of(study: Study, *, top: int = 10, store: Store | None = None) -> Plan:
    """The space ranked by the cost model, with this cluster's calibration when `store` holds one. Raises `InfeasibleError`."""
    from autotune.plan import plan
    from autotune.space import SearchSpace
    from autotune.wiring.assembly import stored_calibration

    space = SearchSpace.build(study.workload, study.space)
    return plan(space, calibration=stored_calibration(study.workload, store), top=top)


def what_if_of(
    study: Study, gpus: Sequence[int], *, tokens: float | None = None, store: Store | None = None
) -> tuple[WhatIf, ...]:
    """The best of the study's space on clusters of other sizes, with days and cost for a budget of `tokens`."""
    from autotune.plan import what_if
    from autotune.wiring.assembly import stored_calibration

    known = stored_calibration(study.workload, store)
    return what_if(study.workload, study.space, gpus, tokens=tokens, calibration=known)


def estimate_of(study: Study, config: ParallelConfig, *, store: Store | None = None) -> tuple[Estimate, str]:
    """One config's estimate, with this cluster's calibration when `store` holds one, and where the constants come from."""
    from autotune.cost import calibration_for, estimate
    from autotune.wiring.assembly import stored_calibration

    constants = stored_calibration(study.workload, store) or calibration_for(study.workload)
    return estimate(study.workload, config, calibration=constants), constants.source


def _local_cluster() -> ClusterSpec:
    from autotune.detect import local_cluster

    return local_cluster()
