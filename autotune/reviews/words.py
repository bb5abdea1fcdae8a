"""A review as lines of text: what was understood, the verdict, the edits, the warnings. At most 25 lines."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.planning import Bill
from autotune.reviews.answer import Edit, Gain, LineEdit, Review
from autotune.spec.count import format_count
from autotune.spec.duration import format_duration
from autotune.spec.size import format_bytes

MOST = 25
"""lines"""
WIDTH = 100
"""characters of a line; what is longer is cut, but for what people copy"""


def lines_of(review: Review, *, tokens: float | None = None) -> list[str]:
    """The lines. `tokens`: of the whole training, for days and cost."""
    head = [*_understood(review), *_verdict(review, tokens)]
    edits = list(_edits(review))
    warned = list(_warnings(review))
    room = MOST - len(head) - len(edits) - 1
    if len(warned) > max(room, 2):
        left = len(warned) - max(room, 2)
        warned = [*warned[: max(room, 2)], f"  and {left} more: --json has all"]
    return [*head, *edits, *warned]


def _understood(review: Review) -> Iterator[str]:
    yield f"{review.target}: {review.understood}"
    for line in review.assumed[:5]:
        yield _cut(f"  assumed: {line}")
    for missing in review.missing:
        yield f"  missing: {missing.what}; {missing.remedy}"


def _verdict(review: Review, tokens: float | None) -> Iterator[str]:
    estimate = review.estimate
    if estimate is None or review.study is None or review.config is None:
        if review.missing:
            yield "no prediction until that is said"
        return
    gpu = review.study.workload.cluster.gpu
    risk = float(estimate.oom_probability)
    memory = f"{format_bytes(float(estimate.peak_memory_bytes))} ({format_bytes(float(estimate.peak_memory_low_bytes))} to {format_bytes(float(estimate.peak_memory_high_bytes))})"
    word = "fits" if risk < 0.4 else "does not fit" if risk > 0.6 else "at the limit of memory"
    if review.is_upper_bound and risk > 0.4:
        word = "may not fit"
    yield f"{word}: {memory} of {format_bytes(gpu.memory_bytes)}, {risk:.0%} risk of running out of memory"
    low, high = float(estimate.step_time_low_s), float(estimate.step_time_high_s)
    speed = f"{format_count(float(estimate.tokens_per_s))} tokens/s"
    yield (
        f"predicted: {format_duration(float(estimate.step_time_s))} a step ({format_duration(low)} to {format_duration(high)}), {speed}, "
        f"{float(estimate.mfu):.0%} MFU"
    )
    if tokens is not None:
        bill = Bill.of(review.study.workload.cluster, float(estimate.tokens_per_s), tokens)
        share = [time / float(estimate.step_time_s) for time in (low, high)]
        cost = f", about ${two_digits(bill.cost_usd)}" if bill.cost_usd else ""
        days = " to ".join(two_digits(bill.days * each) for each in share)
        yield f"{format_count(tokens)} tokens: {two_digits(bill.days)} days ({days}){cost}"
    if review.observed is not None:
        slower = review.observed.slower
        much = (
            f"{slower:.2f} times the predicted time"
            if slower >= 1.005
            else f"{1 / slower:.2f} times as fast as predicted"
            if slower < 0.995
            else "as predicted"
        )
        yield f"measured: {format_duration(review.observed.step_time_s)} a step ({review.observed.source}), {much}; what follows takes that level"


def _edits(review: Review) -> Iterator[str]:
    if review.estimate is None:
        return
    if review.together is None:
        more = review.best_gain - 1.0
        if review.fits is False:
            yield "no edit makes it fit with these ranks and this batch: more GPUs, or knobs that the launch cannot be told"
        elif more >= 0.03:
            yield f"no edit is sure to gain: the best guess is {more:+.0%}, and its interval has losses in it; a trial, or --measured, tells more"
        else:
            yield "nothing better than 3% is to be had"
        return
    for number, edit in enumerate(review.edits, start=1):
        yield f"{number}. {_changes(edit)}: {_gain_of(edit, review)}, {_memory(edit.memory_bytes)}{f'; {edit.remark}' if edit.remark else ''}"
        yield from _lines(edit.lines)
        if edit.unplaced:
            yield _cut(f"     and set {', '.join(edit.unplaced)}, of which the file has no line")
    if len(review.edits) > 1:
        together = review.together
        yield (
            f"together: {_gain(together.gain)}, {format_bytes(float(together.estimate.peak_memory_bytes))}, "
            f"{float(together.estimate.oom_probability):.0%} risk"
        )


def _changes(edit: Edit) -> str:
    return ", ".join(f"{name} {_value(old)} -> {_value(new)}" for name, (old, new) in edit.changes.items())


def _value(value: object) -> str:
    return str(value) if not isinstance(value, bool) else "on" if value else "off"


def _gain_of(edit: Edit, review: Review) -> str:
    if edit.alone is not None:
        return _gain(edit.alone)
    if edit.beside is not None:
        return f"{_gain(edit.beside)} beside the others"
    return "the others need it" if review.fits else "needed to fit"


def _gain(gain: Gain) -> str:
    return f"{gain.gain - 1:+.0%} ({gain.low - 1:+.0%} to {gain.high - 1:+.0%})"


def _memory(change: float) -> str:
    return f"{'+' if change >= 0 else '-'}{format_bytes(abs(change))}"


def _lines(lines: tuple[LineEdit, ...]) -> Iterator[str]:
    for line in lines[:3]:
        yield f"     {line.file}:{line.line}: {line.after.strip() or 'remove ' + line.before.strip()}"


def _warnings(review: Review) -> Iterator[str]:
    for each in review.warnings:
        where = f"{each.file}:{each.line}: " if each.line else ""
        yield f"! {where}{each.text}"


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def two_digits(value: float) -> str:
    """With two digits that count: 0.42, 4.2, 420, 1.3M."""
    if value >= 1e4:
        return format_count(float(f"{value:.2g}"))
    return f"{float(f'{value:.2g}'):,.15g}"
