"""One attempt of a program on its nodes. Takes the keepers' messages and the time; gives orders to
the keepers and returns events. No clock.

    WAITING    until every node is ready                       -> RUNNING: all nodes start the program; they connect at node 0
    RUNNING    lines of all logs go to the trial (`program.state`)   -> ENDING when it is decided, late, rejected or cancelled, or a node has ended
    ENDING     SIGTERM, then SIGKILL, by each node's keeper    -> OVER when every node has ended or is given up

When the program of one node ends, it is ended on all, because a launcher without its peers may wait
forever. The other nodes first get `PEERS_S` to end by themselves, because their output may show why
the first one ended. If a node is lost, the others are ended at once.

This runs trials of users' programs, with any trainer that `autotune.trainers` can launch, such as
`command`.

It is shared by the `local` and the `ray` runner, which differ in where nodes come from
(`program.places`). Each node runs its part of the program under a keeper, which reads its output
line by line. The program is ended when it is measured well enough, late, diverging or cancelled.
Its end is announced when all processes that it started have ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from autotune.errors import AutotuneError, RunnerError
from autotune.ports import (
    AttemptEnded,
    AttemptStarted,
    LogRead,
    NodePlace,
    RunnerEvent,
    TrialRequest,
)
from autotune.settings import data_folder
from autotune.spec import Failure, FailureKind
from autotune.spec.texts.as_text import format_duration
from autotune.spec.texts.secrets import without
from autotune.trainers.base.trainer import MAX_LINE
from autotune_workers.gang.attempt_runner import AttemptRunner, Place, PlacementWait
from autotune_workers.gang.ladder import Patience
from autotune_workers.gang.wire import Message
from autotune_workers.process.attempt_logs import NodeLog, keep_logs
from autotune_workers.process.keeper.log import LeftOut
from autotune_workers.process.program.evidence import NodeEnd
from autotune_workers.process.program.launch import ProgramJob, prepare
from autotune_workers.process.program.places import NodeHandle, ProgramPlaces
from autotune_workers.process.program.state import ProgramTrial
from autotune_workers.process.rank_processes import LOG_TAIL_LINES

PEERS_S = 3.0
"""seconds between the end of the first node's program and the order to end the others"""
GONE_S = 40.0
"""seconds that a keeper has to end its program before the node counts as lost"""


@dataclass(slots=True, eq=False)
class _Node:
    """State of one node."""

    handle: NodeHandle
    number: int
    ready: bool = False
    started: bool = False
    hostname: str = ""
    gpus: tuple[str, ...] = ()
    was_told: bool = False
    """whether it was ordered to end"""
    over: bool = False
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_TAIL_LINES))
    log: NodeLog = field(default_factory=NodeLog)


