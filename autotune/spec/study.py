"""The specification of a study: one tuning job, as frozen values. `autotune.schema` reads it from
YAML, command line and REST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autotune.errors import SpecError
from autotune.spec.cluster import ClusterSpec
from autotune.spec.config import ParallelConfig
from autotune.spec.failures import CheckpointPolicy, Failures
from autotune.spec.knob import Knob
from autotune.spec.plain import Plain, to_plain
from autotune.spec.workload import Workload

METRICS = ("throughput", "goodput", "cost")
"""names of the metrics of `Objective`"""


class StudyStatus(StrEnum):
    """The state of a study."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether this state never changes."""
        return self in (StudyStatus.COMPLETED, StudyStatus.FAILED, StudyStatus.CANCELLED)


class Wanted(StrEnum):
    """The action that users requested for a study. Only users change the request, and only the
    study's controller changes the study's status."""

    RUN = "run"
    PAUSE = "pause"
    """no new trials start; running trials finish"""
    STOP = "stop"
    """running trials finish, then the best config is named"""
    CANCEL = "cancel"
    """running trials are killed"""

    def may_become(self, other: Wanted) -> bool:
        """Return whether `other` may be requested after this request. A pause can be undone, a stop
        or a cancel cannot."""
        return other in (self, Wanted.CANCEL) or self in (Wanted.RUN, Wanted.PAUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSpec:
    """Which values each knob may take. All valid combinations are enumerated."""

    name: str = "inline"
    """name of the file in search_spaces/, or `inline`"""
    knobs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """allowed values by knob. Omitted knobs keep their default. If dp and accumulation_steps are
    omitted, they follow from world size and batch. If precision is omitted, it is bf16, or fp16 or
    fp32 if the GPU has no bf16"""
    world_sizes: tuple[int, ...] = ()
    """numbers of ranks that may be used; empty means all GPUs in the cluster"""
    extra: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """the study's own knobs: allowed values by name, the default first"""

    @property
    def own_knobs(self) -> tuple[Knob, ...]:
        """The declarations of the study's own knobs, sorted by name. Raises `SpecError` for invalid
        values."""
        return tuple(Knob.own(name, values) for name, values in sorted(self.extra.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is maximized."""

    metric: str = "throughput"
    """throughput, goodput (throughput times statistical efficiency) or cost (tokens per unit of
    money or energy)"""
    stability_weight: float = 0.2
    """w in (1 - w) * throughput + w * stability, 0 to 1"""
    failures: Failures | None = None
    """cluster failures and the time to save a checkpoint; used by the metric goodput"""

    def training_share(self, ranks: int, gpus_per_node: int) -> float:
        """Return the fraction of time that failures on this many ranks leave for training; 1 unless
        the metric is goodput and failures are set."""
        if self.metric != "goodput" or self.failures is None:
            return 1.0
        return max(1e-6, 1.0 - self.failures.policy(-(-ranks // gpus_per_node)).lost_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a study; the first limit that is reached ends the study."""

    max_trials: int = 20
    """number of search trials, not counting the baseline and final trials"""
    max_wall_s: float = 3600.0
    """seconds since the start of the study, excluding pauses"""
    max_failed_trials: int = 10
    """failed trials"""
    max_gpu_s: float | None = None
    """limit in rank-seconds; None if unlimited"""
    train_tokens: float | None = None
    """length of your training run in tokens: the search ends when the next trial would take more
    time than it saves in this run. None means a run as long as 200 trials"""
    min_gain: float | None = None
    """without `train_tokens`: the search ends when the expected relative gain of the next eight
    trials falls below this fraction. 0 disables this limit"""
    parallel_trials: int = 1
    """maximum number of trials that run at once, if the runner has the capacity"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSpec(Plain):
    """How a trial is measured."""

    warmup_steps: int = 2
    """optimizer steps before the measurement starts"""
    first_look: int = 3
    """number of measured steps (at least 3) after which a search trial that is far slower than the
    best is stopped; with 0, no trial is stopped before `min_steps`"""
    min_steps: int = 5
    """minimum number of measured steps of a trial that may still win"""
    max_steps: int = 30
    """maximum number of measured steps in a trial"""
    precision: float = 0.03
    """the trial ends when the 95% confidence interval of the median step time is within +- this
    fraction"""
    finalists: int = 2
    """minimum number of best configs that are re-measured with the baseline before a winner is
    named; more configs are re-measured if they are statistically tied"""
    final_rounds: int = 2
    """minimum number of rounds in which finalists and baseline are re-measured side by side; up to
    twice as many runs if there is no clear winner"""
    stability_steps: int = 0
    """number of steps in the last round, to judge the stability of losses, norms and memory; has an
    effect only if larger than the number of steps in the other rounds"""
    start_timeout_s: float = 120.0
    """deadline from launch to the first step, in seconds"""
    step_timeout_s: float = 60.0
    """deadline between two steps, s"""
    trial_timeout_s: float = 600.0
    """deadline for a whole trial, s"""


SIMULATED = "simulated"
"""registered name of the runner that simulates trials with the cost model; its measurements are not
evidence about hardware"""


DEFAULT_SEARCHER = "bayesian"
"""registered name of the default searcher"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Plain):
    """One tuning job: workload x space x objective x budget x searcher."""

    name: str
    """name of the study"""
    workload: Workload
    """the model, data and cluster to tune for; for a study with a target, this is the target's
    workload"""
    space: SpaceSpec
    """which configs exist"""
    objective: Objective = Objective()
    """what is maximized"""
    budget: Budget = Budget()
    """limits of the study"""
    measure: MeasureSpec = MeasureSpec()
    """how a trial is measured"""
    searcher: str = DEFAULT_SEARCHER
    """registered name of the searcher"""
    trainer: str = "native"
    """registered name of the trainer"""
    trainer_options: Mapping[str, Any] = field(default_factory=dict)
    """options of the trainer, e.g. argv and metrics of `command`"""
    same_data: bool = True
    """whether every config trains on the same batches in the same order; only if true are losses
    compared step by step with an fp32 reference"""
    runner: str = "ray"
    """registered name of the runner"""
    runner_options: Mapping[str, Any] = field(default_factory=dict)
    """options of the runner, e.g. the faults of `simulated`"""
    seed: int = 0
    """seed of searcher, weights and data"""
    data: str | None = None
    """text or .bin file to train on; None means the bundled text"""
    baseline: ParallelConfig | None = None
    """the baseline; None means pure data parallelism with micro-batch 1, in the space's first
    precision"""
    enqueue: tuple[ParallelConfig, ...] = ()
    """configs to try first"""
    left_out: tuple[str, ...] = ()
    """enqueued configs that were dropped because this cluster cannot run them, each with the
    reason"""
    filled_in: tuple[str, ...] = ()
    """varying knobs that enqueued configs did not set, with the values that the knobs got"""
    check: bool = True
    """whether a program that is new to the store is first checked with a few steps"""
    calibrate: bool = True
    """whether a cluster without a calibration gets a quick calibration before the first real
    trial"""
    keeps_outputs: bool = False
    """whether a program's trials write to its usual location (`outputs: keep`), each replacing the
    previous output"""
    unwatched: bool = False
    """whether the probe is off (`probe: false`)"""
    at_hand: ClusterSpec | None = None
    """the cluster on which trials run, if the workload's cluster, the target, is larger. Trials are
    then proxies, and each one represents a config of the workload. None means that trials run on
    the workload's cluster"""

    def __post_init__(self) -> None:
        if self.at_hand is not None:
            _check_target(self.workload.cluster, self.at_hand, self.objective)
            _check_searcher_of_proxies(self.searcher)
            _check_no_baseline(self.baseline)

    @property
    def reference_batches(self) -> tuple[int, ...]:
        """Global batch sizes at which losses in lower precisions are compared with an fp32
        reference; none if stability does not count, if configs train on different data, or if
        trials are proxies."""
        compares = self.objective.stability_weight > 0 and self.same_data and self.at_hand is None
        return self.workload.global_batch_sizes if compares else ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values. A study without a target has no `at_hand`, so its fingerprint
        is the same as before targets existed."""
        values = Plain.to_dict(self)
        return (
            values
            if self.at_hand is not None
            else {k: v for k, v in values.items() if k != "at_hand"}
        )


def is_same_study(
    stored: Study, stored_spec: Mapping[str, Any], study: Study, spec: Mapping[str, Any]
) -> bool:
    """Return whether a stored study has the same values as `study`, or has the same spec (if `spec`
    is not empty). If the model's code has changed, the studies differ."""
    is_same = stored.to_dict() == study.to_dict() or (
        bool(spec) and to_plain(stored_spec) == to_plain(spec)
    )
    return is_same and stored.workload.model.code == study.workload.model.code


def _check_searcher_of_proxies(searcher: str) -> None:
    """Raise `SpecError` for a searcher that a study with a target would not use."""
    if searcher != DEFAULT_SEARCHER:
        raise SpecError(
            f"a study with a target chooses its proxies itself, but searcher={searcher}",
            remedy="omit `searcher`; a study that runs on the target itself, without `target`, accepts any searcher",
            field="searcher",
        )


def _check_no_baseline(baseline: ParallelConfig | None) -> None:
    """Raise `SpecError` if a study with a target has a baseline, because nothing would be compared
    with it."""
    if baseline is not None:
        raise SpecError(
            f"proxies are different jobs and are never compared with a baseline, but baseline={baseline}",
            remedy="omit `baseline`, or put the config under `enqueue` so that its proxy runs first; a "
            "study that runs on the target itself, without `target`, accepts a baseline",
            field="baseline",
        )


def _check_target(target: ClusterSpec, at_hand: ClusterSpec, objective: Objective) -> None:
    """Raise `SpecError` for a target that has no proxy on the available cluster."""
    if target.gpu.name != at_hand.gpu.name:
        raise SpecError(
            f"proxies must run on the target's GPU type, but the target {target.name} has {target.gpu.name} and your cluster {at_hand.name} "
            f"has {at_hand.gpu.name}",
            remedy=f"run the study on a node of {target.gpu.name}, or compare GPU types with `autotune plan --clusters`",
            field="target.cluster",
        )
    if target.num_gpus <= at_hand.num_gpus:
        raise SpecError(
            f"a target must have more GPUs than the cluster that runs the trials, but {target.name} has {target.num_gpus:,} and {at_hand.name} has {at_hand.num_gpus:,}",
            remedy="set `target` to the planned job's cluster and `cluster` to the trials' cluster, or omit `target`",
            field="target.cluster",
        )
    if objective.metric != "throughput":
        raise SpecError(
            f"a target's configs are ranked by throughput, but objective.metric={objective.metric}; proxies do not show how much the model learns from a batch, or what a batch costs, on the target",
            remedy="set objective.metric to throughput",
            field="objective.metric",
        )


def policy_for(
    study: Study, config: ParallelConfig, step_s: float | None
) -> CheckpointPolicy | None:
    """Return the checkpoint plan of a study's config; None if the spec does not describe
    failures."""
    failures = study.objective.failures
    per_node = study.workload.cluster.gpus_per_node
    return (
        failures.policy(-(-config.world_size // per_node), step_s) if failures is not None else None
    )
