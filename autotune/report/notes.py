"""Notes on trials: how each failed or why it was proposed, with shared notes written once; and
where a study's ranks run and why trials wait, for the terminal and the study's page.

A table of trials shows a note in each row. A note that `SHARED_BY` or more rows share is written
once, under the table, and the rows only show its short form: the text before its colon (`out of
memory`, `cannot win`), or a number in brackets without a colon. Errors share a note only if their
causes are equal except for numbers, so that each cause is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.space.enumeration import in_words
from autotune.spec import FailureKind, Measurement, Trial, TrialStatus

SHARED_BY = 3
"""number of rows from which a shared note is written under the table"""
MAX_SHORT_NOTE = 16
"""longest short form of a note, characters"""
ERROR_KINDS = (FailureKind.ERROR, FailureKind.INVALID)
"""kinds of failures that can have many different causes"""
MAX_REASONS = 4
"""maximum number of reasons for infeasible configs in one line"""
MAX_REPEATED = 40
"""longest note without a short form that is repeated in each row, characters"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Notes on the trials of a table."""

    cells: Mapping[int, str]
    """the note in a trial's row, by trial number"""
    shared: tuple[str, ...]
    """lines under the table, starting with the most frequent note"""


def note_of(trial: Trial) -> str:
    """Return the most informative sentence about a trial: how it failed, or why it was proposed.
    For an error, the exception comes first, because a narrow column cuts the end."""
    if trial.failure is not None:
        failure = trial.failure
        if failure.kind in ERROR_KINDS and ": " in failure.exception:
            rank = "" if failure.rank is None else f" (rank {failure.rank})"
            return f"{failure.kind.words}: {failure.exception.splitlines()[0]}{rank}"
        return str(failure)
    if (measured := trial.measurement) is None:
        return trial.reason
    throttling = _throttling(measured) if measured.is_throttled else ""
    return "; ".join(filter(None, (throttling, *observations(measured.remarks), trial.reason)))


def observations(remarks: Iterable[str]) -> list[str]:
    """Return the observation in each remark on a measurement, without its consequences."""
    return [remark.partition("; ")[0] for remark in remarks]


def ranked_note(trial: Mapping[str, Any]) -> str:
    """Return the note on a trial in a ranking: an early stop first, and what limits its figures
    last. `trial`: its document with `note`."""
    limits = observations((trial.get("measurement") or {}).get("remarks") or ())
    parts = (
        "stopped early" if trial["status"] == TrialStatus.STOPPED else "",
        trial.get("note"),
        *limits,
    )
    return "; ".join(filter(None, parts))


def brief_note(trial: Trial, *, most: int) -> str:
    """Return a trial's note in at most about `most` characters: the whole note if it fits,
    otherwise its useful part.

    For a failure, this is the problem without the exception's class and without repeating the
    kind; for a reason, its first clause.
    """
    note = note_of(trial)
    if len(note) <= most:
        return note
    if trial.failure is None:
        return re.split(r"[:;,] ", note, maxsplit=1)[0]
    failure = trial.failure
    kind = failure.kind.words
    exception = (
        failure.exception.splitlines()[0].partition(": ")[2]
        if failure.kind in ERROR_KINDS and failure.exception
        else ""
    )
    sentences = [
        s.strip() for s in re.split(r"(?<=[.;:]) ", exception or failure.message) if s.strip()
    ]
    specific = [
        s
        for s in sentences
        if kind not in s.lower() and not re.fullmatch(r"\S*(Error|Exception):", s)
    ]
    rank = "" if failure.rank is None else f"rank {failure.rank}: "
    problem = (specific or sentences or [""])[0].rstrip(".;:")
    return (
        f"{rank}{problem}"
        if failure.kind in ERROR_KINDS and problem
        else f"{kind}: {rank}{problem}".rstrip(": ")
    )