@final
class ProgramAttempt:
    """State machine of one attempt. Call `hear`, `cancel` and `tick`, and take `events` after
    each."""

    def __init__(self, job: ProgramJob, place: Place, now_s: float) -> None:
        """`place`: formed for the job; its keepers may still be starting."""
        self.job, self.request, self.placement = job, job.request, job.placement
        self.place, self.placed = place, False
        ranks = f"{self.placement.nproc_per_node} {'rank' if self.placement.nproc_per_node == 1 else 'ranks'}"
        nodes = self.placement.nnodes
        description = f"{nodes} nodes with {ranks} each" if nodes > 1 else f"{ranks} on one node"
        self.waiting = PlacementWait(job.request, description, now_s)
        self._nodes = [
            _Node(handle, number, ready=handle.ready) for number, handle in enumerate(place.handles)
        ]
        self._trial = ProgramTrial(job.request, [job.reader() for _ in self._nodes], now_s)
        self._secrets = job.secrets
        self._ends: list[NodeEnd] = []
        self._begun = self._announced = self._finished = False
        self._first_end_s: float | None = None
        self._end_ordered_s: float | None = None
        self._events: list[RunnerEvent] = []
        self.healthy = True
        """whether its nodes can be reused"""

    @property
    def needs_place(self) -> bool:
        """Whether it waits for its placement."""
        return not self.placed

    def deadline_s(self) -> float:
        """Infinity: the runner calls `tick` at every turn anyway."""
        return math.inf

    @property
    def over(self) -> bool:
        """Whether every node has ended or is lost."""
        return all(node.over for node in self._nodes)

    def events(self) -> list[RunnerEvent]:
        """The events since the last call; the last event of all is `AttemptEnded`."""
        events, self._events = self._events, []
        return events

    @property
    def logs(self) -> list[NodeLog]:
        """The log of each node, bounded in size."""
        return [node.log for node in self._nodes]

    def begin(self, now_s: float) -> None:
        """Starts the program on all nodes once all are ready; only once."""
        if (
            self._begun
            or self._end_ordered_s is not None
            or not all(node.ready for node in self._nodes)
        ):
            return
        self._begun = True
        first = self._nodes[0].handle
        for node in self._nodes:
            node.handle.begin(
                self.job.order(node.number, master_addr=first.address, master_port=first.port)
            )

    def hold(self, now_s: float) -> None:
        """Restarts the deadlines at `now_s`, as the nodes are not placed yet."""
        self._trial.hold(now_s)

    def refuse(self, kind: FailureKind, message: str, now_s: float) -> None:
        """Ends the attempt with this failure before the program ran."""
        self._trial.refuse(kind, message)
        self._end_all(now_s)

    def cancel(self, now_s: float) -> None:
        """Ends the attempt as cancelled, unless it is ending already."""
        self._trial.cancel()
        self._end_all(now_s)

    def hear(self, handle: NodeHandle, message: Message, now_s: float) -> None:
        """Takes a message from a node's keeper."""
        node = next(node for node in self._nodes if node.handle is handle)
        if node.over:
            return
        match message["event"]:
            case "ready":
                node.ready = True
                self.begin(now_s)
            case "started":
                node.started, node.hostname, node.gpus = (
                    True,
                    message["hostname"],
                    tuple(message["gpus"]),
                )
                if node.number == 0 and "environment" in message:
                    self._trial.note_environment(message["environment"])
                self._announce_start()
            case "lines":
                self._read(node, message, now_s)
            case "probe":
                self._events += self._trial.see(message["reports"], now_s, node.number)
            case "refused":
                self._refuse_start(node, message["reason"])
                self._note_end(NodeEnd(**self._identity(node), was_told=True), now_s)
                self._end_all(now_s)
            case "ended":
                self._note_end(self._end_of(node, message), now_s)
            case "gone":
                self.healthy = False
                self._note_end(NodeEnd(**self._identity(node), gone=message["why"]), now_s)

    def tick(self, now_s: float) -> None:
        """Checks the deadlines, and orders the end of the program if necessary."""
        if self.over:
            return
        if self._first_end_s is None:
            self._trial.tick(now_s)
        elif now_s - self._first_end_s >= PEERS_S:
            self._end_all(now_s)
        if self._trial.ending:
            self._end_all(now_s)
        if self._end_ordered_s is not None and now_s - self._end_ordered_s >= GONE_S:
            self.healthy = False
            for node in [node for node in self._nodes if not node.over]:
                why = f"the supervising process did not stop the program within {format_duration(GONE_S)}"
                self._note_end(NodeEnd(**self._identity(node), gone=why), now_s)

    def _read(self, node: _Node, message: Message, now_s: float) -> None:
        left_out = LeftOut.of(message)
        gap = (
            [f"[autotune could not read everything and left out {left_out.text}]"]
            if left_out
            else []
        )
        timed_lines = [
            (arrived_s, without(self._secrets, line[:MAX_LINE]))
            for arrived_s, line in message["lines"]
        ]
        lines = (*gap, *(line for _, line in timed_lines))
        for line in lines:
            node.tail.append(line)
            node.log.add(line)
        if self.job.request.with_log and lines:
            self._events.append(LogRead(id=self.job.request.id, node=node.number, lines=lines))
        self._trial.hear_output(left_out, now_s)
        self._events += self._trial.hear(timed_lines, now_s, node.number)

    def _announce_start(self) -> None:
        if not self._announced and all(node.started for node in self._nodes):
            self._announced = True
            per_node = self.job.placement.nproc_per_node
            ranks = [
                tuple(range(n * per_node, (n + 1) * per_node)) for n in range(len(self._nodes))
            ]
            places = (
                NodePlace(node=n.hostname, ranks=ranks[n.number], gpus=n.gpus) for n in self._nodes
            )
            self._events.append(AttemptStarted(id=self.job.request.id, places=tuple(places)))

    def _refuse_start(self, node: _Node, reason: str) -> None:
        where = f" on node {node.number} ({node.handle.address})" if len(self._nodes) > 1 else ""
        if not self._trial.ending:
            self._trial.refuse(
                FailureKind.ERROR, f"the program cannot be started{where}: {reason}", reason
            )

    def _identity(self, node: _Node) -> dict[str, Any]:
        return {"node": node.number, "address": node.handle.address, "log_tail": tuple(node.tail)}

    def _end_of(self, node: _Node, message: Mapping[str, Any]) -> NodeEnd:
        self.healthy = self.healthy and not message["left"]
        return NodeEnd(
            **self._identity(node),
            code=message["code"],
            was_told=node.was_told,
            kernel_oom=message["kernel_oom"],
            peak_bytes=message["peak_bytes"],
            gpu_peak_bytes=message["gpu_peak_bytes"],
            collectives=message.get("collectives", {}),
        )

    def _note_end(self, end: NodeEnd, now_s: float) -> None:
        self._nodes[end.node].over = True
        self._ends.append(end)
        self._first_end_s = now_s if self._first_end_s is None else self._first_end_s
        if end.gone:
            self._end_all(now_s)
        self._finish()

    def _end_all(self, now_s: float) -> None:
        """Orders every keeper to end its program; only once."""
        if self._end_ordered_s is not None:
            return
        self._end_ordered_s = now_s
        for node in self._nodes:
            node.was_told = True
            if not node.over and self._begun:
                node.handle.end(hung=self._trial.hangs)
            elif not node.over:
                node.over = True
                self._ends.append(NodeEnd(**self._identity(node), was_told=True))
        self._finish()

    def _finish(self) -> None:
        if self.over and not self._finished:
            self._finished = True
            self._events += self._trial.settle(self._end_ordered_s or 0.0)
            self._events += [self._trial.seen(), self._trial.end(self._ends)]


