"""Results of the tools. They are small, because an agent reads every word of them.

Configs are text (`tp=2,pp=1,...`) that every tool and command accepts. Numbers have four
significant digits; names contain units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from autotune.report.target_text import target_sentences
from autotune.reward import tokens_per_s
from autotune.spec import Estimate, ParallelConfig, Trial


class ToolAnswer(BaseModel):
    """Base of all answers. The string under each field is its description in the schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Prediction(ToolAnswer):
    """The cost model's prediction for a config."""

    step_time_s: float
    """duration of an optimizer step in seconds"""
    step_time_low_s: float
    """lower end of the step time's 90% interval"""
    step_time_high_s: float
    """upper end of the step time's 90% interval"""
    tokens_per_s: float
    """speed of the whole job"""
    mfu: float
    """model FLOPs utilization, 0 to 1"""
    peak_memory_bytes: float
    """peak memory of the GPU that uses the most"""
    oom_probability: float
    """probability of running out of memory, 0 to 1"""

    @classmethod
    def of(cls, estimate: Estimate) -> Prediction:
        """Return the prediction from an estimate of one config."""
        return cls(**{name: rounded(getattr(estimate, name)) for name in cls.model_fields})


class CheckedConfig(ToolAnswer):
    """Whether a config is valid and fits, and its prediction."""

    config: str
    """the whole config, including values that follow from the spec"""
    legal: bool
    """whether the config obeys every rule and the trainer can launch it"""
    reason: str
    """why the config is invalid; empty if it is valid"""
    fits: bool | None
    """whether the config is expected to fit into memory; None if it is invalid"""
    predicted: Prediction | None
    """the prediction; None if the config is invalid"""
    memory_bytes: float
    """capacity of one GPU"""
    time_parts_s: Mapping[str, float] = Field(default_factory=dict)
    """nonzero parts of the predicted step time"""
    memory_parts_bytes: Mapping[str, float] = Field(default_factory=dict)
    """nonzero parts of the predicted memory peak"""
    source: str = ""
    """where the cost model's constants come from"""
    assumed: list[str] = Field(default_factory=list)
    """what the prediction assumes about the model, in sentences"""


class ReviewedLaunch(ToolAnswer):
    """The review of a launch."""

    text: str
    """the review in words"""
    fits: bool | None
    """whether the launch is expected to fit; None while something is missing, or if `text` says that the launch may or may not fit"""
    missing: list[str]
    """what was not found, and how to provide it"""
    edits: list[dict[str, Any]]
    """changes that are certain to be faster, best first: knob, from, to, lines, gain with its 90% interval"""
    trials: list[dict[str, Any]]
    """if no edit is certain to be faster: up to three changes that are worth a trial, each with its
    chance of being faster"""
    warnings: list[str]
    """what is wrong or dangerous"""


class RankedConfig(ToolAnswer):
    """A config of a plan."""

    rank: int
    """place in the ranking, from 1, by predicted speed times the probability that the config fits"""
    config: str
    """the config, in the form that every tool accepts"""
    predicted: Prediction
    """what the cost model expects"""


class RankedPlan(ToolAnswer):
    """The feasible configs of a spec, best first."""

    configs: list[RankedConfig]
    """the best configs"""
    feasible: int
    """number of valid configs that are expected to fit"""
    infeasible: dict[str, int]
    """all other combinations, counted by reason"""
    nearest_miss: str
    """the config that comes closest to fitting, with the memory it would need; empty if any config fits"""
    remedies: list[str]
    """changes that would make this config fit, best first"""
    cannot_run_here: str
    """why this machine could not run the study; empty if it could"""
    source: str
    """where the cost model's constants come from"""
    assumed: list[str]
    """sentences that state what the predictions assume about the model"""


class LegalSpace(ToolAnswer):
    """The valid configs of a spec's space, before memory is considered."""

    legal: int
    """number of configs that obey every rule and that the trainer can launch"""
    knobs: dict[str, list[Any]]
    """values of each knob in these configs, for knobs with more than one value"""
    fixed: dict[str, Any]
    """knobs with the same value in all of these configs, if it is not the default"""
    excluded: dict[str, int]
    """number of invalid combinations, by the rule that excludes them"""


class ClusterRow(ToolAnswer):
    """A cluster of a comparison."""

    cluster: str
    num_gpus: int
    config: str
    """the cluster's best config; empty if no config is feasible"""
    predicted: Prediction | None
    days: float | None
    """days to train on the requested tokens"""
    cost_usd: float | None
    """cost of the same training run"""
    reason: str
    """why there is no config"""
    lacking: list[str]
    """precisions in the space that the GPU does not support; the config uses another precision"""


class TrialRow(ToolAnswer):
    """A trial, or a config's best one."""

    number: int
    """within its study"""
    config: str
    """the config, in the form that every tool accepts"""
    status: str
    """COMPLETED, STOPPED, FAILED, ..."""
    purpose: str
    """baseline (the trial that all others are compared with), search, final, ..."""
    tokens_per_s: float | None
    """measured speed; None without a measurement"""
    step_time_s: float | None
    """measured, median"""
    peak_memory_bytes: float | None
    """highest measured peak of any rank"""
    predicted_tokens_per_s: float | None
    """predicted when the trial was proposed"""
    failure: str
    """kind and message of the trial's failure; empty if it did not fail"""
    reason: str
    """why the trial was run, or how it ended; for a trial faster than the winner, first why the trial still ranks below the winner"""

    @classmethod
    def of(cls, trial: Trial) -> TrialRow:
        """Return the row of a trial."""
        measured = (
            trial.measurement
            if trial.measurement is not None and trial.measurement.step_times_s
            else None
        )
        return cls(
            number=trial.number,
            config=config_text(trial.config),
            status=str(trial.status),
            purpose=str(trial.purpose),
            tokens_per_s=rounded(tokens_per_s(trial)) if measured else None,
            step_time_s=rounded(measured.step_time_s) if measured else None,
            peak_memory_bytes=rounded(measured.peak_memory_bytes)
            if measured and measured.peak_memory_bytes
            else None,
            predicted_tokens_per_s=rounded(trial.estimate.tokens_per_s) if trial.estimate else None,
            failure=str(trial.failure) if trial.failure else "",
            reason=trial.reason,
        )


