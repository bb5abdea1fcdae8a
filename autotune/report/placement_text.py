"""Where the ranks of a study are, in words: nodes, and GPUs or CPU ranks on each; and why trials wait for some. For the terminal and the study's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def placed_lines(study: Mapping[str, Any]) -> list[str]:
    """One line for each trial that is placed: `trial 3 has ranks 0 to 3 on a with GPUs 0, 1, 2, 3; ranks 4 to 7 on b with ...`, then
    one for each that waits: `trial 4 waits: ...`. `study`: its document."""
    verb = "had" if study["ended_at"] else "has"
    trials: dict[int, list[str]] = {}
    for place in study.get("placed") or ():
        trials.setdefault(place["trial"], []).append(_on_node(place))
    placed = [f"trial {number} {verb} {'; '.join(places)}" for number, places in trials.items()]
    return [*placed, *(f"trial {row['trial']} waits: {row['reason']}" for row in study.get("waiting") or ())]


def _on_node(place: Mapping[str, Any]) -> str:
    gpus: Sequence[str] = place["gpus"]
    with_ = f" with {'GPU' if len(gpus) == 1 else 'GPUs'} {', '.join(gpus)}" if gpus else ""
    return f"{_ranks(place['ranks'])} on {place['node']}{with_ or ' (CPU)'}"


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers))}"
