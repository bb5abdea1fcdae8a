"""Collects a diagnosis's evidence from the ranks of the native trainer: the probe's phases and watch
run inside each rank, and one collective at the end gathers their reports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.distributed as dist

from autotune.diagnosis import evidence_of
from autotune.diagnosis.collect import MOST_STEPS
from autotune.ports import TrialRequest
from autotune.spec import ParallelConfig
from autotune_workers.probe.injected.phases import COLLECTIVE, DATA, Phase, Phases
from autotune_workers.probe.injected.watch import Watch
from autotune_workers.training.parallel.mesh import RankContext


@final
class RankEvidence:
    """The phases and reports of this rank."""

    def __init__(self, phases: Phases, context: RankContext) -> None:
        self._phases, self._context = phases, context
        self._steps: list[dict[str, Any]] = []
        self._watched: list[dict[str, Any]] = []
        phases.begin()
        self._watch = Watch(phases, self, torch, root=os.getppid())
        self._watch.start()

    def send(self, kind: str, **values: Any) -> None:
        """Receive a report of the watch; the first and the last one are kept."""
        if kind == "watch":
            self._watched = [
                *self._watched[:1],
                {"kind": kind, **values, "rank": self._context.rank},
            ]

    @contextmanager
    def step(self, *, tokens: int) -> Iterator[None]:
        """Context manager of a step. `tokens`: tokens or sequences of this rank."""
        self._phases.take()
        began_s = time.monotonic()
        yield
        phases = self._phases.take()
        self._steps.append(
            {
                "s": time.monotonic() - began_s,
                "phases": phases,
                "tokens": tokens,
                "sequences": [],
                "compile_s": 0.0,
            }
        )
        del self._steps[:-MOST_STEPS]

    def loading(self) -> Phase:
        """Context manager of loading the batch."""
        return Phase(self._phases, DATA)

    def waiting(self) -> Phase:
        """Context manager of waiting for other ranks."""
        return Phase(self._phases, COLLECTIVE)

    def end(self) -> None:
        """Stop the watch."""
        self._watch.end()
        self._phases.close()

    def of_all(self, request: TrialRequest, step_times_s: tuple[float, ...]) -> Mapping[str, Any]:
        """The evidence of all ranks as plain values; empty without any. Collective."""
        self.end()
        mine = [{"kind": "step", "rank": self._context.rank, "steps": self._steps}, *self._watched]
        everyone: list[Any] = [None] * self._context.world_size
        dist.all_gather_object(everyone, mine)
        config = request.config
        facts = {
            "world": self._context.world_size,
            "wrappers": _wrappers(config),
            "degrees": {name: getattr(config, name) for name in ("tp", "pp", "cp", "ep")},
            "parameters": int(request.workload.model.num_parameters),
            "device": self._context.device.type,
        }
        reports = [report for of_rank in everyone for report in of_rank]
        reports.append({"kind": "facts", "rank": 0, **facts})
        evidence = evidence_of(reports, step_times_s=step_times_s)
        return evidence.shortened().to_dict() if evidence is not None else {}


def _wrappers(config: ParallelConfig) -> list[str]:
    """The probe's names of the model's wrappers."""
    if config.zero_stage >= 3:
        return ["FSDP2"]
    return ["DDP"] if config.dp > 1 else []
