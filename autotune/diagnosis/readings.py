"""Rules on readings other than the phases of steps: a profile, GPU clocks, the allocator, times in
a log, knobs without effect."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.diagnosis.critical import LEAST_STEPS
from autotune.diagnosis.evidence import Evidence
from autotune.diagnosis.finding import Finding
from autotune.diagnosis.profiled import shares_of
from autotune.spec.texts.as_text import format_duration, number_of


def bubble(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if the profiled pipeline bubble is larger than predicted."""
    parts, predicted = evidence.parts_s, evidence.predicted_parts_s
    shares = shares_of(parts)
    if not shares or not predicted or evidence.predicted_s is None:
        return
    seen = shares.get("bubble", 0.0)
    due = (predicted.get("bubble", 0.0) + predicted.get("pp_comm", 0.0)) / evidence.predicted_s[0]
    extra = seen - 1.25 * due
    yield Finding(
        cause="bubble",
        share=extra,
        low=max(0.0, extra / 2),
        high=seen,
        what=f"pipeline stages wait for each other longer than expected ({seen:.0%} of the step instead of {due:.0%})",
        evidence=(f"in a profiled step, sends and receives that do not overlap with computation take {format_duration(parts.get('bubble', 0.0))}",),
        confirm="profile a step on each stage: the stage that never waits is the slow stage",
        change="split the layers so that stages take equal time (the last stage also has the head and the loss), or use more micro-batches or an interleaved schedule",
        knob="pp_schedule",
    )  # fmt: skip


def clocks(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if heat or a power limit lowers a GPU's clocks."""
    for rank in sorted(evidence.ranks, key=lambda r: r.gpu.get("sm_clock_mhz", np.inf)):
        clock, max_clock = rank.gpu.get("sm_clock_mhz", 0.0), rank.gpu.get("max_clock_mhz", 0.0)
        reasons = {
            name.removeprefix("held by "): share
            for name, share in rank.gpu.items()
            if name.startswith("held by ") and share >= 0.2
        }
        if not reasons or max_clock <= 0 or clock >= 0.93 * max_clock:
            continue
        cost = 1 - clock / max_clock
        yield Finding(
            cause="clocks",
            share=cost,
            low=cost / 3,
            high=cost,
            rank=rank.rank,
            node=rank.node,
            what=f"rank {rank.rank}'s GPU runs at {clock:.0f} of {max_clock:.0f} MHz because of {' and '.join(sorted(reasons))}",
            evidence=(
                *(f"{name}: active in {share:.0%} of the readings" for name, share in sorted(reasons.items())),
                f"{rank.gpu.get('temperature_c', 0):.0f} degrees, {rank.gpu.get('power_watts', 0):.0f} of {rank.gpu.get('power_limit_watts', 0):.0f} watts",
            ),
            confirm="run nvidia-smi -q -d PERFORMANCE,CLOCK,POWER during training",
            change="fix the cooling, or raise the power limit; if the limit is intended, compare only runs with the same limit",
        )  # fmt: skip
        return
    if evidence.throttled > 0:
        yield Finding(
            cause="clocks",
            what="heat or the power brake lowered a GPU's clocks during the measurement",
            evidence=("NVML's throttle reasons",),
            confirm="run nvidia-smi -q -d PERFORMANCE,CLOCK,POWER during training",
            change="fix the cooling, and measure again",
        )


def readings_of_memory(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if the allocator retried, according to the trial's readings."""
    if evidence.alloc_retries > 0 and not any(rank.alloc_retries for rank in evidence.ranks):
        yield Finding(
            cause="memory",
            what="memory is tight, and the GPU's allocator had to retry",
            evidence=(
                f"{number_of(int(evidence.alloc_retries), 'retry', 'retries')} on the rank with the highest peak",
            ),
            confirm="run with a smaller micro-batch: the time per sequence should drop",
            change="use a smaller micro-batch or recomputation, or set PYTORCH_ALLOC_CONF=expandable_segments:True",
            knob="micro_batch_size",
        )


def log_times(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if no rank was observed and the log's step times show data loading or regular
    pauses."""
    times = np.asarray(evidence.step_times_s)
    if evidence.ranks or len(times) < 2 * LEAST_STEPS:
        return
    if len(evidence.data_times_s) == len(times):
        data = np.minimum(np.asarray(evidence.data_times_s), times)
        share = float(data.sum() / times.sum())
        half = float(np.std(data / times)) / len(times) ** 0.5 * 2.3
        yield Finding(
            cause="input",
            share=share,
            low=max(0.0, share - half),
            high=min(1.0, share + half),
            what="the ranks wait for data",
            evidence=(
                f"the log shows {format_duration(float(np.mean(data)))} of data loading in a {format_duration(float(times.mean()))} step",
            ),
            confirm="train a few steps on a single batch kept in memory: the step time should drop by this fraction",
            change="raise the DataLoader's num_workers, cache decoded samples on the training nodes, or move slow work out of the dataset",
            knob="num_workers",
        )
    middle = float(np.median(times))
    slow = np.flatnonzero(times > 1.5 * middle)
    gaps = np.diff(slow)  # steps between slow steps
    if len(slow) >= 3 and gaps.min() >= 2 and gaps.max() <= gaps.min() + 1:
        share = float((times[slow] - middle).sum() / times.sum())
        shortest, longest = int(gaps.min()), int(gaps.max())
        spacing = f"{shortest} or {longest}" if longest > shortest else f"{shortest}"
        yield Finding(
            cause="pauses",
            share=share,
            low=share / 2,
            high=min(1.0, 1.5 * share),
            what=f"every {int(np.median(gaps))} steps, a step takes {float(np.median(times[slow])) / middle:.1f} times as long, probably because of evaluation, a checkpoint or logging",
            evidence=(f"{len(slow)} of {len(times)} steps are slow, {spacing} steps apart",),
            confirm="switch evaluation and checkpoints off for a hundred steps: the mean step time should drop by this fraction",
            change="evaluate or save less often, on fewer batches, or asynchronously",
            knob="eval_steps",
        )


def knobs_without_effect(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each requested setting without effect."""
    for text in evidence.disagreements:
        knob = text.partition(":")[0]
        yield Finding(
            cause="knob_without_effect",
            what=f"{knob} was requested, but has no effect",
            evidence=(text,),
            confirm="run `autotune check SPEC`, which compares the spec with what is observed",
            change=text.rpartition("; ")[2],
            line=evidence.asked_at.get(knob, ""),
            knob=knob,
        )
