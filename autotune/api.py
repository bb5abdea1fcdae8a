"""The package's functions: they load specs, run studies and return results. The command line, the
service and the reports use them.

    load_study, read_document, open_store     specs and stores     plan_of, what_if_of, estimate_of, compare_clusters_of   predictions, without hardware
    prepare_check, run_check                  a few real steps     fit                                   dry runs: memory needed
    review                                    an existing launch, without a spec
    tune, submit_study, run_study, act        studies              cannot_run_here                       why this machine cannot run a study
    result_of, document, best_document, ...   results              calibrate                             measures this cluster

Searchers, runners, trainers and stores are imported on first use.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cost import Calibration
from autotune.errors import SpecError
from autotune.interrupts import interrupts
from autotune.kubernetes.deadline import left_s
from autotune.plan.dry_runs import profile_study
from autotune.plan.fit import Fit, OnRank, answers, configs_of, fits_document
from autotune.plan.predictions import (
    cannot_run_here,
    compare_clusters_of,
    estimate_of,
    few_for_many_of,
    plan_of,
    what_if_of,
)
from autotune.ports import (
    DryRunLimits,
    DryRunner,
    KnowledgeStore,
    ServiceStore,
    Store,
    StudyReader,
    StudyRecord,
    TrialRunner,
)
from autotune.registry import dry_runner
from autotune.results.answers import (
    chosen_config,
    document,
    event_documents,
    export_document,
    launch_document,
    observed_document,
    past_studies,
    result_from,
    result_of,
    studies_document,
    study_document,
    submitted_document,
    trial_documents,
    with_current_verdict,
)
from autotune.results.calibrations import measured_constants, save_outliers, stored_calibration
from autotune.results.rankings import (
    best_document,
    explain,
    explained,
    front_documents,
    pareto,
    ranking_document,
    rerank,
)
from autotune.results.result import Result
from autotune.slurm.allocation import JobClock, allocation
from autotune.space import SearchSpace
from autotune.spec import ClusterSpec, ModelSpec, ParallelConfig, Study, Wanted, Workload
from autotune.spec.checks import nearest
from autotune.spec.study import is_same_study
from autotune.study.assembly import assemble
from autotune.study.check.prepared import check_document, prepare_check, run_check
from autotune.study.check.verdict import verdict_of as check_verdict
from autotune.study.deletion import Deletion, delete_study, deletion_of
from autotune.study.preflight import check_there, run_by, runner_name
from autotune.study.progress import OnEvent, OnTrial, with_callbacks
from autotune.study.quick_calibration import profile_first
from autotune.study.running import ACTIONS, WANTED, act, run_study, submit_study

if TYPE_CHECKING:
    from autotune.results.best_known import BestKnownStore
    from autotune.reviews import Review
    from autotune.schema.spec_models import SlurmDocument
    from autotune.search import Searcher, SearcherFactory


def load_study(
    source: str | Path | Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    base: Path | None = None,
    limits: DryRunLimits | None = None,
    slurm_cluster: Callable[[SlurmDocument], ClusterSpec] | None = None,
) -> Study:
    """Load a study from a spec file (YAML or JSON; `-` is standard input) or from a mapping.

    `overrides` replace keys of the document; a dotted key changes a nested value:
    `{"budget.max_trials": 5}`. `base`: folder to which paths in a mapping are relative (if None,
    paths are rejected); paths in a file are relative to the file, unless `base` is given. `limits`:
    limits on the process that builds your own model. `slurm_cluster`: nodes to assume for the job
    if the cluster is `slurm`; None means that this process runs inside the job. Raises `SpecError`.
    """
    from autotune.schema import folder_of, parse_study, places_in

    document = read_document(source, overrides=overrides)
    if not isinstance(source, Mapping) and base is None:
        base = folder_of(source)
    inspect = None if base is None else partial(inspect_model, limits=limits)
    with places_in(document, but=overrides or ()):
        return parse_study(
            document,
            base=base,
            local_cluster=_local_cluster,
            slurm_cluster=slurm_cluster or _slurm_cluster,
            inspect=inspect,
        )


def read_document(
    source: str | Path | Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The spec as a document of plain values, with the overrides applied. Raises `SpecError`."""
    from autotune.schema import ReadDocument, read_spec
    from autotune.schema.reading import check_size

    document: dict[str, Any]
    if isinstance(source, ReadDocument) and not overrides:
        return source
    if isinstance(source, Mapping):
        document = deepcopy(source if isinstance(source, ReadDocument) else dict(source))
    else:
        document = read_spec(source)
    for key, value in (overrides or {}).items():
        *path, last = key.split(".")
        inner: Any = document
        for name in path:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SpecError(
                    f"{key!r} needs a mapping at {name!r}, but {name!r} is {inner!r}", field=name
                )
        inner[last] = value
    if overrides:
        check_size(document)
    return document


