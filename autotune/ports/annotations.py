"""Notes and tags of studies, written by users. They need no lease and can be changed at any time,
also after the study has ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from autotune.ports.study_record import StudyRecord
from autotune.spec.plain import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyNote(Plain):
    """A note on a study."""

    number: int
    """sequence number of the event that recorded it: unique within the study, never reused"""
    at: datetime
    """when it was written"""
    author: str
    """who wrote it; empty for the machine's user"""
    text: str
    """plain text"""


class AnnotationStore(Protocol):
    """Stores notes and tags. Each change is recorded in the study's history, without the text of a
    note. All methods raise `NotFoundError` for an unknown study."""

    def notes(self, study_id: str) -> list[StudyNote]:
        """The study's notes, oldest first."""
        ...

    def add_note(self, study_id: str, text: str, *, author: str = "") -> StudyNote:
        """Add a note. If the same author's last note has the same text, that note is returned.
        Raises `SpecError` for an empty or too long text."""
        ...

    def remove_note(self, study_id: str, number: int, *, author: str = "") -> None:
        """Remove a note permanently. Raises `NotFoundError` if there is no note with this number."""
        ...

    def change_tags(
        self,
        study_id: str,
        *,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        author: str = "",
    ) -> StudyRecord:
        """Add and remove tags; return the study. Adding an existing tag or removing a missing one
        has no effect. Raises `SpecError` for an invalid tag."""
        ...
