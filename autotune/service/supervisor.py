"""What keeps studies running: a thread that starts a process for each study that should run and that nobody holds.

Two supervisors on one store are safe: the lease decides which process gets a study, the other ends at once. So are studies that outlived a
killed service: they hold their leases, and count among those that run on this host.

A study whose process dies again and again without getting anywhere waits longer each time, and after `MAX_CRASHES` times is FAILED: whatever
kills it (memory, a broken installation) would do so for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.errors import AutotuneError, ConflictError, NotFoundError, RunnerError, StoreError
from autotune.ports import Lease, StudyRecord, StudyStore
from autotune.service.launcher import Ended, Launcher
from autotune.service.worker import ENDED, HELD, STORE_AWAY
from autotune.spec import StudyStatus
from autotune.study.process_id import is_beside, is_gone

log = logging.getLogger("autotune.service")

MAX_CRASHES = 8
"""deaths of a study's process, with no trial ended in between, after which the study is FAILED"""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
"""before a study is tried again: doubles each time"""
STORE_WAIT_S = 5.0
LOOK_S, STRAGGLE_S = 10.0, 60.0
"""how often its processes are looked at, and how long one may take to end by itself when its study has"""
HUNG_LOOKS = 30
"""looks in which a process has not renewed its lease and still is there: it is frozen, or hangs for good. One that waits for a database in which it
cannot write gives up long before (`StudyLease`, 120 s)"""
ACTIVE = (StudyStatus.RUNNING, StudyStatus.STOPPING)


@dataclass(slots=True)
class _Trouble:
    """How often a study's process died."""

    crashes: int = 0
    ended_trials: int = -1
    not_before_s: float = 0.0


@dataclass(slots=True)
class _Sign:
    """The last sign of life of a study's process."""

    lease: Lease | None
    looks: int = 0
    """since it was given"""
    is_its_own: bool = False
    """whether it came since the process was started"""