def open_store(url: str | Path | None = None, *, create: bool = True) -> ServiceStore:
    """The results database at `url` (if None, AUTOTUNE_STORE or else an SQLite file in the user's
    data folder). Raises `StoreError`, and with `create=False` `NotFoundError` if the database does
    not exist."""
    from autotune.store import open_store as open_sql

    return open_sql(url, create=create)


def review(
    target: str | Path | Sequence[str],
    *,
    store: BestKnownStore | None = None,
    **options: Any,
) -> Review:
    """Review a launch without running it: whether the launch fits, how fast it should be, and which
    edits make it faster (`autotune.reviews.review`).

    `target`: a file, a text of several lines, or a command as a list of words. `store`: the store
    with earlier measurements. Raises `SpecError` if `target` is not a launch.
    """
    from autotune.reviews import review as review_launch

    return review_launch(target, store=store, local_cluster=_local_cluster, **options)


def tune(
    study: Study | str | Path | Mapping[str, Any],
    *,
    store: Store | str | Path | None = None,
    on_event: OnEvent | None = None,
    on_trial: OnTrial | None = None,
    on_best: OnTrial | None = None,
    on_end: Callable[[Result], None] | None = None,
    resume: bool = True,
    spec: Mapping[str, Any] | None = None,
    study_id: str | None = None,
    owner: str = "",
    searcher: str | Searcher | SearcherFactory | None = None,
    runner: TrialRunner | None = None,
    profile: bool = True,
) -> Result:
    """Run a study in the foreground until it ends or you press Ctrl-C. Ctrl-C pauses the study
    (PAUSED), and the same call resumes it.

    `resume`: continue an unfinished study with the same name and spec instead of starting a new
    study. `study_id` selects the study directly. `spec` is the spec document as written, which is
    stored with the study. `profile`: for a model built by code, whether a new study first does the
    dry runs missing from `store`, on this machine.

    `searcher` replaces the study's: a registered name, an `autotune.search.Searcher` class, a
    function that returns a searcher for an `autotune.search.Problem`, or a fresh searcher over
    `SearchSpace.of_study(study)`. `runner` replaces the study's: an `autotune.ports.TrialRunner`,
    which is closed at the end. For a searcher or runner passed as an object, the study records
    `python:MODULE.NAME`. A later call that passes the same object continues the study, and a new
    searcher replays all trials.

    In a Slurm allocation, Ray is started on its nodes, and the job's remaining time limits the
    study: a winner is named before the job ends, or with `slurm: {requeue: true}` the study pauses.

    Callbacks: `on_trial` is called with each trial that ends, `on_best` with each new best trial,
    `on_end` once with the result, before the result is returned, and `on_event` with every event of
    the loop (`autotune.study.progress`).

    Raises `SpecError` for a wrong spec; `InfeasibleError` before anything starts, if no config is
    valid and fits; `RunnerError` if trials cannot run here; `MissingExtraError` if a package is
    missing; `StoreError` if the database fails; `ConflictError` if another live controller has the
    study; `CallbackError` if `on_trial` or `on_best` raises an exception (the study is then paused,
    and the same call continues it). A failed trial raises no exception. Failed trials are in
    `Result.failed`.
    """
    if not isinstance(study, Study):
        spec = read_document(study) if spec is None else spec
        study = load_study(study)
    from autotune.search import OneSearcher, Searcher

    if isinstance(searcher, Searcher):
        searcher = OneSearcher(searcher)
    factory = None if searcher is None or isinstance(searcher, str) else searcher
    if searcher is not None:
        study, spec = _with_searcher(study, spec, searcher)
    if runner is not None:
        study = run_by(study, runner)
        spec = {**spec, "runner": runner_name(runner)} if spec else {}
    with contextlib.ExitStack() as at_the_end, _opened(store) as database:
        if runner is not None:
            at_the_end.callback(runner.close)
        assembly = None
        if study_id is None:
            record = _unfinished(database, study, spec or {}) if resume else None
            if record is None:
                if profile and study.workload.model.code is not None:
                    profile_first(
                        study, database, on_event or (lambda _: None), passed=runner is not None
                    )
                assembly = assemble(study, database)
                record = submit_study(
                    database,
                    study,
                    spec,
                    owner=owner,
                    join=resume,
                    searcher=factory,
                    here=True,
                    runner=runner,
                    assembly=assembly,
                )
            study_id = record.id
        if database.study(study_id).wanted is Wanted.PAUSE:
            act(database, study_id, "resume")
        callbacks = with_callbacks(on_event, on_trial=on_trial, on_best=on_best)
        job = allocation()
        requeues = bool(((spec or {}).get("slurm") or {}).get("requeue"))
        with (
            interrupts() as interrupted,
            contextlib.closing(JobClock(job)) if job else contextlib.nullcontext() as clock,
        ):
            result = run_study(
                database,
                study_id,
                on_event=callbacks,
                interrupted=interrupted,
                left_s=left_s if clock is None else clock.left_s,
                goes_on=requeues,
                searcher=factory,
                runner=runner,
                assembly=assembly,
            )
        if on_end is not None:
            on_end(result)
        return result


