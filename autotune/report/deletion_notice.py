"""The consequences of deleting a study, in sentences, for the question whether to delete it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.spec.texts.as_text import number_of

MAX_LISTED = 3
"""maximum number of later studies to list by name"""


def deletion_lines(deletion: Mapping[str, Any]) -> list[str]:
    """Return sentences on a document of `autotune.study.deletion.Deletion`."""
    lines = [
        f"study {deletion['study']} ({deletion['name']}) is deleted with {number_of(deletion['trials'], 'trial')}, their logs and the study's history"
    ]
    if deletion["measured"]:
        lines.append(
            f"queries across studies and later searches no longer use the study's {number_of(deletion['measured'], 'measured config')}"
        )
    if learners := deletion["learners"]:
        names = ", ".join(study["name"] for study in learners[:MAX_LISTED]) + (
            ", ..." if len(learners) > MAX_LISTED else ""
        )
        lines.append(
            f"{number_of(len(learners), 'later study', 'later studies')} may have learned from this study ({names}); their results are kept"
        )
    if blockers := deletion["held_by"]:
        lines.append(
            f"the study cannot be deleted until {blockers[0]['name']} ({blockers[0]['id']}), which learned from it, has ended"
        )
    return lines