def _throttling(measurement: Measurement) -> str:
    """Return that heat throttled a GPU during the measurement, with the driver's readings."""
    readings = measurement.utilization
    hot = f" at {readings['temperature_c']:.0f} C" if "temperature_c" in readings else ""
    share = (
        f" for {readings['throttled_share']:.0%} of the time"
        if readings.get("throttled_share")
        else ""
    )
    return f"throttled: a GPU{hot} lowered its clocks{share}"


def infeasible_line(counts: Mapping[str, int]) -> str:
    """Return the number of infeasible configs with the most frequent reasons; an empty text without
    any.

    Example: `1,204 combinations skipped: tp does not divide num_attention_heads (1,000), the GPU
    does not have the precision (204)`
    """
    if not counts:
        return ""
    ranked = list(in_words(counts).items())
    listed = ranked if len(ranked) <= MAX_REASONS + 1 else ranked[:MAX_REASONS]
    rest = sum(n for _, n in ranked[len(listed) :])
    reasons = [f"{reason} ({n:,})" for reason, n in listed] + (
        [f"other reasons ({rest:,})"] if rest else []
    )
    total = sum(counts.values())
    return (
        f"{total:,} {'combination' if total == 1 else 'combinations'} skipped: {', '.join(reasons)}"
    )


def short_note(trial: Trial) -> str:
    """Return the short form of an ended or running trial's note: the text before its colon, if that
    is short; otherwise an empty text."""
    if trial.status in (TrialStatus.COMPLETED, TrialStatus.PENDING):
        return ""
    head = note_of(trial).partition(":")[0]
    return head if len(head) <= MAX_SHORT_NOTE else ""


def notes_of(trials: Sequence[Trial]) -> Notes:
    """Return the notes on these trials, with shared notes written once."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(_group_key(trial), []).append(trial)
    cells, shared, marks = {t.number: note_of(t) for t in trials}, [], 0
    taken: set[str] = set()
    for key, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = group[0]
        short = short_note(first)
        if (
            len(group) < SHARED_BY
            or key == short == note_of(first)
            or (not short and len(key) <= MAX_REPEATED)
        ):
            continue
        if not short or short in taken:
            marks += 1
        mark = short if short and short not in taken else f"{short} ({marks})".lstrip()
        taken.add(short)
        cells |= dict.fromkeys((t.number for t in group), mark)
        details = [note_of(t).removeprefix(f"{short}: ") for t in group]
        example = "" if len(set(details)) == 1 else f", for example trial {first.number}"
        count = f"({len(group)} trials)" if short else f"{len(group)} trials"
        shared.append(f"{mark} {count}{example}: {details[0]}")
    return Notes(cells=cells, shared=tuple(shared))


def _group_key(trial: Trial) -> str:
    """Return the key that groups trials with a shared note."""
    failure = trial.failure
    if failure is None or failure.kind not in ERROR_KINDS:
        return short_note(trial) or note_of(trial)
    return f"{failure.kind}: {re.sub('[0-9]+', '#', failure.exception or failure.message)}"


def placement_lines(study: Mapping[str, Any]) -> list[str]:
    """Return one line for each trial with ranks, such as `trial 3 has ranks 0 to 3 on a with GPUs
    0, 1, 2, 3; ranks 4 to 7 on b with ...`, then one for each waiting trial, such as `trial 4
    waits: ...`. `study`: the study's document."""
    verb = "had" if study["ended_at"] else "has"
    trials: dict[int, list[str]] = {}
    for place in study.get("placed") or ():
        trials.setdefault(place["trial"], []).append(_place_text(place))
    placed = [f"trial {number} {verb} {'; '.join(places)}" for number, places in trials.items()]
    return [
        *placed,
        *(f"trial {row['trial']} waits: {row['reason']}" for row in study.get("waiting") or ()),
    ]


def _place_text(place: Mapping[str, Any]) -> str:
    gpus: Sequence[str] = place["gpus"]
    word = "GPU" if len(gpus) == 1 else "GPUs"
    devices = f" with {word} {', '.join(gpus)}" if gpus else " (CPU)"
    return f"{_ranks_text(place['ranks'])} on {place['node']}{devices}"


def _ranks_text(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers))}"
