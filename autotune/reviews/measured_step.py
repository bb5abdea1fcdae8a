"""The step time of a launch that ran: as passed, or from its log."""

from __future__ import annotations

import math
import re
from statistics import median

from autotune.errors import SpecError
from autotune.reviews.answer import Observed
from autotune.spec import Estimate, ParallelConfig, Study
from autotune.spec.post_training import TRAINED
from autotune.spec.texts.as_text import format_duration, number_of
from autotune.trainers import trainer
from autotune.trainers.post_training.logs import read_phases


def observed_step(
    study: Study,
    config: ParallelConfig,
    predicted: Estimate,
    measured_s: float | None,
    log: str | None,
) -> Observed | None:
    """The measured step time, as passed or from the log; None if there is none. Raises `SpecError`
    for an impossible time."""
    measured_s, source = _measured(study, config, predicted, measured_s, log)
    if measured_s is None:
        return None
    _refuse_beyond_the_peak(predicted, measured_s)
    slower = measured_s / float(predicted.step_time_s)
    return Observed(step_time_s=measured_s, source=source, slower=slower)


def _measured(
    study: Study,
    config: ParallelConfig,
    predicted: Estimate,
    measured_s: float | None,
    log: str | None,
) -> tuple[float | None, str]:
    """(seconds per step or None, its source in words)."""
    if measured_s is not None and log is not None:
        raise SpecError(
            "--measured and --log both set the step time",
            remedy="use only one of the two",
            field="--measured",
        )
    if measured_s is not None:
        if not (math.isfinite(measured_s) and measured_s > 0):
            raise SpecError(
                f"a step time must be above 0 s, but --measured is {measured_s}", field="--measured"
            )
        return measured_s, "as given"
    if log is None:
        return None, ""
    if predicted.phases_s is not None and (trained := _trained_s(log)) is not None:
        seconds, steps = trained
        rest_s = float(predicted.step_time_s) - sum(
            float(getattr(predicted.phases_s, name)) for name in TRAINED
        )
        return (
            rest_s + seconds,
            f"phases of {number_of(steps, 'step')} in the log, excluding evaluation and saving",
        )
    read = trainer(study.trainer).reader(study.trainer_options)
    of_step: dict[str, int] = {
        "tokens_per_step": study.workload.seq_len * config.global_batch_size,
        "sequences_per_step": config.global_batch_size,
        "num_ranks": config.world_size,
    }
    read_lines = [m for line in log.splitlines() if (m := read(line)) is not None]
    times = [time for m in read_lines if (time := m.time_of(**of_step))]
    if len(times) < 2 and study.workload.loop == "hf_trainer":
        times = [
            float(rate) if unit == "s/it" else 1.0 / float(rate)
            for rate, unit in _BAR_RATE.findall(log)
            if float(rate) > 0
        ]
    if len(times) < 2:
        raise SpecError(
            f"the log must contain at least 2 step times in trainer {study.trainer}'s format, but contains {len(times)}",
            remedy="set the step time, e.g. --measured 2.1s",
            field="--log",
        )
    return median(times[1:]), f"median of {number_of(len(times) - 1, 'step')} in the log"


_BAR_RATE = re.compile(r"\d+/\d+ \[[^\]]*?([\d.]+)(s/it|it/s)")
"""the rate in a progress bar of tqdm; transformers' Trainer shows one for its optimizer steps"""


def _trained_s(log: str) -> tuple[float, int] | None:
    """(seconds per step in the phases that the trainer runs, number of steps with these phases)
    from a log that prints them; None if it does not."""
    phases = read_phases(log.splitlines())
    updates = phases.values("update")
    if len(updates) < 2 or not phases.values("log_prob"):
        return None
    return sum(phases.median(name) or 0.0 for name in (*TRAINED, "update_critic")), len(updates)


def _refuse_beyond_the_peak(predicted: Estimate, measured_s: float) -> None:
    """Raises `SpecError` if the step is shorter than its matmuls take at the GPUs' peak."""
    mfu = float(predicted.mfu) * float(predicted.step_time_s) / measured_s
    if mfu > 1.0:
        share = f"{mfu:.0%} of" if mfu < 100 else f"{mfu:.3g} times"
        raise SpecError(
            f"a step time of {format_duration(measured_s)} would mean {share} the GPUs' peak, but the limit is 100%",
            remedy="set the time of an optimizer step, not of a micro-batch, and correct what the review misread with --config, --batch, --seq-len, --model or --cluster",
            field="--measured",
        )
