"""Running studies: in the foreground, or claimed from the store by a service.

A study that was interrupted, or whose controller died, is continued from the trials in the store.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from autotune.errors import (
    AutotuneError,
    CallbackError,
    CatalogError,
    ClusterTooSmallError,
    ConflictError,
    JobEndedError,
    RunnerError,
    StoreError,
)
from autotune.ports import EventKind, LeasedStore, Store, StudyFields, StudyRecord, TrialRunner
from autotune.results.answers import result_of
from autotune.results.calibrations import known_outliers
from autotune.results.masking import secrets_note
from autotune.results.result import Result
from autotune.search import SearcherFactory, searcher_name
from autotune.spec import Study, StudyStatus, Trial, Wanted
from autotune.study.assembly import Assembly, assemble, history_of, make_runner_of
from autotune.study.beginning import Beginning
from autotune.study.check.unseen_program import check_unseen, needs_check
from autotune.study.controller import (
    CANCELLED_ON_REQUEST,
    JOB_ENDS,
    PAUSED_ON_REQUEST,
    STOPPED_ON_REQUEST,
)
from autotune.study.controller.ending import has_found
from autotune.study.lease import StudyLease, release_dead
from autotune.study.loop import Loop
from autotune.study.outliers import Outliers
from autotune.study.preflight import check_here, check_passed, check_runner
from autotune.study.progress import Notice, OnEvent, StudyOpened
from autotune.study.quick_calibration import calibrate_quickly, needs_calibration
from autotune.study.references import keep_losses, known_losses
from autotune.study.target_findings import TargetFindings

ACTIONS = ("pause", "resume", "stop", "cancel")
WANTED = {
    "pause": (Wanted.PAUSE, "pausing: running trials finish"),
    "resume": (Wanted.RUN, ""),
    "stop": (Wanted.STOP, "stopping: running trials finish"),
    "cancel": (Wanted.CANCEL, "cancelling: running trials are killed"),
}
"""What each action requests, and the study's message until its controller has read the request."""
SETTLE_S = 10.0
"""how long to wait for the controller of a paused study to release its lease, s"""
AWAY_S, LOOK_S = 3600.0, 10.0
"""how long a continued study waits for unavailable nodes, and the interval of its checks, s"""


def submit_study(
    store: Store,
    study: Study,
    spec: Mapping[str, Any] | None = None,
    *,
    idempotency_key: str | None = None,
    owner: str = "",
    join: bool = False,
    searcher: SearcherFactory | None = None,
    here: bool = False,
    runner: TrialRunner | None = None,
    assembly: Assembly | None = None,
) -> StudyRecord:
    """Check that the study can be run (space, searcher, enqueued configs, memory, runner) and store
    it as QUEUED. Raises `InfeasibleError`, `ConfigError` or `RunnerError` if it cannot.

    `searcher`: factory of a searcher that is not registered by name. `here`: this machine will run
    the study, so also check what it can run; otherwise that is checked when the study starts.
    `runner`: the study's runner, if it is passed as an object; then no runner is checked.
    `assembly`: the study's assembly, if it exists already. `join`: return an unfinished study of
    the same spec instead, if there is one (`autotune.ports.StudyWriter.submit`).
    """
    assembly = assembly or assemble(study, store)
    assembly.check_fit()
    check_passed(study, runner)
    if here and runner is None:
        check_here(assembly.runs_here.study, assembly.runs_here.space)
    elif runner is None:
        check_runner(study)
    assembly.searcher(factory=searcher)
    return store.submit(study, spec or {}, idempotency_key=idempotency_key, owner=owner, join=join)


