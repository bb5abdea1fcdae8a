"""The supervisor: a thread that starts a process for each study that should run and is not leased.

Several supervisors may use one store: the lease decides which process gets a study, and the other
process exits at once. Processes that outlived a killed service keep their leases, and count toward
the limit of this host.

If a study's process dies repeatedly without ending a trial, the wait before each restart doubles.
After `MAX_CRASHES` deaths the study is FAILED, because the cause (too little memory, a broken
installation) would also kill further processes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from autotune import api
from autotune.errors import AutotuneError, ConflictError, NotFoundError, RunnerError, StoreError
from autotune.ports import Lease, LeasedStore, StudyRecord
from autotune.service.options import RUNNER_OPTIONS
from autotune.service.supervise.launcher import Ended, Launcher
from autotune.service.supervise.worker import ENDED, HELD, NOT_STARTED, STORE_UNAVAILABLE
from autotune.spec import StudyStatus, Wanted
from autotune.spec.texts.as_text import format_span
from autotune.study.lease import release_dead
from autotune.study.process_id import is_beside, is_gone

log = logging.getLogger("autotune.service")

MAX_CRASHES = 8
"""consecutive deaths of a study's process, without an ended trial, after which the study is
FAILED"""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
"""first and longest wait before a study's process is restarted, s; it doubles after each death"""
STORE_WAIT_S = 5.0
"""wait before a restart if the store or the machine caused the end, s"""
CHECK_S, STRAGGLE_S = 10.0, 60.0
"""interval between checks of running processes, and maximum time from the end of a study to that of
its process, s"""
HUNG_CHECKS = 30
"""number of checks without a renewed lease after which an existing process counts as hung. A
process that waits for an unavailable database gives up long before that (`StudyLease`, 120 s)"""
ACTIVE = (StudyStatus.RUNNING, StudyStatus.STOPPING)
"""statuses of studies that a process runs"""


@dataclass(slots=True)
class _Deaths:
    """The consecutive deaths of a study's process."""

    crashes: int = 0
    """number of consecutive deaths without an ended trial"""
    code: int = 0
    """the last exit code"""
    ended_trials: int = -1
    """number of ended trials at the last death"""
    not_before_s: float = 0.0
    """earliest time of the next start, s"""


@dataclass(slots=True)
class _LeaseWatch:
    """The lease of a study at the last check."""

    lease: Lease | None
    checks: int = 0
    """number of checks since it changed"""
    has_changed: bool = False
    """whether it has changed since the process was started, so that the process has held the
    lease"""


