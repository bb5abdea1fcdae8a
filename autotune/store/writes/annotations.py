"""Notes and tags of studies. Each change is an event of the study's history, so that the study's
revision moves with it."""

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


class AnnotationKeeper:
    """Implements `autotune.ports.AnnotationStore` on the tables `notes` and `tags`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def notes(self, study_id: str) -> list[StudyNote]:
        """The study's notes, oldest first."""
        with self._database.read() as connection:
            key, _ = queries.resolve(connection, study_id)
            return _notes(connection, key)

    def add_note(self, study_id: str, text: str, *, author: str = "") -> StudyNote:
        """Writes a note."""
        with self._database.write(durable=True) as connection:
            key = _locked(connection, study_id)
            written = _notes(connection, key)
            text, author, now = (
                checked_note(clean(text), notes=len(written)),
                clean(author),
                now_us(),
            )
            if written and (written[-1].author, written[-1].text) == (author, text):
                return written[-1]
            number = append(connection, key, [(EventKind.NOTED, {"author": author})])
            row = {"study": key, "number": number, "at_us": now, "author": author, "text": text}
            connection.execute(insert(notes).values(row))
        return StudyNote(number=number, at=from_us(now), author=author, text=text)

    def remove_note(self, study_id: str, number: int, *, author: str = "") -> None:
        """Removes a note for good."""
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
        """The study with tags added and removed."""
        added, removed = checked_tags(add), set(remove)
        with self._database.write(durable=True) as connection:
            key = _locked(connection, study_id)
            present = set(connection.scalars(select(tags.c.tag).where(tags.c.study == key)))
            new, gone = sorted(set(added) - present), sorted(removed & present - set(added))
            check_tag_count(len(present) + len(new) - len(gone))
            if gone:
                connection.execute(delete(tags).where(tags.c.study == key, tags.c.tag.in_(gone)))
            if new:
                connection.execute(insert(tags), [{"study": key, "tag": tag} for tag in new])
            if new or gone:
                line = {"added": new, "removed": gone, "author": clean(author)}
                append(connection, key, [(EventKind.TAGGED, line)])
            return queries.study(connection, study_id)


def _notes(connection: Connection, key: int) -> list[StudyNote]:
    rows = connection.execute(select(notes).where(notes.c.study == key).order_by(notes.c.number))
    return [
        StudyNote(number=row.number, at=from_us(row.at_us), author=row.author, text=row.text)
        for row in rows
    ]


def _locked(connection: Connection, study_id: str) -> int:
    """The key of the study, whose row is locked until the transaction ends."""
    key, _ = queries.resolve(connection, study_id)
    connection.execute(select(studies.c.key).where(studies.c.key == key).with_for_update())
    return key
