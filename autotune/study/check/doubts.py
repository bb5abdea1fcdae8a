"""Finds values in a log that disagree with the spec or with the clock.

    tokens     rate x step time in the log, compared with seq_len x global_batch_size: differs for example if an accumulation option was missed
    times      times in the log, compared with the arrival of its numbered steps: differ for example if milliseconds were read as seconds, or the timer leaves
               out data loading

Only large disagreement counts, because short averages, padding and rates of single ranks also cause
differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean, median

from autotune.spec import ParallelConfig, Study
from autotune.spec.texts.as_text import format_duration, number_of
from autotune.trainers.logs.printed_rates import PrintedRate, printed_rate

TOKENS_RATIO = 1.3
"""tokens of a step whose ratio is smaller agree"""
CLOCK_STEPS = 4
"""minimum number of times, growing at a constant pace, that are recognized as a clock"""
CLOCK = "the time pattern reads a clock (time since the start), not a step time. Remove the pattern from trainer.metrics, so that steps are timed by the arrival of their lines"
TIMES_RATIO, TIMES_S = 2.0, 0.5
"""times agree if their ratio is smaller, or their difference over all steps is less than these
seconds, because lines are polled only a few times a second"""


def doubts_of(
    study: Study,
    config: ParallelConfig,
    lines: Sequence[str],
    step_times_s: Sequence[float],
    arrivals: Sequence[tuple[float, int]],
    time_from: str,
) -> Iterator[str]:
    """Messages about disagreements, each with a remedy. `lines`: those from which a value was read;
    `arrivals`: (time in s, step number) of numbered steps."""
    if len(step_times_s) < 2:
        return
    if time_from == "log" and is_clock(step_times_s):
        yield CLOCK
        return
    if time_from in ("log", "arrival"):
        yield from _of_tokens(study, config, lines, median(step_times_s[1:]))
    if time_from in ("log", "rate"):
        yield from _of_times(step_times_s[1:], arrivals, is_rate=time_from == "rate")


def is_clock(times_s: Sequence[float]) -> bool:
    """Whether these are times since the start instead of step times: they grow at a nearly constant
    pace."""
    gains = [after - before for before, after in pairwise(times_s)]
    if len(gains) < CLOCK_STEPS - 1 or min(gains) <= 0 or times_s[-1] < 2 * times_s[0]:
        return False
    return max(gains) < 3 * median(gains)


def covers_the_batch(
    study: Study, config: ParallelConfig, lines: Sequence[str], time_s: float | None
) -> bool:
    """Whether a rate printed in these lines shows that the time of one line covers the spec's whole
    batch."""
    rate = printed_rate(lines)
    return (
        rate is not None
        and time_s is not None
        and _agrees(_ratio(study, config, rate, time_s), config)
    )


def _expected(study: Study, config: ParallelConfig, rate: PrintedRate) -> float:
    """Tokens or sequences per step by the spec, in total or per GPU, in the unit of the rate."""
    return (
        config.global_batch_size
        * (study.workload.seq_len if rate.is_tokens else 1)
        / (config.world_size if rate.is_per_gpu else 1)
    )


def _ratio(study: Study, config: ParallelConfig, rate: PrintedRate, time_s: float) -> float:
    return rate.per_s * time_s / _expected(study, config, rate)


def _agrees(ratio: float, config: ParallelConfig) -> bool:
    return any(
        1 / TOKENS_RATIO < ratio * ranks < TOKENS_RATIO for ranks in (1, config.world_size)
    )  # a rank may print its own rate


def _of_tokens(
    study: Study, config: ParallelConfig, lines: Sequence[str], step_time_s: float
) -> Iterator[str]:
    rate = printed_rate(lines)
    if rate is None:
        return
    seq_len, batch, ranks = study.workload.seq_len, config.global_batch_size, config.world_size
    expected, ratio = _expected(study, config, rate), _ratio(study, config, rate, step_time_s)
    if _agrees(ratio, config):
        return
    what = "tokens" if rate.is_tokens else "sequences"
    product = (
        f"seq_len {seq_len} x global_batch_size {batch}"
        if rate.is_tokens
        else f"global_batch_size {batch}"
    )
    on = f" on {number_of(ranks, 'rank')}" if rate.is_per_gpu else ""
    yield (
        f"the log prints {rate.per_s:,.0f} {rate.unit} at {format_duration(step_time_s)} "
        f"per step, which is {expected * ratio:,.0f} {what} a step, but the spec says "
        f"{expected:,.0f} ({product}{on}). Correct `workload`, or the batch options in "
        "trainer.argv; otherwise every tokens/s in the study is wrong by that factor"
    )


def _of_times(
    step_times_s: Sequence[float], arrivals: Sequence[tuple[float, int]], *, is_rate: bool
) -> Iterator[str]:
    if len(arrivals) < 2 or arrivals[-1][1] <= arrivals[0][1]:
        return
    (first_s, first), (last_s, last) = arrivals[0], arrivals[-1]
    steps, logged_s = last - first, mean(step_times_s)
    pace_s = (last_s - first_s) / steps
    differ_s = abs(pace_s - logged_s) * steps
    if differ_s < TIMES_S or 1 / TIMES_RATIO < pace_s / logged_s < TIMES_RATIO:
        return
    if is_rate:
        why = "the spec's workload does not match the rate in the log"
    elif pace_s > logged_s:
        why = "the timer may leave out part of the step, such as data loading, or may not wait for the GPU"
    else:
        why = "the time may cover several steps, or be in a different unit"
    yield (
        f"the log says {format_duration(logged_s)} per step, but steps arrive every "
        f"{format_duration(pace_s)}; {why}. Correct "
        f"{'`workload`' if is_rate else 'the pattern'}, or remove the "
        f"{'rate' if is_rate else 'time'} pattern from trainer.metrics, so that steps are "
        "timed by the arrival of their lines"
    )