def run_study(
    store: Store,
    study_id: str,
    *,
    on_event: OnEvent | None = None,
    interrupted: Callable[[], bool | str] | None = None,
    left_s: Callable[[], float | None] | None = None,
    goes_on: bool = False,
    leave: bool = False,
    lease_s: float = 10.0,
    searcher: SearcherFactory | None = None,
    runner: TrialRunner | None = None,
    about: Mapping[str, Any] | None = None,
    assembly: Assembly | None = None,
) -> Result:
    """Claim a submitted study, run it until it ends, pauses or `interrupted()` is true, and return
    its result. Used by `tune` and the supervisor.

    `left_s()`: seconds until the job of this process ends; None if unknown. `goes_on`: the job is
    restarted after its end, so the study pauses instead of deciding on a winner before it. `leave`:
    an interrupted study keeps its status for the next controller, instead of becoming PAUSED.
    `searcher`: factory of a searcher that is not registered by name, the same one with which the
    study was submitted. `runner`: the same for a runner passed as an object, which is closed at the
    end. `about`: plain values that are stored with the study's result, such as the job that runs
    it. `assembly`: as for `submit_study`.

    A study that has ended is not run; its result is returned. One for which a pause or cancellation
    is requested gets that status without being run. Raises `ConflictError` if a live controller
    holds the study, and `StoreError` if the store stays unavailable; both leave the study unchanged
    for the next controller. After any other error, which is raised again, the study is PAUSED if it
    can continue once the cause is fixed (an error of the operating system, out of memory, a callback
    that raised, a missing searcher or runner, a runner that failed after a measurement), else
    FAILED. A runner error while `interrupted()` is true, or because the job is ending, counts as
    part of the interruption and is not raised.
    """
    tell, stop = on_event or (lambda _: None), interrupted or (lambda: False)
    record = store.study(study_id)
    if record.status.is_terminal:
        return result_of(store, record.id)
    _check_same_searcher(record, searcher)
    trouble = {"on_trouble": lambda text: tell(Notice(message=text)), "impatient": stop}
    with StudyLease.claim(store, record.id, lease_s=lease_s, **trouble) as lease:
        try:
            if not _rests_as_wanted(lease):
                _run(
                    store,
                    lease,
                    tell,
                    stop,
                    left_s,
                    goes_on,
                    leave,
                    searcher,
                    runner,
                    about,
                    assembly,
                )
        except (ConflictError, StoreError):
            raise
        except Exception as error:
            if _come_to_rest(lease, error, stop(), leave=leave):
                return result_of(store, record.id)
            raise
    return result_of(store, record.id)


def _come_to_rest(lease: StudyLease, error: Exception, why: bool | str, *, leave: bool) -> bool:
    """Store the study's status and message after an error. Returns whether the error is part of an
    interruption, so that it need not be raised. `why`: reason of an interruption, or whether there
    was one."""
    message = str(error) if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RunnerError) and why:
        # a scheduler that ends a job signals all of its processes, Ray's too
        message = (
            f"{why if isinstance(why, str) else 'interrupted'}, and the runner ended too: {message}"
        )
    elif isinstance(error, JobEndedError):
        message = f"{JOB_ENDS}: {error.message}"
    elif isinstance(error, MemoryError):
        message = (
            "the controller ran out of memory; raise its memory limit, and the study continues"
        )
    if isinstance(error, JobEndedError) or (isinstance(error, RunnerError) and why):
        if not leave:
            lease.move(StudyStatus.PAUSED, message)
        return True
    can_go_on = (
        (isinstance(error, CatalogError) and error.field in ("searcher", "runner"))
        or isinstance(error, OSError | MemoryError | CallbackError)
        or (isinstance(error, RunnerError) and any(t.is_measured for t in lease.trials().values()))
    )
    lease.move(StudyStatus.PAUSED if can_go_on else StudyStatus.FAILED, message)
    return False


def _check_same_searcher(record: StudyRecord, factory: SearcherFactory | None) -> None:
    """Raise `ConflictError` if the searcher that was passed is not the study's, because it would
    replay the trials of a different searcher."""
    if factory is not None and searcher_name(factory) != record.study.searcher:
        raise ConflictError(
            f"study {record.id} searches with {record.study.searcher!r}, but {searcher_name(factory)!r} was passed",
            remedy="pass the searcher that the study was submitted with, or submit a new study",
            field="searcher",
        )


