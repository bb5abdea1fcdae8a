"""Faults that a rank does to itself, so that every failure can be seen with the real thing. For
tests and drills only.

A fault happens on one rank, at one place of a trial:

    start           before the process group exists
    step k          right after step k - 1 was reported (k = 0: right before training begins), `delay_s` later when it has one:
                    then the rank is in the middle of a step, and with peers waiting for it in a collective
    in_forward      in the first forward pass of step k, on the thread that trains

Two faults do not end the rank: the gradients of the rank are multiplied by `factor` before ranks
sum them, in one step (spike) or from it on (corrupt).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.spec.checks import one_of

FACTORS = {"spike": 100.0, "corrupt": -2.0}
"""what gradients are multiplied by, unless the fault says otherwise"""
KINDS = (
    "kill",
    "freeze",
    "sleep",
    "exhaust",
    "disk_full",
    "error",
    "exit",
    "leak",
    "silence",
    *FACTORS,
)
"""
kill: SIGKILL itself.  freeze: SIGSTOP itself.  sleep: never come back.  exhaust: allocate until nothing is left.
disk_full: write where there is no space.  error: raise.  exit: leave with a code.  leak: keep memory after the trial.
silence: throw the trial's metrics away.  spike: too large gradients in one step.  corrupt: false gradients from the step on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, on which rank, when."""

    kind: str
    """one of KINDS"""
    rank: int = 0
    """on which rank of the gang"""
    step: int | None = None
    """in which step, from 0; None means start"""
    delay_s: float = 0.0
    """how long into the step"""
    in_forward: bool = False
    """in the step's first forward pass"""
    trial: int | None = None
    """only in the trial of this number; None means every one"""
    attempt: int | None = None
    """only in this attempt"""
    factor: float | None = None
    """of the gradients under spike and corrupt; None means as in FACTORS"""

    def __post_init__(self) -> None:
        one_of("runner.faults.kind", self.kind, KINDS)

    @classmethod
    def of(cls, value: Fault | Mapping[str, Any]) -> Fault:
        """The fault itself, or the one of plain values."""
        return value if isinstance(value, Fault) else cls(**value)

    def meets(self, number: int, attempt: int) -> bool:
        """Whether this attempt is hit."""
        return self.trial in (None, number) and self.attempt in (None, attempt)


_LEAKED: list[bytes] = []


class Injector:
    """The faults of one rank in one trial."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = [f for f in faults if f.kind not in FACTORS]
        self._distortions = [f for f in faults if f.kind in FACTORS]
        self._undo = contextlib.ExitStack()

    @property
    def silences(self) -> bool:
        """Whether the metrics are thrown away."""
        return any(f.kind == "silence" for f in self._faults)

    def at(self, step: int | None) -> None:
        """The trial has come to `step` (None: start): does what is due."""
        if self._distortions and step is not None:
            self._distort(step)
        for fault in self._faults:
            if fault.step != step or fault.kind == "silence":
                continue
            if fault.in_forward:
                self._in_forward(fault)
            elif fault.delay_s:
                timer = threading.Timer(fault.delay_s, _do, args=(fault,))
                timer.daemon = True
                timer.start()
            else:
                _do(fault)

    def close(self) -> None:
        """The trial is over, however it ended."""
        self._undo.close()

    def _in_forward(self, fault: Fault) -> None:
        """Does it as soon as the model is run."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        from autotune_workers.training.model.decoder import DecoderStage
        from autotune_workers.training.model.own_stage import OwnStage

        def do(module: object, _: object) -> None:
            if isinstance(module, DecoderStage | OwnStage):
                hook.remove()
                _do(fault)

        hook = register_module_forward_pre_hook(do)

    def _distort(self, step: int) -> None:
        """Multiplies what flows back into the model in this step, and with it all gradients of this
        rank."""
        from torch import Tensor, nn
        from torch.nn.modules.module import register_module_full_backward_pre_hook

        from autotune_workers.training.model.decoder import DecoderStage
        from autotune_workers.training.model.own_stage import OwnStage

        self._undo.close()
        factor = 1.0
        for fault in self._distortions:
            first = fault.step or 0
            if step == first or (step > first and fault.kind == "corrupt"):
                factor *= FACTORS[fault.kind] if fault.factor is None else fault.factor
        if factor == 1.0:
            return

        def distort(module: nn.Module, flowing: Any) -> Any:
            if not (isinstance(module, DecoderStage | OwnStage) and module.is_last):
                return None
            return tuple(g * factor if isinstance(g, Tensor) else g for g in flowing)

        self._undo.callback(register_module_full_backward_pre_hook(distort).remove)


def _do(fault: Fault) -> None:
    print(f"fault: {fault.kind} on rank {fault.rank}", file=sys.stderr, flush=True)
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.kind == "sleep":
        while True:
            time.sleep(3600)
    elif fault.kind == "exhaust":
        _exhaust()
    elif fault.kind == "disk_full":
        with contextlib.closing(open("/dev/full", "wb", buffering=0)) as device:
            device.write(b"checkpoint")
    elif fault.kind == "error":
        raise ValueError("a fault was requested")
    elif fault.kind == "exit":
        os._exit(3)
    elif fault.kind == "leak":
        _LEAKED.append(b"\x01" * (768 << 20))


def _exhaust() -> None:
    """Takes memory with torch's own allocator, on the device that the trial uses, until it
    refuses."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    held = []
    while True:
        held.append(torch.ones(1 << 26, dtype=torch.uint8, device=device))
