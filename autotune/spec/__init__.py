"""Frozen values that the whole package shares: model, cluster, workload, config, estimate, trial, study.

    knob.py       Knob, the one declaration of each tunable value                      table.py     ConfigTable, many configs as columns
    config.py     ParallelConfig, the point that is tuned                              knob_use.py  KnobUse, what a part of the program does with each knob
    model.py      ModelSpec         cluster.py   GpuSpec, LinkSpec, ClusterSpec        workload.py  Workload
    estimate.py   Estimate          trial.py     Trial, Measurement, Failure, Reward   study.py     Study and its parts
    loss_comparison.py  LossComparison, a trial's loss against other configs' at equal tokens
    catalog/      models and GPUs by name, one YAML file each

Units are SI and bytes; a name ends in its unit. Only the catalog does I/O, on first use.
"""

from autotune.spec.cluster import ClusterSpec, GpuSpec, LinkSpec
from autotune.spec.config import FIELDS, KNOBS, PRECISIONS, SCHEDULES, ParallelConfig, config_label
from autotune.spec.estimate import Estimate, MemoryParts, TimeParts
from autotune.spec.knob import Knob
from autotune.spec.knob_use import KnobUse
from autotune.spec.loss_comparison import LossComparison
from autotune.spec.model import ModelSpec
from autotune.spec.study import Budget, MeasureSpec, Objective, SpaceSpec, Study, StudyStatus
from autotune.spec.table import ConfigTable
from autotune.spec.trial import Failure, FailureKind, Measurement, Reward, Trial, TrialPurpose, TrialStatus
from autotune.spec.workload import Workload

__all__ = [
    "FIELDS",
    "KNOBS",
    "PRECISIONS",
    "SCHEDULES",
    "Budget",
    "ClusterSpec",
    "ConfigTable",
    "Estimate",
    "Failure",
    "FailureKind",
    "GpuSpec",
    "Knob",
    "KnobUse",
    "LinkSpec",
    "LossComparison",
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
    "config_label",
]
