"""Removes values from a draft's space that no valid config has, such as a micro-batch larger than a
rank's share of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.onboarding.draft import Draft
from autotune.space import SearchSpace
from autotune.spec import Study

_OF_BATCH = ("micro_batch_size", "accumulation_steps", "world_sizes")
"""their valid values depend only on batch and cluster"""


def with_valid_values(draft: Draft, study: Study) -> Draft:
    """The draft without values that no valid config has, except those of its baseline. `study`: the
    draft's study. Raises `InfeasibleError` if no config is valid."""
    asked = set(draft.fill_in)
    if asked & {
        "cluster",
        "workload.global_batch_size",
    }:  # with placeholders for these, other values would be valid
        return draft
    space, today = SearchSpace.of_study(study), study.baseline
    listed = {
        **{name: values for name, values in study.space.knobs.items() if name in space.table.knobs},
        "world_sizes": study.space.world_sizes,
    }
    for name, values in listed.items():
        kept = [
            value
            for value in values
            if _has(space, name, value)
            or (today is not None and name in space.table.knobs and today.value(name) == value)
        ]
        is_known = name in _OF_BATCH or not asked & {"model", "workload.seq_len"}
        if is_known and len(kept) < len(values):
            draft = _listing(draft, name, kept)
    return draft


def _has(space: SearchSpace, name: str, value: Any) -> bool:
    """Whether a config has this value."""
    if name == "world_sizes":
        return bool((space.table.world_size == value).any())
    return bool((space.table.column(name) == space.table.knobs[name].encode(value)).any())


def _listing(draft: Draft, name: str, values: Sequence[Any]) -> Draft:
    """The draft with these values listed for a knob."""
    found = draft.at("space")
    if found is not None and isinstance(found.value, dict):
        return draft.put("space", replace(found, value={**found.value, name: list(values)}))
    return draft.edited(f"space.{name}", value=list(values))
