"""autotune: the fastest stable configuration to train a model on a cluster, in a handful of short
real trials.

    study  = autotune.load_study("spec.yaml")
    result = autotune.tune(study)                        # result.best.config, result.trials, result.speedup
    table  = autotune.estimate(study.workload, configs)  # one config, or a list of them
    found  = autotune.review("train.sh", cluster="h100-sxm")   # found.edits, found.estimate: review of an existing launch
    answer, = autotune.fit(study)                        # answer.verdict, answer.allocated_bytes: a dry run of the model, without a GPU

Names are imported on first use, so that `import autotune` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.api import fit, load_study, review, tune
    from autotune.client import AsyncClient, Client
    from autotune.cost import estimate
    from autotune.observing.advice import advise
    from autotune.observing.callback import AutotuneCallback
    from autotune.spec import (
        ClusterSpec,
        Failure,
        FailureKind,
        Measurement,
        ModelSpec,
        ParallelConfig,
        Study,
        Trial,
        TrialStatus,
        Workload,
    )

__version__ = "0.1.0"

_HOME = {
    "AsyncClient": "autotune.client",
    "AutotuneCallback": "autotune.observing.callback",
    "Client": "autotune.client",
    "ClusterSpec": "autotune.spec",
    "Failure": "autotune.spec",
    "FailureKind": "autotune.spec",
    "Measurement": "autotune.spec",
    "ModelSpec": "autotune.spec",
    "ParallelConfig": "autotune.spec",
    "Study": "autotune.spec",
    "Trial": "autotune.spec",
    "TrialStatus": "autotune.spec",
    "Workload": "autotune.spec",
    "advise": "autotune.observing.advice",
    "estimate": "autotune.cost",
    "fit": "autotune.api",
    "load_study": "autotune.api",
    "review": "autotune.api",
    "tune": "autotune.api",
}

__all__ = [
    "AsyncClient",
    "AutotuneCallback",
    "Client",
    "ClusterSpec",
    "Failure",
    "FailureKind",
    "Measurement",
    "ModelSpec",
    "ParallelConfig",
    "Study",
    "Trial",
    "TrialStatus",
    "Workload",
    "__version__",
    "advise",
    "estimate",
    "fit",
    "load_study",
    "review",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
