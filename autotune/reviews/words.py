"""A review as lines of text: the launch, the verdict, the edits, the warnings.

On a terminal of at least `WIDTH` columns it has at most `MOST` rows. If there are more, the verdict
is kept first, then edits, warnings and assumptions in turn, and the last line counts the rest.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.plan.plan import Bill
from autotune.reviews.answer import Edit, Gain, LineEdit, Review
from autotune.reviews.earlier import PUBLISHED, TRIAL, Earlier
from autotune.reviews.edits import LEAST
from autotune.spec import config_changes
from autotune.spec.estimate import AT_THE_LIMIT
from autotune.spec.runs.observed import OBSERVED
from autotune.spec.texts.as_text import (
    format_bytes,
    format_count,
    format_duration,
    format_gain,
    format_mfu,
    notes_of,
    number_of,
    two_digits,
)

MOST = 25
"""maximum number of rows"""
WIDTH = 100
"""maximum number of characters of a row"""
_CONTEXT = 40
"""characters of a long line that are shown before a change"""


@dataclass(slots=True)
class _Part:
    """Items of one kind, the most important first; as many are shown as there is room for."""

    noun: str
    items: Sequence[Sequence[str]]
    """rows of each item"""
    kept: int = 0
    """number of items that are shown"""

    def rows(self) -> list[str]:
        return [row for item in self.items[: self.kept] for row in item]


def lines_of(
    review: Review, *, tokens: float | None = None, most: int | None = MOST, width: int = WIDTH
) -> list[str]:
    """The lines of a review. `tokens`: of the whole training, for days and cost; `most`: maximum
    number of rows, None for all; `width`: characters of a row."""

    def wrapped(lines: Iterable[str]) -> list[str]:
        return [row for line in lines for row in _rows(line, width)]

    understood = wrapped([f"{review.target}: {review.understood}"])
    verdict = wrapped(_verdict(review, tokens))
    together = wrapped([*_if_out_of_memory(review), *_together(review)])
    missing = _Part(
        "missing thing",
        [wrapped([f"  missing: {each.what}; {each.remedy}"]) for each in review.missing],
    )
    edits = _Part(
        "edit",
        [wrapped(_edit(number, each, review)) for number, each in enumerate(review.edits, start=1)],
    )
    trials = _Part("trial", [wrapped(_trial(each)) for each in review.trials])
    warnings = _Part("warning", [wrapped([each]) for each in _warnings(review)])
    assumed = _Part("assumption", [wrapped([f"  assumed: {each}"]) for each in review.assumed])
    parts = (missing, edits, trials, warnings, assumed)
    left_out = _shared(
        parts, None if most is None else most - len(understood) - len(verdict) - len(together)
    )
    return [
        *understood,
        *assumed.rows(),
        *missing.rows(),
        *verdict,
        *edits.rows(),
        *together,
        *trials.rows(),
        *warnings.rows(),
        *left_out,
    ]


def _shared(parts: Sequence[_Part], room: int | None) -> list[str]:
    """Sets how many items of each part are shown in `room` rows, one of each part in turn. Returns
    a line that counts the rest; no line if everything is shown."""
    if room is None or sum(len(item) for part in parts for item in part.items) <= room:
        for part in parts:
            part.kept = len(part.items)
        return []
    room -= 1
    growing = [part for part in parts if part.items]
    while growing:
        for part in tuple(growing):
            needed = len(part.items[part.kept])
            if needed > room:
                growing.remove(part)
                continue
            room -= needed
            part.kept += 1
            if part.kept == len(part.items):
                growing.remove(part)
    left = [(len(part.items) - part.kept, part.noun) for part in parts]
    words = ", ".join(f"{number_of(count, f'more {noun}')}" for count, noun in left if count)
    return [f"and {words}; use --all to print everything"]


def short_lines(review: Review) -> list[str]:
    """The review in at most five lines: the launch, the verdict, the best edit, the first
    warning."""
    found = [f"{review.target}: {review.understood}", *_verdict(review, None)]
    if review.missing:
        found = [f"no prediction without {each.what}; {each.remedy}" for each in review.missing[:3]]
    elif review.edits:
        first, more = review.edits[0], len(review.edits) - 1
        gain = f"faster with {_changes(first)}: {_gain_of(first, review)}, {_memory(first.memory_bytes)}"
        found.append(
            f"{gain}{f'; {more} more' if more else ''}; run autotune review to see the lines"
        )
    return [*found, *list(_warnings(review))[:1]][:5]


def _verdict(review: Review, tokens: float | None) -> Iterator[str]:
    yield from _prediction_lines(review, tokens)
    if (policy := review.checkpoints) is not None:
        yield policy.text


def _prediction_lines(review: Review, tokens: float | None) -> Iterator[str]:
    estimate = review.estimate
    if estimate is None or review.study is None or review.config is None:
        if review.missing:
            yield "no prediction yet; add the missing values"
        return
    gpu = review.study.workload.cluster.gpu
    risk = float(estimate.oom_probability)
    memory = f"{format_bytes(float(estimate.peak_memory_bytes))} ({format_bytes(float(estimate.peak_memory_low_bytes))} to {format_bytes(float(estimate.peak_memory_high_bytes))})"
    low_risk, high_risk = AT_THE_LIMIT
    words = (
        (review.is_lower_bound and risk <= high_risk, "may fit"),
        (review.is_upper_bound and risk > 0.4, "may not fit"),
        (risk < low_risk, "fits"),
        (risk > high_risk, "does not fit"),
        (True, "at the memory limit"),
    )
    verdict = notes_of(*words)[0]
    if review.is_lower_bound and risk <= high_risk:
        memory = f"at least {memory}"
    limit = format_bytes(gpu.memory_bytes)
    if review.observed is None:
        most = "up to " if review.is_upper_bound and risk >= 0.005 else ""
        at_risk = (
            "and the launch needs more than predicted"
            if review.is_lower_bound
            else f"{most}{risk:.0%} risk of running out of memory"
        )
        yield f"{verdict}: {memory} of {limit}, {at_risk}"
    else:
        excess = (
            "; the prediction is too high for this program"
            if float(estimate.peak_memory_low_bytes) > gpu.memory_bytes
            else ""
        )
        yield f"fits, because the launch ran; predicted memory: {memory} of {limit}{excess}"
    low, high = float(estimate.step_time_low_s), float(estimate.step_time_high_s)
    speed = f"{format_count(float(estimate.tokens_per_s))} tokens/s"
    yield (
        f"predicted: {format_duration(float(estimate.step_time_s))} a step ({format_duration(low)} to {format_duration(high)}), {speed}, "
        f"{format_mfu(float(estimate.mfu), 0)} MFU"
    )
    if tokens is not None:
        bill = Bill.of(review.study.workload.cluster, float(estimate.tokens_per_s), tokens)
        share = [time / float(estimate.step_time_s) for time in (low, high)]
        days = " to ".join(two_digits(bill.days * each) for each in share)
        range_usd = " to ".join(f"${two_digits((bill.cost_usd or 0.0) * each)}" for each in share)
        cost = f", about ${two_digits(bill.cost_usd)} ({range_usd})" if bill.cost_usd else ""
        yield f"{format_count(tokens)} tokens: {two_digits(bill.days)} days ({days}){cost}"
    if review.earlier is not None:
        yield _earlier(review.earlier)
    if review.observed is not None:
        compared = against_prediction(review.observed.slower)
        yield f"measured: {format_duration(review.observed.step_time_s)} a step ({review.observed.source}), {compared}; the other predictions are scaled accordingly"


def against_prediction(slower: float) -> str:
    """Measured over predicted step time, in words."""
    if slower >= 1.005:
        return f"{slower:.2f} times the predicted time"
    return f"{1 / slower:.2f} times as fast as predicted" if slower <= 0.995 else "as predicted"


def _earlier(found: Earlier) -> str:
    noun = {OBSERVED: "observed run ", TRIAL: "trial "}.get(found.kind, "")
    source = f"{noun}{found.where}{'' if found.kind == PUBLISHED else f' of {found.program}'}"
    verb = "published" if found.kind == PUBLISHED else "measured before"
    differs = ", ".join(f"{name} {_value(there)}" for name, (_, there) in found.differs.items())
    config = f"the nearest config, with {differs}" if differs else "this config"
    return f"{verb}: {format_duration(found.step_time_s)} a step, {format_count(found.tokens_per_s)} tokens/s ({source}, {config})"


def _edit(number: int, edit: Edit, review: Review) -> Iterator[str]:
    remark = f"; {edit.remark}" if edit.remark else ""
    yield f"{number}. {_changes(edit)}: {_gain_of(edit, review)}, {_memory(edit.memory_bytes)}{remark}"
    yield from _where(edit)


def _trial(edit: Edit) -> Iterator[str]:
    assert edit.alone is not None
    risk = f", {edit.oom_probability:.0%} OOM risk" if edit.oom_probability >= 0.01 else ""
    yield f"- {_changes(edit)}: {gain_words(edit.alone)}, {edit.alone.chance:.0%} chance of a gain, {_memory(edit.memory_bytes)}{risk}"
    yield from _where(edit)


def _where(edit: Edit) -> Iterator[str]:
    """The lines of the files that change, and settings without a line."""
    yield from map(_excerpt, edit.lines)
    if edit.unplaced:
        yield f"     and add {', '.join(edit.unplaced)}, for which the file has no line"


def _if_out_of_memory(review: Review) -> Iterator[str]:
    if (edit := review.if_out_of_memory) is not None:
        assert edit.alone is not None
        risk = f", {edit.oom_probability:.0%} OOM risk" if edit.oom_probability >= 0.01 else ""
        when = (
            "if the launch runs out of memory, use" if review.fits or risk == "" else "may fit with"
        )
        yield f"{when} {_changes(edit)}: {gain_words(edit.alone)}, {_memory(edit.memory_bytes)}{risk}"
        yield from _where(edit)


def _together(review: Review) -> Iterator[str]:
    """All edits together, or why there are none."""
    if review.estimate is None:
        return
    if review.together is None:
        if review.fits is False and not review.if_out_of_memory and not review.trials:
            yield (
                "no change to the launch's own settings makes it fit, but sharding does (see the first warning)"
                if any(each.makes_fit for each in review.warnings)
                else "no edit makes the launch fit with these ranks and this batch; set knobs that the launch does not set, or use more GPUs"
            )
        elif review.trials:
            yield "no edit is certain both to fit and to be faster; try these edits, and keep those that are faster:"
        elif review.best_gain >= LEAST:
            yield "no edit is certain to be faster; run a trial, or add --measured"
            yield from _highest(review)
        elif review.fits is None and review.is_upper_bound:
            yield "no edit that surely fits gains 3% or more; whether the launch fits depends on the assumptions above"
        else:
            yield "no edit gains 3% or more"
        return
    together = review.together
    if len(review.edits) > 1:
        yield (
            f"together: {gain_words(together.gain)}, {format_bytes(float(together.estimate.peak_memory_bytes))}, "
            f"{float(together.estimate.oom_probability):.0%} OOM risk"
        )
    if review.best_gain >= LEAST * together.gain.gain:
        yield from _highest(review)


def _highest(review: Review) -> Iterator[str]:
    """The config with the highest prediction, which is also the first one of `autotune plan`. Its
    interval may include losses, so it is not among the edits."""
    if (best := review.best) is not None and review.config is not None:
        changes = config_changes(review.config, best.config)
        risk = f"{float(best.estimate.oom_probability):.0%} OOM risk"
        yield f"highest prediction (not certain): {changes}: {format_gain(best.gain.gain)}, {risk}"


def _changes(edit: Edit) -> str:
    return ", ".join(
        f"{name} {_value(old)} -> {_value(new)}" for name, (old, new) in edit.changes.items()
    )


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _gain_of(edit: Edit, review: Review) -> str:
    if edit.alone is not None:
        return gain_words(edit.alone)
    if edit.beside is not None:
        return f"{gain_words(edit.beside)} with the other edits"
    return "needed by the other edits" if review.fits else "needed to fit"


def gain_words(gain: Gain) -> str:
    """A gain with its interval: `+36% (+13% to +71%)`, or `3.3x the speed (1.2x to 4.1x)`."""
    ends = (
        f"{gain.low:.3g}x to {gain.high:.3g}x"
        if gain.gain >= 2
        else f"{gain.low - 1:+.0%} to {gain.high - 1:+.0%}"
    )
    return f"{format_gain(gain.gain)} ({ends})"


def _memory(change: float) -> str:
    return f"{'+' if change >= 0 else '-'}{format_bytes(abs(change))}"


def _excerpt(line: LineEdit) -> str:
    """A changed or removed line of a file. If it is longer than a row, the part around the change,
    which is shown completely."""
    place = f"     {line.file}:{line.line}: "
    if line.after.startswith(f"{line.before}\n"):  # new lines after it
        added = (
            each.strip() for each in line.after[len(line.before) :].splitlines() if each.strip()
        )
        return f"{place}add below: {'; '.join(added)}"
    text = line.after.strip()
    if not text:
        text = f"remove {line.before.strip()}"
    elif len(place) + len(text) > WIDTH:
        begin, end = _changed(line.before.strip(), text)
        room = WIDTH - len(place) - len("... ...")
        begin_shown = 0 if end <= room else max(0, begin - _CONTEXT)
        first_word = (
            begin_shown
            if begin_shown == 0 or text[begin_shown - 1] == " "
            else text.find(" ", begin_shown, begin) + 1
        )
        last = max(end, first_word + room)
        text = (
            ("... " if first_word else "")
            + text[first_word:last]
            + ("..." if last < len(text) else "")
        )
    return place + text


def _changed(before: str, after: str) -> tuple[int, int]:
    """(begin, end) of the part of the new text that differs from the old one."""
    same_at_begin = next(
        (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    reversed_pairs = zip(
        reversed(before[same_at_begin:]), reversed(after[same_at_begin:]), strict=False
    )
    same_at_end = next(
        (at for at, (a, b) in enumerate(reversed_pairs) if a != b),
        min(len(before), len(after)) - same_at_begin,
    )
    return same_at_begin, len(after) - same_at_end


def _warnings(review: Review) -> Iterator[str]:
    for each in review.warnings:
        where = f"{each.file}:{each.line}: " if each.line else ""
        yield f"! {where}{each.text}"


def _rows(text: str, width: int) -> list[str]:
    """The text wrapped to rows of `width` characters; all but the first are indented."""
    clean = re.sub(r"\s*\n\s*", " ", text)
    return textwrap.wrap(clean, width, subsequent_indent="     ", break_on_hyphens=False) or [""]
