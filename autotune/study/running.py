"""Running studies: in the foreground, or claimed from the store by a service.

A study that was interrupted, or whose controller died, is continued from what the store holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autotune.errors import AutotuneError, CatalogError, ConflictError, RunnerError, StoreError
from autotune.ports import Store, StudyRecord, StudyStore, TrialRunner
from autotune.results.answers import Result, is_held, result_of
from autotune.spec import Study, StudyStatus
from autotune.study.assembly import assemble, history_of, make_runner_of
from autotune.study.check.unseen_program import check_unseen, needs_check
from autotune.study.controller import STOPPED_ON_REQUEST, Controller
from autotune.study.lease import StudyLease
from autotune.study.loop import Loop
from autotune.study.passed_runner import check_passed
from autotune.study.preflight import check_here, check_runner
from autotune.study.progress import Notice, OnEvent, StudyOpened
from autotune.study.references import keep_losses, known_losses

if TYPE_CHECKING:
    from autotune.search import SearcherFactory

ACTIONS = ("pause", "resume", "stop", "cancel")


def submit_study(
    store: Store,
    study: Study,
    spec: Mapping[str, Any] | None = None,
    *,
    idempotency_key: str | None = None,
    owner: str = "",
    searcher: SearcherFactory | None = None,
    here: bool = False,
    runner: TrialRunner | None = None,
) -> StudyRecord:
    """Checks that the study can be run at all (space, searcher, guesses, memory, runner: `InfeasibleError`, `ConfigError`, `RunnerError`) and keeps it as QUEUED.

    `searcher`: what makes the study's searcher, where that is registered under no name. `here`: this machine is going to run it, so what it
    cannot run is refused too; otherwise the machine that runs it is asked when the study starts. `runner`: the study's, where it is passed as an
    object; it is asked nothing.
    """
    assembly = assemble(study, store)
    assembly.check_fit()
    check_passed(study, runner)
    if here and runner is None:
        check_here(study, assembly.space)
    elif runner is None:
        check_runner(study)
    assembly.searcher(factory=searcher)
    return store.submit(study, spec or {}, idempotency_key=idempotency_key, owner=owner)


def run_study(
    store: Store,
    study_id: str,
    *,
    on_event: OnEvent | None = None,
    interrupted: Callable[[], bool] | None = None,
    leave: bool = False,
    lease_s: float = 10.0,
    searcher: SearcherFactory | None = None,
    runner: TrialRunner | None = None,
) -> Result:
    """Claims a submitted study and runs it until it ends, is paused, or `interrupted()` says so. For `tune` and the supervisor.

    `leave`: when interrupted it is not PAUSED but keeps its status, for the next controller. `searcher`: what makes the study's searcher,
    where that is registered under no name; it must be the one that the study was submitted with. `runner`: likewise the study's runner, which is
    closed at the end.

    A study that has ended is returned as it is. Raises `ConflictError` when a live controller holds it and `StoreError` when the store stays
    away; both leave the study as it is for the next controller. Any other error makes the study FAILED with a message, or PAUSED when the runner
    failed after something had been measured or when only the study's searcher or runner is not here, and is raised too.
    """
    tell, stop = on_event or (lambda _: None), interrupted or (lambda: False)
    record = store.study(study_id)
    if record.status.is_terminal:
        return result_of(store, record.id)
    _check_same_searcher(record, searcher)
    trouble = {"on_trouble": lambda text: tell(Notice(message=text)), "impatient": stop}
    with StudyLease.claim(store, record.id, lease_s=lease_s, **trouble) as lease:
        try:
            _run(store, lease, tell, stop, leave, searcher, runner)
        except (ConflictError, StoreError):
            raise
        except Exception as error:
            message = str(error) if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"
            lacks_object = isinstance(error, CatalogError) and error.field in ("searcher", "runner")
            can_go_on = lacks_object or (
                isinstance(error, RunnerError) and any(t.is_measured for t in store.trials(record.id))
            )
            lease.move(StudyStatus.PAUSED if can_go_on else StudyStatus.FAILED, message)
            raise
    return result_of(store, record.id)


def _check_same_searcher(record: StudyRecord, factory: SearcherFactory | None) -> None:
    """Raises `ConflictError` when the searcher that was passed is not the study's: it would replay another's trials."""
    from autotune.search import searcher_name

    if factory is not None and searcher_name(factory) != record.study.searcher:
        raise ConflictError(
            f"study {record.id} searches with {record.study.searcher!r}, but {searcher_name(factory)!r} was passed",
            remedy="pass the searcher that it was submitted with, or submit a new study",
            field="searcher",
        )


def act(store: StudyStore, study_id: str, action: str) -> StudyRecord:
    """pause, resume, stop or cancel a study, whether it is being run or not. Raises `ConflictError` when its state forbids that."""
    record = store.study(study_id)
    queued, running, paused = StudyStatus.QUEUED, StudyStatus.RUNNING, StudyStatus.PAUSED
    if action == "pause":
        return store.set_status(record.id, paused, expect=[queued, running, paused], message="pause asked for")
    if action == "resume":
        status = running if record.started_at else queued
        return store.set_status(record.id, status, expect=[paused, status], message="")
    if action == "cancel":
        expect = [s for s in StudyStatus if not s.is_terminal]
        return store.set_status(record.id, StudyStatus.CANCELLED, expect=expect, message="cancelled on request")
    if action != "stop":
        raise ValueError(f"an action is one of {', '.join(ACTIONS)}, but is {action!r}")
    is_asked = record.status in (running, StudyStatus.STOPPING) and is_held(store, record.id)
    if not is_asked and not record.status.is_terminal:  # nobody runs it: end it with what is known
        result = result_of(store, record.id)
        status = StudyStatus.COMPLETED if result.best else StudyStatus.CANCELLED
        fields: dict[str, Any] = {
            "best": result.best.number if result.best else None,
            "baseline": result.baseline.number if result.baseline else None,
            "speedup": result.speedup,
        }
        return store.set_status(record.id, status, expect=[record.status], message=STOPPED_ON_REQUEST, **fields)
    stopping = StudyStatus.STOPPING
    return store.set_status(
        record.id, stopping, expect=[running, stopping], message="stop asked for: running trials finish"
    )


def _run(
    store: Store,
    lease: StudyLease,
    tell: OnEvent,
    stop: Callable[[], bool],
    leave: bool,
    factory: SearcherFactory | None,
    passed: TrialRunner | None,
) -> None:
    record = lease.record()
    study = record.study
    assembly = assemble(study, store)
    assembly.check_fit()
    searcher = assembly.searcher(history_of(study, store, before=record.created_at), factory=factory)
    for guess in study.left_out:
        tell(Notice(message=f"a guess of the spec is left out, because this cluster cannot run it: {guess}"))
        if record.started_at is None:
            store.record_event(record.id, "guess.left_out", {"message": guess})
    runner = make_runner_of(assembly, passed)
    try:
        if record.status is not StudyStatus.STOPPING:
            record = lease.move(StudyStatus.RUNNING, "")
        past = lease.told_in_order()
        if needs_check(study, store, record.id, past):
            check_unseen(assembly, runner, lease, tell, stop)
        controller = Controller(
            study_id=record.id,
            study=study,
            searcher=searcher,
            capacity=runner.capacity,
            baseline=assembly.baseline,
            predict=assembly.predict,
            refuse=assembly.refuse,
            past=past,
            elapsed_s=record.elapsed_s,
            gpu_s=record.result.get("gpu_s"),
            stop_reason=str(record.result.get("stop_reason", "")),
            references=assembly.references,
            fp32_losses=known_losses(assembly, store),
        )
        tell(StudyOpened(record=record, past=tuple(past)))
        Loop(controller, runner, lease, on_event=tell, interrupted=stop, leave=leave).run()
        keep_losses(assembly, store, controller.trials.values())
    finally:
        runner.close()
