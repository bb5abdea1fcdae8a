"""Faults that a rank injects into itself, so that every failure can be reproduced. For tests and
drills only.

A fault happens on one rank, at one point of a trial:

    start           before the process group exists
    step k          right after step k - 1 was reported (k = 0: right before training begins); with `delay_s` later, while the rank is in the middle of
                    the step and its peers wait for it in a collective
    in_forward      in the first forward pass of step k, on the training thread

Two faults do not end the rank: they multiply its gradients by `factor` before they are summed over
ranks, in one step (spike) or from that step on (corrupt).
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
"""default factors of the gradients"""
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
kill: send SIGKILL to itself.  freeze: send SIGSTOP to itself.  sleep: never return.  exhaust: allocate all memory.
disk_full: write to a full device.  error: raise.  exit: exit with code 3.  leak: keep memory after the trial.
silence: discard the trial's metrics.  spike: too large gradients in one step.  corrupt: wrong gradients from the step on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: its kind, the rank and the time."""

    kind: str
    """one of KINDS"""
    rank: int = 0
    """rank in the gang"""
    step: int | None = None
    """step, from 0; None: at start"""
    delay_s: float = 0.0
    """delay after the beginning of the step, seconds"""
    in_forward: bool = False
    """whether it happens in the step's first forward pass"""
    trial: int | None = None
    """number of the affected trial; None: all"""
    attempt: int | None = None
    """number of the affected attempt; None: all"""
    factor: float | None = None
    """factor of the gradients for spike and corrupt; None: that of FACTORS"""

    def __post_init__(self) -> None:
        one_of("runner.faults.kind", self.kind, KINDS)

    @classmethod
    def of(cls, value: Fault | Mapping[str, Any]) -> Fault:
        """Return a fault unchanged, or create it from plain values."""
        return value if isinstance(value, Fault) else cls(**value)

    def meets(self, number: int, attempt: int) -> bool:
        """Whether the fault affects this attempt of this trial."""
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
        """Whether the trial's metrics are discarded."""
        return any(f.kind == "silence" for f in self._faults)

    def at(self, step: int | None) -> None:
        """Inject the faults of this step (None: start)."""
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
        """Stop changing gradients, at the end of the trial."""
        self._undo.close()

    def _in_forward(self, fault: Fault) -> None:
        """Inject the fault in the next forward pass of the model."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        from autotune_workers.training.model.decoder import DecoderStage
        from autotune_workers.training.model.own_stage import OwnStage

        def do(module: object, _: object) -> None:
            if isinstance(module, DecoderStage | OwnStage):
                hook.remove()
                _do(fault)

        hook = register_module_forward_pre_hook(do)

    def _distort(self, step: int) -> None:
        """Multiply the gradient of the model's output in this step, which scales all gradients of
        this rank."""
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

        def distort(module: nn.Module, gradients: Any) -> Any:
            if not (isinstance(module, DecoderStage | OwnStage) and module.is_last):
                return None
            return tuple(g * factor if isinstance(g, Tensor) else g for g in gradients)

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
    """Allocate memory with torch on the trial's device until that fails."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    held = []
    while True:
        held.append(torch.ones(1 << 26, dtype=torch.uint8, device=device))