class StudySummary(ToolAnswer):
    """A study in a list."""

    id: str
    name: str
    status: str
    model: str
    cluster: str
    trials: int
    speedup: float | None
    """tokens per second of the best config relative to the baseline"""


class TargetConfig(ToolAnswer):
    """A config of the target, which was not run on the target."""

    rank: int
    """place in the ranking, from 1, according to the cost model and the proxies"""
    config: str
    """the config, in the form that every tool accepts"""
    predicted_tokens_per_s: float
    """speed of the whole job"""
    step_time_s: float
    """predicted duration of an optimizer step in seconds"""
    step_time_low_s: float
    """lower end of the step time's 90% interval"""
    step_time_high_s: float
    """upper end of the step time's 90% interval"""
    oom_probability: float
    """probability of running out of memory, 0 to 1"""
    proxies: list[int]
    """trials that ran as this config's proxy; empty if no proxy has run yet, or none can"""
    no_proxy: str
    """why the config cannot have a proxy; empty if it can"""


class TargetRanking(ToolAnswer):
    """How the configs of a larger cluster rank, according to proxies on the cluster you have."""

    cluster: str
    """the cluster of the target"""
    num_gpus: int
    """number of GPUs in the target"""
    at_hand: str
    """the cluster that runs the proxies"""
    configs: list[TargetConfig]
    """the best configs, best first"""
    known: list[str]
    """what is known about the ranking and what is not, in sentences"""

    @classmethod
    def of(cls, target: Mapping[str, Any]) -> TargetRanking:
        """Return the ranking from a document of `autotune.results.target`."""
        return cls(
            cluster=target["cluster"],
            num_gpus=target["num_gpus"],
            at_hand=target["at_hand"],
            configs=[_target_config(row) for row in target["configs"]],
            known=target_sentences(target),
        )


def _target_config(row: Mapping[str, Any]) -> TargetConfig:
    figures = ("step_time_s", "step_time_low_s", "step_time_high_s", "oom_probability")
    return TargetConfig(
        rank=row["rank"],
        config=config_text(row["config"]),
        predicted_tokens_per_s=rounded(row["tokens_per_s"]),
        proxies=list(row["proxies"]),
        no_proxy=row["no_proxy"],
        **{name: rounded(row[name]) for name in figures},
    )


class StudyReport(ToolAnswer):
    """A study with its answer so far."""

    id: str
    name: str
    status: str
    """QUEUED, RUNNING, PAUSED, STOPPING, COMPLETED, FAILED, CANCELLED"""
    message: str
    """details of the study's state, in a sentence"""
    trials: dict[str, int]
    """trials by status"""
    best: TrialRow | None
    """the winner, or the best so far"""
    baseline: TrialRow | None
    """the baseline, measured the same way"""
    speedup: float | None
    """tokens per second of the best config relative to the baseline's"""
    speedup_low: float | None
    """lower end of the speedup's 95% interval"""
    speedup_high: float | None
    """upper end of the speedup's 95% interval"""
    too_noisy: str
    """why no speedup can be claimed on this machine, and what to do; empty if the machine is quiet enough"""
    notes: list[str]
    """caveats of the speedup"""
    target: TargetRanking | None
    """the target's ranking, which replaces the best config; None without a target, and before the first proxy is chosen"""


class KnownConfig(ToolAnswer):
    """One of the best known configs."""

    config: str
    """the config, in the form that every tool accepts"""
    study: str
    """id of the study that measured the config; empty if it is only predicted"""
    tokens_per_s: float | None
    """measured"""
    predicted_tokens_per_s: float | None
    """predicted by the cost model"""


class KnownConfigs(ToolAnswer):
    """The best known configs of a model and cluster, across all studies."""

    source: str
    """basis of the answer: measured, nearest (measured on the most similar workload), cost_model, or none"""
    configs: list[KnownConfig]
    """best first"""
    notes: list[str]
    """caveats of the answer"""


class LaunchFiles(ToolAnswer):
    """The files and the command that launch a trainer with a config. Nothing was written or started."""

    trainer: str
    config: str
    argv: list[str]
    """the command line"""
    env: dict[str, str]
    """variables to set"""
    files: dict[str, str]
    """files to write first: the text by file name"""
    notes: list[str]
    """what you should know before you start the launch"""


def config_text(config: ParallelConfig | Mapping[str, Any]) -> str:
    """Return a config as text, in the form that every tool and command accepts."""
    return str(config if isinstance(config, ParallelConfig) else ParallelConfig.from_dict(config))


def rounded(value: Any) -> float:
    """Return a number rounded to four significant digits, because none here is more precise."""
    return float(f"{float(value):.4g}")


def parts(estimate_parts: Mapping[str, Any]) -> dict[str, float]:
    """Return the nonzero parts, largest first."""
    ordered = sorted(estimate_parts.items(), key=lambda item: -float(item[1]))
    return {name: rounded(value) for name, value in ordered if float(value) > 0}