class Supervisor:
    """Starts studies, replaces dead controllers. `start` and `close` from outside; the rest is its thread's."""

    def __init__(
        self,
        store: StudyStore,
        launcher: Launcher,
        *,
        max_studies: int,
        poll_s: float = 0.5,
        grace_s: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_studies`: processes of studies at once on this host."""
        self._store, self._launcher = store, launcher
        self._max, self._poll_s, self._grace_s = max_studies, poll_s, grace_s
        self._monotonic = monotonic
        self._mine: set[str] = set()
        self._died: set[str] = set()
        self._signs: dict[str, _Sign] = {}
        self._ended: list[Ended] = []
        self._trouble: dict[str, _Trouble] = {}
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._last_round_s = self._looked_s = monotonic()
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._last_round_s = self._monotonic()
        self._thread.start()

    def wake(self) -> None:
        """There may be work: look now."""
        self._wake.set()

    def close(self) -> None:
        """Ends the thread, and lets the studies' processes put things down."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._launcher.close(self._grace_s)

    def health(self) -> str:
        """Empty when it works, else what is wrong."""
        silent_s = self._monotonic() - self._last_round_s
        if silent_s > 30 + 10 * self._poll_s:
            return f"the supervisor has not come round for {silent_s:.0f} s"
        return self._complaint or self._launcher.health()

    @property
    def running(self) -> frozenset[str]:
        """Studies whose processes it started and has not seen end."""
        return frozenset(self._mine)

    def round(self) -> None:
        """Looks once: hears of ends, then starts what should run and fits."""
        self._ended += self._launcher.ended()
        while self._ended:  # each stays in hand until the store has heard of it
            self._note(self._ended[0])
            self._ended.pop(0)
        self._look_at_processes()
        free = self._max - len(self._mine | self._others())
        if free <= 0:
            return
        now = self._monotonic()
        for record in self._candidates(free):
            if free <= 0:
                return
            trouble = self._trouble.get(record.id)
            if record.id in self._mine or (trouble and now < trouble.not_before_s):
                continue
            self._signs[record.id] = _Sign(lease=self._store.holder(record.id))
            self._launcher.start(record)
            self._mine.add(record.id)
            self._died.discard(record.id)
            free -= 1

    def _look_at_processes(self) -> None:
        """Kills those whose studies ended long ago (cancelled, but something in them hangs), and those that show no life: another goes on."""
        if self._monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = self._monotonic()
        for study in sorted(self._mine):
            record = self._store.study(study)
            if record.ended_at is not None and (datetime.now(UTC) - record.ended_at).total_seconds() > STRAGGLE_S:
                log.warning("study %s has ended, but its process has not: killed", study)
                self._launcher.kill(study)
            elif self._is_hung(study):
                log.warning("the process of study %s has let its lease run out and shows no life: killed", study)
                self._launcher.kill(study)

    def _is_hung(self, study: str) -> bool:
        """Whether the process once had the study and renews its lease no more, or has given it back and does not end, in so many looks."""
        lease = self._store.holder(study)
        sign = self._signs.setdefault(study, _Sign(lease=None))
        if lease != sign.lease:
            sign.lease, sign.looks, sign.is_its_own = lease, 0, True
        sign.looks += 1
        is_out = lease is None or lease.expires_at <= datetime.now(UTC)
        return is_out and sign.is_its_own and sign.looks > HUNG_LOOKS

    def _run(self) -> None:
        adopted = False
        while not self._closing.is_set():
            try:
                if not adopted:
                    self._mine |= self._launcher.adopted()
                    adopted = True
                self.round()
                self._complaint = ""
            except (StoreError, RunnerError) as error:
                if str(error) != self._complaint:
                    log.warning("%s", error)
                self._complaint = str(error)
            except Exception as error:  # one odd study must not stop the others for ever
                log.exception("the supervisor stumbled")
                self._complaint = f"{type(error).__name__}: {error}"
            self._last_round_s = self._monotonic()
            self._wake.wait(self._poll_s)
            self._wake.clear()

    def _candidates(self, free: int) -> list[StudyRecord]:
        """What nobody holds, oldest first; before them what a dead process beside this one still holds on paper."""
        first = []
        for study in sorted(self._died):
            record = self._store.study(study)
            if record.status in (StudyStatus.QUEUED, *ACTIVE):
                first.append(record)
            else:
                self._died.discard(study)
        waiting = sum(1 for t in self._trouble.values() if t.not_before_s)
        rest = self._store.claimable(limit=free + len(self._mine) + waiting)
        return [*first, *(r for r in rest if r.id not in self._died)]

    def _others(self) -> set[str]:
        """Studies that processes beside this one hold and that we did not start. What dead ones hold goes to those that died.

        No clock says when these may be claimed: one that was set back since would have them wait for as long as that.
        """
        found: set[str] = set()
        for status in ACTIVE:
            for record in self._store.studies(status=status, limit=1000):
                if record.id in self._mine or record.id in self._died:
                    continue
                lease = self._store.holder(record.id)
                if lease is None or not is_beside(lease.owner):
                    continue
                if is_gone(lease.owner):
                    self._died.add(record.id)
                elif lease.expires_at > datetime.now(UTC):  # else it is frozen, and its study anybody's
                    found.add(record.id)
        return found

    def _note(self, ended: Ended) -> None:
        self._mine.discard(ended.study)
        self._died.discard(ended.study)
        self._signs.pop(ended.study, None)
        if ended.by_hand:
            self._cancel(ended.study)
            return
        if ended.code == ENDED:
            self._trouble.pop(ended.study, None)
            return
        try:
            record = self._store.study(ended.study)
        except NotFoundError:
            return
        if record.status.is_terminal or record.status is StudyStatus.PAUSED:
            self._trouble.pop(ended.study, None)
            return
        trouble = self._trouble.setdefault(ended.study, _Trouble())
        if ended.code in (HELD, STORE_AWAY):  # no crash: somebody else has it, or nobody can have it now
            trouble.not_before_s = self._monotonic() + (FIRST_WAIT_S if ended.code == HELD else STORE_WAIT_S)
            return
        done = sum(count for status, count in record.trial_counts.items() if status not in ("PENDING", "RUNNING"))
        trouble.crashes = 1 if done > trouble.ended_trials else trouble.crashes + 1
        trouble.ended_trials = done
        if trouble.crashes >= MAX_CRASHES:
            self._fail(record, trouble, ended.code)
            return
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (trouble.crashes - 1))
        trouble.not_before_s = self._monotonic() + wait_s
        self._died.add(ended.study)
        log.warning("the process of study %s ended with code %s; again in %.1f s", ended.study, ended.code, wait_s)

    def _fail(self, record: StudyRecord, trouble: _Trouble, code: int) -> None:
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        message = (
            f"its process died {trouble.crashes} times without ending a trial (last: {how}); "
            f"see the log of study {record.id}, mend what kills it and submit the study again"
        )
        self._trouble.pop(record.id, None)
        try:
            self._store.set_status(record.id, StudyStatus.FAILED, expect=[StudyStatus.QUEUED, *ACTIVE], message=message)
        except ConflictError as error:
            log.warning("%s", error)

    def _cancel(self, study: str) -> None:
        from autotune import api

        self._trouble.pop(study, None)
        try:
            api.act(self._store, study, "cancel")
        except ConflictError:  # it has ended
            return
        except AutotuneError as error:
            log.warning("study %s was stopped by hand but cannot be cancelled: %s", study, error)
