"""The values of a draft's space that some valid config has: a value of which none has it, such as a
micro-batch larger than a rank's share of the batch, would only be skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.onboarding.draft import Draft
from autotune.space import SearchSpace
from autotune.spec import Study

_OF_BATCH = ("micro_batch_size", "accumulation_steps", "world_sizes")
"""what is valid of these follows from batch and cluster alone"""


def with_valid_values(draft: Draft, study: Study) -> Draft:
    """The draft without the other values; those of its baseline stay. `study`: of the draft. Raises
    `InfeasibleError` where no config is valid."""
    asked = set(draft.fill_in)
    if asked & {"cluster", "workload.global_batch_size"}:  # of a stand-in other values are valid
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
    """Whether a config has it."""
    if name == "world_sizes":
        return bool((space.table.world_size == value).any())
    return bool((space.table.column(name) == space.table.knobs[name].encode(value)).any())


def _listing(draft: Draft, name: str, values: Sequence[Any]) -> Draft:
    found = draft.at("space")
    if found is not None and isinstance(found.value, dict):
        return draft.put("space", replace(found, value={**found.value, name: list(values)}))
    return draft.edited(f"space.{name}", value=list(values))
