"""The lease of one study, and the store as its holder writes it: a thread renews the lease, and
writes are repeated while the database is away.

    lease_s      seconds from the last renewal until the lease runs out; it is renewed three times as often
    patience_s   seconds for which a write is repeated before the loop gives up; the measurements stay in memory meanwhile
    stall_s      seconds without a round of the loop after which the lease is no longer renewed, so that another may take the study over

Every write of the store may be repeated safely, so a write whose answer was lost is written again.
When somebody else took the lease, the next write raises `ConflictError` and the loop stops.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from autotune.errors import ConflictError, StoreUnavailableError
from autotune.ports import (
    Decision,
    EventKind,
    Fact,
    HistoryEvent,
    Lease,
    LeasedStore,
    StepsReported,
    StudyFields,
    StudyRecord,
)
from autotune.spec import StudyStatus, Trial, Wanted
from autotune.spec.texts.as_text import format_duration
from autotune.study.controller import CUT_OFF
from autotune.study.process_id import is_gone, this_process

T = TypeVar("T")

PAGE = 1000
"""history lines that are read at once"""


class StudyLease:
    """Writes for one study while its lease is held. A context manager: leaving it gives the lease
    back."""

    def __init__(
        self,
        store: LeasedStore,
        lease: Lease,
        *,
        lease_s: float = 10.0,
        patience_s: float = 120.0,
        stall_s: float = 600.0,
        on_trouble: Callable[[str], None] = lambda _: None,
        impatient: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_trouble` is called once for each outage; `impatient()` ends the wait for the
        database."""
        self.store = store
        self.study_id = lease.study
        self.fenced = threading.Event()
        self._lease = lease
        self._lease_s, self._patience_s, self._stall_s = lease_s, patience_s, stall_s
        self._on_trouble = on_trouble
        self._impatient = impatient
        self._closed = threading.Event()
        self._came_round_s = time.monotonic()
        self._decisions: int | None = None
        """how many are kept of this study"""
        self._renewer = threading.Thread(
            target=self._renew, name=f"lease of {lease.study}", daemon=True
        )

    @classmethod
    def claim(
        cls, store: LeasedStore, study_id: str, *, lease_s: float = 10.0, **options: Any
    ) -> StudyLease:
        """The lease of a study that nobody else runs. A holder that was a process of this host and
        has ended is replaced at once.

        Raises `ConflictError` when a live controller holds the study, or when the study has ended.
        """
        owner = this_process()
        lease = store.claim(study_id, owner, lease_s=lease_s)
        if lease is None and release_dead(store, study_id):
            lease = store.claim(study_id, owner, lease_s=lease_s)
        if lease is None:
            held = store.holder(study_id)
            raise ConflictError(
                f"study {study_id} is being run by another controller"
                + (f" ({held.owner})" if held else ""),
                remedy=f"wait for that controller; if it has died, its lease expires in {format_duration(lease_s)}",
            )
        return cls(store, lease, lease_s=lease_s, **options)

    def __enter__(self) -> Self:
        self._renewer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._renewer.join()
        # else it runs out by itself
        with contextlib.suppress(StoreUnavailableError, ConflictError):
            self.store.release(self._lease)

    def come_round(self) -> None:
        """Notes that the loop is alive. Raises `ConflictError` when the lease was taken over."""
        self._came_round_s = time.monotonic()
        if self.fenced.is_set():
            raise ConflictError(
                f"the lease on study {self.study_id} was taken over",
                remedy="another controller runs the study now",
            )

    def told_in_order(self) -> list[Trial]:
        """All trials: the terminal ones in the order in which they ended, then the others by
        number."""
        trials = self.trials()
        order = [
            int(event.data["number"])
            for event in self._events()
            if event.kind == EventKind.TRIAL_ENDED
        ]
        ended = {n: trials[n] for n in order if n in trials and trials[n].status.is_terminal}
        return [*ended.values(), *(t for n, t in sorted(trials.items()) if n not in ended)]

    def trials(self) -> dict[int, Trial]:
        """All trials as they are kept, by number."""
        return {t.number: t for t in self._patiently(lambda: self.store.trials(self.study_id))}

    def lost(self) -> dict[int, int]:
        """By trial, how many of its attempts were lost, those aside that only the end of a
        controller cut off."""
        ends = [
            event.data
            for event in self._events()
            if event.kind == EventKind.ATTEMPT_ENDED and event.data["failure"]
        ]
        return dict(
            Counter(
                int(end["number"]) for end in ends if end["failure"]["message"] != CUT_OFF.message
            )
        )

    def _events(self) -> Iterator[HistoryEvent]:
        after = 0
        while page := self._patiently(
            lambda: self.store.events(self.study_id, after=after, limit=PAGE)  # noqa: B023  called at once
        ):
            yield from page
            after = page[-1].sequence

    def record(self) -> StudyRecord:
        """The study as it is kept."""
        return self._patiently(lambda: self.store.study(self.study_id))

    def glance(self) -> StudyRecord | None:
        """The study as it is kept, read without repeating: None while the database is away, which
        does not mean that the study was cancelled."""
        try:
            return self.store.study(self.study_id)
        except StoreUnavailableError:
            return None

    def may_run(self) -> bool:
        """Whether people want the study to run, as far as the store can be reached now."""
        record = self.glance()
        return record is None or record.wanted is Wanted.RUN

    def adopt_attempt(self, number: int, attempt: int) -> None:
        """Notes that an attempt of an earlier controller goes on under this one."""
        self._patiently(lambda: self.store.adopt_attempt(self._lease, number, attempt))

    def add_steps(self, steps: Sequence[StepsReported]) -> None:
        """Keeps step metrics."""
        if steps:
            self._patiently(lambda: self.store.add_steps(self._lease, steps))

    def add_remark(self, number: int, text: str) -> None:
        """Keeps what was seen of a trial, in its history."""
        remark = {"number": number, "message": text}
        self._patiently(
            lambda: self.store.record_event(self.study_id, EventKind.TRIAL_REMARK, remark)
        )

    def decide(
        self,
        cause: Mapping[str, Any],
        facts: Sequence[Fact],
        *,
        status: StudyStatus | None = None,
        message: str | None = None,
        wanted: Wanted | None = None,
        **fields: Unpack[StudyFields],
    ) -> None:
        """Keeps a decision in one transaction: the event that caused it, its facts, and what
        changes of the study."""
        if self._decisions is None:
            self._decisions = self.record().decisions
        decision = Decision(
            number=self._decisions + 1,
            cause=cause,
            facts=tuple(facts),
            status=status,
            message=message,
            wanted=wanted,
            fields=fields,
        )
        self._patiently(lambda: self.store.keep_decision(self._lease, decision))
        self._decisions += 1

    def decide_pause(
        self,
        cause: Mapping[str, Any],
        facts: Sequence[Fact],
        *,
        message: str,
        **fields: Unpack[StudyFields],
    ) -> None:
        """Keeps the decision to rest: as PAUSED while people want a pause; else the status stays,
        so that another controller goes on with the study."""
        self._while_paused(
            lambda status, wanted: self.decide(
                cause, facts, status=status, message=message, wanted=wanted, **fields
            )
        )

    def pause_if_wanted(self, message: str) -> StudyRecord:
        """PAUSED, as long as people want a pause; else the status stays, so that another controller
        goes on with the study."""
        return self._while_paused(lambda status, wanted: self.move(status, message, wanted=wanted))

    def _while_paused(self, write: Callable[[StudyStatus | None, Wanted | None], T]) -> T:
        """Writes the status PAUSED on condition that people want a pause; without either when they
        do not, also when they took it back in between."""
        while True:
            pause = self.record().wanted is Wanted.PAUSE
            try:
                return write(StudyStatus.PAUSED, Wanted.PAUSE) if pause else write(None, None)
            except ConflictError:
                if not pause or self.record().wanted is Wanted.PAUSE:
                    raise

    def move(
        self,
        status: StudyStatus | None,
        message: str | None = None,
        *,
        wanted: Wanted | None = None,
        **fields: Unpack[StudyFields],
    ) -> StudyRecord:
        """Sets status, message (None: they stay) and fields of the study. One that has ended is
        left as it is. `wanted`: only if people want this of it."""
        while True:
            found = self.record()
            if found.status.is_terminal:
                return found
            try:
                return self._patiently(
                    lambda: self.store.set_status(
                        self.study_id,
                        status or found.status,  # noqa: B023  called at once
                        expect=[found.status],  # noqa: B023
                        message=message,
                        lease=self._lease,
                        wanted=wanted,
                        **fields,
                    )
                )
            except ConflictError:
                if self.record().status is found.status:
                    raise  # not a change by somebody else in between: the lease is gone

    def _patiently(self, write: Callable[[], T]) -> T:
        deadline, pause_s = time.monotonic() + self._patience_s, 0.05
        while True:
            try:
                return write()
            except StoreUnavailableError as error:
                if time.monotonic() >= deadline or self._impatient():
                    raise
                if pause_s == 0.05:
                    self._on_trouble(
                        f"the store cannot be reached; retrying for {format_duration(self._patience_s)}: {error.message}"
                    )
            self._came_round_s = time.monotonic()
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    def _renew(self) -> None:
        while not self._closed.wait(self._lease_s / 3):
            if time.monotonic() - self._came_round_s > self._stall_s:
                continue
            try:
                self._lease = self.store.renew(self._lease, lease_s=self._lease_s)
            except StoreUnavailableError:
                continue  # nobody else can take it meanwhile
            except ConflictError:
                self.fenced.set()
                return


def release_dead(store: LeasedStore, study_id: str) -> bool:
    """Takes the lease from a process of this host that has ended; whether there was one."""
    held = store.holder(study_id)
    if held is None or not is_gone(held.owner):
        return False
    store.release(held)
    return True
