"""Frozen values that the whole package shares: model, cluster, workload, config, estimate, trial,
study.

    knob.py            Knob, the only declaration of each tunable value
    config.py          ParallelConfig, one point in the search space
    table.py           ConfigTable, many configs as columns
    knob_use.py        KnobUse, how a part of the program handles each knob
    model.py           ModelSpec
    model_code.py      ModelCode, the user's code that builds a model
    cluster.py         GpuSpec, LinkSpec, ClusterSpec
    workload.py        Workload, Peft
    post_training.py   PostTraining, Rollout
    lengths.py         Lengths, a distribution of sequence lengths
    study.py           Study and its parts
    failures.py        time lost to failures and checkpoints
    estimate.py        Estimate
    runs/              Trial, Measurement, ObservedRun, DryRun; versions.py: selecting measurements by software versions
    hugging_face/      shapes from a `config.json`; figures.py: values that exports carry over
    catalog/           models and GPUs by name, one YAML file each; catalog_files.py reads them
    texts/             quantities with units, values as text, usual names of knobs, secrets
    plain.py           values as plain JSON and back
    checks.py          checks of values, and suggestions for unknown names

Quantities are in SI units and bytes, and names end in the unit. Only the catalog does I/O, on first
use.
"""

from autotune.spec.cluster import ClusterSpec, GpuSpec, LinkSpec
from autotune.spec.config import (
    FIELDS,
    KNOBS,
    PRECISIONS,
    SCHEDULES,
    ParallelConfig,
    config_changes,
    config_label,
)
from autotune.spec.estimate import Estimate, MemoryParts, TimeParts
from autotune.spec.knob import Knob
from autotune.spec.knob_use import KnobUse
from autotune.spec.model import ModelSpec
from autotune.spec.model_code import LayerKind, ModelCode
from autotune.spec.runs.dry_run import (
    MEMORY_CATEGORIES,
    CollectiveCall,
    DryRun,
    MatrixProduct,
    MemorySample,
    ModuleCost,
    Moment,
    Phase,
)
from autotune.spec.runs.measurement import LossComparison, Measurement
from autotune.spec.runs.observed import ObservedRun, Outcome
from autotune.spec.runs.trial import (
    Failure,
    FailureKind,
    Reward,
    StandsFor,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.spec.study import (
    Budget,
    MeasureSpec,
    Objective,
    SpaceSpec,
    Study,
    StudyStatus,
    Wanted,
)
from autotune.spec.table import ConfigTable
from autotune.spec.texts.as_text import number_of
from autotune.spec.workload import Peft, Workload

__all__ = [
    "FIELDS",
    "KNOBS",
    "MEMORY_CATEGORIES",
    "PRECISIONS",
    "SCHEDULES",
    "Budget",
    "ClusterSpec",
    "CollectiveCall",
    "ConfigTable",
    "DryRun",
    "Estimate",
    "Failure",
    "FailureKind",
    "GpuSpec",
    "Knob",
    "KnobUse",
    "LayerKind",
    "LinkSpec",
    "LossComparison",
    "MatrixProduct",
    "MeasureSpec",
    "Measurement",
    "MemoryParts",
    "MemorySample",
    "ModelCode",
    "ModelSpec",
    "ModuleCost",
    "Moment",
    "Objective",
    "ObservedRun",
    "Outcome",
    "ParallelConfig",
    "Peft",
    "Phase",
    "Reward",
    "SpaceSpec",
    "StandsFor",
    "Study",
    "StudyStatus",
    "TimeParts",
    "Trial",
    "TrialPurpose",
    "TrialStatus",
    "Wanted",
    "Workload",
    "config_changes",
    "config_label",
    "number_of",
]
