"""What each figure of a study needs: said in its place while there is nothing to draw. The steps of the running trials need no reason: a study has that figure
only while trials run."""

from __future__ import annotations

from collections.abc import Mapping

OWN = " of the study's own job"
"""which proxies are not"""

MISSING: Mapping[str, tuple[str, str]] = {
    "best_so_far": ("Best so far over trials", f"a measured trial{OWN}"),
    "best_so_far_over_time": ("Best so far over time", f"a measured trial{OWN}"),
    "budget": ("Budget spent and left", "a limit of the budget"),
    "feasible_map": ("Map of the feasible set", "a knob with two values or more, and a space that can be listed here"),
    "rank_parts": ("Where each rank's time goes", "a best trial whose ranks were watched"),
    "step_parts": ("Where the time of a step goes", "a best trial, with a profile or a prediction"),
    "memory_parts": ("Where the memory goes", "a best trial, with a prediction"),
    "knob_importance": ("Importance of each knob", "a knob with two values or more"),
    "parallel_coordinates": (
        "Trials across the knobs",
        f"two knobs that vary, and a trial{OWN} that was measured or failed",
    ),
    "pareto_front": ("Pareto front", f"two measured trials{OWN} whose trainer reports the peak of memory"),
    "predicted_measured": ("Predicted against measured: speed", "a measured trial that was predicted"),
    "predicted_measured_memory": (
        "Predicted against measured: memory",
        "a predicted trial whose trainer reports the peak of memory",
    ),
    "timeline": ("Trials on ranks", "a trial that has started"),
    "loss_reference": ("Loss against the reference", "a best trial whose trainer reports losses"),
}
"""(title, what it needs) by the figure's name"""


def why_missing(name: str) -> str:
    """Why the figure of that name is not drawn, in a sentence."""
    title, needs = MISSING[name]
    return f"{title}: it needs {needs}"
