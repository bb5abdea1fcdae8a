"""The lease of one study: the exclusive right to write for it. A thread renews the lease, and writes
are repeated while the database is unavailable.

    lease_s      seconds after its last renewal at which the lease expires; it is renewed every third of that
    patience_s   seconds for which a write is repeated before it fails; measurements stay in memory meanwhile
    stall_s      seconds without a round of the loop after which the lease is no longer renewed, so that another controller can take over

All writes of the store are idempotent, so a write whose response was lost is repeated.
If another controller took the lease, the next write raises `ConflictError` and the loop stops.
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
"""history events read per query"""


class StudyLease:
    """Reads and writes one study while its lease is held. A context manager that releases the lease
    on exit."""

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
        """`on_trouble` is called with a message once per outage of the database. If `impatient()` is
        true, a write fails at once instead of being repeated."""
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
        """number of stored decisions of this study; None until it is read"""
        self._renewer = threading.Thread(
            target=self._renew, name=f"lease of {lease.study}", daemon=True
        )

    @classmethod
    def claim(
        cls, store: LeasedStore, study_id: str, *, lease_s: float = 10.0, **options: Any
    ) -> StudyLease:
        """Claim the lease of a study. If its holder was a process of this host that has ended, it is
        replaced without waiting for the lease to expire.

        Raises `ConflictError` if a live controller holds the study, or the study has ended.
        """
        owner = this_process()
        lease = store.claim(study_id, owner, lease_s=lease_s)
        if lease is None and release_dead(store, study_id):
            lease = store.claim(study_id, owner, lease_s=lease_s)
        if lease is None:
            holder = store.holder(study_id)
            raise ConflictError(
                f"study {study_id} is being run by another controller"
                + (f" ({holder.owner})" if holder else ""),
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
        # if the release fails, the lease expires by itself
        with contextlib.suppress(StoreUnavailableError, ConflictError):
            self.store.release(self._lease)

    def come_round(self) -> None:
        """Note that the loop is alive, so that the lease is renewed. Raises `ConflictError` if the
        lease was taken over."""
        self._came_round_s = time.monotonic()
        if self.fenced.is_set():
            raise ConflictError(
                f"the lease on study {self.study_id} was taken over",
                remedy="another controller runs the study now",
            )

    def told_in_order(self) -> list[Trial]:
        """All trials in the order in which a new searcher is told them: terminal ones in the order in
        which they ended, then the others by number."""
        trials = self.trials()
        order = [
            int(event.data["number"])
            for event in self._events()
            if event.kind == EventKind.TRIAL_ENDED
        ]
        ended = {n: trials[n] for n in order if n in trials and trials[n].status.is_terminal}
        return [*ended.values(), *(t for n, t in sorted(trials.items()) if n not in ended)]

    def trials(self) -> dict[int, Trial]:
        """All stored trials by number."""
        return {t.number: t for t in self._patiently(lambda: self.store.trials(self.study_id))}

    def lost(self) -> dict[int, int]:
        """Number of failed attempts by trial number, without those that only ended because their
        controller did."""
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
        """The study's stored record."""
        return self._patiently(lambda: self.store.study(self.study_id))

    def glance(self) -> StudyRecord | None:
        """The study's stored record, read once without retries; None if the database is
        unavailable."""
        try:
            return self.store.study(self.study_id)
        except StoreUnavailableError:
            return None

    def may_run(self) -> bool:
        """Whether no pause, stop or cancellation is requested; True if the store is unavailable."""
        record = self.glance()
        return record is None or record.wanted is Wanted.RUN

    def adopt_attempt(self, number: int, attempt: int) -> None:
        """Store that an attempt of an earlier controller continues under this one."""
        self._patiently(lambda: self.store.adopt_attempt(self._lease, number, attempt))

    def add_steps(self, steps: Sequence[StepsReported]) -> None:
        """Store step metrics."""
        if steps:
            self._patiently(lambda: self.store.add_steps(self._lease, steps))

    def add_remark(self, number: int, text: str) -> None:
        """Store a remark about a trial in the history."""
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
        """Store a decision in one transaction: its cause, its facts, and changed fields of the study.
        `wanted`: store it only while this is requested of the study, else raise `ConflictError`."""
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
        """Store the decision to pause. The status becomes PAUSED only while a pause is requested;
        otherwise it stays, so that another controller continues the study."""
        self._while_paused(
            lambda status, wanted: self.decide(
                cause, facts, status=status, message=message, wanted=wanted, **fields
            )
        )

    def pause_if_wanted(self, message: str) -> StudyRecord:
        """Set the status PAUSED if a pause is requested; otherwise the status stays, so that another
        controller continues the study. Returns the record."""
        return self._while_paused(lambda status, wanted: self.move(status, message, wanted=wanted))

    def _while_paused(self, write: Callable[[StudyStatus | None, Wanted | None], T]) -> T:
        """Call `write(status, wanted)`: with PAUSED while a pause is requested, else with None. If
        the request changes in between, try again."""
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
        """Set status and message (None: unchanged) and fields of the study, and return its record. A
        study that has ended is not changed. `wanted`: change it only while this is requested of it,
        else raise `ConflictError`."""
        while True:
            record = self.record()
            if record.status.is_terminal:
                return record
            try:
                return self._patiently(
                    lambda: self.store.set_status(
                        self.study_id,
                        status or record.status,  # noqa: B023  called at once
                        expect=[record.status],  # noqa: B023
                        message=message,
                        lease=self._lease,
                        wanted=wanted,
                        **fields,
                    )
                )
            except ConflictError:
                if self.record().status is record.status:
                    raise  # the status did not change in between, so the lease is lost

    def _patiently(self, write: Callable[[], T]) -> T:
        """Call `write` until it succeeds, for at most `patience_s` while the store is
        unavailable."""
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
                continue  # no other controller can take the lease while the store is unavailable
            except ConflictError:
                self.fenced.set()
                return


def release_dead(store: LeasedStore, study_id: str) -> bool:
    """Release the study's lease if its holder was a process of this host that has ended. Returns
    whether it was."""
    holder = store.holder(study_id)
    if holder is None or not is_gone(holder.owner):
        return False
    store.release(holder)
    return True
