"""The package's functions: a spec becomes a study, a study runs, what is known becomes an answer.

    load_study, read_document, open_store     specs and stores          plan_of, what_if_of, estimate_of   answers without hardware
    prepare_check, run_check                  a few real steps         cannot_run_here                      what this machine lacks
    tune, submit_study, run_study, act        studies                   calibrate                          measures this cluster
    result_of, document, best_document, ...   what came out (`autotune.results`)

The command line, the service and the reports come through here. What a study chooses by name (searcher, runner, trainer, store) is imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cost import Calibration, calibration_for, estimate
from autotune.errors import SpecError
from autotune.planning import Plan, WhatIf, plan, what_if
from autotune.ports import CalibrationStore, Store, StudyReader, StudyRecord, TrialRunner
from autotune.registry import RUNNERS, find
from autotune.results.answers import (
    Result,
    document,
    explain,
    explained,
    export_document,
    past_studies,
    result_from,
    result_of,
    study_document,
    trial_document,
)
from autotune.results.calibrations import stored_calibration
from autotune.results.rankings import best_document, front_documents, pareto, rerank
from autotune.space import Launchable, SearchSpace
from autotune.spec import ClusterSpec, Estimate, ParallelConfig, Study
from autotune.spec.plain import fingerprint, study_to_dict
from autotune.study import preflight
from autotune.study.check.prepared import check_document, prepare_check, run_check
from autotune.study.check.verdict import verdict_of as check_verdict
from autotune.study.passed_runner import run_by, runner_name
from autotune.study.progress import OnEvent
from autotune.study.running import ACTIONS, act, run_study, submit_study

if TYPE_CHECKING:
    from autotune.search import Searcher, SearcherFactory

LOCAL = "local"


def load_study(
    source: str | Path | Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None, base: Path | None = None
) -> Study:
    """The study of a spec file (YAML or JSON; `-`: standard input) or of a spec as a mapping.

    `overrides` replace keys of the document; a dotted key reaches inside: `{"budget.max_trials": 5}`. `base`: folder of the paths in a
    mapping (None: paths are refused); those in a file are relative to the file. Raises `SpecError`.
    """
    from autotune.schema import parse_study

    document = read_document(source, overrides=overrides)
    if not isinstance(source, Mapping):
        base = Path.cwd() if str(source) == "-" else Path(source).absolute().parent
    return parse_study(document, base=base, local_cluster=_local_cluster)


def read_document(
    source: str | Path | Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The spec as a document of plain values, with the overrides in place. Raises `SpecError`."""
    from autotune.schema import read_spec

    document = deepcopy(dict(source)) if isinstance(source, Mapping) else read_spec(source)
    for key, value in (overrides or {}).items():
        *path, last = key.split(".")
        inner: Any = document
        for name in path:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SpecError(f"{key!r} reaches into {name!r}, which is {inner!r} and no mapping", field=name)
        inner[last] = value
    return document


def open_store(url: str | Path | None = None) -> Store:
    """The results database at `url` (None: AUTOTUNE_STORE, else an SQLite file in the user's data folder). Raises `StoreError`."""
    from autotune.store import open_store as open_sql

    return open_sql(url)


def tune(
    study: Study | str | Path | Mapping[str, Any],
    *,
    store: Store | str | Path | None = None,
    on_event: OnEvent | None = None,
    resume: bool = True,
    spec: Mapping[str, Any] | None = None,
    study_id: str | None = None,
    owner: str = "",
    searcher: str | Searcher | SearcherFactory | None = None,
    runner: TrialRunner | None = None,
) -> Result:
    """Runs a study in the foreground, to its end or to Ctrl-C (then the record is PAUSED and the same call goes on).

    `resume`: an unfinished study of the same name and spec goes on instead of a new one; `study_id` names it outright; `spec`: the
    document as written, kept beside the study. `searcher`: another searcher than the study's: a registered name, a class of
    `autotune.search.Searcher`, a function that makes one of an `autotune.search.Problem`, or a fresh searcher over
    `SearchSpace.of_study(study)`. The study records the name of such an object
    (`python:MODULE.NAME`); a later call goes on with the study when it passes the same object, which makes the searcher anew and is told all
    trials again. `runner`: an `autotune.ports.TrialRunner` that runs the trials instead of the study's, recorded and resumed in the same way; it is
    closed at the end. Raises `InfeasibleError` before anything starts, `RunnerError`, `StoreError`,
    `ConflictError` when another live controller has it.
    """
    if not isinstance(study, Study):
        spec = read_document(study) if spec is None else spec
        study = load_study(study)
    from autotune.search import OneSearcher, Searcher

    if isinstance(searcher, Searcher):
        searcher = OneSearcher(searcher)
    made_by = None if searcher is None or isinstance(searcher, str) else searcher
    if searcher is not None:
        study, spec = _with_searcher(study, spec, searcher)
    if runner is not None:
        study, spec = run_by(study, runner), {**spec, "runner": runner_name(runner)} if spec else {}
    with contextlib.ExitStack() as at_the_end, _opened(store) as database:
        if runner is not None:
            at_the_end.callback(runner.close)
        if study_id is None:
            found = _unfinished(database, study, spec or {}) if resume else None
            key = _one_of_those_at_once(database, study) if resume and found is None else None
            if found is None:
                found = submit_study(
                    database,
                    study,
                    spec,
                    idempotency_key=key,
                    owner=owner,
                    searcher=made_by,
                    here=True,
                    runner=runner,
                )
            study_id = found.id
        with _signals() as interrupted:
            return run_study(
                database, study_id, on_event=on_event, interrupted=interrupted, searcher=made_by, runner=runner
            )


