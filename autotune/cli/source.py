"""The two sources of a command's data: the results database, or a running service. Both return the
same documents.

`open_source` yields an `autotune.Client` if a service is selected (--url or AUTOTUNE_URL),
otherwise a `LocalSource`, which has the same methods.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar

from autotune import api
from autotune.cli.output import note
from autotune.errors import NotFoundError, SpecError
from autotune.ports import ServiceStore, StudyRecord
from autotune.results.answers import queue_position
from autotune.results.best_known import best_known
from autotune.results.masking import masked_record
from autotune.results.question import Question
from autotune.results.records import record_of
from autotune.settings import settings
from autotune.spec import Trial

if TYPE_CHECKING:
    from autotune.client import Client

Document = dict[str, Any]
Source: TypeAlias = "Client | LocalSource"
Params = ParamSpec("Params")
Answer = TypeVar("Answer")


def _store_method(
    function: Callable[Concatenate[ServiceStore, Params], Answer],
) -> Callable[Concatenate[LocalSource, Params], Answer]:
    """Return a function of the store as a method of `LocalSource`, with the same parameters."""

    @wraps(function)
    def method(source: LocalSource, /, *args: Params.args, **named: Params.kwargs) -> Answer:
        return function(source.store, *args, **named)

    return method


class LocalSource:
    """A source that reads the results database."""

    url = ""

    def __init__(self, store: ServiceStore) -> None:
        self.store = store

    def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> Document:
        """Store a study as QUEUED, for `autotune serve` on the same store."""

        return api.submitted_document(
            api.submit_study(
                self.store, api.load_study(spec), spec, idempotency_key=idempotency_key
            )
        )

    studies = _store_method(api.studies_document)
    observed = _store_method(api.observed_document)
    trials = _store_method(api.trial_documents)
    events = _store_method(api.event_documents)
    result = _store_method(api.result_of)
    best = _store_method(api.best_document)
    explain = _store_method(api.explain)
    export = _store_method(api.export_document)

    def status(self, study_id: str) -> Document:
        """Return the study with its best config and its baseline."""

        answer = api.document(api.result_of(self.store, study_id))
        answer["study"]["waits_behind"] = queue_position(
            self.store.waiting(), answer["study"]["id"]
        )
        return answer

    def record(self, study_id: str) -> Document:
        """Return the study's complete record, without secrets."""

        return {"record": masked_record(self.store.study(study_id)).to_dict()}

    def act(self, study_id: str, action: str) -> Document:
        """Request an action: pause, resume, stop or cancel."""

        api.act(self.store, study_id, action)
        return {"study": self.status(study_id)["study"]}

    def notes(self, study_id: str) -> list[Document]:
        """Return the notes on a study."""
        return [note.to_dict() for note in self.store.annotations.notes(study_id)]

    def add_note(self, study_id: str, text: str) -> Document:
        """Add a note to a study."""
        return {"note": self.store.annotations.add_note(study_id, text).to_dict()}

    def remove_note(self, study_id: str, number: int) -> Document:
        """Remove a note from a study."""
        self.store.annotations.remove_note(study_id, number)
        return {"notes": self.notes(study_id)}

    def tag(
        self, study_id: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> Document:
        """Add and remove a study's tags."""
        return {
            "study": api.study_document(
                self.store.annotations.change_tags(study_id, add=add, remove=remove)
            )
        }

    def deletion(self, study_id: str) -> Document:
        """Return what deleting the study would delete."""

        return {"deletion": api.deletion_of(self.store, study_id).to_dict()}

    def delete(self, study_id: str) -> Document:
        """Delete an ended study."""

        return {"deletion": api.delete_study(self.store, study_id).to_dict()}

    def best_across(self, *, top: int = 1, **filters: Any) -> Document:
        """Return the best configs across all studies. `filters`: the fields of `Question`."""

        return best_known(self.store, Question(**filters), top=top)

    def close(self) -> None:
        """Close the database."""
        self.store.close()


def study_with_trials(source: Source, study_id: str) -> tuple[StudyRecord, tuple[Trial, ...]]:
    """Return a study's record and its trials."""

    record = record_of(source.record(study_id)["record"])
    return record, tuple(Trial.from_dict(values) for values in source.trials(record.id))


def shown_trials(source: Source, study_id: str) -> list[Document]:
    """Return all trials of a study with the figures of their configs
    (`autotune.results.config_figures`), as tables show them."""
    return [trial.to_dict() for trial in source.result(study_id).shown]


class FolderSource(LocalSource):
    """A source that reads the copy of the database in a study's folder, and writes requests
    there."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, 0
        self._opened = ExitStack()
        super().__init__(self._open())

    def _open(self) -> ServiceStore:
        from autotune.cli.job_files import queue_state
        from autotune.cli.study_text import job_line
        from autotune.store.upkeep.study_folder import COPY, opened_copy

        self._opened.close()
        try:
            self.store: ServiceStore = self._opened.enter_context(opened_copy(self._folder))
        except NotFoundError as error:
            if job := queue_state(self._folder):
                error.message += f": {job_line(job)}"
            raise
        self._seen = (self._folder / COPY).stat().st_mtime_ns
        return self.store

    def status(self, study_id: str) -> Document:
        """Return the study as of the last copy, with the Slurm queue's state of its job."""
        from autotune.cli.job_files import queue_state
        from autotune.store.upkeep.study_folder import COPY

        if (self._folder / COPY).stat().st_mtime_ns != self._seen:
            self._open()
        return {**super().status(study_id), "job": queue_state(self._folder)}

    def act(self, study_id: str, action: str) -> Document:
        """Write a request for the job that runs the study."""
        from autotune.store.upkeep.study_folder import request

        request(self._folder, action)
        current = self.status(study_id)["study"]
        return {
            "study": {**current, "message": f"{action} requested; the job reacts within a second"}
        }

    def close(self) -> None:
        """Delete this process's copy of the database."""
        self._opened.close()


def study_and_store(
    study: str, store: str | None, url: str | None, folder: Path | None
) -> tuple[str, str | None]:
    """Return the study and the store for a command; with `--in`, those in the folder. Raises
    `SpecError` if neither a study nor a folder is given."""

    if folder is None:
        if not study:
            raise SpecError(
                "this command needs a study",
                remedy="pass the study's id or name; `autotune list` shows both",
                field="ID",
            )
        return study, store
    if store or url:
        raise SpecError(
            "--in cannot be combined with --store or --url",
            remedy="omit --in, or the other option",
            field="--in",
        )
    if not folder.is_dir():
        raise SpecError(
            f"there is no folder {folder}",
            remedy="specify the folder that `autotune tune SPEC --on slurm` created",
            field="--in",
        )
    if not study:
        with open_source(str(folder), None) as source:
            listed = source.studies(limit=1)["studies"]
        study = listed[0]["id"] if listed else folder.name
    return study, str(folder)


def _store_at(store: str | None, missing: str) -> ServiceStore:
    from autotune.store import MemoryStore, open_to_read

    if store is None and missing != "created":
        return open_to_read()
    try:
        return api.open_store(store, create=missing == "created")
    except NotFoundError as error:
        if missing != "empty":
            raise
        note(f"{error.message}, so its studies cannot be listed")
        return MemoryStore()


@contextmanager
def open_source(
    store: str | None,
    url: str | None,
    *,
    missing: Literal["refused", "created", "empty"] = "refused",
) -> Iterator[Source]:
    """Yield the service at `url`, or at AUTOTUNE_URL if no store is given; otherwise the results
    database, or a study's folder.

    `missing`: what happens if the given database does not exist. "refused" raises `NotFoundError`,
    "created" creates it, and "empty" yields an empty store in memory and prints a note."""

    address = url or (None if store else settings().url)
    source: Source
    if address:
        from autotune.client import Client

        source = Client(address)
    elif store and os.path.isdir(store):
        source = FolderSource(Path(store))
    else:
        source = LocalSource(_store_at(store, missing))
    try:
        yield source
    finally:
        source.close()
