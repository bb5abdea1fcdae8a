"""The commands that run studies as jobs: submit, list, status, watch, logs, pause, resume, stop,
cancel."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli.output import (
    InOption,
    JsonOption,
    NoCheckOption,
    OptionalStudyArgument,
    SpecArgument,
    StoreOption,
    UrlOption,
    VerboseOption,
    VersionOption,
    consoles,
    emit,
    note,
    note_placeholders,
)
from autotune.errors import NotFoundError, SpecError

POLL_S = 1.0
"""seconds between two reads of a followed study"""


def submit(
    spec: SpecArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the study until it ends.")] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            help="Key of this submission. A second submission with the same key creates no new study.",
        ),
    ] = None,
    no_check: NoCheckOption = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Submit a study to a running `autotune serve`."""
    from autotune.cli.source import LocalSource, open_source
    from autotune.schema import places_in, read_spec

    spec_document = read_spec(spec)
    note_placeholders(spec)
    if no_check:
        spec_document["check"] = False
    with open_source(store, url, missing="created") as source:
        with places_in(spec_document):
            document = source.submit(spec_document, idempotency_key=key)
        study = document["study"]
        for text in document.get("notes", ()):
            note(text)
        if isinstance(source, LocalSource):
            _note_if_unserved(store)
        if wait:
            note(f"submitted study {study['id']}")
            _watch(source, study["id"], json)
            return
    if json:
        emit(document)
        return
    note(f"study {study['id']} ({study['name']}) is {study['status'].lower()}")
    note(f"next: autotune watch {study['id']}")


def _note_if_unserved(store: str | None) -> None:
    """Print a note if no service on this machine would run studies submitted to the store."""
    from autotune.service.supervise.presence import is_served
    from autotune.settings import settings

    if not is_served(store or settings().store):
        note(
            "no service on this machine runs this store's studies; start a service with `autotune serve`, "
            "or run the study yourself with `autotune tune`"
        )


def list_(
    status: Annotated[
        str | None, typer.Option("--status", help="Only studies with this status, e.g. running.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Only studies with this model.")] = "",
    cluster: Annotated[str, typer.Option("--cluster", help="Only studies on this cluster.")] = "",
    owner: Annotated[
        str, typer.Option("--owner", help="Only studies that belong to this owner.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Only studies with this name.")] = "",
    tag: Annotated[str, typer.Option("--tag", help="Only studies with this tag.")] = "",
    observed: Annotated[
        bool,
        typer.Option(
            "--observed", help="List runs started with `autotune run` or a callback instead."
        ),
    ] = False,
    gpu: Annotated[str, typer.Option("--gpu", help="Only observed runs on this GPU.")] = "",
    trainer: Annotated[
        str, typer.Option("--trainer", help="Only observed runs with this trainer.")
    ] = "",
    program: Annotated[
        str, typer.Option("--program", help="Only observed runs of this program.")
    ] = "",
    outcome: Annotated[
        str | None,
        typer.Option("--outcome", help="Only observed runs with this outcome, e.g. completed."),
    ] = None,
    version: VersionOption = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Number of studies or runs to show.")
    ] = 50,
    offset: Annotated[
        int, typer.Option("--offset", min=0, max=1 << 40, help="Number of studies or runs to skip.")
    ] = 0,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List studies, newest first, or with --observed the runs you started yourself."""
    from autotune.cli.commands.observe import print_runs
    from autotune.cli.source import open_source
    from autotune.cli.study_text import studies_table
    from autotune.spec import Outcome, StudyStatus
    from autotune.spec.checks import member_of

    study_filters = {
        "status": member_of("--status", status, StudyStatus) if status else None,
        "owner": owner,
        "name": name,
        "tag": tag,
    }
    run_filters: dict[str, Any] = {
        "gpu": gpu,
        "trainer": trainer,
        "program": program,
        "outcome": member_of("--outcome", outcome, Outcome) if outcome else "",
        "version": version or (),
    }
    used, unused = (run_filters, study_filters) if observed else (study_filters, run_filters)
    filters = {
        "model": model,
        "cluster": cluster,
        **{key: value for key, value in used.items() if value},
    }
    if misplaced := [f"--{key}" for key, value in unused.items() if value]:
        raise SpecError(
            f"{' and '.join(misplaced)} {'applies' if len(misplaced) == 1 else 'apply'} to "
            + (
                "studies, but --observed lists runs"
                if observed
                else "runs, but the command lists studies"
            ),
            remedy="omit these options" if observed else "add --observed",
            field=misplaced[0],
        )
    with open_source(store, url, missing="empty") as source:
        listed = source.observed if observed else source.studies
        document = listed(limit=limit, offset=offset, **filters)
    if observed and not json:
        print_runs(document["runs"], is_filtered=any(filters.values()))
        return
    if json:
        emit(document)
        return
    if not document["studies"]:
        note(
            "no study matches"
            if any(filters.values())
            else "no studies; start one with `autotune tune SPEC`, or on a service with `autotune submit SPEC`"
        )
        return
    consoles()[0].print(studies_table(document["studies"]))


def status(
    study: OptionalStudyArgument = "",
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Show a study: its status, trials and best config."""
    from autotune.cli.named_study import source_with_study
    from autotune.cli.source import shown_trials

    with source_with_study(study, store, url, folder) as (source, study):
        document = source.status(study)
        trials = [] if json else shown_trials(source, document["study"]["id"])
    if json:
        emit(document)
        return
    from autotune.cli.study_text import job_line, print_study

    print_study(document, trials, verbose=verbose, folder=folder)
    if job := document.get("job"):
        note(job_line(job))


