"""The rank that a finding is about, and the source line where its time was spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autotune.diagnosis.critical import Series, Steps
from autotune.diagnosis.evidence import Place, Rank
from autotune.spec.texts.as_text import format_duration


def only_rank(steps: Steps, part: Series) -> int | None:
    """Return the rank that spends much more time on this part than all others, or None. `part`:
    seconds, shape (ranks, steps)."""
    if len(steps.ranks) < 2:
        return None
    means = part.mean(axis=1)
    at = int(means.argmax())
    others = float(np.delete(means, at).max())
    return (
        steps.ranks[at].rank
        if means[at] > 2 * others and means[at] - others > 0.02 * float(steps.slowest.mean())
        else None
    )


def node_of(steps: Steps, rank: int | None) -> str:
    """Return the name of a rank's node; empty for None."""
    return next((r.node for r in steps.ranks if r.rank == rank), "") if rank is not None else ""


def who(rank: int | None, everyone: str) -> str:
    """Return `rank N`, or the text `everyone` if the finding is about all ranks."""
    return everyone if rank is None else f"rank {rank}"


def time_spent(steps: Steps, part: Series, rank: int | None, what: str) -> list[str]:
    """Return a sentence on the mean time per step that a rank spends on this part, compared with
    the rank that spends least. `rank`: None for the one that spends most; `what`: the end of the
    sentence."""
    means = part.mean(axis=1)
    at = next((i for i, r in enumerate(steps.ranks) if r.rank == rank), int(means.argmax()))
    others = (
        f"; rank {steps.ranks[int(means.argmin())].rank} spends {format_duration(float(means.min()))}"
        if len(means) > 1
        else ""
    )
    return [
        f"rank {steps.ranks[at].rank} spends {format_duration(float(means[at]))} of a {format_duration(float(steps.slowest.mean()))} step {what}{others}"
    ]


def most_seen_place(
    ranks: Sequence[Rank], wanted: Callable[[Place], bool], rank: int | None
) -> Place | None:
    """Return the place with the most stack samples that `wanted` accepts, of one rank or of all
    (None)."""
    chosen = [r for r in ranks if rank in (None, r.rank)]
    places = (place for r in chosen for place in r.places)
    candidates = (place for place in places if wanted(place) and place.line)
    return max(candidates, key=lambda place: place.share, default=None)


def seen_most_often(place: Place | None) -> list[str]:
    """Return a list with one sentence on the place; an empty list for None."""
    if place is None:
        return []
    inside = f" (in {place.function})" if place.function else ""
    return [f"most often at {place.line}: {place.text}".rstrip(": ") + inside]
