"""Warnings about what a program's figures mean, with values: sequence lengths and batches that
differ from the spec, and work between optimizer steps other than training.

    share of other work    the larger of its observed time and the time by which steps with it exceed the median of steps without it, divided by
                           the time of all steps. So the time for loading evaluation data and for waiting for the loss is included
    evaluation             calls of a module without gradients in some steps; if every step has one, it may be a teacher or a policy
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean, median

from autotune.spec import Workload, number_of
from autotune_workers.process.program.log import LoggedStep
from autotune_workers.process.program.probe import SETTLED, TOKENS_SLACK, ProgramProbe, SeenStep

OTHER_WORK = 0.03
"""smallest share of the step time for which other work is reported"""
NOTICED = 0.01
"""smallest share of one step's time for which other work is counted"""
OTHER_BATCH = 0.03
"""smallest reported relative difference between the mean batch and the spec's"""
LOGGED_GROWTH = 1.25
"""smallest reported growth factor of tokens per step, by logged rates"""
GROWING = 0.9
"""values are growing if at least this share of them is not below the previous value"""
_LENGTHS = "speed and peak memory hold only for these lengths, and tokens/s counts seq_len tokens for each sequence. Use a constant length in trials, or set workload.seq_len"
_BY_TOKENS = "the number of sequences differs from step to step, as with micro-batches filled up to a token limit; tokens/s counts the spec's tokens per step, not the tokens actually trained. Check that the batch options in trainer.argv or files match the spec"


def limits(probe: ProgramProbe, workload: Workload, *, warmup_steps: int) -> tuple[str, ...]:
    """All warnings for a program that the probe observes."""
    found = (
        _length_warning(probe, workload) if workload.rl is None else "",
        _BY_TOKENS if probe.fills_by_tokens else _batch_warning(probe),
        probe.unevenness(),
        *(_other_work_warnings(probe.steps[warmup_steps:]) if workload.rl is None else ()),
    )
    return tuple(filter(None, found))


def logged_limits(steps: Sequence[LoggedStep], expected: int) -> tuple[str, ...]:
    """The warning about growing tokens per step, for a program of which only the log is known.
    `expected`: the spec's tokens per step. Logged rates are often averages over several steps, so
    other differences are ignored."""
    tokens = [step.tokens for step in steps if step.tokens is not None]
    if len(tokens) < len(steps) or not _grow(tokens) or tokens[-1] < LOGGED_GROWTH * tokens[0]:
        return ()
    growth = (
        f"by the log's times and rates, tokens per step grew from {tokens[0]:,.0f} to {tokens[-1]:,.0f} over {number_of(len(tokens), 'step')} "
        f"(unless the rates are averages since the start), but the spec has {expected:,}; "
        "speed and peak memory hold only for these steps. Use a constant sequence length and batch in trials"
    )
    return (growth,)


def _length_warning(probe: ProgramProbe, workload: Workload) -> str:
    lengths, expected = probe.lengths, workload.seq_len
    if not lengths:
        return ""
    spec = f"the spec has seq_len={expected}"
    if probe.lengths_vary:
        if _grow(lengths):
            seen = f"sequences grew from {lengths[0]:.0f} to {lengths[-1]:.0f} tokens over {len(lengths)} steps"
        else:
            seen = f"sequences differ in length from step to step ({min(lengths):.0f} to {max(lengths):.0f} tokens, {mean(lengths):.0f} on average)"
        return f"{seen}, but {spec}; {_LENGTHS}"
    median_length = median(lengths)
    slack = max(1.0, TOKENS_SLACK * expected)
    if probe.is_packed or abs(median_length - expected) <= slack:
        return ""
    return f"sequences have {median_length:.0f} tokens, but {spec}; {_LENGTHS}"


def _batch_warning(probe: ProgramProbe) -> str:
    """The warning about batches that differ from the config's, such as growing accumulation, a
    skipped step, or an epoch's short last batch; empty if there are none."""
    share = probe.share
    counts = [
        share if probe.agrees(step) else step.sequences[0] for step in probe.steps if step.sequences
    ]
    others = [count for count in counts if count != share]
    if not others or abs(mean(counts) / share - 1) < OTHER_BATCH:
        return ""
    if _grow(counts):
        seen = f"grew from {counts[0]:g} to {counts[-1]:g} over {len(counts)} steps"
    else:
        extent = " to ".join(f"{count:g}" for count in sorted({min(others), max(others)}))
        seen = f"is {extent} in {len(others)} of {len(counts)} steps"
    return (
        f"the number of sequences per step on each rank {seen}, but the spec has "
        f"{share:g}; tokens/s counts the spec's batch in every step, which is "
        f"{share / mean(counts):.2f} times what was trained. Use a constant batch in "
        "trials; if only an epoch's last batch is short, set drop_last=True"
    )


def _grow(values: Sequence[float]) -> bool:
    """Whether values of successive steps grow, with few exceptions."""
    rising = sum(after >= before for before, after in pairwise(values))
    return (
        len(values) > SETTLED and values[-1] > values[0] and rising >= GROWING * (len(values) - 1)
    )


def _other_work_warnings(steps: Sequence[SeenStep]) -> Iterator[str]:
    """Warnings about evaluation and about saving checkpoints."""
    for work, times_s, may_train in (
        ("evaluation (forward passes without gradients)", [s.evaluation_s for s in steps], True),
        ("saving checkpoints", [s.checkpoint_s for s in steps], False),
    ):
        has_work = [t > NOTICED * s.time_s for t, s in zip(times_s, steps, strict=True)]
        if not any(has_work):
            continue
        times_without_s = [s.time_s for s, it in zip(steps, has_work, strict=True) if not it]
        times_with_s = [s.time_s for s, it in zip(steps, has_work, strict=True) if it]
        more_s = (
            sum(times_with_s) - len(times_with_s) * median(times_without_s)
            if times_without_s
            else 0.0
        )
        is_of_every_step = may_train and all(times_s)
        other_s = sum(times_s) if is_of_every_step else max(sum(times_s), more_s)
        share = other_s / sum(s.time_s for s in steps)
        if share < OTHER_WORK:
            continue
        if is_of_every_step:
            yield f"forward passes without gradients (a reference, a teacher, or generated samples) take {share:.0%} of the time of every step; the estimates do not include this time"
        else:
            yield (
                f"{work} takes {share:.0%} of the step time (in {sum(has_work)} of "
                f"{len(steps)} steps); tokens/s includes this time, so configs look more "
                "alike. Turn this work off in trials, or do it less often"
            )
