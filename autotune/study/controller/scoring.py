"""Scoring: turns the end of an attempt into a terminal trial with its reward or failure.

Rewards are relative to the baseline, or to the first measured config if the baseline could not be
measured. Losses are compared with those of an fp32 trial of the same global batch and seed: the
baseline if it is fp32 (at no extra cost), else a reference trial of this or an earlier study. Every
global batch has its own reference, because the loss after a number of steps or tokens depends on the
batch. For a trainer whose configs see different batches (`Study.same_data` is false), the loss is
compared with those of the other configs at the same number of tokens. Only trials that ended before
are used, and the comparison is stored with the measurement, so that no later trial changes a score.
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
"""predicted probability of running out of memory above which even an enqueued config is not tried"""
FOUND_WORSE = 0.5
"""score of the loss at equal tokens below which a trial's losses are not used for comparison"""
SURELY_TOO_BIG = 0.95
"""predicted probability of running out of memory above which the baseline is not tried"""

STOP_CONFIDENCE = 0.977
"""One-sided confidence that a trial is slower than the best before it is stopped early. It is the
quantile of two standard deviations, applied to Student's t because the noise between runs is
estimated (`python -m tests.benchmarks.run_noise`)."""
SHOW_THE_DATA = (TrialPurpose.BASELINE, TrialPurpose.REFERENCE)
"""purposes of trials whose losses and gradient norms show the effect of the data alone"""


class Scorer:
    """Scores the trials of one study relative to those that ended before."""

    def __init__(self, study: Study, fp32_losses: Mapping[int, tuple[float, ...]]) -> None:
        self.study = study
        self.reference: Measurement | None = None
        self.fp32_losses = dict(fp32_losses)
        """losses of an fp32 trial, by tokens per step"""
        self.data_norms: dict[int, tuple[float, ...]] = {}
        """gradient norms by tokens per step, of the fp32 trial, or of the baseline until there is
        one; their spikes are caused by the data"""
        self._curves: list[LossCurve] = []
        """loss curves of ended trials if configs see different data; only the first of the
        baseline"""
        self._has_default_curve = False
        self._failures: Counter[FailureKind] = Counter()

    def learn(self, trial: Trial) -> None:
        """Process a terminal trial."""
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
        """The terminal trial that results from the end of its last attempt."""
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
        """The measurement with its reference losses, reference gradient norms or loss comparison."""
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
        """The trial as a late report would have ended it; None if the trial is not terminal, so that
        the report must not change it."""
        if trial is None or not trial.status.is_terminal:
            return None
        return trial if event.cancelled else self.ended(trial, event)

    def refusal(self, trial: Trial, capacity: int) -> str:
        """Why the trial cannot be run; empty if it can."""
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
        """Step time, s, above which this trial cannot win even with perfect stability; None if that
        is unknown. `best`: corrected to the machine's first level; `level`: the machine's current
        level, in ln tokens/s.

        (1 - w) * ln(tokens_per_s / reference) + w * 1 > best.total, solved for the step time, with a
        margin for the noise between two runs (`STOP_CONFIDENCE`). Only for the objective throughput,
        because the others depend on more than the step time.
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
        """The numbers of failures by kind, as text for a message."""
        return (
            ", ".join(f"{n} {kind.words}" for kind, n in self._failures.most_common())
            or "none was completed"
        )


def noise_between_two_runs(best: Trial) -> float:
    """Difference in ln tokens/s up to which a slower run may be of a config as fast as the best."""
    noise = RunNoise.of([best.measurement] if best.measurement is not None else [])
    return noise.behind(STOP_CONFIDENCE)
