"""Launches that a test reviews, and what is checked of the answer: a row of a table in place of a
test of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from autotune.reviews import Review, lines_of, review
from tests.shortcuts import write


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a review says; what is not given is not checked."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """values of the config that it read"""
    missing: tuple[str, ...] | None = None
    """all that is missing"""
    remedies: tuple[str, ...] = ()
    """parts of what to do about that"""
    predicted: bool | None = None
    """whether something is predicted"""
    fits: tuple[bool | None, ...] = ()
    """whether it is expected to fit, one of these"""
    assumed: tuple[str, ...] = ()
    """parts of what is assumed"""
    warnings: tuple[str, ...] = ()
    """parts of warnings"""
    lines: tuple[str, ...] = ()
    """how printed lines begin"""
    unsaid: tuple[str, ...] = ()
    """parts of nothing that is understood, assumed or warned of"""

    def check(self, found: Review) -> None:
        """Compares all that is given."""
        assert {name: getattr(found.config, name) for name in self.config} == self.config, (
            found.missing
        )
        assert self.missing in (None, tuple(each.what for each in found.missing))
        assert _absent(self.remedies, [each.remedy for each in found.missing]) == []
        assert self.predicted in (None, found.estimate is not None)
        assert not self.fits or found.fits in self.fits
        warned = [each.text for each in found.warnings]
        assert _absent(self.assumed, found.assumed) == []
        assert _absent(self.warnings, warned) == []
        assert [
            part
            for part in self.lines
            if not any(line.startswith(part) for line in lines_of(found))
        ] == []
        assert [
            part
            for part in self.unsaid
            if not _absent([part], [found.understood, *found.assumed, *warned])
        ] == []


class Reviewed(NamedTuple):
    """A row of a table: files, what is said beside the first of them, and what the review says."""

    files: Mapping[str, str]
    given: Mapping[str, Any]
    said: Said

    def check(self, folder: Path) -> Review:
        """Reviews it in that folder, and compares."""
        found = review(write(folder, self.files), **self.given)
        self.said.check(found)
        return found


def _absent(parts: Any, texts: Any) -> list[str]:
    """The parts that are in none of the texts."""
    return [part for part in parts if not any(part in text for text in texts)]