class ProgramRunner(AttemptRunner[ProgramJob, ProgramAttempt]):
    """Runs programs at the same time as long as there are places. Implements `TrialRunner` except
    for the list of trainers, which the owner provides."""

    def __init__(
        self, places: ProgramPlaces, *, patience: Patience | None = None, logs: Path | None = None
    ) -> None:
        """`places`: closed with the runner. `logs`: folder for logs of failed attempts, by default
        in the user's data folder."""
        super().__init__(places, patience)
        self._places, self._logs = places, logs

    def start(self, request: TrialRequest) -> None:
        """Starts the attempt, or queues it until ranks are free. Raises `RunnerError` if the
        program does not exist here."""
        self._refuse_known(request.id)
        try:
            job = prepare(request, is_local=self._places.is_local)
        except RunnerError:
            raise
        except AutotuneError as error:
            failure = Failure(kind=FailureKind.INVALID, message=str(error))
            self._events.append(AttemptEnded(id=request.id, failure=failure))
            return
        self._enqueue(request.id, job)

    def _form(self, job: ProgramJob) -> ProgramAttempt | str | None:
        placement = job.placement
        place = self._places.form(
            nodes=placement.nnodes,
            ranks_per_node=placement.nproc_per_node,
            study=job.request.study,
            folder=job.upload,
        )
        if place is None:
            return self._places.shortage(placement) or None
        return ProgramAttempt(job, place, self._now_s)

    def _passed_on(self, attempt: ProgramAttempt, event: RunnerEvent) -> RunnerEvent:
        """The event. To a failure it adds where the logs of its nodes are kept."""
        failure = event.failure if isinstance(event, AttemptEnded) else None
        if not isinstance(event, AttemptEnded) or failure is None or not failure.log_tail:
            return event
        folder = keep_logs(self._logs or data_folder() / "logs", event.id, attempt.logs)
        tail = (
            (*failure.log_tail, f"[autotune keeps the logs of all nodes in {folder}]")
            if folder
            else failure.log_tail
        )
        return replace(event, failure=replace(failure, log_tail=tail))
