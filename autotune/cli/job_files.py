"""`autotune tune --on SCHEDULER` and `--in FOLDER`: a study as a job, and where the results of one
lie that runs in it."""

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
"""what can run a study as its job"""


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
    """Checks the study as far as the login node can, writes the files of its job, and submits it
    where that is asked. Raises what a wrong spec raises."""

    if on not in SCHEDULERS:
        raise SpecError(
            f"--on must be {' or '.join(SCHEDULERS)}, but is {on[:80]!r}",
            remedy=nearest(on, SCHEDULERS),
            field="--on",
        )
    overrides = {**overrides, **{f"{on}.{key}": value for key, value in _said(options, on).items()}}
    with places_in(document, but=overrides):
        asked = dict(
            api.read_document(document, overrides=overrides)
        )  # its mistakes are placed here, where the options are known
    if on == KUBERNETES:
        if submits:
            raise SpecError(
                "--submit works only with --on slurm; a Kubernetes job is started with kubectl",
                remedy="omit --submit, and run the kubectl command that is printed",
                field="--submit",
            )
        with places_in(document, but=overrides):
            in_pods.check_asked(asked)
            study = api.load_study(asked, base=base)
            api.check_study(study, same_files=False)
            pods = KubernetesDocument.model_validate(asked["kubernetes"])
            made = in_pods.submission(study, asked, pods, base=base, folder=Path.cwd())
        _tell(made, write(made), json=json)
        return
    with places_in(document, but=overrides):
        study = api.load_study(asked, base=base, slurm_cluster=submission.stand_in)
        job = SlurmDocument.model_validate(asked.get("slurm") or {})
        api.check_study(study, same_files=not (job.setup or job.container))
        if not job.container:
            _check_program_file(study, base)
    server = _server(store)
    made = submission.submission(
        study, asked, job, base=base, folder=Path.cwd(), keeps_store=not server
    )
    written = write(made)
    when = submission.check(made)
    for remark in submission.doubtful_options(job):
        note(f"note: {remark}")
    if asked["cluster"] == SLURM:
        note(
            "note: the nodes' GPUs are detected when the job starts; until then an H100 node is assumed"
        )
    if server:
        note(
            f"note: the job keeps its results in {server}; set AUTOTUNE_STORE to that address in the job's environment too"
        )
    number = submission.submit(made) if submits else ""
    named = shlex.quote(study.name) if server else f"--in {made.folder.name}"
    _tell(made, written, json=json, when=when, number=number, named=named)


def _tell(
    made: Submission,
    written: Sequence[Path],
    *,
    json: bool,
    when: str = "",
    number: str = "",
    named: str = "",
) -> None:
    """What was written, and how the job is started, or that it was; `named`: how a command names
    its study."""
    if json:
        emit(
            {
                "job": {
                    "folder": str(made.folder),
                    "files": [str(path) for path in written],
                    "start": made.start,
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
        note(f"next: autotune status {named}")
    else:
        print(made.start)


_LISTS = ("files", "env_from", "container.mounts")


def _said(options: Sequence[str], on: str) -> dict[str, Any]:
    """The options by key: lines of `setup` one by one, lists at their commas, numbers and switches
    where the key wants them, else text."""
    fields = (KubernetesDocument if on == KUBERNETES else SlurmDocument).model_fields
    found: dict[str, Any] = {}
    for key, text in key_values(options, field="--option", example="--option time=4h"):
        wanted = str(fields[key].annotation) if key in fields else ""
        if key == "setup":
            found[key] = [*found.get(key, ()), text]
        elif key in _LISTS:
            found[key] = [*found.get(key, ()), *text.split(",")]
        elif text.isdigit() and "int" in wanted:
            found[key] = int(text)
        elif text.lower() in ("true", "false") and ("bool" in wanted or key not in fields):
            found[key] = text.lower() == "true"
        else:
            found[key] = text
    return found


def _check_program_file(study: Study, base: Path) -> None:
    """Raises `SpecError` for a Python file that a command starts and that is not in its folder."""
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


def _server(store: str | None) -> str:
    """The database on a server that is named, without its password; empty for a file."""

    location = find_location(store)
    return "" if location.is_sqlite else str(location)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlace:
    """Where a study's results are kept while it runs."""

    store: str | None
    """as --store names it"""
    shown: str
    """the same for people"""
    changed: Callable[[], None] = lambda: None
    """a trial has ended"""

    def rests_as_asked(self, record: StudyRecord, document: Mapping[str, Any]) -> bool:
        """Whether the pause of the study is no failure of its job: a person asked for it, or the
        job begins again, as the spec wants where its time was over. Results are where they belong
        by now."""

        wants = bool((document.get("slurm") or {}).get("requeue"))
        job = allocation()
        if job is None or record.status is not StudyStatus.PAUSED:
            return False
        if not wants or not record.message.startswith((TIME_IS_OVER, JOB_ENDS)):
            return record.message == PAUSED_ON_REQUEST
        try:
            job.requeue()
        except RunnerError as error:  # it was cancelled
            note(f"job {job.job} could not be requeued: {error.message}")
            return False
        note(f"job {job.job} is requeued; the study continues when the job restarts")
        return True


@contextmanager
def study_place(folder: Path | None, store: str | None) -> Iterator[StudyPlace]:
    """The user's store, or that of the folder, which is copied there while the study runs. Raises
    `SpecError` when both are named."""

    if folder is None:
        yield StudyPlace(store=store, shown=str(find_location(store)))
        return

    if store is not None:
        raise SpecError(
            "--in and --store both set a location for results",
            remedy="omit one of these options",
            field="--in",
        )
    job = allocation()
    home: StudyFolder

    def hear(action: str) -> None:
        with closing(api.open_store(home.path)) as database:
            try:
                for record in database.studies(limit=1):
                    api.act(database, record.id, action)
            except (AutotuneError, ValueError) as error:
                note(f"the {action} request was not delivered: {error}")

    with StudyFolder(folder, job=job.job if job else "", on_request=hear, on_error=note) as home:
        yield StudyPlace(store=str(home.path), shown=str(folder.absolute()), changed=home.changed)


def queue_state(folder: Path) -> dict[str, Any] | None:
    """What Slurm says of the job that was submitted last from the folder: {id, state, reason, left,
    start}; None where there is no such job or no Slurm here."""
    import json

    try:
        number = str(json.loads((folder / SUBMITTED).read_text())["job"])
    except (OSError, ValueError, KeyError):
        return None
    if shutil.which("squeue") is None:
        return {"id": number, "state": None}
    try:
        said = ask(
            "squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T|%r|%L|%S"
        )
    except RunnerError:  # squeue forgets jobs that are over
        return {"id": number, "state": None}
    state, reason, left, start = (
        (said.splitlines()[0].split("|") + [""] * 4)[:4] if said else ("", "", "", "")
    )
    return {"id": number, "state": state or None, "reason": reason, "left": left, "start": start}
