"""Frozen values that everything else speaks in: model, cluster, workload, config, estimate, trial, study.

    config.py     ParallelConfig, the point that is tuned; ConfigTable, many of them as columns
    model.py      ModelSpec         cluster.py   GpuSpec, LinkSpec, ClusterSpec        workload.py  Workload
    estimate.py   Estimate          trial.py     Trial, Measurement, Failure, Reward   study.py     Study and its parts
    catalog/      models and GPUs by name, one YAML file each

Units are SI and bytes; a name ends in its unit. Nothing here does I/O but the catalog, when it is asked.
"""

from autotune.spec.cluster import ClusterSpec, GpuSpec, LinkSpec
from autotune.spec.config import FIELDS, PRECISIONS, RECOMPUTES, SCHEDULES, WORDS, ConfigTable, ParallelConfig
from autotune.spec.estimate import Estimate, MemoryParts, TimeParts
from autotune.spec.model import ModelSpec
from autotune.spec.study import Budget, MeasureSpec, Objective, SpaceSpec, Study, StudyStatus
from autotune.spec.trial import Failure, FailureKind, Measurement, Reward, Trial, TrialPurpose, TrialStatus
from autotune.spec.workload import Workload

__all__ = [
    "FIELDS",
    "PRECISIONS",
    "RECOMPUTES",
    "SCHEDULES",
    "WORDS",
    "Budget",
    "ClusterSpec",
    "ConfigTable",
    "Estimate",
    "Failure",
    "FailureKind",
    "GpuSpec",
    "LinkSpec",
    "MeasureSpec",
    "Measurement",
    "MemoryParts",
    "ModelSpec",
    "Objective",
    "ParallelConfig",
    "Reward",
    "SpaceSpec",
    "Study",
    "StudyStatus",
    "TimeParts",
    "Trial",
    "TrialPurpose",
    "TrialStatus",
    "Workload",
]
