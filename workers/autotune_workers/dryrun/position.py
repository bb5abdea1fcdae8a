"""Tracks the current phase, micro-batch and module of a training step.

In the forward pass, hooks on modules show which one runs. In the backward pass, the sequence number
of the running autograd node does: nodes are numbered in the order in which the forward pass creates
them. Modules that are run again by recomputation count as in the forward pass.

A phase lasts until the next one begins: the loss belongs to the forward pass, gradient
synchronization after the last backward pass to the backward pass.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from autotune.spec import Moment, Phase
from autotune_workers.dryrun import torch_private


class Position:
    """The current position of one rank in its training."""

    def __init__(self) -> None:
        self.step = 0
        """optimizer step, from 0"""
        self._phase: Phase = "build"
        self._micro_batch = -1
        self._pipelined = False
        self._running: list[str] = []
        self._failed_in = ""
        self._numbers: list[int] = []
        """ascending: first sequence number of the autograd nodes that `_makers` made"""
        self._makers: list[str] = []
        self.leaving: Callable[[str], None] = lambda _: None
        """called with the name of a module when its forward pass ends"""
        self.entering: Callable[[str], None] = lambda _: None
        """called with the name of a module when its forward pass begins"""
        self.backward_begins: Callable[[], None] = lambda: None
        """called when a backward pass follows a forward pass"""

    @property
    def phase(self) -> Phase:
        """The current phase of the step."""
        if self._phase == "forward" and torch_private.backward_pass() != -1:
            self.backward_begins()
            self._phase = "backward"
        return self._phase

    @property
    def micro_batch(self) -> int:
        """Number of the current micro-batch; -1 outside of one."""
        if (
            self._phase == "backward"
            and not self._pipelined
            and torch_private.backward_pass() == -1
        ):
            return -1
        return self._micro_batch

    @property
    def is_outermost(self) -> bool:
        """Whether no module is in its forward pass."""
        return not self._running

    @property
    def module(self) -> str:
        """The innermost module whose forward or backward pass runs; empty outside of the model."""
        if self._running:
            return self._running[-1]
        if self._phase != "backward":
            return ""
        number = torch_private.running_sequence_number()
        index = bisect.bisect_right(self._numbers, number) - 1
        # the nodes that accumulate gradients have a number above all others
        return self._makers[index] if index >= 0 and number < 1 << 62 else ""

    @property
    def place(self) -> str:
        """Where the model's code runs, for messages: a module name, or "its construction"; empty
        outside of the model."""
        if self._phase == "build":
            return "its construction"
        return self.module or ("the outermost module" if self._running else "")

    @property
    def moment(self) -> Moment:
        """Step, phase, micro-batch and module."""
        phase = self.phase
        return Moment(step=self.step, phase=phase, micro_batch=self.micro_batch, module=self.module)

    def in_words(self) -> str:
        """The position for messages, such as "step 1, forward, micro-batch 2, in layers.0"."""
        moment = self.moment
        if moment.phase == "build":
            return "building the model"
        batch = f", micro-batch {moment.micro_batch + 1}" if moment.micro_batch >= 0 else ""
        module = self._failed_in or moment.module
        return f"step {moment.step + 1}, {moment.phase}{batch}" + (
            f", in {module}" if module else ""
        )

    def begin_step(self, step: int) -> None:
        """An optimizer step begins."""
        self.step, self._phase, self._micro_batch = step, "forward", -1
        self._numbers.clear()
        self._makers.clear()

    def begin_optimizer(self) -> None:
        """All gradients are complete: the optimizer begins."""
        self._phase, self._micro_batch = "optimizer", -1

    def begin_chunk(self, phase: Phase, number: int) -> None:
        """A pipeline stage begins a pass over micro-batch `number`."""
        self._pipelined = True
        if self._phase == "forward" and phase == "backward":
            self.backward_begins()
        self._phase, self._micro_batch = phase, number

    def follow(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        """Registers hooks on the modules, given with their names."""
        for name, module in modules:
            module.register_forward_pre_hook(self._entering(name), prepend=True)
            module.register_forward_hook(self._left(name), always_call=True)

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            if not self._running and torch_private.backward_pass() == -1 and not self._pipelined:
                self._phase = "forward"
                self._micro_batch += 1
            self.entering(name)
            self._running.append(name)
            self._failed_in = ""
            self._mark(name)

        return enter

    def _left(self, name: str) -> Callable[..., None]:
        def leave(*_: Any) -> None:
            error = sys.exc_info()[1]  # torch also calls this hook when the module raises
            if (
                self._running
                and error is not None
                and not isinstance(error, torch_private.EndOfRecomputation)
            ):
                self._failed_in = self._failed_in or self._running[-1]
            # when recomputation stops early, several modules end at once
            while self._running and self._running[-1] != name:
                self.leaving(self._running.pop())
            if self._running:
                self.leaving(self._running.pop())
            self._mark(self._running[-1] if self._running else "")

        return leave

    def _mark(self, name: str) -> None:
        """Attributes autograd nodes created from now on to this module."""
        self._numbers.append(torch_private.next_sequence_number())
        self._makers.append(name)