def fit(
    study: Study | Workload | str | Path | Mapping[str, Any],
    configs: ParallelConfig | Iterable[ParallelConfig] | None = None,
    *,
    top: int = 1,
    store: KnowledgeStore | None = None,
    limits: DryRunLimits | None = None,
    on_rank: OnRank | None = None,
    runner: DryRunner | None = None,
    space: SearchSpace | None = None,
) -> tuple[Fit, ...]:
    """Whether configs fit into memory, from dry runs of the model without a GPU; one `Fit` for
    each, in the order of `configs`.

    If `configs` is None, the plan's `top` best configs are checked, or the nearest miss if no
    config is expected to fit. Your own model is built in a separate process within `limits`.
    `on_rank` is called for every dry run that begins or ends; `runner` replaces the built-in
    runner. `space`: the study's space, if it has already been enumerated. If a dry run is
    impossible, the answer comes from the cost model, and `Fit.problem` says why. Raises
    `MissingExtraError` without torch, `ConfigError` for an invalid config.
    """
    asked = study if isinstance(study, Study | Workload) else load_study(study, limits=limits)
    workload = asked.workload if isinstance(asked, Study) else asked
    chosen = configs_of(
        asked, configs, top=top, calibration=stored_calibration(workload, store), space=space
    )
    constants = measured_constants(workload, store)
    return answers(
        workload, chosen, runner=runner, limits=limits, calibration=constants, on_rank=on_rank
    )


def calibrate(
    cluster: str = "local",
    *,
    store: KnowledgeStore | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_out_of_line: Callable[[Mapping[str, Any]], None] | None = None,
    trainer: str = "native",
) -> Calibration:
    """Measure this machine in about a minute. If you pass a `store`, the constants are stored in
    it, for the cost model in later studies. If RAY_ADDRESS is the address of a Ray cluster, the
    ranks on all of its nodes are measured. `on_out_of_line` is called for each GPU, node and link
    that is slower than others of the same kind. These findings are stored too, and studies exclude
    slow nodes if possible.

    `cluster` is `local`, or the name of another registered calibrator's cluster. Raises `SpecError`
    for a cluster without a registered calibrator, and `RunnerError` if ranks cannot run.
    """
    from autotune.detect import local_cluster
    from autotune.registry import calibrator, calibrator_names

    if cluster not in calibrator_names():
        raise SpecError(
            f"no calibrator is registered for the cluster {cluster!r}, and a machine can only measure its own cluster",
            remedy=nearest(cluster, calibrator_names())
            or f"use {', '.join(calibrator_names())} on a machine of that cluster",
            field="cluster",
        )
    report = on_progress or (lambda _: None)
    options = {"runner": "ray"} if cluster == "local" and os.environ.get("RAY_ADDRESS") else {}
    measured = calibrator(cluster)(
        progress=lambda what, done: report(f"{done:4.0%} {what}"), **options
    )
    for each in measured.get("out_of_line", ()):
        (on_out_of_line or (lambda stray: report(str(stray["text"]))))(each)
    here = local_cluster()
    constants = Calibration.from_measurements(measured, cluster=here, trainer=trainer)
    if store is not None:
        store.save_calibration(here.name, trainer, constants.to_dict())
        save_outliers(store, here.gpu.name, measured)
    return constants