class Supervisor:
    """Starts studies and replaces dead controllers. Other threads may call `start`, `wake`, `close`
    and `health`; everything else runs in the supervisor's thread."""

    def __init__(
        self,
        store: LeasedStore,
        launcher: Launcher,
        *,
        max_studies: int,
        runners: frozenset[str] | None = None,
        poll_s: float = 0.5,
        grace_s: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_studies`: maximum number of studies that run at once on this host. `runners`: only
        start studies of these runners; None for all."""
        self._store, self._launcher = store, launcher
        self._max, self._poll_s, self._grace_s = max_studies, poll_s, grace_s
        self._monotonic = monotonic
        self._runners = runners
        self._unserved: set[str] = set()
        """studies with runners that this service lacks, which are not started"""
        self._started: set[str] = set()
        """studies whose processes this supervisor started or adopted"""
        self._foreign: frozenset[str] = frozenset()
        """other studies that ran on this host at the last round"""
        self._orphaned: set[str] = set()
        """studies whose lease is held by a dead process of this host"""
        self._leases: dict[str, _LeaseWatch] = {}
        self._ended: list[Ended] = []
        self._deaths: dict[str, _Deaths] = {}
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._last_round_s = self._checked_s = monotonic()
        self._problem = self._logged = ""
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._last_round_s = self._monotonic()
        self._thread.start()

    def wake(self) -> None:
        """Let the thread check for work now."""
        self._wake.set()

    def close(self) -> None:
        """End the thread and shut down the studies' processes."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._launcher.close(self._grace_s)

    def health(self) -> str:
        """Return the current problem; an empty text if there is none."""
        silent_s = self._monotonic() - self._last_round_s
        if silent_s > 30 + 10 * self._poll_s:
            return f"the supervisor has not checked for work for {format_span(silent_s)}"
        return self._problem or self._launcher.health()

    @property
    def running(self) -> frozenset[str]:
        """Studies whose processes run on this host, as of the last round: those that were started
        or adopted, and those that outlived an earlier service."""
        return self._foreign.union(self._started)

    def run_once(self) -> None:
        """Run one round: process exited processes, then start studies that should run, up to the
        limit."""
        self._ended += self._launcher.ended()
        while self._ended:  # remove an entry only after the store was updated, which may fail
            self._handle_end(self._ended[0])
            self._ended.pop(0)
        self._check_processes()
        self._foreign = frozenset(self._find_foreign())
        free = self._max - len(self._started | self._foreign)
        if free <= 0:
            return
        now = self._monotonic()
        for record in self._candidates(free):
            if free <= 0:
                return
            deaths = self._deaths.get(record.id)
            if record.id in self._started or (deaths and now < deaths.not_before_s):
                continue
            if deaths and deaths.crashes >= MAX_CRASHES:
                self._fail(record, deaths)
                continue
            self._leases[record.id] = _LeaseWatch(lease=self._store.holder(record.id))
            self._launcher.start(record)
            self._started.add(record.id)
            self._orphaned.discard(record.id)
            free -= 1

    def _check_processes(self) -> None:
        """Kill processes whose studies were cancelled or ended long ago, and hung ones, which are
        then replaced."""
        if self._monotonic() - self._checked_s < CHECK_S:
            return
        self._checked_s = self._monotonic()
        for study in sorted(self._started):
            record = self._record(study)
            if record is None or _is_long_over(record):
                log.warning(
                    "study %s has ended or was cancelled, but its process is still running; killing it",
                    study,
                )
                self._launcher.kill(study)
            elif self._is_hung(study):
                log.warning(
                    "the process for study %s has let its lease expire and does not respond; killing it",
                    study,
                )
                self._launcher.kill(study)

    def _is_hung(self, study: str) -> bool:
        """Return whether the process held the lease, but has neither renewed it nor exited for
        `HUNG_CHECKS` checks."""
        lease = self._store.holder(study)
        watch = self._leases.setdefault(study, _LeaseWatch(lease=None))
        if lease != watch.lease:
            watch.lease, watch.checks, watch.has_changed = lease, 0, True
        watch.checks += 1
        return not self._store.is_held(study) and watch.has_changed and watch.checks > HUNG_CHECKS

    def _run(self) -> None:
        adopted = False
        while not self._closing.is_set():
            try:
                if not adopted:
                    self._started |= self._launcher.adopted()
                    adopted = True
                self.run_once()
                self._problem = ""
                self._log_problem(self._launcher.health())
            except (StoreError, RunnerError) as error:
                self._problem = str(error)
                self._log_problem(self._problem)
            except Exception as error:  # one broken study must not stop the others
                log.exception("unexpected error in the supervisor")
                self._problem = f"{type(error).__name__}: {error}"
            self._last_round_s = self._monotonic()
            self._wake.wait(self._poll_s)
            self._wake.clear()

    def _log_problem(self, problem: str) -> None:
        """Log a new problem, or that the problem is resolved; nothing if it is unchanged."""
        if problem != self._logged:
            if problem:
                log.warning("%s", problem)
            else:
                log.info("the problem is resolved, and studies continue")
        self._logged = problem

    def _candidates(self, free: int) -> list[StudyRecord]:
        """Return studies to start: first those whose lease is held by a dead process of this host,
        then studies without a lease, in the store's order."""
        first = []
        for study in sorted(self._orphaned):
            record = self._record(study)
            if record is not None and record.status in (StudyStatus.QUEUED, *ACTIVE):
                first.append(record)
            else:
                self._orphaned.discard(study)
        waiting = sum(1 for t in self._deaths.values() if t.not_before_s)
        rest = self._store.claimable(
            limit=free + len(self._started) + waiting + len(self._unserved)
        )
        candidates = [*first, *(r for r in rest if r.id not in self._orphaned)]
        return [record for record in candidates if not self._is_unserved(record)]

    def _is_unserved(self, record: StudyRecord) -> bool:
        """Return whether this service lacks the study's runner. If so, write that into the study's
        message once."""
        runner = record.study.runner
        if self._runners is None or runner in self._runners:
            return False
        if record.id not in self._unserved:
            self._unserved.add(record.id)
            serving = (
                "start such a service with `autotune serve --runner ray`, or "
                if runner in RUNNER_OPTIONS
                else ""
            )
            message = (
                f"waits for a service with the {runner!r} runner, but this service has {', '.join(sorted(self._runners))}; "
                f"{serving}run the study with `autotune tune`"
            )
            log.warning("study %s %s", record.id, message)
            with suppress(ConflictError):
                self._store.set_status(
                    record.id, record.status, expect=[record.status], message=message
                )
        return True

    def _find_foreign(self) -> set[str]:
        """Return studies held by processes of this host that this supervisor did not start.

        Studies of dead processes are added to `_orphaned` and restarted before their lease
        expires, which could take very long after the clock was set back.
        """
        foreign: set[str] = set()
        for status in ACTIVE:
            for record in self._store.studies(status=status, limit=1000):
                if record.id in self._started or record.id in self._orphaned:
                    continue
                lease = self._store.holder(record.id)
                if lease is None or not is_beside(lease.owner):
                    continue
                if is_gone(lease.owner):
                    self._orphaned.add(record.id)
                elif self._store.is_held(record.id):
                    # otherwise the process is suspended, and its study may be claimed
                    foreign.add(record.id)
        return foreign

    def _handle_end(self, ended: Ended) -> None:
        """Process the end of a study's process: decide when, or whether, it is restarted."""
        self._started.discard(ended.study)
        self._orphaned.discard(ended.study)
        self._leases.pop(ended.study, None)
        if ended.stopped_by_user:
            self._cancel(ended.study)
            return
        if ended.code == ENDED:
            self._deaths.pop(ended.study, None)
            return
        record = self._record(ended.study)
        if record is None or record.status.is_terminal or record.status is StudyStatus.PAUSED:
            self._deaths.pop(ended.study, None)
            return
        deaths = self._deaths.setdefault(ended.study, _Deaths())
        if ended.code in (
            HELD,
            STORE_UNAVAILABLE,
            NOT_STARTED,
        ):  # not a crash: another process holds the study, or the store or machine is the cause
            deaths.not_before_s = self._monotonic() + (
                FIRST_WAIT_S if ended.code == HELD else STORE_WAIT_S
            )
            return
        ended_trials = sum(
            count
            for status, count in record.trial_counts.items()
            if status not in ("PENDING", "RUNNING")
        )
        deaths.crashes = 1 if ended_trials > deaths.ended_trials else deaths.crashes + 1
        deaths.ended_trials, deaths.code = ended_trials, ended.code
        if (
            deaths.crashes >= MAX_CRASHES
        ):  # `run_once` sets it to FAILED as soon as it is not leased
            self._orphaned.add(ended.study)
            return
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (deaths.crashes - 1))
        deaths.not_before_s = self._monotonic() + wait_s
        self._orphaned.add(ended.study)
        log.warning(
            "the process for study %s ended with code %s; starting it again in %.1f s",
            ended.study,
            ended.code,
            wait_s,
        )

    def _record(self, study: str) -> StudyRecord | None:
        """Return the study's record; None if it was deleted, which must not stop other studies."""
        try:
            return self._store.study(study)
        except NotFoundError:
            return None

    def _fail(self, record: StudyRecord, deaths: _Deaths) -> None:
        """Set the status to FAILED because the process died repeatedly."""
        how = f"killed by signal {-deaths.code}" if deaths.code < 0 else f"exit code {deaths.code}"
        message = (
            f"the study's process died {deaths.crashes} times without finishing a trial (last: {how}); "
            f"see the log of study {record.id}, fix the cause and submit the study again"
        )
        try:
            release_dead(self._store, record.id)
            self._store.set_status(
                record.id, StudyStatus.FAILED, expect=[StudyStatus.QUEUED, *ACTIVE], message=message
            )
            self._deaths.pop(record.id, None)
        except ConflictError as error:
            deaths.not_before_s = self._monotonic() + STORE_WAIT_S
            log.warning("%s", error)

    def _cancel(self, study: str) -> None:
        """Cancel a study whose process was stopped by a user."""
        self._deaths.pop(study, None)
        try:
            api.act(self._store, study, "cancel")
        except ConflictError:  # the study has ended
            return
        except AutotuneError as error:
            log.warning(
                "study %s was stopped in Ray's dashboard but cannot be cancelled: %s", study, error
            )


def _is_long_over(record: StudyRecord) -> bool:
    """Return whether the study ended or was cancelled more than `STRAGGLE_S` ago."""
    over_at = record.ended_at or (record.wanted_at if record.wanted is Wanted.CANCEL else None)
    return over_at is not None and (datetime.now(UTC) - over_at).total_seconds() > STRAGGLE_S
