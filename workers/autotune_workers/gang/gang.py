"""One attempt on a gang of ranks, as a state machine: messages and time in, orders and events out.
No clock, no I/O.

    READY      waits until every rank is ready         -> RUNNING
    RUNNING    rank 0 opens the store, all train       -> ENDING when all are done, one fails, a deadline passes, or it is cancelled
    ENDING     stop -> abort -> SIGTERM -> SIGKILL     -> OVER when every rank is idle again or gone

Times are seconds on the runner's own clock, which is stopped while nobody polls, so that a slow
caller does not make a healthy trial miss its deadlines. The cause of a failure is determined
(`failure_kind`), and the end reported, when every rank is idle or gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from autotune.ports import AttemptEnded, AttemptStarted, RunnerEvent, StepsReported, TrialRequest
from autotune.spec import FailureKind
from autotune.spec.plain import to_plain
from autotune_workers.gang.deadlines import Deadlines
from autotune_workers.gang.failure_kind import (
    Evidence,
    follows,
    of_death,
    of_exception,
    place,
    weigh,
)
from autotune_workers.gang.ladder import Ladder, Order, Patience
from autotune_workers.gang.members import Member, culprit
from autotune_workers.gang.step_series import StepSeries, joined
from autotune_workers.gang.wire import Message


class GangPhase(StrEnum):
    """State of the attempt."""

    READY = "ready"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


class Gang:
    """One attempt. Call `hear`, `lose`, `cancel` and `tick` with what happens, and `orders` and
    `events` after each."""

    def __init__(
        self,
        request: TrialRequest,
        *,
        now_s: float,
        run: int,
        patience: Patience | None = None,
        faults: Sequence[Any] = (),
        begun: Collection[int] = (),
        joined: Collection[int] = (),
    ) -> None:
        """`run`: number of this launch, part of all its messages. `faults`: plain values that ranks
        inject in tests. `begun`, `joined`: see `adopted`."""
        self.request = request
        self.size = request.config.world_size
        self.phase = GangPhase.READY
        self._run = run
        self._patience = patience = patience or Patience()
        self._faults = [to_plain(f) for f in faults]
        self._members = [Member(heard_s=now_s) for _ in range(self.size)]
        self._deadlines = Deadlines(request.measure, now_s, compiles=request.config.compile)
        self._ladder = Ladder(
            self._members, run=run, patience=patience, clean_up_s=request.measure.step_timeout_s
        )
        self._evidence: list[Evidence] = []
        self._series = StepSeries(request)
        self._result: Message | None = None
        self._cancelled = False
        self._was_late = False
        self._begun = set(begun)
        """ranks that got the order to run from an earlier runner"""
        self._joined = {0, *joined}
        """ranks that have the address of the store"""
        self._events: list[RunnerEvent] = []

    @classmethod
    def adopted(
        cls,
        request: TrialRequest,
        *,
        now_s: float,
        run: int,
        patience: Patience,
        begun: Collection[int],
        joined: Collection[int],
    ) -> Gang:
        """Takes over an attempt that another runner launched. `begun`: ranks that run it, and
        repeat their messages; `joined`: ranks that have the address of the store. Sends the orders
        that the other runner did not, and restarts the deadlines."""
        gang = cls(request, now_s=now_s, run=run, patience=patience, begun=begun, joined=joined)
        for member in gang._members:
            member.ready = True
        gang._begin_when_ready(now_s)
        return gang

    # output

    def orders(self) -> list[Order]:
        """Orders since the last call."""
        return self._ladder.take_orders()

    def events(self) -> list[RunnerEvent]:
        """Events since the last call; consecutive steps are one report."""
        out, self._events = self._events, []
        return out

    @property
    def over(self) -> bool:
        """Whether the attempt has ended."""
        return self.phase is GangPhase.OVER

    @property
    def is_unready(self) -> bool:
        """Whether some ranks are not ready yet."""
        return self.phase is GangPhase.READY

    @property
    def healthy(self) -> frozenset[int]:
        """Ranks that can be reused: idle, alive, not signalled, without leaked memory."""
        return frozenset(
            r
            for r, m in enumerate(self._members)
            if m.idle and not m.gone and not m.signalled and not m.leaks
        )

    # input

    def hear(self, rank: int, message: Message, now_s: float, log_tail: Sequence[str] = ()) -> None:
        """Takes a message from a rank. Messages of other launches are ignored."""
        member, event = self._members[rank], message["event"]
        member.heard_s = now_s
        if event == "ready":
            member.ready = True
            self._begin_when_ready(now_s)
            return
        if message.get("run") != self._run:
            return
        if event == "heartbeat":
            member.phase, member.step = message["phase"], message["step"]
            member.hear_progress(message)
        elif event == "store":
            self._tell_others_the_store(message)
        elif event == "step":
            self._count_step(rank, message, now_s)
        elif event == "where":
            member.stack = tuple(message["stack"])
            member.hear_progress(message)
        elif event == "done":
            member.done, member.phase = True, "clean-up"
            if rank == 0:
                self._result = message
            self._finish_when_done(now_s)
        elif event == "failed":
            member.done, member.step = True, message.get("step")
            self._note(
                of_exception(message, rank=rank, phase=message.get("phase", ""), log_tail=log_tail),
                now_s,
            )
        elif event == "idle":
            member.idle, member.leaks = True, bool(message.get("leaks"))
        self._close_when_over()

    def lose(
        self,
        rank: int,
        now_s: float,
        *,
        code: int | None,
        log_tail: Sequence[str] = (),
        kernel_oom: bool = False,
        why: str = "",
        host_lost: bool = False,
    ) -> None:
        """Notes that the process of a rank is gone. Counts as evidence unless we signalled it; if
        its host was lost too (`code` None) in any case. `host_lost`: the host failed by itself, so
        its loss is the cause and not a consequence."""
        member = self._members[rank]
        if member.gone:
            return
        member.gone = True
        was_killed_by_us = member.signalled and code is not None
        if was_killed_by_us:
            self._keep_log(rank, log_tail)
        elif not (member.idle and self.phase is GangPhase.ENDING):
            self._note(
                of_death(
                    rank=rank,
                    code=code,
                    step=member.step,
                    phase=member.phase,
                    log_tail=log_tail,
                    kernel_oom=kernel_oom,
                    why=why,
                ),
                now_s,
                is_cause=host_lost,
            )
        self._close_when_over()

    def cancel(self, now_s: float) -> None:
        """Ends the attempt as cancelled, unless it is already ending."""
        if self.phase in (GangPhase.READY, GangPhase.RUNNING):
            self._cancelled = True
            self._end(now_s, "stop" if self.phase is GangPhase.RUNNING else "leave")
            self._close_when_over()

    def refuse(self, kind: FailureKind, message: str, now_s: float) -> None:
        """Ends the attempt with a failure whose cause is outside of its ranks."""
        self._evidence.append(Evidence(weight="verdict", kind=kind, message=message))
        self._end(now_s, "give back")
        self._close_when_over()

    def hold(self, now_s: float) -> None:
        """Restarts the deadlines, because the ranks have not been placed yet."""
        self._deadlines.restart(now_s)

    def tick(self, now_s: float) -> None:
        """Checks the deadlines; while ending, takes the next rung of the ladder when it is due."""
        if self.phase in (GangPhase.READY, GangPhase.RUNNING):
            self._check_deadlines(now_s)
        if self.phase is GangPhase.ENDING:
            if rung := self._ladder.due(now_s):
                self._step_on(now_s, rung)
            self._close_when_over()

    def deadline_s(self) -> float:
        """When `tick` must be called at the latest, on the runner's clock."""
        return self._ladder.until_s if self.phase is GangPhase.ENDING else self._deadlines.next_s

    # internal

    def _begin_when_ready(self, now_s: float) -> None:
        if self.phase is not GangPhase.READY or not all(m.ready for m in self._members):
            return
        self.phase = GangPhase.RUNNING
        self._events.append(AttemptStarted(id=self.request.id))
        request = to_plain(self.request)
        measure = self.request.measure
        for rank in range(self.size):
            if rank in self._begun:
                continue
            self._ladder.tell(
                rank,
                command="run",
                request=request,
                rank=rank,
                world_size=self.size,
                faults=[f for f in self._faults if f.get("rank") == rank],
                # longer than the gang's deadlines, which determine which rank is to blame
                collective_timeout_s=max(measure.start_timeout_s, measure.step_timeout_s) + 30.0,
            )

    def _tell_others_the_store(self, message: Message) -> None:
        for rank in range(self.size):
            if rank not in self._joined:
                self._ladder.tell(rank, command="store", host=message["host"], port=message["port"])

    def _count_step(self, rank: int, message: Message, now_s: float) -> None:
        member = self._members[rank]
        member.step, member.phase = message["step"] + 1, "step"
        if rank != 0:
            return
        self._deadlines.progress(now_s)
        if (report := self._series.add(message)) is None:
            return
        self._deadlines.count_step(now_s, message["time_s"])
        last = self._events[-1] if self._events else None
        if isinstance(last, StepsReported):
            self._events[-1] = joined(last, report)
        else:
            self._events.append(report)

    def _finish_when_done(self, now_s: float) -> None:
        self._deadlines.progress(now_s)
        if self.phase is GangPhase.RUNNING and all(m.done for m in self._members):
            self._end(now_s, "clean-up")

    def _note(self, evidence: Evidence, now_s: float, *, is_cause: bool = False) -> None:
        """Adds evidence and begins, or speeds up, the end. `is_cause`: never a consequence of other
        evidence."""
        is_consequence = self._was_late or follows(
            evidence, self._evidence, has_aborted=self._ladder.has_aborted
        )
        if is_consequence and not is_cause and evidence.weight not in ("verdict", "memory"):
            evidence = replace(evidence, weight="echo")
        self._evidence.append(evidence)
        if self.phase in (GangPhase.READY, GangPhase.RUNNING):
            self._end(now_s, "abort" if self.phase is GangPhase.RUNNING else "leave")
        elif self._ladder.rung in ("stop", "clean-up"):
            self._step_on(now_s, "abort")

    def _check_deadlines(self, now_s: float) -> None:
        if (missed := self._deadlines.missed(now_s, len(self._series))) is not None:
            self._late(now_s, *missed)

    def _late(self, now_s: float, kind: FailureKind, message: str) -> None:
        """Ends the attempt because of a missed deadline."""
        self._was_late = True
        if self.phase is GangPhase.READY:
            started = sum(m.ready for m in self._members)
            kind = FailureKind.WORKER_LOST
            message = f"{message}; only {started} of {self.size} ranks started"
        steps = len(self._series)
        self._evidence.append(
            Evidence(weight="timeout", kind=kind, message=message, step=steps or None)
        )
        if (
            kind is FailureKind.TIMEOUT
            and steps
            and self._deadlines.since_progress_s(now_s) < self._patience.silent_s
        ):
            # still training: no rank is to blame, and ranks that stop can be reused
            self._end(now_s, "stop")
        else:
            self._end(now_s, "where" if self.phase is GangPhase.RUNNING else "give back")

    def _end(self, now_s: float, rung: str) -> None:
        self.phase = GangPhase.ENDING
        self._step_on(now_s, rung)

    def _step_on(self, now_s: float, rung: str) -> None:
        """Takes a rung of the ladder; before an abort, finds the rank to blame."""
        if rung == "abort" and self._was_late:
            self._blame(now_s)
        for rank in self._ladder.step_on(rung, now_s):
            member = self._members[rank]
            message = f"{place(rank, member.step, member.phase)} cannot be killed, because even SIGKILL did not end the process"
            self._evidence.append(
                Evidence(weight="echo", kind=FailureKind.WORKER_LOST, message=message, rank=rank)
            )

    def _blame(self, now_s: float) -> None:
        """Adds to the evidence which rank blocks the others, and ends it first: its peers then
        leave their collective and can be reused."""
        if (blocking := culprit(self._members, now_s, self._patience.silent_s)) is None:
            return
        rank = blocking.rank
        member = self._members[rank]
        index = next(i for i, e in enumerate(self._evidence) if e.weight == "timeout")
        self._evidence[index] = replace(
            self._evidence[index],
            message=f"{self._evidence[index].message}; {place(rank, member.step, member.phase)} {blocking.how}",
            rank=rank,
            step=member.step,
            exception=member.stack[-1].strip() if member.stack else "",
            log_tail=member.stack,
        )
        self._ladder.signal(rank, "KILL" if blocking.is_silent else "TERM")

    def _keep_log(self, rank: int, log_tail: Sequence[str]) -> None:
        """Adds the log of a killed rank to the evidence that blames it."""
        for index, evidence in enumerate(self._evidence):
            if evidence.weight == "timeout" and evidence.rank == rank:
                self._evidence[index] = replace(evidence, log_tail=(*evidence.log_tail, *log_tail))

    def _close_when_over(self) -> None:
        if self.phase is not GangPhase.ENDING or not all(m.over for m in self._members):
            return
        self.phase = GangPhase.OVER
        cause = weigh(self._evidence)
        # a cancelled config has not failed, whatever broke afterwards
        if self._cancelled:
            self._events.append(AttemptEnded(id=self.request.id, cancelled=True))
        elif cause is not None:
            self._events.append(
                AttemptEnded(
                    id=self.request.id,
                    failure=cause.failure(),
                    measurement=self._series.so_far(self._deadlines.setup_s),
                )
            )
        else:
            self._events.append(self._series.end(self._result, self._deadlines.setup_s))
