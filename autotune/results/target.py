"""What a study with a target says of the job that is meant: the ranking that its proxies gave, and
the config to begin with there.

The ranking is worked out while the study runs and kept with its result
(`autotune.study.target_findings`), so reading it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.ports import StudyRecord
from autotune.spec import ParallelConfig
from autotune.spec.texts.as_text import format_duration


def target_of(record: StudyRecord) -> Mapping[str, Any] | None:
    """The ranking of the target's configs as plain values; None for a study without a target, and
    before its first proxy was chosen."""
    found = record.result.get("target")
    return found if found and found["configs"] else None


def first_pick(record: StudyRecord) -> ParallelConfig | None:
    """The target's config that ranks first, once a proxy was measured."""
    found = target_of(record)
    return (
        ParallelConfig.from_dict(found["configs"][0]["config"])
        if found and found["proxies"]
        else None
    )


def prediction_note(record: StudyRecord) -> str:
    """What must be said beside a launch of the first pick."""
    found = target_of(record)
    if found is None:
        return ""
    row = found["configs"][0]
    return (
        f"this config was not run on {found['cluster']}; it ranks first according to {found['proxies']} {'proxy' if found['proxies'] == 1 else 'proxies'} on {found['at_hand']}, with a predicted step of "
        f"{format_duration(row['step_time_s'])} (90%: {format_duration(row['step_time_low_s'])} to {format_duration(row['step_time_high_s'])})"
    )
