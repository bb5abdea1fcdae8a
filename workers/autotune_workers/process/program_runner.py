"""Trials of somebody's own program: any trainer that `autotune.trainers` can launch, the `command` trainer first of all.

What the `local` and the `ray` runner share; they differ in where nodes come from (`program_places`). Each node runs its part of the program under a
keeper, which reads its output line by line. The program is told to end when it is measured well enough, late, diverging or cancelled, and its end
is announced when everything that it started is gone. The clock that attempts see stands still while nobody polls.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from autotune.errors import AutotuneError, RunnerError
from autotune.ports import AttemptEnded, AttemptId, RunnerEvent, TrialRequest
from autotune.settings import data_folder
from autotune.spec import Failure, FailureKind
from autotune_workers.gang.gang_runner import LONGEST_TURN_S
from autotune_workers.gang.ladder import Patience
from autotune_workers.gang.placement_wait import PlacementWait
from autotune_workers.process.attempt_logs import keep_logs
from autotune_workers.process.program_attempt import ProgramAttempt
from autotune_workers.process.program_launch import ProgramJob, prepare
from autotune_workers.process.program_places import ProgramPlaces


class ProgramRunner:
    """Runs programs at once as long as there are places for them. A `TrialRunner` but for the trainers, which its owner names."""

    def __init__(self, places: ProgramPlaces, *, patience: Patience | None = None, logs: Path | None = None) -> None:
        """`places`: closed with the runner; `logs`: where logs of failed attempts are kept, by default in the user's data folder."""
        self._places, self._patience = places, patience or Patience()
        self._logs = logs
        self._waiting: deque[ProgramJob] = deque()
        self._running: dict[AttemptId, tuple[ProgramAttempt, PlacementWait]] = {}
        self._owner: dict[int, ProgramAttempt] = {}
        """attempts by the identity of their nodes' handles"""
        self._events: list[RunnerEvent] = []
        self._now_s = 0.0
        self._turned_s = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether there is anything to poll for."""
        return bool(self._waiting or self._running or self._events)

    def start(self, request: TrialRequest) -> None:
        """Begins the attempt, or lets it wait until ranks are free. Raises `RunnerError` when there is no such program here."""
        if request.id in self._running or any(job.request.id == request.id for job in self._waiting):
            raise RunnerError(f"attempt {request.id} is running already")
        try:
            job = prepare(request, is_local=self._places.is_local)
        except RunnerError:
            raise
        except AutotuneError as error:
            failure = Failure(kind=FailureKind.INVALID, message=str(error))
            self._events.append(AttemptEnded(id=request.id, failure=failure))
            return
        self._waiting.append(job)
        self._launch_what_fits()

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """Events since the last call; waits up to `timeout_s` for the first one."""
        end_s = time.monotonic() + timeout_s
        self._turn(0.0)
        while not self._events and (left_s := end_s - time.monotonic()) > 0:
            self._turn(min(left_s, LONGEST_TURN_S))
        events, self._events = self._events, []
        return events

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt. Unknown ids are ignored."""
        for job in list(self._waiting):
            if job.request.id == attempt:
                self._waiting.remove(job)
                self._events.append(AttemptEnded(id=attempt, cancelled=True))
        if attempt in self._running:
            running, _ = self._running[attempt]
            running.cancel(self._now_s)
            self._settle(running)

    def close(self) -> None:
        """Ends all programs and waits until they are gone."""
        self._waiting.clear()
        self._running.clear()
        self._owner.clear()
        self._places.close()

    def _turn(self, timeout_s: float) -> None:
        received = self._places.wait(timeout_s)
        now_s = time.monotonic()
        self._now_s += min(now_s - self._turned_s, 2 * LONGEST_TURN_S)
        self._turned_s = now_s
        for handle, message in received:
            if (owner := self._owner.get(id(handle))) is not None:
                owner.hear(handle, message, self._now_s)
        for attempt, waiting in list(self._running.values()):
            if not attempt.placed:
                self._place(attempt, waiting)
            attempt.tick(self._now_s)
            self._settle(attempt)
        self._launch_what_fits()

    def _place(self, attempt: ProgramAttempt, waiting: PlacementWait) -> None:
        """Waits while others use the cluster. A config that asks for more than the cluster has is refused."""
        place, placement = attempt.place, attempt.job.placement
        attempt.placed = self._places.is_placed(place)
        if attempt.placed:
            return
        said = waiting.look(
            self._now_s,
            placement_s=self._patience.placement_s,
            shortage=lambda: self._places.shortage(placement),
            absence=lambda: self._places.absence(placement),
        )
        if isinstance(said, Failure):
            attempt.refuse(said.kind, said.message, self._now_s)
            return
        attempt.hold(self._now_s)
        if said is not None:
            self._events.append(said)

    def _settle(self, attempt: ProgramAttempt) -> None:
        """Takes the attempt's events, and its place back once it is over."""
        if attempt.over:
            del self._running[attempt.job.request.id]
            for handle in attempt.place.handles:
                self._owner.pop(id(handle), None)
            self._places.disband(attempt.place, attempt.healthy)
        self._events += [self._with_logs(attempt, event) for event in attempt.events()]

    def _with_logs(self, attempt: ProgramAttempt, event: RunnerEvent) -> RunnerEvent:
        """The event; a failure says where the logs of its nodes are kept."""
        failure = event.failure if isinstance(event, AttemptEnded) else None
        if not isinstance(event, AttemptEnded) or failure is None or not failure.log_tail:
            return event
        folder = keep_logs(self._logs or data_folder() / "logs", event.id, attempt.logs)
        tail = (
            (*failure.log_tail, f"[autotune keeps the logs of all nodes in {folder}]") if folder else failure.log_tail
        )
        return replace(event, failure=replace(failure, log_tail=tail))

    def _launch_what_fits(self) -> None:
        """Starts waiting attempts in their order, until one does not fit."""
        while self._waiting:
            job = self._waiting[0]
            placement, request = job.placement, job.request
            place = self._places.form(
                nodes=placement.nnodes,
                ranks_per_node=placement.nproc_per_node,
                study=request.study,
                folder=job.upload,
            )
            why = self._places.shortage(placement) if place is None else ""
            if place is None and not why:
                return
            self._waiting.popleft()
            if place is None:
                failure = Failure(kind=FailureKind.INVALID, message=why)
                self._events.append(AttemptEnded(id=request.id, failure=failure))
                continue
            attempt = ProgramAttempt(job, place, self._now_s)
            ranks = f"{placement.nproc_per_node} {'rank' if placement.nproc_per_node == 1 else 'ranks'}"
            what = f"{placement.nnodes} nodes with {ranks} each" if placement.nnodes > 1 else f"{ranks} on one node"
            self._running[request.id] = attempt, PlacementWait(request, what, self._now_s)
            self._owner.update({id(handle): attempt for handle in place.handles})
            attempt.begin_when_ready()
