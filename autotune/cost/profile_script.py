"""Script: the memory of a rank's weights over a step, on the rows of its passes.

It depends on the shapes of the weights, not on micro-batch and sequence, so one script serves many configs. Passes between the first and the last are
alike, so one of them stands for all; in a pipeline one that follows a forward pass and one that follows another backward pass, because sharded weights are
gathered for the former alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from autotune.cost.profile_passes import Stage
from autotune.cost.profile_segments import Segment
from autotune.cost.profile_templates import Templates
from autotune.cost.profile_weights import Arrivals, ForwardSegments, Levels, Mark, WeightsInStep


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """See the module. All levels are bytes above weights and optimizer states."""

    states_bytes: float
    """weights and optimizer states"""
    weights_bytes: float
    """of these, the weights"""
    forward: Levels
    """first of the step"""
    warm: Levels
    """a later one before the first backward pass"""
    again: Levels
    """after it"""
    backward: Mapping[str, Levels]
    """first, between, and last where it is not like those before it; of a single micro-batch the first is the last. In a pipeline also cooldown: those
    with no forward pass before them"""
    sends_in_last_pass: bool
    """whether gradients are sent during the last backward pass; else the schedule of the pipeline sends them after it"""
    finish: float
    """highest level after the last backward pass"""


def script_of(stage: Stage, weights: WeightsInStep, *, single: bool) -> Script:
    """Runs the weights of a rank through a step of one micro-batch (`single`) or more. `weights` is used up."""
    segments = _forward_segments(stage)
    forward = weights.forward(segments)
    warm = forward if stage.is_whole else weights.forward(segments)
    backward, again = {"first": weights.backward(first=True, last=single)}, forward
    if not single:
        again = weights.forward(segments)
        backward["between"] = weights.backward(first=False, last=False)
        if not stage.is_whole:
            backward["cooldown"] = weights.backward(first=False, last=False)
        if weights.sends_in_last_pass:
            backward["last"] = weights.backward(first=False, last=True)
    return Script(
        states_bytes=weights.states_bytes,
        weights_bytes=weights.weights_bytes,
        forward=forward,
        warm=warm,
        again=again,
        backward=backward,
        sends_in_last_pass=weights.sends_in_last_pass,
        finish=weights.finish(),
    )


def _forward_segments(stage: Stage) -> ForwardSegments:
    before = (("pre", -1),) if stage.has_start else ()
    behind = (("head", -1), ("loss", -1)) if stage.is_last else ()
    return (*before, *(("layer", layer) for layer in range(len(stage.layers))), *behind)


def arrivals_of(templates: Templates, stage: Stage, tp: float, *, first: bool, skipped: int = 0) -> Arrivals:
    """The gradients that arrive in a backward pass of the stage, the first of the step or a later one. `skipped`: weights outside of the layers that the
    templates do not know, because another stage has them."""

    def marks(segments: Mapping[str, Segment], kind: str) -> tuple[Mark, ...]:
        segment = segments[kind] if first else segments.get(f"later {kind}", segments[kind])
        before = 0 if kind == "layer_backward" else skipped
        return tuple((size, number + before) for size, number in segment.marks_at(tp))

    edges = ("loss_backward", "head_backward") if stage.is_last else ()
    inner = {mode: marks(templates.layers[mode], "layer_backward") for mode in set(stage.layers)}
    return (
        *((kind, -1, marks(templates.edges, kind)) for kind in edges),
        *(("layer_backward", layer, inner[mode]) for layer, mode in reversed(tuple(enumerate(stage.layers)))),
        *((("end", -1, marks(templates.edges, "end")),) if stage.has_start else ()),
    )