def plan_of(study: Study, *, top: int = 10, store: CalibrationStore | None = None) -> Plan:
    """The space ranked by the cost model, with this cluster's calibration when `store` holds one. Raises `InfeasibleError`, and `CatalogError` for
    an unknown runner."""
    find(RUNNERS, study.runner)
    space = SearchSpace.of_study(study)
    return plan(space, calibration=stored_calibration(study.workload, store), top=top)


def cannot_run_here(study: Study) -> str:
    """Why this machine cannot run the study, in words; empty when nothing speaks against it. Starts nothing. Raises `CatalogError` or `SpecError`
    for a runner or an option of it that does not exist."""
    return preflight.cannot_run_here(study, SearchSpace.of_study(study))


def what_if_of(
    study: Study, gpus: Sequence[int], *, tokens: float | None = None, store: CalibrationStore | None = None
) -> tuple[WhatIf, ...]:
    """The best of the study's space on clusters of other sizes, with days and cost for a budget of `tokens`."""

    known = stored_calibration(study.workload, store)
    trainer = Launchable.of(study)
    return what_if(study.workload, study.space, gpus, tokens=tokens, calibration=known, launchable=trainer)


def estimate_of(study: Study, config: ParallelConfig, *, store: CalibrationStore | None = None) -> tuple[Estimate, str]:
    """One config's estimate, with this cluster's calibration when `store` holds one, and where the constants come from."""

    constants = stored_calibration(study.workload, store) or calibration_for(study.workload)
    return estimate(study.workload, config, calibration=constants), constants.source


def calibrate(
    cluster: str = LOCAL,
    *,
    store: CalibrationStore | None = None,
    on_progress: Callable[[str], None] | None = None,
    trainer: str = "native",
) -> Calibration:
    """Measures this machine in about a minute; kept in `store`, where one is given, for the cost model of later studies.

    `cluster` is `local`, or the name of another registered calibrator's cluster. Raises `SpecError` for a cluster that is not here and
    `RunnerError` when ranks cannot be run.
    """
    from autotune.detect import local_cluster
    from autotune.registry import calibrator, calibrator_names

    if cluster not in calibrator_names():
        raise SpecError(
            f"only the cluster of this machine can be measured, but {cluster!r} is not a registered calibrator",
            remedy=f"use {', '.join(calibrator_names())} on a machine of that cluster",
            field="cluster",
        )
    tell = on_progress or (lambda _: None)
    measured = calibrator(cluster)(progress=lambda what, done: tell(f"{done:4.0%} {what}"))
    here = local_cluster()
    constants = Calibration.from_measurements(measured, cluster=here, trainer=trainer)
    if store is not None:
        store.save_calibration(here.name, trainer, constants.to_dict())
    return constants


def _with_searcher(
    study: Study, spec: Mapping[str, Any] | None, searcher: str | SearcherFactory
) -> tuple[Study, dict[str, Any]]:
    """The study and its spec with that searcher's name. Raises `SpecError` for an object that makes none, `CatalogError` for an unknown name."""
    from autotune.search import check_searcher, searcher_name

    if isinstance(searcher, str):
        check_searcher(searcher)
    name = searcher_name(searcher)
    return replace(study, searcher=name), {**(spec or {}), "searcher": name} if spec else {}


@contextlib.contextmanager
def _opened(store: Store | str | Path | None) -> Iterator[Store]:
    """The store itself, or the one at that address, which is closed afterwards."""
    if store is not None and not isinstance(store, str | Path):
        yield store
        return
    with contextlib.closing(open_store(store)) as opened:
        yield opened


def _one_of_those_at_once(store: StudyReader, study: Study) -> str:
    """The same key for all who submit this study after the same last one: of two that are started at the same moment one is refused."""
    last = next((record.id for record in store.studies(name=study.name, limit=1)), "")
    return f"tune {fingerprint(study_to_dict(study))} after {last}"


def _unfinished(store: StudyReader, study: Study, spec: Mapping[str, Any]) -> StudyRecord | None:
    """The newest unfinished study of the same name and spec."""
    wanted = study_to_dict(study)
    for record in store.studies(name=study.name, limit=50):
        same = study_to_dict(record.study) == wanted or (bool(spec) and dict(record.spec) == dict(spec))
        if same and not record.status.is_terminal:
            return record
    return None


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or SIGTERM) came. The second one interrupts outright. Only the main thread can hear signals."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return

    def hear(number: int, frame: Any) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _local_cluster() -> ClusterSpec:
    from autotune.detect import local_cluster

    return local_cluster()


__all__ = [
    "ACTIONS",
    "Result",
    "act",
    "best_document",
    "calibrate",
    "cannot_run_here",
    "check_document",
    "check_verdict",
    "document",
    "estimate_of",
    "explain",
    "explained",
    "export_document",
    "front_documents",
    "load_study",
    "open_store",
    "pareto",
    "past_studies",
    "plan_of",
    "prepare_check",
    "read_document",
    "rerank",
    "result_from",
    "result_of",
    "run_check",
    "run_study",
    "study_document",
    "submit_study",
    "trial_document",
    "tune",
    "what_if_of",
]
