"""Replay: the passes of a profile, run through the step of many configs at once, for the highest level of one rank.

    N configs that share a script    U micro-batch sizes that occur in them
    w micro-batches that a rank of the pipeline starts before its first backward pass (1 without a pipeline)

A rank holds at most w micro-batches at once: w = min(m, p - rank) under 1f1b (torch's schedule). Before its first backward pass the
others that it holds are w - 1; before the j-th one min(w - 1, m - 1 - j). Passes between the first and the last are alike, so one of them stands for all.
Those from the (m - w + 1)-th on follow another backward pass, because no forward pass is left (cooldown).

Stages of a pipeline keep buffers for every micro-batch that they receive and for every gradient, the gradient that they sent last,
the last message of the warm-up until the last forward pass, and the last stage its latest output (torch.distributed.pipelining, 1f1b).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.profile_passes import PassBytes, Stage, backward_pass, forward_pass
from autotune.cost.profile_script import Script
from autotune.cost.profile_templates import Sizes, Templates
from autotune.cost.profile_weights import Levels

Column = NDArray[Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What differs between configs that share a script, (N,) each."""

    size: Column
    """place of the config's micro-batch among the U sizes"""
    micro_batches: Column
    """of a step"""
    in_flight: Column
    """that the rank starts before its first backward pass"""
    input_bytes: Column
    """of the step's micro-batches and targets on this rank"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The fullest moment of a step, (N,) each."""

    total_bytes: Column
    """at that moment"""
    states_bytes: Column
    """of it, weights and optimizer states"""
    weights_bytes: Column
    """of these, the weights"""
    gradients_bytes: Column
    """of it, gradients, gathered weights and buffers of their collectives"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """`Peaks` of one config."""

    total_bytes: float
    states_bytes: float
    weights_bytes: float
    gradients_bytes: float

    @classmethod
    def of(cls, peaks: Peaks) -> Peak:
        """The first config's."""
        return cls(**{name: float(getattr(peaks, name)[0]) for name in cls.__dataclass_fields__})


@final
class StagePasses:
    """The passes of one stage at given sizes: the same for all layouts of its weights."""

    def __init__(
        self,
        templates: Templates,
        stage: Stage,
        sizes: Sizes,
        *,
        holds_all: bool,
        gives_loss: bool = False,
        message: Column | None = None,
    ) -> None:
        """`holds_all`: all micro-batches run forward before the first runs backward (gpipe). `gives_loss`: the last stage gives its loss, not the model's
        output. `message`: bytes of what stages send to each other for a micro-batch, where they are not those of the stream between layers."""
        message = templates.at("passed", "", sizes).net if message is None else message
        keeps = stage.is_last and not stage.is_whole and not gives_loss
        self.stage, self.holds_all = stage, holds_all
        self.forward = forward_pass(templates, stage, sizes, message, keeps=keeps, again=False)
        self.again = forward_pass(templates, stage, sizes, message, keeps=keeps, again=True)
        self.backward = {
            first: backward_pass(templates, stage, sizes, message, keeps=keeps, first=first) for first in (True, False)
        }
        self.held = templates.at("held", "", sizes).net + sum(
            templates.at("buffers", mode, sizes).net for mode in stage.layers
        )
        self.passed = message
        self.output = templates.at("output", "", sizes).net * keeps
        """the output that is kept"""


@final
class _Highest:
    """The highest of many moments, config by config."""

    def __init__(self, size: Column) -> None:
        self._size = size
        self.level = np.full(len(size), -np.inf)
        self.weights = np.zeros(len(size))

    def consider(self, rows: PassBytes, weights: Levels, base: Column, mask: Column | bool = True) -> None:
        """A pass that begins `base` bytes up, in the configs of the mask."""
        total = weights[:, None] + rows.levels
        fullest = total.argmax(axis=0)
        top, own = total[fullest, np.arange(total.shape[1])], weights[fullest]
        self.moment(base + top[self._size], own[self._size], mask)

    def moment(self, level: Column, weights: Column | float, mask: Column | bool = True) -> None:
        """One moment."""
        higher = mask & (level > self.level)
        self.level = np.where(higher, level, self.level)
        self.weights = np.where(higher, weights, self.weights)


def replay(passes: StagePasses, script: Script, steps: Steps) -> Peaks:
    """The highest levels of the configs' steps."""
    stage, m, w = passes.stage, steps.micro_batches, steps.in_flight
    passed, saved = passes.passed[steps.size], passes.forward.net[steps.size]
    base = script.states_bytes + passes.held[steps.size] + steps.input_bytes
    base = base + ((not stage.is_first) + (not stage.is_last)) * m * passed
    found = _Highest(steps.size)
    found.consider(passes.forward, script.forward, base)
    found.consider(passes.forward, script.warm, base + (w - 1) * saved, w > 1)
    messages = _messages(passes, steps)
    end = m - script.sends_in_last_pass
    """of the backward passes that are alike"""
    cools = np.maximum(m - w + 1, 1)
    """first backward pass that follows another"""
    turn = np.minimum(cools, end)
    for word, j, mask in (
        ("first", np.zeros_like(m), m > 0),
        ("between", np.ones_like(m), turn > 1),
        ("between", np.clip(w - 1, 1, np.maximum(turn - 1, 1)), turn > 1),
        ("cooldown", cools, cools < end),
        ("cooldown", end - 1, cools < end),
        ("last", m - 1, m > 1),
    ):
        if word in script.backward:
            held = np.minimum(w - 1, m - 1 - j) + 1
            level = base + held * saved + messages(j)
            found.consider(passes.backward[word == "first"], script.backward[word], level, mask)
    if not passes.holds_all:
        level = base + (w - 1) * saved + messages(np.maximum(np.minimum(w - 1, m - w), 1))
        found.consider(passes.again, script.again, level, m > w)
    left = messages(np.ones_like(m))
    if not script.sends_in_last_pass:
        # the schedule still holds messages and output then; 1f1b the output that it sent last, too
        sent_last = (not stage.is_last and not passes.holds_all) * passed
        left = messages(m) + sent_last + passes.output[steps.size]
    found.moment(base + left + script.finish, script.finish)
    return Peaks(
        total_bytes=found.level,
        states_bytes=np.full(len(m), script.states_bytes),
        weights_bytes=np.full(len(m), script.weights_bytes),
        gradients_bytes=found.weights,
    )


def _messages(passes: StagePasses, steps: Steps) -> Callable[[Column], Column]:
    """Bytes of messages that were sent and are still held in the j-th backward pass, beyond what its micro-batches hold.

    1f1b holds the gradient that it sent last, and the last message of the warm-up until the last forward pass, beyond the backward pass that would have
    freed it. gpipe holds all until the end of the step.
    """
    stage, m, w, passed = passes.stage, steps.micro_batches, steps.in_flight, passes.passed[steps.size]
    sends_gradients, sends_outputs = not stage.is_first, not stage.is_last

    def held(j: Column) -> Column:
        if passes.holds_all:
            return np.asarray((sends_gradients + sends_outputs) * j * passed)
        warm = sends_outputs & (w > 1) & (w - 1 <= j) & (j <= m - w)
        return np.asarray((sends_gradients & (j > 0)) * passed + warm * passed)

    return held
