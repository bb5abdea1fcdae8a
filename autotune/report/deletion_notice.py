"""What deleting a study takes away, in sentences, for whoever is asked whether to do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMED = 3
"""later studies that are named"""


def deletion_lines(deletion: Mapping[str, Any]) -> list[str]:
    """Sentences of a document of `autotune.study.deletion.Deletion`."""
    lines = [
        f"study {deletion['study']} ({deletion['name']}) is deleted with {deletion['trials']:,} trials, their logs and the study's history"
    ]
    if deletion["measured"]:
        lines.append(
            f"{deletion['measured']:,} measured configs are no longer used by queries across studies or by later searches"
        )
    if learners := deletion["learners"]:
        names = ", ".join(one["name"] for one in learners[:NAMED]) + (
            ", ..." if len(learners) > NAMED else ""
        )
        lines.append(
            f"{len(learners):,} later studies may have learned from this study ({names}); they keep their own results"
        )
    if held := deletion["held_by"]:
        lines.append(
            f"the study cannot be deleted until {held[0]['name']} ({held[0]['id']}), which learned from it, has ended"
        )
    return lines
