"""Notes of trials: how each failed or why it was asked, and what many of them share.

A table of trials shows a note in each row. A note that `SHARED_BY` or more rows share is written
once, under the table, and the rows show only its gist: what it says before its colon
(`out of memory`, `cannot win`), or a number in brackets where it has none. Errors share a note only
where their cause is the same but for its figures, so that each cause is seen.

Where the ranks of a study are, in words: nodes, and GPUs or CPU ranks on each; and why trials wait
for some. For the terminal and the study's page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.space.enumeration import in_words
from autotune.spec import FailureKind, Measurement, Trial, TrialStatus

SHARED_BY = 3
"""rows from which on a note is written under the table"""
MAX_GIST = 16
"""characters of a gist"""
CAUSES = (FailureKind.ERROR, FailureKind.INVALID)
"""kinds of failures that have many causes"""
SHOWN_REASONS = 4
"""reasons of infeasible configs that one line names"""
MAX_REPEATED = 40
"""characters of a note that is short enough to be repeated where it has no gist"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The notes of a table of trials."""

    cells: Mapping[int, str]
    """what a trial's row shows, by trial number"""
    shared: tuple[str, ...]
    """lines under the table, the most frequent note first"""


def note_of(trial: Trial) -> str:
    """The most telling sentence about a trial: how it failed, or why it was asked. Of an error the
    exception comes first: a narrow column cuts the end."""
    if trial.failure is not None:
        failure = trial.failure
        if failure.kind in CAUSES and ": " in failure.exception:
            rank = "" if failure.rank is None else f" (rank {failure.rank})"
            return f"{failure.kind.words}: {failure.exception.splitlines()[0]}{rank}"
        return str(failure)
    if (seen := trial.measurement) is None:
        return trial.reason
    heat = _throttling(seen) if seen.is_throttled else ""
    return "; ".join(filter(None, (heat, *gists(seen.remarks), trial.reason)))


def gists(remarks: Iterable[str]) -> list[str]:
    """The observation in each remark on a measurement, without its consequences."""
    return [remark.partition("; ")[0] for remark in remarks]


def ranked_note(trial: Mapping[str, Any]) -> str:
    """The note on a trial in a ranking. `trial`: a plain document with its `note`. The note begins
    with an early stop and ends with what limits the trial's figures."""
    is_stopped = trial["status"] == TrialStatus.STOPPED
    limits = gists((trial.get("measurement") or {}).get("remarks") or ())
    said = ("stopped early" if is_stopped else "", trial.get("note"), *limits)
    return "; ".join(filter(None, said))


def brief_note(trial: Trial, *, most: int) -> str:
    """The note where `most` columns have to do: whole where it fits, else its useful part.

    Of a failure that is what went wrong, without the class of the exception and without what the
    kind says already; of a reason it is the first clause.
    """
    note = note_of(trial)
    if len(note) <= most:
        return note
    if trial.failure is None:
        return re.split(r"[:;,] ", note, maxsplit=1)[0]
    failure = trial.failure
    kind = failure.kind.words
    said = (
        failure.exception.splitlines()[0].partition(": ")[2]
        if failure.kind in CAUSES and failure.exception
        else ""
    )
    sentences = [s.strip() for s in re.split(r"(?<=[.;:]) ", said or failure.message) if s.strip()]
    telling = [
        s
        for s in sentences
        if kind not in s.lower() and not re.fullmatch(r"\S*(Error|Exception):", s)
    ]
    rank = "" if failure.rank is None else f"rank {failure.rank}: "
    what = (telling or sentences or [""])[0].rstrip(".;:")
    return (
        f"{rank}{what}" if failure.kind in CAUSES and what else f"{kind}: {rank}{what}".rstrip(": ")
    )


