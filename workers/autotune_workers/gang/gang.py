"""One attempt on a gang of ranks, as a state machine: messages and time in, orders and events out. No clock, no I/O.

    READY      waits until every rank is up            -> RUNNING
    RUNNING    rank 0 opens the store, all train       -> ENDING when all are done, one fails, a deadline passes, or it is cancelled
    ENDING     stop -> abort -> SIGTERM -> SIGKILL     -> OVER when every rank is idle again or gone

Time is handed in as seconds on the runner's own clock, which stands still while nobody listens: a caller that was busy elsewhere
never makes a healthy trial late. The verdict is given once all evidence is in (see `verdict`), and the end is announced only when
the resources are free.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from autotune.ports import AttemptEnded, AttemptStarted, RunnerEvent, StepsReported, TrialRequest
from autotune.spec import FailureKind
from autotune_workers.gang.failure_kind import Evidence, of_death, of_exception, place, weigh
from autotune_workers.gang.members import Member, culprit
from autotune_workers.gang.step_series import StepSeries, joined
from autotune_workers.gang.wire import Message, plain


class GangPhase(StrEnum):
    """Where the attempt is."""

    READY = "ready"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the ladder waits on each rung, and when a rank counts as frozen. Seconds."""

    silent_s: float = 5.0
    """without a heartbeat (one per second) a rank counts as frozen in the evidence"""
    stop_s: float = 5.0
    """a cancelled trial may finish its step"""
    abort_s: float = 3.5
    """ranks leave their collectives and clean up"""
    terminate_s: float = 0.5
    """between SIGTERM and SIGKILL"""
    evidence_s: float = 0.5
    """for the ranks of a hung trial to say where they are"""
    gone_s: float = 30.0
    """for the system to confirm that a killed rank is gone"""
    room_s: float = 3600.0
    """for others to free a part of the cluster"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A message to a rank, or its end: `signal` TERM or KILL."""

    rank: int
    message: Message | None = None
    signal: str = ""


