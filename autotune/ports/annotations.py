"""What people write on studies: notes and tags. They belong to no controller and may be written at
any time, also after the study has ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from autotune.ports.study_record import StudyRecord
from autotune.spec.plain import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyNote(Plain):
    """What somebody wrote on a study."""

    number: int
    """of the event that says it was written: unique within the study, never used again"""
    at: datetime
    """when it was written"""
    author: str
    """who wrote it; empty for the user of the machine"""
    text: str
    """plain text"""


class AnnotationStore(Protocol):
    """Keeps notes and tags. Each change is an event of the study's history, without a note's text.
    All methods raise `NotFoundError` for an unknown study."""

    def notes(self, study_id: str) -> list[StudyNote]:
        """The study's notes, oldest first."""
        ...

    def add_note(self, study_id: str, text: str, *, author: str = "") -> StudyNote:
        """Writes a note; the same text again by the same author, with nothing between, is the same
        note. Raises `SpecError` for an empty or too long one."""
        ...

    def remove_note(self, study_id: str, number: int, *, author: str = "") -> None:
        """Removes a note for good. Raises `NotFoundError` when there is none of this number."""
        ...

    def change_tags(
        self,
        study_id: str,
        *,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        author: str = "",
    ) -> StudyRecord:
        """The study with tags added and removed; a tag that is there already, or was not, is no
        mistake. Raises `SpecError` for what is no tag."""
        ...
