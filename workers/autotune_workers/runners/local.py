"""The `local` runner: warm rank processes on this machine, without Ray; one GPU per rank if there
are GPUs, else CPU ranks.

Ranks are started when first needed and stay, so that torch is imported and the CUDA context created
once. A rank that failed its trial but cleaned up is kept; one that died, hung or leaks is replaced
at once, in the background. Trials of several runners on one machine take turns (`turn_queue`).

The native trainer runs on these ranks; other trainers run as programs (`process.program.attempt`).
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.detect import usable_cores
from autotune.errors import RunnerError, SpecError
from autotune.ports import AttemptId, RunnerEvent, TrialRequest
from autotune.slurm.allocation import SRUN, in_container
from autotune.spec import Failure, ParallelConfig, Study, Workload, number_of
from autotune.spec.checks import one_of, positive_int
from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang.attempt_runner import Place
from autotune_workers.gang.gang_runner import NATIVE, too_many
from autotune_workers.gang.ladder import Patience
from autotune_workers.gang.wire import Message
from autotune_workers.process.machine_turn import MachineTurn
from autotune_workers.process.program.local_places import LocalPlaces
from autotune_workers.process.program.observed import ObservedProgram
from autotune_workers.process.rank_processes import TRIAL, RankProcess, RankStarter
from autotune_workers.runners.any_trainer import AnyTrainerRunner
from autotune_workers.runners.machine_limits import (
    check_data,
    check_device,
    check_gpus,
    check_program,
    check_ranks,
    check_torch,
    visible_gpus,
)
from autotune_workers.runners.turn_queue import LOOK_EVERY_S, TurnQueue
from autotune_workers.training.faults import Fault

MIN_CPU_RANKS = 8
"""smallest number of CPU ranks, even with fewer CPUs: slow, but small machines can try every
parallel layout"""


class LocalRunner(AnyTrainerRunner):
    """Runs trials on ranks of this machine."""

    @staticmethod
    def observed_program(
        trainer: str,
        options: Mapping[str, Any],
        workload: Workload | None,
        config: ParallelConfig | None,
    ) -> ObservedProgram:
        """The reader of a program that the user starts (`autotune.observing`)."""
        from autotune_workers.process.program.observed import ObservedProgram

        return ObservedProgram(trainer, options, workload, config)

    @staticmethod
    def failure_of(error: BaseException, steps_done: int) -> Failure:
        """The failure of a training that ended with this exception."""
        from autotune_workers.gang.failure_kind import of_exception

        report = {
            "type": type(error).__name__,
            "text": str(error),
            "step": steps_done or None,
            "errno": getattr(error, "errno", None),
        }
        return of_exception(report, rank=None).failure()

    @staticmethod
    def facts_of_model(model: Any) -> dict[str, Any]:
        """The probe's facts about a model in this process (`autotune_workers.probe`)."""
        from autotune_workers.probe.injected.model_facts import of_model

        return of_model(model)

    def __init__(
        self,
        *,
        max_ranks: int | None = None,
        device: str = "auto",
        faults: Iterable[Fault | Mapping[str, Any]] = (),
        patience: Patience | None = None,
        trial: str = TRIAL,
        collectives: str = "",
    ) -> None:
        """`max_ranks`: ranks at once; None: one per GPU, or on CPU one per CPU and at least 8.
        `device`: auto, cpu or cuda.

        `trial`: `module:function` of the training loop, `collectives`: `module:name` of a
        torch.distributed backend, both for tests. Raises `RunnerError` if cuda is requested and not
        available.
        """
        gpus, capacity = _resources(max_ranks, device)
        self._gpus = gpus
        self.on_gpu = bool(gpus)
        """whether each rank has a GPU"""
        super().__init__(
            LocalRankPools(capacity, gpus=gpus, trial=trial, collectives=collectives),
            LocalPlaces(capacity, gpus=gpus),
            faults=faults,
            patience=patience,
        )
        self._turns = TurnQueue(MachineTurn(gpus), super().start)
        self._pending_events: list[RunnerEvent] = []

    @classmethod
    def preflight_here(cls, study: Study, smallest: ParallelConfig) -> None:
        """Raises `RunnerError` if this machine lacks the GPUs, ranks or program for the study."""
        if in_container():
            raise RunnerError(
                f"trials must run in a container (set by {SRUN}), but the 'local' runner starts them outside it",
                remedy="set runner: slurm for programs, or runner: ray",
                field="runner",
            )
        options = study.runner_options
        device = options.get("device", "auto")
        gpus, capacity = _resources(options.get("max_ranks"), device)
        check_device(study, on_gpu=bool(gpus) or device == "cpu", on_cpu="device: cpu")
        check_ranks(study, smallest, capacity)
        check_program(study, smallest)
        if study.trainer == NATIVE:
            check_gpus(gpus)
            check_data(study)

    def start(self, request: TrialRequest) -> None:
        """Starts the attempt, or queues it for its turn on this machine and for free ranks. Raises
        `RunnerError` or `MissingExtraError` if it cannot be run."""
        if request.trainer == NATIVE:
            check_torch("local")
            check_gpus(self._gpus)
        self.check(request)
        if request.id in self._turns:
            raise RunnerError(f"attempt {request.id} is already running")
        self._pending_events += self._turns.add(request)

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """The events since the last call. Waits up to `timeout_s` for the first one."""
        end_s = time.monotonic() + timeout_s
        while True:
            self._pending_events += self._turns.look()
            left_s = max(0.0, end_s - time.monotonic()) if not self._pending_events else 0.0
            events = super().poll(left_s if self._turns.is_empty else min(left_s, LOOK_EVERY_S))
            self._turns.hear(events)
            if self._pending_events or events or self._closed or time.monotonic() >= end_s:
                pending, self._pending_events = self._pending_events, []
                return pending + events

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt: cooperative stop, then kill. Unknown ids are ignored."""
        self._pending_events += self._turns.cancel(attempt)
        super().cancel(attempt)

    def close(self) -> None:
        """Ends all attempts, frees all resources and gives the turn back."""
        super().close()
        self._turns.close()


class LocalRankPools:
    """Up to `capacity` rank processes in numbered slots; with GPUs, a slot is a GPU."""

    def __init__(
        self, capacity: int, *, gpus: list[str], trial: str, collectives: str = ""
    ) -> None:
        """`gpus`: names for CUDA_VISIBLE_DEVICES; empty for CPU ranks."""
        self.capacity, self._gpus = capacity, gpus
        self._ranks: dict[int, RankProcess] = {}
        self._busy: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._starter = RankStarter(
            device="cuda" if gpus else "cpu", trial=trial, collectives=collectives
        )

    def form(self, placement: Placement, study: str) -> Place | None:
        """Free slots for a gang of any study: ready ranks first, then starting ones, then new ones.
        None if too few are free."""
        size = placement.world_size
        free = [p for p in range(self.capacity) if p not in self._busy]
        if len(free) < size:
            return None
        warm = [p for p in free if p in self._ranks and self._ranks[p].ready]
        cold = [p for p in free if p in self._ranks and not self._ranks[p].ready]
        new = [p for p in free if p not in self._ranks]
        slots = sorted([*warm, *cold, *new][:size])
        for slot in slots:
            if slot not in self._ranks:
                self._start(slot)
        self._busy.update(slots)
        return Place(handles=[self._ranks[p] for p in slots], token=slots)

    def wait(self, timeout_s: float) -> list[tuple[RankProcess, Message]]:
        """Messages from the ranks. The end of a process shows in its closed channel, or at the next
        call."""
        self._selector.select(timeout_s)
        received: list[tuple[RankProcess, Message]] = []
        for slot, rank in list(self._ranks.items()):
            descriptor = rank.fileno()
            messages = rank.receive()
            if messages and messages[-1]["event"] == "gone":
                self._forget(slot, descriptor)
                if slot not in self._busy:
                    rank.close()
            received += [(rank, message) for message in messages]
        return received

    def disband(self, pool: Place, healthy: frozenset[int]) -> None:
        """Frees the slots, and replaces ranks that are not healthy."""
        for index, slot in enumerate(pool.token):
            self._busy.discard(slot)
            rank: RankProcess = pool.handles[index]
            if index in healthy and self._ranks.get(slot) is rank:
                continue
            if self._ranks.get(slot) is rank:
                self._forget(slot, rank.fileno())
            rank.close()
            self._start(slot)

    def is_placed(self, pool: Place) -> bool:
        """True: free slots are allocated at once."""
        return True

    def shortage(self, placement: Placement) -> str:
        """Why there can never be enough slots; empty if there can."""
        return too_many(placement.world_size, self.capacity)

    def absence(self, placement: Placement) -> str:
        """Empty: no slot can be missing."""
        return ""

    def close(self) -> None:
        """Kills all ranks and waits for their end."""
        for rank in self._ranks.values():
            rank.kill()
        for rank in self._ranks.values():
            rank.close()
        self._ranks.clear()
        self._selector.close()
        self._starter.close()

    def _start(self, slot: int) -> None:
        gpu = {"CUDA_VISIBLE_DEVICES": self._gpus[slot]} if self._gpus else {}
        rank = RankProcess(self._starter, name=f"rank-{slot}", environment=gpu)
        self._ranks[slot] = rank
        self._selector.register(rank.fileno(), selectors.EVENT_READ)

    def _forget(self, slot: int, number: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(number)
        del self._ranks[slot]


def _resources(max_ranks: int | None, device: str) -> tuple[list[str], int]:
    """(GPUs for ranks, empty for CPU ranks; number of ranks at once). Raises `SpecError` or
    `RunnerError` for options that are invalid here."""
    one_of("runner.device", device, ("auto", "cpu", "cuda"))
    if max_ranks is not None:
        positive_int("runner.max_ranks", max_ranks, at_most=1024)
    gpus = visible_gpus() if device != "cpu" else []
    if device == "cuda" and not gpus:
        raise RunnerError(
            "device cuda was requested, but no GPU is visible", remedy="use device: cpu, or auto"
        )
    if gpus and max_ranks is not None and max_ranks > len(gpus):
        raise SpecError(
            f"max_ranks must not exceed the number of visible GPUs, but max_ranks={max_ranks} and {number_of(len(gpus), 'GPU')} can be seen",
            field="runner.max_ranks",
        )
    return gpus, max_ranks or len(gpus) or max(MIN_CPU_RANKS, usable_cores())