def _with_searcher(
    study: Study, spec: Mapping[str, Any] | None, searcher: str | SearcherFactory
) -> tuple[Study, dict[str, Any]]:
    """The study and its spec with this searcher's name. Raises `SpecError` for an object that
    creates no searcher, `CatalogError` for an unknown name."""
    from autotune.search import check_searcher, searcher_name

    if isinstance(searcher, str):
        check_searcher(searcher)
    name = searcher_name(searcher)
    return replace(study, searcher=name), {**(spec or {}), "searcher": name} if spec else {}


@contextlib.contextmanager
def _opened(store: Store | str | Path | None) -> Iterator[Store]:
    """`store` itself, or the store at this address, which is closed afterwards."""
    if store is not None and not isinstance(store, str | Path):
        yield store
        return
    with contextlib.closing(open_store(store)) as opened:
        yield opened


def _unfinished(store: StudyReader, study: Study, spec: Mapping[str, Any]) -> StudyRecord | None:
    """The newest unfinished study with the same name and spec."""
    for record in store.studies(name=study.name, limit=50):
        is_open = not record.status.is_terminal and record.wanted is not Wanted.CANCEL
        if is_open and is_same_study(record.study, record.spec, study, spec):
            return record
    return None


def inspect_model(model: ModelSpec, *, limits: DryRunLimits | None = None) -> ModelSpec:
    """The model, completed with values that only its code reveals; the code runs in a separate
    process. Raises `DryRunError` with the line that failed."""
    return dry_runner().inspect(model, limits=limits or DryRunLimits())


def check_study(study: Study, *, same_files: bool = True) -> None:
    """Check a study before it runs on another machine: space, searcher, guesses, memory, runner.
    Raises the errors that submitting the study would raise. `same_files`: the other machine has
    access to this machine's files, so programs and data are checked too."""
    from autotune.store import MemoryStore

    with contextlib.closing(MemoryStore()) as store:
        assembly = assemble(study, store)
        submit_study(store, study, assembly=assembly)
    if same_files:
        check_there(assembly.runs_here.study, assembly.runs_here.space)


def _slurm_cluster(job: SlurmDocument) -> ClusterSpec:
    from autotune.slurm.hardware import slurm_cluster

    return slurm_cluster(spare_nodes=job.spare_nodes)


def _local_cluster() -> ClusterSpec:
    from autotune.detect import local_cluster

    return local_cluster()


__all__ = [
    "ACTIONS",
    "WANTED",
    "Deletion",
    "Fit",
    "Result",
    "act",
    "best_document",
    "calibrate",
    "cannot_run_here",
    "check_document",
    "check_study",
    "check_verdict",
    "chosen_config",
    "compare_clusters_of",
    "delete_study",
    "deletion_of",
    "document",
    "estimate_of",
    "event_documents",
    "explain",
    "explained",
    "export_document",
    "few_for_many_of",
    "fit",
    "fits_document",
    "front_documents",
    "launch_document",
    "load_study",
    "observed_document",
    "open_store",
    "pareto",
    "past_studies",
    "plan_of",
    "prepare_check",
    "profile_study",
    "ranking_document",
    "read_document",
    "rerank",
    "result_from",
    "result_of",
    "review",
    "run_check",
    "run_study",
    "studies_document",
    "study_document",
    "submit_study",
    "submitted_document",
    "trial_documents",
    "tune",
    "what_if_of",
    "with_current_verdict",
]
