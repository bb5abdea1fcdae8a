"""What deleting a study takes away, in sentences, for whoever is asked whether to do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.spec.texts.as_text import number_of

NAMED = 3
"""later studies that are named"""


def deletion_lines(deletion: Mapping[str, Any]) -> list[str]:
    """Sentences of a document of `autotune.study.deletion.Deletion`."""
    lines = [
        f"study {deletion['study']} ({deletion['name']}) is deleted with {number_of(deletion['trials'], 'trial')}, their logs and the study's history"
    ]
    if deletion["measured"]:
        lines.append(
            f"queries across studies and later searches no longer use the study's {number_of(deletion['measured'], 'measured config')}"
        )
    if learners := deletion["learners"]:
        names = ", ".join(one["name"] for one in learners[:NAMED]) + (
            ", ..." if len(learners) > NAMED else ""
        )
        lines.append(
            f"{number_of(len(learners), 'later study', 'later studies')} may have learned from this study ({names}); their results are kept"
        )
    if held := deletion["held_by"]:
        lines.append(
            f"the study cannot be deleted until {held[0]['name']} ({held[0]['id']}), which learned from it, has ended"
        )
    return lines
