"""Explains in words and numbers why a trial won or lost: compares the parts of its reward with those
of the baseline and the runner-up.

share   contribution of a term to the total reward: (1 - w) * throughput or w * stability
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.reward.goodput import known_noise_scale, learning_rate_factor
from autotune.reward.parts import STABILITY_PARTS
from autotune.reward.stability import diverged, spikes, stability_parts
from autotune.reward.total import first_measured, reference_of, score
from autotune.spec import (
    Measurement,
    Objective,
    ParallelConfig,
    Reward,
    Trial,
    TrialPurpose,
    Workload,
)
from autotune.spec.config import changes_as_text
from autotune.spec.texts.as_text import format_duration, number_of

WEAK = 0.95
"""parts of stability below this score are mentioned"""
WORTH_SAYING = 0.01
"""parts of the step that change by more than this share of the baseline's step are mentioned"""
NO_CONTENDER = "this trial is an fp32 reference outside the search space and cannot win; other trials' losses are compared with its losses"
PROXY = "this trial is a proxy, a smaller job that represents configs of the target, and cannot win"
SIMULATED_LOSSES = "the losses are invented, because a simulated run trains nothing"
LEAST_LOSS = 5e-4
"""smaller differences of losses count as equal, nats per token"""
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a trial won or lost."""

    trial: Trial
    text: tuple[str, ...]
    """sentences, the most important first"""
    shares: Mapping[str, float]
    """contributions of throughput and stability to the total; empty without a measurement"""
    parts: Mapping[str, float]
    """parts of stability and other terms of the reward"""
    objective: Objective
    """the objective of `reward`"""
    reward: Reward | None = None
    """None without a measurement, and for a proxy, which is compared only with its prediction"""
    relative_to: str = "the baseline's"
    """the trial that this trial's speed is compared with in the reward, as a possessive: `the
    baseline's`, or without a measured baseline `trial N's` of the first measured trial"""
    against: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """comparisons by name (baseline, runner-up, winner): number, config_changes {knob: [other's,
    this trial's]}, speed_ratio, total_difference, reward (with its parts)"""
    step_parts_s: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """seconds of a step by part: (baseline, this trial), profiled if both trials were profiled, else
    predicted"""
    step_parts_source: str = ""
    """profiled or predicted"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "trial": self.trial.to_dict(),
            "text": list(self.text),
            "shares": dict(self.shares),
            "parts": dict(self.parts),
            "formulas": {
                name: part.formula for name, part in STABILITY_PARTS.items() if name in self.parts
            },
            "objective": {
                "metric": self.objective.metric,
                "stability_weight": self.objective.stability_weight,
            },
            "relative_to": self.relative_to,
            "reward": self.reward.to_dict() if self.reward is not None else None,
            "against": {name: dict(other) for name, other in self.against.items()},
            "step_parts_s": {name: list(pair) for name, pair in self.step_parts_s.items()},
            "step_parts_source": self.step_parts_source,
        }


def explain(
    trial: Trial,
    *,
    baseline: Trial | None,
    other: Trial | None,
    other_is: str = "runner-up",
    objective: Objective,
    workload: Workload,
    profiles: Mapping[int, Mapping[str, float]] | None = None,
    trials: Sequence[Trial] = (),
    can_win: bool = True,
    simulated: bool = False,
) -> Explanation:
    """Explain `trial` by comparison with `baseline` and one `other`: the runner-up for the winner,
    the winner for any other trial.

    `profiles`: seconds of a step by part, by number of the profiled trials. `trials`: all of the
    study, which may provide the gradient noise scale if the baseline does not. `can_win`: see
    `competes`. `simulated`: the runs trained nothing, so their losses are no evidence.
    """
    m = trial.measurement
    if not trial.is_measured or m is None:
        parts = stability_parts(m) if m else {}
        return Explanation(
            trial=trial, text=tuple(_failed(trial)), shares={}, parts=parts, objective=objective
        )
    if trial.purpose is TrialPurpose.PROXY:
        text = [PROXY, *_against_prediction(trial, m), *_weaknesses(m)]
        return Explanation(
            trial=trial, text=tuple(text), shares={}, parts=stability_parts(m), objective=objective
        )
    if baseline is not None and baseline.is_measured:
        first, whose = baseline, "the baseline's"
    else:
        first = first_measured(trials) or trial
        whose = f"trial {first.number}'s"
    reference = reference_of(trials, first.measurement)
    worth = score(trial, reference=reference, objective=objective, workload=workload)
    w = objective.stability_weight
    compared = {"baseline": baseline, other_is: other}
    if other is not None and baseline is not None and other.number == baseline.number:
        del compared[other_is]
    against = {
        name: _compare(trial, worth, peer, reference, objective, workload)
        for name, peer in compared.items()
        if peer is not None and peer.is_measured and peer.number != trial.number
    }
    step_parts, source = _step_parts(trial, baseline, profiles or {})
    batch_ratio = 1.0
    if reference is not None and reference.tokens_per_step:
        batch_ratio = m.tokens_per_step / reference.tokens_per_step
    text = [
        *(() if can_win else (NO_CONTENDER,)),
        *_comparisons(trial, worth, objective, against, whose),
        *_changed_parts(step_parts, source, tokens_ratio=batch_ratio),
        *_weaknesses(m),
    ]
    if m.losses and simulated:
        text.append(SIMULATED_LOSSES)
    elif m.losses and not _has_weak_loss(m):
        text.append(loss_in_words(m))
    if objective.metric == "goodput":
        with_scale = m if known_noise_scale(reference) is None else reference
        text.append(
            _progress(worth.parts["efficiency"], with_scale, whose, same_batch=batch_ratio == 1)
        )
    if batch_ratio != 1:
        text.append(_learning_rate(batch_ratio, workload, whose))
    return Explanation(
        trial=trial,
        text=tuple(text),
        shares={"throughput": (1 - w) * worth.throughput, "stability": w * worth.stability},
        parts=worth.parts,
        objective=objective,
        reward=worth,
        relative_to=whose,
        against=against,
        step_parts_s=step_parts,
        step_parts_source=source,
    )


def _has_weak_loss(m: Measurement) -> bool:
    """Whether the comparison of losses is among the weaknesses, so that it need not be repeated."""
    return m.loss_comparison is not None and stability_parts(m).get("equal_tokens", 1.0) < WEAK


def _failed(trial: Trial) -> list[str]:
    text = [
        f"trial {trial.number} ({trial.config}) has no result; its status is {trial.status.lower()}"
    ]
    if trial.failure is not None:
        where = ", ".join(
            f"{k} {v}"
            for k, v in (("rank", trial.failure.rank), ("step", trial.failure.step))
            if v is not None
        )
        text.append(str(trial.failure) + (f" ({where})" if where else ""))
        if trial.failure.exception:
            text.append(trial.failure.exception)
    elif trial.reason:
        text.append(trial.reason)
    return text


def _against_prediction(trial: Trial, m: Measurement) -> list[str]:
    """A sentence on a proxy's measured and predicted speed. It is not compared with other proxies,
    because they are different jobs."""
    if trial.estimate is None:
        return []
    predicted = float(trial.estimate.tokens_per_s)
    ratio = f"{m.tokens_per_s / predicted:.2f} times the predicted {predicted:,.0f}"
    return [
        f"the trial reached {m.tokens_per_s:,.0f} tokens/s, {ratio}. Ratios of measured to predicted speed correct the target's ranking"
    ]


def _compare(
    trial: Trial,
    worth: Reward,
    other: Trial,
    reference: Measurement | None,
    objective: Objective,
    workload: Workload,
) -> dict[str, Any]:
    """The entry of `Explanation.against` for one other trial. `worth`: the reward of `trial`."""
    assert trial.measurement is not None
    assert other.measurement is not None
    theirs = score(other, reference=reference, objective=objective, workload=workload)
    return {
        "number": other.number,
        "config_changes": {
            name: [other.config.value(name), value]
            for name, value in trial.config.values().items()
            if value != other.config.value(name)
        },
        "speed_ratio": trial.measurement.tokens_per_s / other.measurement.tokens_per_s,
        "total_difference": worth.total - theirs.total,
        "stability": theirs.stability,
        "reward": theirs.to_dict(),
    }


def _comparisons(
    trial: Trial,
    worth: Reward,
    objective: Objective,
    against: Mapping[str, Mapping[str, Any]],
    whose: str,
) -> list[str]:
    """Sentences on speed, changes and reward compared with other trials, and on the reward's
    terms."""
    text = []
    for name, other in against.items():
        ratio, difference = other["speed_ratio"], other["total_difference"]
        speed = (
            f"{ratio:.2f} times as fast as"
            if ratio >= 1
            else f"slower ({ratio:.2f} times the speed) than"
        )
        changed = changes_as_text(other["config_changes"]) or "none"
        text.append(
            f"trial {trial.number} is {speed} the {name} (trial {other['number']}), with these changes: {changed}"
        )
        side = "higher" if difference >= 0 else "lower"
        text.append(
            f"trial {trial.number}'s reward is {abs(difference):.3f} {side}, "
            f"with stability {worth.stability:.2f} ({name}: {other['stability']:.2f})"
        )
    w = objective.stability_weight
    text.append(
        f"reward {worth.total:.3f} = {1 - w:g} x {worth.throughput:.3f} "
        f"({objective.metric}, ln of the ratio to {whose}) + {w:g} x {worth.stability:.2f} "
        "(stability)"
    )
    return text


def _progress(
    efficiency: float, source: Measurement | None, whose: str, *, same_batch: bool
) -> str:
    """A sentence on the statistical efficiency of the batch. `gained`: the efficiency; `source`: the
    measurement with the gradient noise scale."""
    phi = known_noise_scale(source)
    if phi is None or source is None:
        scale = "the gradient noise scale is unknown, so larger batches are assumed to learn no more per step"
    elif math.isinf(phi):
        scale = "the gradients were pure noise, so larger batches learn as much per token"
    else:
        least = "at least " if phi != source.gradient_noise_scale else ""
        scale = f"the gradient noise scale is {least}{phi:.3g} sequences"
        if source.gradient_noise_interval is not None and not least:
            scale += " (90% interval: {:.3g} to {:.3g})".format(*source.gradient_noise_interval)
    if same_batch:
        return (
            f"each token is worth as much as one of {whose}, because the batch is the same; {scale}"
        )
    return f"each token is worth {efficiency:.2f} times as much as one of {whose}: {scale}"


def learning_rate_note(config: ParallelConfig, baseline: ParallelConfig, workload: Workload) -> str:
    """How to change the learning rate if the global batch differs from the baseline's; empty if it
    is the same."""
    batch_ratio = config.global_batch_size / baseline.global_batch_size
    return "" if batch_ratio == 1.0 else _learning_rate(batch_ratio, workload, "the baseline's")


def _learning_rate(batch_ratio: float, workload: Workload, whose: str) -> str:
    """How to change the learning rate. `batches`: this trial's global batch divided by that of the
    trial that `whose` names."""
    rule = "in proportion" if workload.optimizer == "sgd" else "by the square root"
    factor = learning_rate_factor(batch_ratio, 1.0, workload.optimizer)
    already = ", as the trial did" if workload.trainer == "native" else ""
    return (
        f"the global batch is {batch_ratio:.3g} times {whose}; multiply the learning rate by {factor:.3g} "
        f"({rule} for workload.optimizer={workload.optimizer}){already}"
    )


def _step_parts(
    trial: Trial, baseline: Trial | None, profiles: Mapping[int, Mapping[str, float]]
) -> tuple[dict[str, tuple[float | None, float | None]], str]:
    """Seconds of a step by part as (baseline, trial), and whether they are profiled or predicted;
    empty if neither is known."""
    if baseline is None or baseline.number == trial.number:
        return {}, ""
    before, after, source = profiles.get(baseline.number), profiles.get(trial.number), "profiled"
    if not before or not after:
        if trial.estimate is None or baseline.estimate is None:
            return {}, ""
        before, after, source = (
            baseline.estimate.time_parts_s.to_dict(),
            trial.estimate.time_parts_s.to_dict(),
            "predicted",
        )
    names = [n for n in dict.fromkeys([*before, *after]) if before.get(n) or after.get(n)]
    return {n: (before.get(n), after.get(n)) for n in names}, source


def _changed_parts(
    parts: Mapping[str, tuple[float | None, float | None]], source: str, *, tokens_ratio: float
) -> list[str]:
    """Sentences on the parts of the step that changed most. `tokens_ratio`: tokens per step of this
    trial divided by those of the baseline."""
    exposed = {name: pair for name, pair in parts.items() if not name.endswith("overlapped")}
    pairs = {name: ((a or 0.0) * tokens_ratio, b or 0.0) for name, (a, b) in exposed.items()}
    least = WORTH_SAYING * sum(a for a, _ in pairs.values())

    def seconds(value: float) -> str:
        return format_duration(value) if value >= least else f"less than {format_duration(least)}"

    def largest(sign: int, count: int) -> str:
        gains = sorted(((a - b) * sign, name) for name, (a, b) in pairs.items())[::-1]
        names = [name for gain, name in gains if gain > least][:count]
        return ", ".join(
            f"{name.replace('_', ' ')} from {seconds(pairs[name][0])} to {seconds(pairs[name][1])}"
            for name in names
        )

    shrunk, grown = largest(1, 3), largest(-1, 1)
    how = source if tokens_ratio == 1 else f"{source}, at the same number of tokens"
    if not shrunk:
        return []
    text = [f"parts of the step that are shorter than the baseline's ({how}): {shrunk}"]
    if grown:
        text.append(f"parts of the step that are longer ({how}): {grown}")
    return text


def _weaknesses(m: Measurement) -> list[str]:
    """Sentences on the parts of stability below `WEAK`, and on divergence."""
    peaks = spikes(m)
    evidence = {
        "headroom": f"peak memory is {(m.occupied_memory_bytes or 0) / GIB:.2f} of {(m.memory_capacity_bytes or 0) / GIB:.2f} GiB",
        "spikes": f"the gradient norm spikes at step{'s' if len(peaks) > 1 else ''} {', '.join(map(str, peaks))} after warm-up",
        "skipped": f"loss scaling skipped {m.skipped_steps} of {len(m.step_times_s)} steps",
        "fidelity": "the losses deviate from those of the fp32 reference",
        "equal_tokens": loss_in_words(m),
        "trend": "the loss grows more than its noise explains",
        "slowing": "steps become slower; a longer run would continue at the speed of the last steps",
        "jitter": f"step times vary by {m.step_time_spread:.0%}",
        "finite": f"{number_of(m.nonfinite_steps, 'step')} had a non-finite loss or gradient",
    }
    text = [
        f"{name} {value:.2f}: {evidence[name]}"
        for name, value in stability_parts(m).items()
        if value < WEAK
    ]
    broken = diverged(m)
    return text + ([f"the trial diverged: {broken.message}"] if broken else [])


def loss_in_words(m: Measurement) -> str:
    """A sentence on the losses that this trial's losses were compared with; empty without losses."""
    if not m.losses:
        return ""
    if m.reference_losses:
        return (
            "the losses were compared step by step with those of an fp32 reference on the same data"
        )
    if (c := m.loss_comparison) is None:
        return "the losses could not be compared with those of other trials, so only their trend counts"
    others = f"{number_of(c.curves, 'other trial')}"
    side = f"{abs(c.excess):.3g} {'above' if c.excess >= 0 else 'below'}"
    relation = side if abs(c.excess) >= LEAST_LOSS else "the same as"
    chance = f"; noise {c.noise:.2g}" if c.noise >= LEAST_LOSS else ""
    return f"after {c.tokens:,} tokens, the loss was {relation} that of {others} ({c.loss:.3g}), on different batches{chance}"