def act(store: LeasedStore, study_id: str, action: str) -> StudyRecord:
    """Request an action on a study (pause, resume, stop or cancel) and return its record. Raises
    `ConflictError` if the study has ended, or its end was requested before.

    A running controller reads the request, carries it out, and then changes the status. The status
    of a study without a controller changes at once.
    """
    if action not in WANTED:
        raise ValueError(f"an action must be one of {', '.join(ACTIONS)}, but is {action!r}")
    wanted, message = WANTED[action]
    record = store.want(store.study(study_id).id, wanted, message=message)
    release_dead(store, record.id)
    deadline = time.monotonic() + SETTLE_S
    while not record.status.is_terminal:
        if store.is_held(record.id):
            if record.status is not StudyStatus.PAUSED or time.monotonic() > deadline:
                return record  # its controller will read the request
            time.sleep(0.02)  # the controller has paused and is about to release the lease
        else:
            with contextlib.suppress(ConflictError):  # a controller has just claimed it
                return _settled(store, record)
        record = store.study(record.id)
    return record


def _settled(store: LeasedStore, record: StudyRecord) -> StudyRecord:
    """Set the requested status of a study without a controller, and return its record."""
    move = partial(store.set_status, record.id, expect=[record.status], wanted=record.wanted)
    match record.wanted:
        case Wanted.PAUSE:
            return (
                record
                if record.status is StudyStatus.PAUSED
                else move(StudyStatus.PAUSED, message=PAUSED_ON_REQUEST)
            )
        case Wanted.CANCEL:
            return move(StudyStatus.CANCELLED, message=CANCELLED_ON_REQUEST)
        case Wanted.STOP:
            result = result_of(store, record.id)
            fields: StudyFields = {
                "best": result.best.number if result.best else None,
                "baseline": result.baseline.number if result.baseline else None,
                "speedup": result.speedup,
            }
            ended = (
                StudyStatus.COMPLETED
                if has_found(fields["best"], result.trials)
                else StudyStatus.CANCELLED
            )
            return move(ended, message=STOPPED_ON_REQUEST, **fields)
    goes_on = StudyStatus.RUNNING if record.started_at else StudyStatus.QUEUED
    return move(goes_on, message="") if record.status is StudyStatus.PAUSED else record


def _rests_as_wanted(lease: StudyLease) -> bool:
    """Pause or cancel the study if that is requested. Returns whether it was."""
    record = lease.record()
    if record.wanted is Wanted.CANCEL:
        lease.move(StudyStatus.CANCELLED, CANCELLED_ON_REQUEST)
    elif record.wanted is Wanted.PAUSE:
        return lease.pause_if_wanted(PAUSED_ON_REQUEST).status is StudyStatus.PAUSED
    return record.wanted is Wanted.CANCEL


def _runner_in_time(
    assembly: Assembly,
    passed: TrialRunner | None,
    lease: StudyLease,
    tell: OnEvent,
    stop: Callable[[], bool],
    *,
    waits: bool,
) -> TrialRunner | None:
    """The study's runner. `waits`: if the cluster is too small at the moment, for example after a
    restart of Ray's head, wait up to `AWAY_S` for its nodes. Returns None if the wait was
    interrupted, or a pause or cancellation was requested."""
    end_s = time.monotonic() + (AWAY_S if waits else 0.0)
    while True:
        try:
            return make_runner_of(assembly, passed)
        except ClusterTooSmallError as error:
            if time.monotonic() >= end_s:
                raise
            message = f"waiting for nodes that are unavailable: {error.message}"
        if lease.record().message != message:
            lease.move(None, message)
            tell(Notice(message=message))
        look_s = time.monotonic() + LOOK_S
        while time.monotonic() < look_s:
            lease.come_round()
            if stop() or _rests_as_wanted(lease):
                return None
            time.sleep(min(1.0, LOOK_S))


