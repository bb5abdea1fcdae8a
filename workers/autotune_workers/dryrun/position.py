"""Where a training step is: its phase, its micro-batch, and the module of the model that runs.

Modules tell of their forward passes by hooks. Autograd tells of backward passes by sequence
numbers: nodes are numbered as the forward pass makes them, so the number of the running node says
which module made it, at no cost per node. A module that is run again by recomputation is on the
stack of running modules then, and counts as it does in the forward pass.

A phase lasts until the next one begins: the loss belongs to the forward pass, the gradients'
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
    """Follows one rank through its run."""

    def __init__(self) -> None:
        self.step = 0
        """optimizer step, from 0"""
        self._phase: Phase = "build"
        self._micro_batch = -1
        self._pipelined = False
        self._running: list[str] = []
        self._failed_in = ""
        self._numbers: list[int] = []
        self._makers: list[str] = []
        self.leaving: Callable[[str], None] = lambda _: None
        """is told the name of a module whose forward pass ends"""
        self.entering: Callable[[str], None] = lambda _: None
        """is told the name of a module whose forward pass begins"""
        self.backward_begins: Callable[[], None] = lambda: None
        """is told that a forward pass has ended in a backward pass"""

    @property
    def phase(self) -> Phase:
        """The phase of the step."""
        if self._phase == "forward" and torch_private.backward_pass() != -1:
            self.backward_begins()
            self._phase = "backward"
        return self._phase

    @property
    def micro_batch(self) -> int:
        """The micro-batch under way, -1 where there is none."""
        if (
            self._phase == "backward"
            and not self._pipelined
            and torch_private.backward_pass() == -1
        ):
            return -1
        return self._micro_batch

    @property
    def is_outermost(self) -> bool:
        """Whether no module of the model runs."""
        return not self._running

    @property
    def module(self) -> str:
        """The innermost module of the model that runs, or whose backward does; empty outside of
        it."""
        if self._running:
            return self._running[-1]
        if self._phase != "backward":
            return ""
        number = torch_private.running_sequence_number()
        place = bisect.bisect_right(self._numbers, number) - 1
        # the nodes that accumulate gradients bear a number above all others
        return self._makers[place] if place >= 0 and number < 1 << 62 else ""

    @property
    def place(self) -> str:
        """In words, where the model's code runs: a module, or its construction; empty outside of
        it."""
        if self._phase == "build":
            return "its construction"
        return self.module or ("the outermost module" if self._running else "")

    @property
    def moment(self) -> Moment:
        """All of it."""
        phase = self.phase
        return Moment(step=self.step, phase=phase, micro_batch=self.micro_batch, module=self.module)

    def said(self) -> str:
        """It in words."""
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
        """All gradients are there."""
        self._phase, self._micro_batch = "optimizer", -1

    def begin_chunk(self, phase: Phase, number: int) -> None:
        """A pipeline stage begins to work on a micro-batch."""
        self._pipelined = True
        if self._phase == "forward" and phase == "backward":
            self.backward_begins()
        self._phase, self._micro_batch = phase, number

    def follow(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        """Puts hooks on the modules, which must be called by these names."""
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
            passing = sys.exc_info()[1]  # torch calls this also while an error passes by
            if (
                self._running
                and passing is not None
                and not isinstance(passing, torch_private.EndOfRecomputation)
            ):
                self._failed_in = self._failed_in or self._running[-1]
            # an early end of recomputation leaves several at once
            while self._running and self._running[-1] != name:
                self.leaving(self._running.pop())
            if self._running:
                self.leaving(self._running.pop())
            self._mark(self._running[-1] if self._running else "")

        return leave

    def _mark(self, name: str) -> None:
        """Nodes that are made from here on are this module's."""
        self._numbers.append(torch_private.next_sequence_number())
        self._makers.append(name)
