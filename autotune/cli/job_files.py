"""`autotune tune --on SCHEDULER` and `--in FOLDER`: writes a study as a scheduler's job, and finds
the results of a study that runs as a job."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import api
from autotune.cli.output import emit, note
from autotune.errors import AutotuneError, RunnerError, SpecError
from autotune.job_folder import Submission, write
from autotune.kubernetes import submission as in_pods
from autotune.ports import StudyRecord
from autotune.schema import places_in
from autotune.schema.spec_models import KubernetesDocument, SlurmDocument
from autotune.slurm import submission
from autotune.slurm.allocation import allocation, ask
from autotune.slurm.submission import SUBMITTED
from autotune.spec import Study, StudyStatus
from autotune.spec.checks import key_values, nearest
from autotune.store.connection.location import find_location
from autotune.store.upkeep.study_folder import StudyFolder
from autotune.study.controller import JOB_ENDS, PAUSED_ON_REQUEST, TIME_IS_OVER
from autotune.trainers.base.own_program import COMMAND

SLURM, KUBERNETES = "slurm", "kubernetes"
SCHEDULERS = (SLURM, KUBERNETES)
"""schedulers that can run a study as a job"""


def write_job(
    document: Mapping[str, Any],
    on: str,
    overrides: Mapping[str, Any],
    options: Sequence[str],
    *,
    base: Path,
    submits: bool,
    store: str | None,
    json: bool,
) -> None:
    """Check the study as far as the login node can, write the job's files, and submit the job if
    `submits` is set. Raises the errors of a wrong spec."""

    if on not in SCHEDULERS:
        raise SpecError(
            f"--on must be {' or '.join(SCHEDULERS)}, but is {on[:80]!r}",
            remedy=nearest(on, SCHEDULERS),
            field="--on",
        )
    overrides = {
        **overrides,
        **{f"{on}.{key}": value for key, value in _job_options(options, on).items()},
    }
    with places_in(document, but=overrides):
        # read here, so that errors in overrides are reported as errors in --option
        spec_document = dict(api.read_document(document, overrides=overrides))
    if on == KUBERNETES:
        if submits:
            raise SpecError(
                "--submit works only with --on slurm; a Kubernetes job is started with kubectl",
                remedy="omit --submit, and run the kubectl command that is printed",
                field="--submit",
            )
        with places_in(document, but=overrides):
            in_pods.check_asked(spec_document)
            study = api.load_study(spec_document, base=base)
            api.check_study(study, same_files=False)
            pods = KubernetesDocument.model_validate(spec_document["kubernetes"])
            prepared = in_pods.submission(study, spec_document, pods, base=base, folder=Path.cwd())
        _print_job(prepared, write(prepared), json=json)
        return
    with places_in(document, but=overrides):
        study = api.load_study(spec_document, base=base, slurm_cluster=submission.stand_in)
        job = SlurmDocument.model_validate(spec_document.get("slurm") or {})
        api.check_study(study, same_files=not (job.setup or job.container))
        if not job.container:
            _check_program_file(study, base)
    server = _server_address(store)
    prepared = submission.submission(
        study, spec_document, job, base=base, folder=Path.cwd(), keeps_store=not server
    )
    written = write(prepared)
    when = submission.check(prepared)
    for remark in submission.doubtful_options(job):
        note(f"note: {remark}")
    if spec_document["cluster"] == SLURM:
        note(
            "note: the nodes' GPUs are detected when the job starts; until then an H100 node is assumed"
        )
    if server:
        note(
            f"note: the job keeps its results in {server}; set AUTOTUNE_STORE to that address in the job's environment too"
        )
    number = submission.submit(prepared) if submits else ""
    study_argument = shlex.quote(study.name) if server else f"--in {prepared.folder.name}"
    _print_job(
        prepared, written, json=json, when=when, number=number, study_argument=study_argument
    )


def _print_job(
    prepared: Submission,
    written: Sequence[Path],
    *,
    json: bool,
    when: str = "",
    number: str = "",
    study_argument: str = "",
) -> None:
    """Print the written files, and how to start the job or that it was submitted. `study_argument`:
    the command-line argument that selects its study."""
    if json:
        emit(
            {
                "job": {
                    "folder": str(prepared.folder),
                    "files": [str(path) for path in written],
                    "start": prepared.start,
                    "id": number or None,
                    "expected": when,
                }
            }
        )
        return
    for path in written:
        note(f"wrote {path}")
    if when:
        note(f"Slurm: {when}")
    if number:
        note(f"submitted as job {number}")
        note(f"next: autotune status {study_argument}")
    else:
        print(prepared.start)


_LISTS = ("files", "env_from", "container.mounts")
"""options whose values are lists, separated by commas"""


def _job_options(options: Sequence[str], on: str) -> dict[str, Any]:
    """Return the job options by key. Each `setup` option adds one line, lists are split at commas,
    and integers and booleans are parsed if the key's type is one; other values stay text."""
    fields = (KubernetesDocument if on == KUBERNETES else SlurmDocument).model_fields
    values: dict[str, Any] = {}
    for key, text in key_values(options, field="--option", example="--option time=4h"):
        key_type = str(fields[key].annotation) if key in fields else ""
        if key == "setup":
            values[key] = [*values.get(key, ()), text]
        elif key in _LISTS:
            values[key] = [*values.get(key, ()), *text.split(",")]
        elif text.isdigit() and "int" in key_type:
            values[key] = int(text)
        elif text.lower() in ("true", "false") and ("bool" in key_type or key not in fields):
            values[key] = text.lower() == "true"
        else:
            values[key] = text
    return values


