"""What people write on a study: tags, by which studies are found again, and notes.

A tag is a word without spaces, so that a list of tags can be typed in one line. Tags are compared as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.errors import SpecError

MAX_TAGS = 20
"""tags of a study"""
MAX_NOTE = 10_000
"""characters of a note"""
MAX_NOTES = 200
"""notes of a study"""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,49}")


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags, each once, in alphabetical order. Raises `SpecError` for one that is no tag."""
    found = sorted(set(tags))
    for tag in found:
        if not _TAG.fullmatch(tag):
            raise SpecError(
                f"a tag has 1 to 50 letters, digits or any of _ . : / + -, and begins with a letter or digit, but one is {tag!r:.80}",
                remedy="leave out spaces and other signs",
                field="tags",
            )
    return tuple(found)


def check_tag_count(count: int) -> None:
    """Raises `SpecError` when a study would have too many tags."""
    if count > MAX_TAGS:
        raise SpecError(
            f"a study has at most {MAX_TAGS} tags, but would have {count}", remedy="remove one first", field="tags"
        )


def checked_note(text: str, *, notes: int) -> str:
    """The text of a new note, without space around it. `notes`: that the study has already. Raises `SpecError`."""
    text = text.replace("\r\n", "\n").strip()
    if not 0 < len(text) <= MAX_NOTE:
        raise SpecError(
            f"a note has 1 to {MAX_NOTE:,} characters, but this one has {len(text):,}",
            remedy="shorten it, or write several" if text else "write some text",
            field="text",
        )
    if notes >= MAX_NOTES:
        raise SpecError(f"a study has at most {MAX_NOTES} notes", remedy="remove one first", field="text")
    return text