class Gang:
    """The life of one attempt. Feed it `hear`, `lose`, `cancel` and `tick`; take `orders` and `events` after each."""

    def __init__(
        self,
        request: TrialRequest,
        *,
        now_s: float,
        run: int,
        patience: Patience = Patience(),
        faults: Sequence[Any] = (),
        begun: Collection[int] = (),
        joined: Collection[int] = (),
    ) -> None:
        """`run`: number of this launch, carried by its messages; `faults`: plain values, injected by the ranks. `begun`, `joined`: see `adopted`."""
        self.request = request
        self.size = request.config.world_size
        self.phase = GangPhase.READY
        self._run = run
        self._patience = patience
        self._faults = [plain(f) for f in faults]
        self._members = [Member(heard_s=now_s) for _ in range(self.size)]
        self._launched_s = now_s
        self._progress_s = now_s
        self._ending_s = math.inf
        self._rung = ""
        self._rung_s = math.inf
        self._evidence: list[Evidence] = []
        self._series = StepSeries(request)
        self._first_step_s: float | None = None
        self._result: Message | None = None
        self._cancelled = False
        self._was_late = False
        self._begun = set(begun)
        """ranks that an earlier runner gave the order to run"""
        self._joined = {0, *joined}
        """ranks that know the store"""
        self._orders: list[Order] = []
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
        """Of an attempt that another runner launched. The ranks in `begun` run it, and say again what they said since; those in `joined` know the
        store. What the other runner did not come to is done now. Deadlines begin anew."""
        gang = cls(request, now_s=now_s, run=run, patience=patience, begun=begun, joined=joined)
        for member in gang._members:
            member.ready = True
        gang._begin_when_ready(now_s)
        return gang

    # what comes out

    def orders(self) -> list[Order]:
        """Orders since the last call."""
        out, self._orders = self._orders, []
        return out

    def events(self) -> list[RunnerEvent]:
        """Events since the last call; steps that came together are one report."""
        out, self._events = self._events, []
        return out

    @property
    def over(self) -> bool:
        """Whether the end was announced."""
        return self.phase is GangPhase.OVER

    @property
    def is_unready(self) -> bool:
        """Whether ranks are still missing."""
        return self.phase is GangPhase.READY

    @property
    def healthy(self) -> frozenset[int]:
        """Ranks that are idle, warm and worth keeping."""
        return frozenset(
            r for r, m in enumerate(self._members) if m.idle and not m.gone and not m.doomed and not m.leaks
        )

    # what goes in

    def hear(self, rank: int, message: Message, now_s: float, log_tail: Sequence[str] = ()) -> None:
        """A message of that rank. What belongs to another launch is ignored."""
        member, say = self._members[rank], message["say"]
        member.heard_s = now_s
        if say == "ready":
            member.ready = True
            self._begin_when_ready(now_s)
            return
        if message.get("run") != self._run:
            return
        if say == "beat":
            member.phase, member.step = message["phase"], message["step"]
        elif say == "store":
            self._tell_others_the_store(message)
        elif say == "step":
            self._count_step(rank, message, now_s)
        elif say == "where":
            member.stack = tuple(message["stack"])
        elif say == "done":
            member.done, member.phase = True, "clean-up"
            if rank == 0:
                self._result = message
            self._finish_when_done(now_s)
        elif say == "failed":
            member.done, member.step = True, message.get("step")
            self._note(of_exception(message, rank=rank, phase=message.get("phase", ""), log_tail=log_tail), now_s)
        elif say == "idle":
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
    ) -> None:
        """The process of that rank is gone; after our own kill that is what was wanted. A `code` of None: its host is lost, which is not."""
        member = self._members[rank]
        if member.gone:
            return
        member.gone = True
        wanted = member.doomed and code is not None
        if wanted:
            self._keep_log(rank, log_tail)
        if not wanted and not (member.idle and self.phase is GangPhase.ENDING):
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
            )
        self._close_when_over()

    def cancel(self, now_s: float) -> None:
        """Ends the attempt as cancelled, unless it is already ending."""
        if self.phase in (GangPhase.READY, GangPhase.RUNNING):
            self._cancelled = True
            self._end(now_s, "stop" if self.phase is GangPhase.RUNNING else "leave")
            self._close_when_over()

    def refuse(self, kind: FailureKind, message: str, now_s: float) -> None:
        """Ends the attempt for a reason outside of its ranks."""
        self._evidence.append(Evidence(weight="verdict", kind=kind, message=message))
        self._end(now_s, "give back")
        self._close_when_over()

    def hold(self, now_s: float) -> None:
        """There is no room for its ranks yet: the time until now does not count."""
        self._launched_s = self._progress_s = now_s

    def tick(self, now_s: float) -> None:
        """Checks deadlines and climbs the ladder."""
        if self.phase in (GangPhase.READY, GangPhase.RUNNING):
            self._check_deadlines(now_s)
        if self.phase is GangPhase.ENDING:
            self._climb(now_s)
            self._close_when_over()

    def deadline_s(self) -> float:
        """When `tick` has something to do at the latest, on the runner's clock."""
        measure = self.request.measure
        if self.phase is GangPhase.ENDING:
            return self._rung_s
        gap = measure.start_timeout_s if self._first_step_s is None else measure.step_timeout_s
        return min(self._progress_s + gap, self._launched_s + measure.trial_timeout_s)

    # inside

    def _tell(self, to: int, /, **message: Any) -> None:
        if not self._members[to].gone:
            self._orders.append(Order(rank=to, message={**message, "run": self._run}))

    def _begin_when_ready(self, now_s: float) -> None:
        if self.phase is not GangPhase.READY or not all(m.ready for m in self._members):
            return
        self.phase = GangPhase.RUNNING
        self._events.append(AttemptStarted(id=self.request.id))
        request = plain(self.request)
        measure = self.request.measure
        for rank in range(self.size):
            if rank in self._begun:
                continue
            self._tell(
                rank,
                do="run",
                request=request,
                rank=rank,
                world_size=self.size,
                faults=[f for f in self._faults if f.get("rank") == rank],
                # the gang's own deadlines come first: they know which rank is to blame
                collective_timeout_s=max(measure.start_timeout_s, measure.step_timeout_s) + 30.0,
            )

    def _tell_others_the_store(self, message: Message) -> None:
        for rank in range(self.size):
            if rank not in self._joined:
                self._tell(rank, do="store", host=message["host"], port=message["port"])

    def _count_step(self, rank: int, message: Message, now_s: float) -> None:
        member = self._members[rank]
        member.step, member.phase = message["step"] + 1, "step"
        if rank != 0:
            return
        self._progress_s = now_s
        if (report := self._series.add(message)) is None:
            return
        if self._first_step_s is None:
            self._first_step_s = max(0.0, now_s - self._launched_s - message["time_s"])
        last = self._events[-1] if self._events else None
        if isinstance(last, StepsReported):
            self._events[-1] = joined(last, report)
        else:
            self._events.append(report)

    def _finish_when_done(self, now_s: float) -> None:
        self._progress_s = now_s
        if self.phase is GangPhase.RUNNING and all(m.done for m in self._members):
            self._end(now_s, "clean-up")

    def _note(self, evidence: Evidence, now_s: float) -> None:
        if self._was_late and evidence.weight not in ("verdict", "memory"):
            evidence = replace(evidence, weight="echo")  # what breaks when a hung trial is torn down is no cause
        self._evidence.append(evidence)
        if self.phase in (GangPhase.READY, GangPhase.RUNNING):
            self._end(now_s, "abort" if self.phase is GangPhase.RUNNING else "leave")
        elif self._rung in ("stop", "clean-up"):
            self._step_on(now_s, "abort")

    def _check_deadlines(self, now_s: float) -> None:
        measure = self.request.measure
        if now_s - self._launched_s >= measure.trial_timeout_s:
            self._late(
                now_s, FailureKind.TIMEOUT, f"the trial took longer than trial_timeout_s={measure.trial_timeout_s:g}"
            )
        elif self._first_step_s is None:
            if now_s - self._launched_s >= measure.start_timeout_s:
                self._late(now_s, FailureKind.HANG, f"no first step within start_timeout_s={measure.start_timeout_s:g}")
        elif now_s - self._progress_s >= measure.step_timeout_s:
            done = len(self._series)
            self._late(
                now_s,
                FailureKind.HANG,
                f"no step after step {done - 1} within step_timeout_s={measure.step_timeout_s:g}",
            )

    def _late(self, now_s: float, kind: FailureKind, law: str) -> None:
        self._was_late = True
        if self.phase is GangPhase.READY:
            up = sum(m.ready for m in self._members)
            kind, law = FailureKind.WORKER_LOST, f"{law}: only {up} of {self.size} ranks came up"
        done = len(self._series)
        self._evidence.append(Evidence(weight="timeout", kind=kind, message=law, step=done or None))
        if kind is FailureKind.TIMEOUT and done and now_s - self._progress_s < self._patience.silent_s:
            self._end(now_s, "stop")  # it trains on, only too long: nobody is to blame, and ranks that stop stay warm
        else:
            self._end(now_s, "where" if self.phase is GangPhase.RUNNING else "give back")

    def _end(self, now_s: float, rung: str) -> None:
        self.phase = GangPhase.ENDING
        self._ending_s = now_s
        self._step_on(now_s, rung)

    def _climb(self, now_s: float) -> None:
        if now_s >= self._rung_s:
            after = {"where": "abort", "stop": "abort", "clean-up": "abort", "abort": "terminate", "terminate": "kill"}
            self._step_on(now_s, after.get(self._rung, "give up"))

    def _step_on(self, now_s: float, rung: str) -> None:
        """Takes that rung of the ladder: gives its orders to the ranks that are still busy, and sets the time for the next."""
        patience = self._patience
        busy = [r for r, m in enumerate(self._members) if not m.over]
        self._rung = rung
        if rung == "where":
            self._rung_s = now_s + patience.evidence_s
            for rank in busy:
                self._tell(rank, do="where")
        elif rung in ("stop", "clean-up"):
            self._rung_s = now_s + (patience.stop_s if rung == "stop" else self.request.measure.step_timeout_s)
            for rank in busy if rung == "stop" else ():
                self._tell(rank, do="stop")
        elif rung == "abort":
            if self._was_late:
                self._blame(now_s)
            self._rung_s = now_s + patience.abort_s
            for rank in busy:
                self._tell(rank, do="stop")
                self._tell(rank, do="abort")
        elif rung == "leave":  # nothing runs yet, and ranks that are still starting may go on doing so
            for member in self._members:
                member.idle = not member.gone
        elif (
            rung == "give back"
        ):  # nothing runs yet: ranks that are up stay warm, those that never came up are replaced
            for member in self._members:
                member.idle = member.ready and not member.gone
            self._step_on(now_s, "terminate")
        elif rung == "terminate":
            self._rung_s = now_s + patience.terminate_s
            for rank in busy:
                self._doom(rank, "TERM")
        elif rung == "kill":
            self._rung_s = now_s + patience.gone_s
            for rank in busy:
                self._doom(rank, "KILL")
        else:  # a process that SIGKILL does not end is stuck in the kernel: say so and let it go
            self._rung_s = math.inf
            for rank in busy:
                self._members[rank].gone = True
                self._evidence.append(
                    Evidence(
                        weight="echo",
                        kind=FailureKind.WORKER_LOST,
                        message=f"{place(rank, self._members[rank].step, self._members[rank].phase)} cannot be killed",
                        rank=rank,
                    )
                )

    def _doom(self, rank: int, signal: str) -> None:
        self._members[rank].doomed = True
        self._orders.append(Order(rank=rank, signal=signal))

    def _blame(self, now_s: float) -> None:
        """Names the rank that holds the others up in the evidence, and ends it first: its peers then wake up from their collective and stay warm."""
        if (found := culprit(self._members, now_s, self._patience.silent_s)) is None:
            return
        rank, how, is_silent = found
        member = self._members[rank]
        index = next(i for i, e in enumerate(self._evidence) if e.weight == "timeout")
        self._evidence[index] = replace(
            self._evidence[index],
            message=f"{self._evidence[index].message}; {place(rank, member.step, member.phase)} {how}",
            rank=rank,
            step=member.step,
            exception=member.stack[-1].strip() if member.stack else "",
            log_tail=member.stack,
        )
        self._doom(rank, "KILL" if is_silent else "TERM")

    def _keep_log(self, rank: int, log_tail: Sequence[str]) -> None:
        """The log of a rank that had to be killed belongs to the verdict that names it."""
        for index, evidence in enumerate(self._evidence):
            if evidence.weight == "timeout" and evidence.rank == rank:
                self._evidence[index] = replace(evidence, log_tail=(*evidence.log_tail, *log_tail))

    def _close_when_over(self) -> None:
        if self.phase is not GangPhase.ENDING or not all(m.over for m in self._members):
            return
        self.phase = GangPhase.OVER
        cause = weigh(self._evidence)
        if self._cancelled and (cause is None or cause.weight in ("echo", "timeout")):
            self._events.append(AttemptEnded(id=self.request.id, cancelled=True))
        elif cause is not None:
            self._events.append(
                AttemptEnded(
                    id=self.request.id, failure=cause.failure(), measurement=self._series.so_far(self._first_step_s)
                )
            )
        else:
            self._events.append(self._series.end(self._result, self._first_step_s))
