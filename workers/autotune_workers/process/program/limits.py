"""What limits the meaning of a program's figures, in words with the values: sequences of other
lengths than the spec's, steps of other batches, and work between optimizer steps that trains
nothing.

    share of other work    what was seen of it, or by how much the steps with it are longer than the median of those without it, whichever is more, by
                           the time of all steps. So loading the data of an evaluation counts, and waiting for its loss
    evaluation             calls of a module without gradients in some steps; where every step has one it may be a teacher or a policy
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean, median

from autotune.spec import Workload
from autotune_workers.process.program.log import LoggedStep
from autotune_workers.process.program.probe import SETTLED, TOKENS_SLACK, ProgramProbe, SeenStep

OTHER_WORK = 0.03
"""share of the step time from which on other work is told"""
NOTICED = 0.01
"""share of a step's time that other work must take to count"""
OTHER_BATCH = 0.03
"""relative difference between the mean batch and the spec's, from which on it is told"""
LOGGED_GROWTH = 1.25
"""growth of a step's tokens by printed rates, from which on it is told"""
GROWING = 0.9
"""share of the steps that are no smaller than the step before, from which on they grow"""
_LENGTHS = "speed and peak memory belong to these lengths, and tokens/s counts seq_len for each sequence. Fix the length in trials, or set workload.seq_len"
_BY_TOKENS = "the number of sequences differs from step to step, as with micro-batches filled up to a token limit. tokens/s counts the spec's tokens per step, not the tokens actually trained; check that the batch options in trainer.argv or files match the spec"


def limits(probe: ProgramProbe, workload: Workload, *, warmup_steps: int) -> tuple[str, ...]:
    """All of them, of a program that the probe sees."""
    found = (
        _of_lengths(probe, workload) if workload.rl is None else "",
        _BY_TOKENS if probe.fills_by_tokens else _of_batches(probe),
        probe.unevenness(),
        *(_of_other_work(probe.steps[warmup_steps:]) if workload.rl is None else ()),
    )
    return tuple(filter(None, found))


def logged_limits(steps: Sequence[LoggedStep], expected: int) -> tuple[str, ...]:
    """That the tokens of a step grow, of a program that only its log shows. `expected`: what the
    spec says of a step. Rates are often means over several steps, so other differences tell
    nothing."""
    tokens = [step.tokens for step in steps if step.tokens is not None]
    if len(tokens) < len(steps) or not _grow(tokens) or tokens[-1] < LOGGED_GROWTH * tokens[0]:
        return ()
    seen = f"a step grew from {tokens[0]:,.0f} to {tokens[-1]:,.0f} tokens over {len(tokens)} steps"
    why = "by the times and rates in the log, unless its rates are means since the start"
    so = "speed and peak memory belong to these steps. Fix the sequence length and the batch in trials"
    return (f"{seen}, {why}, and the spec has {expected:,}; {so}",)


def _of_lengths(probe: ProgramProbe, workload: Workload) -> str:
    lengths, expected = probe.lengths, workload.seq_len
    if not lengths:
        return ""
    spec = f"the spec has seq_len={expected}"
    if probe.lengths_vary:
        if _grow(lengths):
            seen = f"sequences grew from {lengths[0]:.0f} to {lengths[-1]:.0f} tokens over {len(lengths)} steps"
        else:
            seen = f"sequences differ in length from step to step, {min(lengths):.0f} to {max(lengths):.0f} tokens ({mean(lengths):.0f} tokens on average)"
        return f"{seen}, and {spec}; {_LENGTHS}"
    usual = median(lengths)
    slack = max(1.0, TOKENS_SLACK * expected)
    if (
        probe.is_packed
        or abs(usual - expected) <= slack
        or (usual > expected and usual % expected == 0)
    ):
        return ""
    return f"sequences have {usual:.0f} tokens, but {spec}; {_LENGTHS}"


def _of_batches(probe: ProgramProbe) -> str:
    """As where accumulation grows, a step is left out, or the last batch of an epoch is short."""
    share = probe.share
    counts = [
        share if probe.agrees(step) else step.sequences[0] for step in probe.steps if step.sequences
    ]
    others = [count for count in counts if count != share]
    if not others or abs(mean(counts) / share - 1) < OTHER_BATCH:
        return ""
    if _grow(counts):
        seen = f"the batch grew from {counts[0]:g} to {counts[-1]:g} sequences per step and rank over {len(counts)} steps"
    else:
        extent = " to ".join(f"{count:g}" for count in sorted({min(others), max(others)}))
        seen = f"{len(others)} of {len(counts)} steps train {extent} sequences on a rank"
    return (
        f"{seen}, but the spec has {share:g}; tokens/s counts the spec's batch for each step, {share / mean(counts):.2f} times what was trained. "
        "Fix the batch in trials; an epoch's last, short batch is left out with drop_last=True"
    )


def _grow(values: Sequence[float]) -> bool:
    """Whether these values of steps grow, but for some."""
    rising = sum(after >= before for before, after in pairwise(values))
    return (
        len(values) > SETTLED and values[-1] > values[0] and rising >= GROWING * (len(values) - 1)
    )


def _of_other_work(steps: Sequence[SeenStep]) -> Iterator[str]:
    """Of evaluating, and of saving."""
    for what, times_s, may_train in (
        ("evaluation (forward passes without gradients)", [s.evaluation_s for s in steps], True),
        ("saving checkpoints", [s.checkpoint_s for s in steps], False),
    ):
        has = [t > NOTICED * s.time_s for t, s in zip(times_s, steps, strict=True)]
        if not any(has) or (all(times_s) and may_train):
            continue
        without = [s.time_s for s, it in zip(steps, has, strict=True) if not it]
        of_these = [s.time_s for s, it in zip(steps, has, strict=True) if it]
        more_s = sum(of_these) - len(of_these) * median(without) if without else 0.0
        share = max(sum(times_s), more_s) / sum(s.time_s for s in steps)
        if share >= OTHER_WORK:
            yield (
                f"{what} takes {share:.0%} of the step time, in {sum(has)} of {len(steps)} steps; it counts in tokens/s and makes configs look more alike. "
                "Switch it off in trials, or do it less often"
            )