def watch(
    study: OptionalStudyArgument = "",
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    json: JsonOption = False,
) -> None:
    """Follow a study until it ends; Ctrl-C leaves it running."""
    from autotune.cli.named_study import source_with_study

    with source_with_study(study, store, url, folder) as (source, study):
        _watch(source, source.status(study)["study"]["id"], json, folder)


def _watch(source: Any, study: str, as_json: bool, folder: Path | None = None) -> None:
    """Follow the study until it ends or is paused; in a terminal, show the live view. Exits with 1
    if the study failed."""
    from contextlib import nullcontext

    from autotune.cli.live import LiveView
    from autotune.cli.source import shown_trials
    from autotune.cli.study_text import noisy_line, print_study
    from autotune.report.history import history_line
    from autotune.results.records import record_of
    from autotune.spec import StudyStatus

    view = (
        LiveView(record_of(source.record(study)["record"]).study)
        if consoles()[1].is_terminal
        else None
    )
    last_sequence, is_noisy = 0, False
    with view or nullcontext():
        while True:
            # read before the events: a study is terminal only after its last event
            document = source.status(study)
            if view is not None:
                view.show(document, source.result(study))
            while view is None and (events := source.events(study, after=last_sequence)):
                for event in events:
                    if line := history_line(event):
                        note(line)
                last_sequence = events[-1]["sequence"]
            state = StudyStatus(document["study"]["status"])
            if view is None and not is_noisy and (noisy := document.get("too_noisy")):
                is_noisy = True
                note(noisy_line(noisy))
            if state.is_terminal or state is StudyStatus.PAUSED:
                break
            time.sleep(POLL_S)
    if as_json:
        emit(document)
    else:
        print_study(document, shown_trials(source, document["study"]["id"]), folder=folder)
    if state is StudyStatus.PAUSED:
        note(f"next: autotune resume {document['study']['id']}")
    if state is StudyStatus.FAILED:
        raise typer.Exit(1)


def logs(
    study: OptionalStudyArgument = "",
    trial: Annotated[
        int | None,
        typer.Argument(
            metavar="[TRIAL]", help="Number of a trial. Default: show the study's history."
        ),
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also print the controller's decisions.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print a study's history, or one trial's failure.

    For a failed trial, the output has the kind of failure, the exception and the last log lines.
    """
    from autotune.cli.named_study import source_with_study
    from autotune.cli.study_text import event_line
    from autotune.report.history import history_line

    with source_with_study(study, store, url, folder) as (source, study):
        if trial is None:
            events: list[dict[str, Any]] = []
            while more := source.events(study, after=events[-1]["sequence"] if events else 0):
                events += more
            if json:
                emit({"events": events})
                return
            for event in events:
                if line := event_line(event) if verbose else history_line(event):
                    print(f"{event['at'][:19].replace('T', ' ')}  {line}")
            return
        matching = [t for t in source.trials(study) if t["number"] == trial]
    if not matching:
        raise NotFoundError(
            f"study {study} has no trial {trial}",
            remedy=f"`autotune status {study}` lists the study's trials",
        )
    if json:
        emit({"trial": matching[0]})
        return
    failure = matching[0]["failure"]
    print(f"trial {trial}: {matching[0]['status'].lower()}  {matching[0]['reason']}")
    if failure:
        position = "".join(
            f", {k} {failure[k]}" for k in ("rank", "step") if failure[k] is not None
        )
        print(f"{failure['kind']}{position}: {failure['message']}")
        for line in (failure["exception"], *failure["log_tail"]):
            if line:
                print(f"  {line}")


def _request(
    action: str, study: str, store: str | None, url: str | None, folder: Path | None, as_json: bool
) -> None:
    from autotune.cli.named_study import study_to_control
    from autotune.cli.source import open_source, study_and_store

    study, store = study_and_store(study, store, url, folder)
    with open_source(store, url) as source:
        document = source.act(study_to_control(source, study), action)
    if as_json:
        emit(document)
        return
    changed = document["study"]
    note(
        f"study {changed['id']} is {changed['status'].lower()}"
        + (f": {changed['message']}" if changed["message"] else "")
    )


def _make_command(action: str, help_text: str) -> Callable[..., None]:
    """Return the command that requests `action` of a study. `help_text`: the command's help."""

    def command(
        study: OptionalStudyArgument = "",
        store: StoreOption = None,
        url: UrlOption = None,
        folder: InOption = None,
        json: JsonOption = False,
    ) -> None:
        _request(action, study, store, url, folder, json)

    command.__name__, command.__doc__ = action, help_text
    return command


pause = _make_command("pause", "Pause a study: running trials finish, and no new trials start.")
resume = _make_command("resume", "Resume a paused study.")
stop = _make_command("stop", "Stop a study: running trials finish, then the best config is named.")
cancel = _make_command("cancel", "Cancel a study: running trials are killed at once.")
