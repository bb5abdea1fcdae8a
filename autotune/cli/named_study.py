"""Which study a name means where several have it.

to look at    the newest; the others are listed
to act on     the only one that has not ended, else the id is asked for
to delete     the only one of that name, else the id is asked for
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.output import note
from autotune.cli.study_text import interval_of
from autotune.errors import NotFoundError
from autotune.spec.texts.as_text import format_speedup

if TYPE_CHECKING:
    from autotune.cli.source import Source

LISTED = 5
"""studies of one name that are listed"""


def tell_namesakes(source: Source, asked: str) -> None:
    """Says which other studies have the name of the one that is shown."""
    found = _named(source, asked)
    if len(found) > 1:
        note(
            f"{_count(found)} studies are named {asked!r}; this is the newest, {found[0]['id']}. To select another study, use its id:"
        )
        for study in found[1:LISTED]:
            note(f"  {described(study)}")


@contextmanager
def source_of(
    study: str, store: str | None, url: str | None, folder: Path | None = None
) -> Iterator[tuple[Source, str]]:
    """The source of the study that is shown, and the study, after saying which others have its
    name."""
    from autotune.cli.source import in_folder, open_source

    study, store = in_folder(study, store, url, folder)
    with open_source(store, url) as source:
        tell_namesakes(source, study)
        yield source, study


def to_act_on(source: Source, asked: str) -> str:
    """The id or name to act on. Raises `NotFoundError` when several studies of this name have not
    ended."""
    from autotune.spec import StudyStatus

    statuses = [status for status in StudyStatus if not status.is_terminal]
    open_ones = [study for status in statuses for study in _named(source, asked, status=status)]
    open_ones.sort(key=lambda study: str(study["created_at"]), reverse=True)
    return _only(asked, open_ones, "studies that have not ended")


def to_delete(source: Source, asked: str) -> str:
    """The id or name to delete. Raises `NotFoundError` when several studies have this name."""
    return _only(asked, _named(source, asked), "studies")


def described(study: dict[str, Any]) -> str:
    """A study in a line: id, when, status, and what it gained."""
    speedup = study.get("speedup")
    gained = (
        f", {format_speedup(speedup, *interval_of(study), over=' the baseline')}" if speedup else ""
    )
    gained = f", {noisy['message']}" if (noisy := study.get("too_noisy")) else gained
    return f"{study['id']} of {str(study['created_at'])[:16].replace('T', ' ')}, {study['status'].lower()}{gained}"


def _named(source: Source, asked: str, **filters: Any) -> list[dict[str, Any]]:
    """The first studies of this name that match the filters, newest first; none where it is the id
    of one."""
    if not asked:
        return []  # no filter
    found: list[dict[str, Any]] = source.studies(limit=LISTED + 1, name=asked, **filters)["studies"]
    return found


def _only(asked: str, found: Sequence[dict[str, Any]], what: str) -> str:
    if len(found) < 2:
        return found[0]["id"] if found else asked
    listed = "; ".join(described(study) for study in found[:LISTED])
    raise NotFoundError(
        f"{_count(found)} {what} are named {asked!r}: {listed}",
        remedy=f"use the study's id, e.g. {found[0]['id']}",
    )


def _count(found: Sequence[Any]) -> str:
    return f"more than {LISTED}" if len(found) > LISTED else str(len(found))