def _check_program_file(study: Study, base: Path) -> None:
    """Raise `SpecError` if the command starts a Python file that is not in its folder."""
    options = study.trainer_options
    words = [
        word for word in options.get("argv") or () if isinstance(word, str) and word.endswith(".py")
    ]
    program = next((word for word in words if not word.startswith("-") and "{" not in word), "")
    folder = Path(options.get("cwd") or base)
    if (
        study.trainer == COMMAND
        and program
        and folder.is_dir()
        and not (folder / program).is_file()
    ):
        raise SpecError(
            f"the job would start {program}, but there is no such file in {folder}",
            remedy="correct the path in trainer.argv, or set trainer.cwd to the program's folder",
            field="trainer.argv",
        )


def _server_address(store: str | None) -> str:
    """Return the address of the database server without its password, or an empty text if the store
    is a file."""

    location = find_location(store)
    return "" if location.is_sqlite else str(location)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStorage:
    """Where a study's results are stored while it runs."""

    store: str | None
    """value for --store"""
    shown: str
    """location to print"""
    on_trial_end: Callable[[], None] = lambda: None
    """called after each ended trial"""

    def pause_is_expected(self, record: StudyRecord, document: Mapping[str, Any]) -> bool:
        """Return whether the job of a paused study should exit with success: the pause was
        requested, or the job ran out of time and was requeued as the spec asks.

        Requeues the job, so results must be stored by now.
        """

        may_requeue = bool((document.get("slurm") or {}).get("requeue"))
        job = allocation()
        if job is None or record.status is not StudyStatus.PAUSED:
            return False
        if not may_requeue or not record.message.startswith((TIME_IS_OVER, JOB_ENDS)):
            return record.message == PAUSED_ON_REQUEST
        try:
            job.requeue()
        except RunnerError as error:  # the job was cancelled
            note(f"job {job.job} could not be requeued: {error.message}")
            return False
        note(f"job {job.job} is requeued; the study continues when the job restarts")
        return True


@contextmanager
def study_storage(folder: Path | None, store: str | None) -> Iterator[StudyStorage]:
    """Yield the user's store, or a store that is copied to the folder while the study runs. Raises
    `SpecError` if both are given."""

    if folder is None:
        yield StudyStorage(store=store, shown=str(find_location(store)))
        return

    if store is not None:
        raise SpecError(
            "--in and --store both set a location for results",
            remedy="omit one of these options",
            field="--in",
        )
    job = allocation()
    study_folder: StudyFolder

    def deliver(action: str) -> None:
        with closing(api.open_store(study_folder.path)) as database:
            try:
                for record in database.studies(limit=1):
                    api.act(database, record.id, action)
            except (AutotuneError, ValueError) as error:
                note(f"the {action} request was not delivered: {error}")

    with StudyFolder(
        folder, job=job.job if job else "", on_request=deliver, on_error=note
    ) as study_folder:
        yield StudyStorage(
            store=str(study_folder.path),
            shown=str(folder.absolute()),
            on_trial_end=study_folder.changed,
        )


def queue_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of the job last submitted from the folder, from Slurm: {id, state, reason,
    left, start}. `state` is None if Slurm does not know the job or `squeue` is missing. Returns
    None if no job was submitted."""
    import json

    try:
        number = str(json.loads((folder / SUBMITTED).read_text())["job"])
    except (OSError, ValueError, KeyError):
        return None
    if shutil.which("squeue") is None:
        return {"id": number, "state": None}
    try:
        row = ask(
            "squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T|%r|%L|%S"
        )
    except RunnerError:  # squeue rejects jobs that ended some time ago
        return {"id": number, "state": None}
    state, reason, left, start = (
        (row.splitlines()[0].split("|") + [""] * 4)[:4] if row else ("", "", "", "")
    )
    return {"id": number, "state": state or None, "reason": reason, "left": left, "start": start}
