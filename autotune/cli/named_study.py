"""Finds the study that a name means if several studies have the name.

to show        the newest study; the others are listed
to control     the only study that has not ended; otherwise an error asks for the id
to delete      the only study with the name; otherwise an error asks for the id
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.output import note
from autotune.cli.study_text import speedup_interval
from autotune.errors import NotFoundError
from autotune.spec.texts.as_text import format_speedup

if TYPE_CHECKING:
    from autotune.cli.source import Source

MAX_LISTED = 5
"""maximum number of studies with one name to list"""


def note_namesakes(source: Source, name_or_id: str) -> None:
    """Print which other studies have the same name as the study that is shown."""
    namesakes = _studies_named(source, name_or_id)
    if len(namesakes) > 1:
        note(
            f"{_count(namesakes)} studies are named {name_or_id!r}; this is the newest, {namesakes[0]['id']}. To select another study, use its id:"
        )
        for study in namesakes[1:MAX_LISTED]:
            note(f"  {_study_line(study)}")


@contextmanager
def source_with_study(
    study: str, store: str | None, url: str | None, folder: Path | None = None
) -> Iterator[tuple[Source, str]]:
    """Yield the source and the id of the study to show, after printing which other studies have the
    same name."""
    from autotune.cli.source import open_source, study_and_store

    study, store = study_and_store(study, store, url, folder)
    with open_source(store, url) as source:
        note_namesakes(source, study)
        yield source, study


def study_to_control(source: Source, name_or_id: str) -> str:
    """Return the id or name of the study to control. Raises `NotFoundError` if several studies with
    this name have not ended."""
    from autotune.spec import StudyStatus

    statuses = [status for status in StudyStatus if not status.is_terminal]
    open_ones = [
        study for status in statuses for study in _studies_named(source, name_or_id, status=status)
    ]
    open_ones.sort(key=lambda study: str(study["created_at"]), reverse=True)
    return _single_study(name_or_id, open_ones, "studies that have not ended")


def study_to_delete(source: Source, name_or_id: str) -> str:
    """Return the id or name of the study to delete. Raises `NotFoundError` if several studies have
    this name."""
    return _single_study(name_or_id, _studies_named(source, name_or_id), "studies")


def _study_line(study: dict[str, Any]) -> str:
    """Return one line about a study: id, creation time, status and speedup."""
    speedup = study.get("speedup")
    result = (
        f", {format_speedup(speedup, *speedup_interval(study), over=' the baseline')}"
        if speedup
        else ""
    )
    result = f", {noisy['message']}" if (noisy := study.get("too_noisy")) else result
    return f"{study['id']} of {str(study['created_at'])[:16].replace('T', ' ')}, {study['status'].lower()}{result}"


def _studies_named(source: Source, name_or_id: str, **filters: Any) -> list[dict[str, Any]]:
    """Return the newest studies with this name that match the filters, at most `LISTED` + 1 of
    them."""
    if not name_or_id:
        return []  # an empty name would match all studies
    studies: list[dict[str, Any]] = source.studies(
        limit=MAX_LISTED + 1, name=name_or_id, **filters
    )["studies"]
    return studies


def _single_study(name_or_id: str, matches: Sequence[dict[str, Any]], description: str) -> str:
    """Return the only match's id, or `name_or_id` without matches. Raises `NotFoundError` for
    several matches."""
    if len(matches) < 2:
        return matches[0]["id"] if matches else name_or_id
    listed = "; ".join(_study_line(study) for study in matches[:MAX_LISTED])
    raise NotFoundError(
        f"{_count(matches)} {description} are named {name_or_id!r}: {listed}",
        remedy=f"use the study's id, e.g. {matches[0]['id']}",
    )


def _count(matches: Sequence[Any]) -> str:
    return f"more than {MAX_LISTED}" if len(matches) > MAX_LISTED else str(len(matches))
