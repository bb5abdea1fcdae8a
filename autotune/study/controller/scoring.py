"""Scoring: an attempt's end becomes a terminal trial, with its reward or its failure.

Rewards are relative to the baseline; when that could not be measured, to the first config that was.
What the loss should look like is known from a trial in fp32 of the same global batch and seed: the
baseline, where it is fp32 (it costs nothing more), else a reference trial of this or an earlier
study. Every global batch has its own: after as many steps, or as many tokens, another batch is at
another loss for good reasons. A trainer whose configs do not see the same batches in the same order
(`Study.same_data`) has no such reference: there a loss is held against those of the other configs
at the same number of tokens. Only trials that have ended before are looked at, and the comparison is stored with
the measurement, so that no later trial changes a score.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from autotune.ports import AttemptEnded
from autotune.reward import (
    LossCurve,
    RunNoise,
    compare_at_equal_tokens,
    diverged,
    score,
    stability_parts,
    with_noise_scale,
)
from autotune.spec import Failure, FailureKind, Measurement, Study, Trial, TrialPurpose, TrialStatus
from autotune.study.controller.infeasible import too_many_ranks

HOPELESS = 0.99
"""above this predicted probability of running out of memory a guess of the user is not tried
either"""
FOUND_WORSE = 0.5
"""a trial whose loss at the same number of tokens scores less is not what other losses are held against"""
SURELY_TOO_BIG = 0.95
"""above this predicted probability of running out of memory the baseline is not tried"""

STOP_CONFIDENCE = 0.977
"""A trial is stopped early only when it is slower than the best by more than chance explains with
this probability: the quantile of two standard deviations, taken of Student's t because the noise
between runs is estimated (`python -m tests.benchmarks.run_noise`)."""
SHOW_THE_DATA = (TrialPurpose.BASELINE, TrialPurpose.REFERENCE)
"""trials that show what the data do to losses and gradients, whatever the config"""


class Scorer:
    """Rewards and refuses trials of one study; learns the baseline from those that ended."""

    def __init__(self, study: Study, fp32_losses: Mapping[int, tuple[float, ...]]) -> None:
        self.study = study
        self.reference: Measurement | None = None
        self.fp32_losses = dict(fp32_losses)
        """losses of an fp32 trial by tokens per step"""
        self.data_norms: dict[int, tuple[float, ...]] = {}
        """gradient norms by tokens per step of the fp32 trial, or of the baseline until there is
        one: what spikes in them is the data's fault"""
        self._curves: list[LossCurve] = []
        """of the trials that ended so far, where configs do not see the same data; of the baseline
        the first alone, however often it was measured"""
        self._has_default_curve = False
        self._failures: Counter[FailureKind] = Counter()

    def learn(self, trial: Trial) -> None:
        """Takes in a terminal trial."""
        if trial.failure is not None:
            self._failures[trial.failure.kind] += 1
        if not trial.is_measured or trial.measurement is None or trial.stands_for is not None:
            return
        if self.reference is None and trial.purpose is not TrialPurpose.REFERENCE:
            self.reference = trial.measurement
        if self.reference is not None:
            self.reference = with_noise_scale(self.reference, [trial.measurement])
        if self.study.same_data and trial.purpose in SHOW_THE_DATA:
            batch = trial.measurement.tokens_per_step
            if trial.config.precision == "fp32":
                self.fp32_losses.setdefault(batch, trial.measurement.losses)
                self.data_norms[batch] = trial.measurement.grad_norms
            self.data_norms.setdefault(batch, trial.measurement.grad_norms)
        is_default = trial.purpose is TrialPurpose.BASELINE
        if (
            not self.study.same_data
            and trial.measurement.losses
            and not (is_default and self._has_default_curve)
            and stability_parts(trial.measurement).get("equal_tokens", 1.0) >= FOUND_WORSE
        ):
            self._curves.append(self._curve(trial, trial.measurement))
            self._has_default_curve |= is_default

    def _curve(self, trial: Trial, measurement: Measurement) -> LossCurve:
        return LossCurve.of(trial.config, measurement, self.study.measure.warmup_steps)

    def ended(self, trial: Trial, event: AttemptEnded) -> Trial:
        """The trial made terminal by its last attempt's end."""
        measurement = (
            event.measurement
            if trial.stands_for is not None
            else self._compared(trial, event.measurement)
        )
        failure = event.failure
        if failure is None and (
            measurement is None
            or not measurement.step_times_s
            or not measurement.median_tokens_per_s > 0
        ):
            failure = Failure(
                kind=FailureKind.METRICS_MISSING,
                message="the attempt ended without a usable step time",
            )
        if (
            failure is None
            and measurement is not None
            and (failure := diverged(measurement)) is not None
        ):
            step = None if failure.step is None else failure.step + self.study.measure.warmup_steps
            failure = replace(failure, step=step)
        if failure is not None or measurement is None:
            return replace(
                trial, status=TrialStatus.FAILED, measurement=measurement, failure=failure
            )
        status = TrialStatus.STOPPED if event.stopped else TrialStatus.COMPLETED
        end = replace(
            trial, status=status, measurement=measurement, reason=event.stopped or trial.reason
        )
        if trial.stands_for is not None:
            return end
        objective, workload = self.study.objective, self.study.workload
        return replace(
            end, reward=score(end, reference=self.reference, objective=objective, workload=workload)
        )

    def _compared(self, trial: Trial, measurement: Measurement | None) -> Measurement | None:
        """The measurement with what its losses and gradients are held against."""
        if measurement is not None and (
            losses := self.fp32_losses.get(measurement.tokens_per_step)
        ):
            measurement = replace(measurement, reference_losses=losses)
        if measurement is not None and self.study.same_data:
            own = measurement.grad_norms if trial.purpose in SHOW_THE_DATA else ()
            norms = self.data_norms.get(measurement.tokens_per_step, own)
            measurement = replace(measurement, reference_grad_norms=norms)
        if measurement is not None and not self.study.same_data:
            compared = compare_at_equal_tokens(self._curve(trial, measurement), self._curves)
            measurement = replace(measurement, loss_comparison=compared)
        return measurement

    def late(self, trial: Trial | None, event: AttemptEnded) -> Trial | None:
        """What a late report says of its trial; None when that trial is not over, so that the
        report must not touch it."""
        if trial is None or not trial.status.is_terminal:
            return None
        return trial if event.cancelled else self.ended(trial, event)

    def refusal(self, trial: Trial, capacity: int) -> str:
        """Why the trial is not run at all, in words; empty when it is."""
        if trial.config.world_size > capacity:
            return too_many_ranks(capacity)
        chance = float(trial.estimate.oom_probability) if trial.estimate is not None else 0.0
        if trial.purpose is TrialPurpose.BASELINE and chance > SURELY_TOO_BIG:
            return "the baseline is predicted to run out of memory"
        if (
            trial.purpose is TrialPurpose.SEARCH
            and trial.config in self.study.enqueue
            and chance > HOPELESS
        ):
            return "an enqueued config is predicted to run out of memory"
        return ""

    def time_to_beat(self, trial: Trial, best: Trial | None, level: float = 0.0) -> float | None:
        """Step time, s, above which this trial cannot win even with perfect stability; None when
        that cannot be said. `best`: at the machine's first level; `level`: of the machine now.

        (1 - w) * ln(tokens_per_s / reference) + w * 1 > best.total, solved for the step time, plus
        what two runs of one config differ by (`STOP_CONFIDENCE`). Only for the objective
        throughput: the others hang on more than the step time.
        """
        w = self.study.objective.stability_weight
        if (
            best is None
            or best.reward is None
            or self.reference is None
            or self.study.objective.metric != "throughput"
            or w >= 1
        ):
            return None
        least_speed = self.reference.tokens_per_s * math.exp((best.reward.total - w) / (1 - w))
        margin = math.exp(noise_between_two_runs(best) - level)
        return (
            margin
            * trial.config.global_batch_size
            * self.study.workload.tokens_per_sequence
            / least_speed
        )

    def tally(self) -> str:
        """The failures so far by kind, in words."""
        return (
            ", ".join(f"{n} {kind.words}" for kind, n in self._failures.most_common())
            or "none was completed"
        )


def noise_between_two_runs(best: Trial) -> float:
    """By how much ln speed a run may be behind the best and still be of an equal config."""
    noise = RunNoise.of([best.measurement] if best.measurement is not None else [])
    return noise.behind(STOP_CONFIDENCE)