def _run(
    store: Store,
    lease: StudyLease,
    tell: OnEvent,
    stop: Callable[[], bool | str],
    left_s: Callable[[], float | None] | None,
    goes_on: bool,
    leave: bool,
    factory: SearcherFactory | None,
    passed: TrialRunner | None,
    about: Mapping[str, Any] | None,
    given: Assembly | None,
) -> None:
    """Run a claimed study until it ends or pauses: make its runner, calibrate if needed, check an
    unknown program, and run the loop."""
    record = lease.record()
    assembly = (
        given
        if given is not None and given.study == record.study
        else assemble(record.study, store)
    )
    assembly.check_fit()
    _announce(record, store, tell)
    past = lease.told_in_order()
    # The runner is made before the calibration, which shares its connection to Ray: after a second
    # connection of the same process, Ray no longer shows its metrics.
    waits = leave and record.started_at is not None
    runner = _runner_in_time(assembly, passed, lease, tell, lambda: bool(stop()), waits=waits)
    if runner is None:
        return
    try:
        if passed is None and needs_calibration(
            assembly.runs_here.study, store, past, len(assembly.space)
        ):
            if _calibrate(assembly, store, lease, tell, stop):
                assembly = assemble(record.study, store)
            elif _rests_as_wanted(lease):
                return
        outliers = _outliers(assembly, store, record, runner, tell, past)
        history = history_of(record.study, store, before=record.created_at)
        searcher = assembly.searcher(history, factory=factory)
        if record.status is not StudyStatus.STOPPING:
            record = lease.move(StudyStatus.RUNNING, "" if record.wanted is Wanted.RUN else None)
        if needs_check(record.study, store, record.id, past):
            check_unseen(assembly.runs_here, runner, lease, tell, lambda: bool(stop()))
        losses = known_losses(assembly, store)
        begins = Beginning.of(
            record, assembly, capacity=runner.capacity, fp32_losses=losses, goes_on=goes_on
        )
        controller = begins.controller(record, assembly, searcher, past=past, lost=lease.lost())
        lease.decide({"event": "ControllerBegan"}, [begins.to_note()])
        tell(StudyOpened(record=record, past=tuple(past)))
        loop = Loop(
            controller,
            runner,
            lease,
            on_event=outliers.hear,
            interrupted=stop,
            left_s=left_s or (lambda: None),
            leave=leave,
            findings=TargetFindings(searcher),
            about=about,
        )
        loop.run()
        keep_losses(assembly, store, controller.trials.values())
    finally:
        runner.close()


def _announce(record: StudyRecord, store: Store, tell: OnEvent) -> None:
    """Report secrets, skipped configs and filled-in knobs of the spec. Skipped and filled-in ones
    are stored in the history when the study first starts."""
    study, is_new = record.study, record.started_at is None
    if secrets := secrets_note(study):
        tell(Notice(message=secrets))
    for guess in study.left_out:
        tell(Notice(message=f"enqueue: skipped a config that this cluster cannot run: {guess}"))
        if is_new:
            store.record_event(record.id, EventKind.GUESS_LEFT_OUT, {"message": guess})
    if not study.filled_in:
        return
    configs = f"{len(study.filled_in)} config{'s' if len(study.filled_in) > 1 else ''}"
    message = f"enqueue: filled in missing knobs of {configs}, e.g. {study.filled_in[0]}"
    tell(Notice(message=message))
    if is_new:
        guesses = list(study.filled_in)
        store.record_event(
            record.id, EventKind.GUESS_FILLED_IN, {"message": message, "guesses": guesses}
        )


def _calibrate(
    assembly: Assembly,
    store: Store,
    lease: StudyLease,
    tell: OnEvent,
    stop: Callable[[], bool | str],
) -> bool:
    """Calibrate the cost model for this cluster and note that in the history. Returns False if it
    failed or was interrupted."""

    def interrupted() -> bool:
        lease.come_round()
        return bool(stop()) or not lease.may_run()

    constants = calibrate_quickly(assembly.runs_here.study, store, tell, interrupted)
    if constants is None:
        return False
    store.record_event(lease.study_id, EventKind.CALIBRATED, {"message": constants.source})
    return True


def _outliers(
    assembly: Assembly,
    store: Store,
    record: StudyRecord,
    runner: TrialRunner,
    tell: OnEvent,
    past: Sequence[Trial],
) -> Outliers:
    """The study's detector of slow nodes and GPUs, fed with stored outliers and past trials."""
    here = assembly.runs_here
    outliers = Outliers(
        here.study,
        here.space,
        runner,
        tell,
        keep=lambda text: store.record_event(record.id, EventKind.OUTLIER, {"message": text}),
    )
    outliers.judge(known_outliers(store, record.study.workload.cluster.gpu.name))
    for trial in past:
        outliers.see(trial)
    return outliers
