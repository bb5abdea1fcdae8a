"""The ranking of the target's configs in a study that runs proxies, and the config to start with on
the target.

The ranking is computed while the study runs and stored in its record
(`autotune.study.target_findings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.ports import StudyRecord
from autotune.spec import ParallelConfig
from autotune.spec.texts.as_text import format_duration


def target_of(record: StudyRecord) -> Mapping[str, Any] | None:
    """Return the ranking of the target's configs as JSON values; None for a study without a target,
    or before its first proxy was chosen."""
    target = record.result.get("target")
    return target if target and target["configs"] else None


def first_pick(record: StudyRecord) -> ParallelConfig | None:
    """Return the target's config that ranks first; None before a proxy was measured."""
    target = target_of(record)
    return (
        ParallelConfig.from_dict(target["configs"][0]["config"])
        if target and target["proxies"]
        else None
    )


def prediction_note(record: StudyRecord) -> str:
    """Return a note for a launch of `first_pick`: that it was not run on the target, and its
    predicted step time; empty without a target."""
    target = target_of(record)
    if target is None:
        return ""
    row = target["configs"][0]
    return (
        f"this config was not run on {target['cluster']}; it ranks first according to {target['proxies']} {'proxy' if target['proxies'] == 1 else 'proxies'} on {target['at_hand']}, with a predicted step of "
        f"{format_duration(row['step_time_s'])} (90%: {format_duration(row['step_time_low_s'])} to {format_duration(row['step_time_high_s'])})"
    )
