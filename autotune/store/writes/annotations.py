"""Notes and tags of studies. Each change adds an event to the study's history, which changes the
study's revision."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, insert, select

from autotune.errors import NotFoundError
from autotune.ports import EventKind, StudyNote, StudyRecord
from autotune.spec.runs.observed import check_tag_count, checked_note, checked_tags
from autotune.store import queries
from autotune.store.connection.database import Database, from_us, now_us
from autotune.store.rows import clean
from autotune.store.tables import notes, studies, tags
from autotune.store.writes.history import append


class AnnotationTables:
    """Implements `autotune.ports.AnnotationStore` on the tables `notes` and `tags`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def notes(self, study_id: str) -> list[StudyNote]:
        """Return the study's notes, oldest first."""
        with self._database.read() as connection:
            key, _ = queries.resolve(connection, study_id)
            return _notes(connection, key)

    def add_note(self, study_id: str, text: str, *, author: str = "") -> StudyNote:
        """Store a note, and return it. A repeated last note of the same author is not stored
        again."""
        with self._database.write(durable=True) as connection:
            key = _locked(connection, study_id)
            stored = _notes(connection, key)
            text, author, now = (
                checked_note(clean(text), notes=len(stored)),
                clean(author),
                now_us(),
            )
            if stored and (stored[-1].author, stored[-1].text) == (author, text):
                return stored[-1]
            number = append(connection, key, [(EventKind.NOTED, {"author": author})])
            row = {"study": key, "number": number, "at_us": now, "author": author, "text": text}
            connection.execute(insert(notes).values(row))
        return StudyNote(number=number, at=from_us(now), author=author, text=text)

    def remove_note(self, study_id: str, number: int, *, author: str = "") -> None:
        """Permanently remove a note. Raises `NotFoundError`."""
        with self._database.write(durable=True) as connection:
            key = _locked(connection, study_id)
            removed = delete(notes).where(notes.c.study == key, notes.c.number == number)
            if not connection.execute(removed).rowcount:
                raise NotFoundError(
                    f"study {study_id} has no note {number}",
                    remedy="the note may have been removed already",
                )
            append(
                connection,
                key,
                [(EventKind.NOTE_REMOVED, {"note": number, "author": clean(author)})],
            )

    def change_tags(
        self,
        study_id: str,
        *,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        author: str = "",
    ) -> StudyRecord:
        """Add and remove tags, and return the study. A tag in both is added."""
        added, removed = checked_tags(add), set(remove)
        with self._database.write(durable=True) as connection:
            key = _locked(connection, study_id)
            present = set(connection.scalars(select(tags.c.tag).where(tags.c.study == key)))
            new, old = sorted(set(added) - present), sorted(removed & present - set(added))
            check_tag_count(len(present) + len(new) - len(old))
            if old:
                connection.execute(delete(tags).where(tags.c.study == key, tags.c.tag.in_(old)))
            if new:
                connection.execute(insert(tags), [{"study": key, "tag": tag} for tag in new])
            if new or old:
                data = {"added": new, "removed": old, "author": clean(author)}
                append(connection, key, [(EventKind.TAGGED, data)])
            return queries.study(connection, study_id)


def _notes(connection: Connection, key: int) -> list[StudyNote]:
    """Return the notes of a study, oldest first."""
    rows = connection.execute(select(notes).where(notes.c.study == key).order_by(notes.c.number))
    return [
        StudyNote(number=row.number, at=from_us(row.at_us), author=row.author, text=row.text)
        for row in rows
    ]


def _locked(connection: Connection, study_id: str) -> int:
    """Lock the study's row until the transaction ends, and return its key."""
    key, _ = queries.resolve(connection, study_id)
    connection.execute(select(studies.c.key).where(studies.c.key == key).with_for_update())
    return key