def _throttling(measurement: Measurement) -> str:
    """That heat slowed a GPU down while it was measured, with what the driver told."""
    read = measurement.utilization
    hot = f" at {read['temperature_c']:.0f} C" if "temperature_c" in read else ""
    share = f" for {read['throttled_share']:.0%} of the time" if read.get("throttled_share") else ""
    return f"throttled: a GPU{hot} lowered its clocks{share}"


def infeasible_line(counts: Mapping[str, int]) -> str:
    """Configs that cannot be run, counted by the most frequent reasons; empty without any.

    `1,204 combinations cannot be run here: tp does not divide num_attention_heads (1,000), the GPU
    does not have the precision (204)`
    """
    if not counts:
        return ""
    ranked = list(in_words(counts).items())
    named = ranked if len(ranked) <= SHOWN_REASONS + 1 else ranked[:SHOWN_REASONS]
    rest = sum(n for _, n in ranked[len(named) :])
    reasons = [f"{reason} ({n:,})" for reason, n in named] + (
        [f"other reasons ({rest:,})"] if rest else []
    )
    total = sum(counts.values())
    return (
        f"{total:,} {'combination' if total == 1 else 'combinations'} skipped: {', '.join(reasons)}"
    )


def gist_of(trial: Trial) -> str:
    """What the note of a trial that did not run to its end says before its colon, where that is
    short; else empty."""
    if trial.status in (TrialStatus.COMPLETED, TrialStatus.PENDING):
        return ""
    head = note_of(trial).partition(":")[0]
    return head if len(head) <= MAX_GIST else ""


def notes_of(trials: Sequence[Trial]) -> Notes:
    """The notes of these trials; those that many share once."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(_sharing(trial), []).append(trial)
    cells, shared, marks = {t.number: note_of(t) for t in trials}, [], 0
    taken: set[str] = set()
    for key, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = group[0]
        gist = gist_of(first)
        if (
            len(group) < SHARED_BY
            or key == gist == note_of(first)
            or (not gist and len(key) <= MAX_REPEATED)
        ):
            continue
        if not gist or gist in taken:
            marks += 1
        mark = gist if gist and gist not in taken else f"{gist} ({marks})".lstrip()
        taken.add(gist)
        cells |= dict.fromkeys((t.number for t in group), mark)
        details = [note_of(t).removeprefix(f"{gist}: ") for t in group]
        of_one = "" if len(set(details)) == 1 else f", for example trial {first.number}"
        count = f"({len(group)} trials)" if gist else f"{len(group)} trials"
        shared.append(f"{mark} {count}{of_one}: {details[0]}")
    return Notes(cells=cells, shared=tuple(shared))


def _sharing(trial: Trial) -> str:
    """What trials of one group have in common."""
    failure = trial.failure
    if failure is None or failure.kind not in CAUSES:
        return gist_of(trial) or note_of(trial)
    return f"{failure.kind}: {re.sub('[0-9]+', '#', failure.exception or failure.message)}"


def placed_lines(study: Mapping[str, Any]) -> list[str]:
    """One line for each trial that is placed: `trial 3 has ranks 0 to 3 on a with GPUs 0, 1, 2, 3;
    ranks 4 to 7 on b with ...`, then one for each that waits: `trial 4 waits: ...`. `study`: its
    document."""
    verb = "had" if study["ended_at"] else "has"
    trials: dict[int, list[str]] = {}
    for place in study.get("placed") or ():
        trials.setdefault(place["trial"], []).append(_on_node(place))
    placed = [f"trial {number} {verb} {'; '.join(places)}" for number, places in trials.items()]
    return [
        *placed,
        *(f"trial {row['trial']} waits: {row['reason']}" for row in study.get("waiting") or ()),
    ]


def _on_node(place: Mapping[str, Any]) -> str:
    gpus: Sequence[str] = place["gpus"]
    word = "GPU" if len(gpus) == 1 else "GPUs"
    devices = f" with {word} {', '.join(gpus)}" if gpus else " (CPU)"
    return f"{_ranks(place['ranks'])} on {place['node']}{devices}"


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers))}"
