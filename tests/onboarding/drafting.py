"""Drafts of files that a test writes, and what is checked of them: a row of a table in place of a
test of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from autotune import api
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.spec import Study
from tests.shortcuts import file_with, write

A100 = "a100-80gb-1x8"


def drafted(
    folder: Path, files: Mapping[str, str], cluster: str | None = A100, **known: Any
) -> Draft:
    """The draft of `run.sh`, or of the first of the files."""
    first = write(folder, files)
    return first_draft(
        folder / "run.sh" if "run.sh" in files else first, cluster=cluster, folder=folder, **known
    )


def loaded(draft: Draft, folder: Path) -> Study:
    """The study of a draft, with a stand-in for what only its owner knows."""
    return api.load_study(file_with(folder / "spec.yaml", draft.text.replace("FILL-IN", "data")))


def argv(draft: Draft) -> list[str]:
    """Its command."""
    return draft.document["trainer"]["argv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a draft says; what is not given is not checked."""

    document: Mapping[str, Any] = field(default_factory=dict)
    """values of its spec, by path; None: there is none"""
    baseline: str = ""
    """how its baseline begins"""
    knobs: tuple[str, ...] = ()
    """parts of its baseline"""
    start: tuple[str, ...] = ()
    """how its command begins"""
    words: tuple[str, ...] = ()
    """words of its command"""
    without: tuple[str, ...] = ()
    """parts of no word of its command"""
    notes: tuple[str, ...] = ()
    """parts of its notes"""
    unsaid: tuple[str, ...] = ()
    """parts of none of them"""
    text: tuple[str, ...] = ()
    """parts of its text"""
    asked: tuple[str, ...] = ()
    """keys that are to be filled in"""
    settled: tuple[str, ...] = ()
    """keys that are not"""
    study: Mapping[str, Any] = field(default_factory=dict)
    """attributes of the study that loads, by path"""

    def check(self, draft: Draft, folder: Path) -> None:
        """Compares all that is given."""
        assert {path: at_path(draft.document, path) for path in self.document} == self.document
        assert draft.document.get("baseline", "").startswith(self.baseline)
        assert _missing(self.knobs, [draft.document.get("baseline", "")]) == []
        command = argv(draft) if self.start or self.words or self.without else []
        assert tuple(command[: len(self.start)]) == self.start
        assert [word for word in self.words if word not in command] == []
        assert [part for part in self.without if not _missing([part], command)] == []
        assert _missing(self.notes, draft.notes) == []
        assert [part for part in self.unsaid if not _missing([part], draft.notes)] == []
        assert _missing(self.text, [draft.text]) == []
        assert set(self.asked) <= set(draft.fill_in)
        assert not set(self.settled) & set(draft.fill_in)
        is_marked = "space.precision" not in draft.fill_in or "# fill in: precision" in draft.text
        assert is_marked, "the spec itself must say that its precision is a placeholder"
        if self.study:
            study = loaded(draft, folder)
            assert {path: _attribute(study, path) for path in self.study} == self.study


class Launch(NamedTuple):
    """A row of a table: files, what is read of them, and the cluster that is named."""

    files: Mapping[str, str]
    read: Read
    cluster: str | None = A100
    model: str | None = None

    def check(self, folder: Path) -> None:
        """Drafts it in that folder, and compares."""
        self.read.check(drafted(folder, self.files, self.cluster, model=self.model), folder)


def _missing(parts: Any, texts: Any) -> list[str]:
    """The parts that are in none of the texts."""
    return [part for part in parts if not any(part in text for text in texts)]


def at_path(document: Any, path: str) -> Any:
    """The value there; None where there is none."""
    for key in path.split("/"):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value
