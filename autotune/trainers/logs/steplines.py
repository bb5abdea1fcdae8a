"""Step lines: one JSON object per optimizer step on a line of its own, the log format of the native
trainer and of exported programs.

    {"step": 3, "step_time_s": 0.41, "loss": 2.31, "grad_norm": 0.8, "peak_memory_bytes": 812000000}

At least one measured value must be present; all other keys are optional. Unknown keys, and text
before the object, are ignored.
"""

from __future__ import annotations

import json
from typing import Any

from autotune.trainers.logs.step_metrics import MAX_LINE, StepMetrics, clean

MEASURED = (
    "step_time_s",
    "steps_per_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "samples_per_s",
    "loss",
    "grad_norm",
    "peak_memory_bytes",
)
"""keys of measured values, named as in `StepMetrics`"""


def parse_step_line(line: str) -> StepMetrics | None:
    """The metrics of a step line; None for any other line."""
    start = line.find("{")
    if start < 0 or len(line) - start > MAX_LINE or '"' not in line:
        return None
    try:
        document = json.loads(clean(line[start:]))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not any(_is_number(document.get(key)) for key in MEASURED):
        return None
    values: dict[str, Any] = {
        key: float(document[key]) for key in MEASURED if _is_number(document.get(key))
    }
    if isinstance(document.get("step"), int):
        values["step"] = document["step"]
    return StepMetrics(**values, skipped=document.get("skipped") is True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
