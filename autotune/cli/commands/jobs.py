"""Commands that run studies as jobs: submit, list, status, watch, logs, pause, resume, stop, cancel."""

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
    SpecArgument,
    StoreOption,
    StudyOfFolder,
    UrlOption,
    VerboseOption,
    VersionOption,
    consoles,
    emit,
    note,
    note_stand_ins,
)
from autotune.errors import NotFoundError, SpecError

POLL_S = 1.0


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

    asked = read_spec(spec)
    note_stand_ins(spec)
    if no_check:
        asked["check"] = False
    with open_source(store, url, missing="created") as source:
        with places_in(asked):
            document = source.submit(asked, idempotency_key=key)
        study = document["study"]
        for told in document.get("notes", ()):
            note(told)
        if isinstance(source, LocalSource):
            _say_who_serves(store)
        if wait:
            note(f"submitted study {study['id']}")
            _watch(source, study["id"], json)
            return
    if json:
        emit(document)
        return
    note(f"study {study['id']} ({study['name']}) is {study['status'].lower()}")
    note(f"next: autotune watch {study['id']}")


def _say_who_serves(store: str | None) -> None:
    """Says if no service on this machine would run what was submitted to the store."""
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

    of_both = {"model": model, "cluster": cluster}
    of_studies = {
        "status": member_of("--status", status, StudyStatus) if status else None,
        "owner": owner,
        "name": name,
        "tag": tag,
    }
    of_runs: dict[str, Any] = {
        "gpu": gpu,
        "trainer": trainer,
        "program": program,
        "outcome": member_of("--outcome", outcome, Outcome) if outcome else "",
        "version": version or (),
    }
    used, unused = (of_runs, of_studies) if observed else (of_studies, of_runs)
    filters = {**of_both, **{key: value for key, value in used.items() if value}}
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
    study: StudyOfFolder = "",
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Show a study: its status, trials and best config."""
    from autotune.cli.named_study import source_of
    from autotune.cli.source import shown_trials

    with source_of(study, store, url, folder) as (source, study):
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
    study: StudyOfFolder = "",
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    json: JsonOption = False,
) -> None:
    """Follow a study until it ends; Ctrl-C leaves it running."""
    from autotune.cli.named_study import source_of

    with source_of(study, store, url, folder) as (source, study):
        _watch(source, source.status(study)["study"]["id"], json, folder)


def _watch(source: Any, study: str, as_json: bool, folder: Path | None = None) -> None:
    """Follows the study until it ends or is paused; in a terminal, shows the live view. Exits with 1 if the study failed."""
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
    seen, is_noisy = 0, False
    with view or nullcontext():
        while True:
            # read before the events: a study is terminal only after its last event
            document = source.status(study)
            if view is not None:
                view.show(document, source.result(study))
            while view is None and (events := source.events(study, after=seen)):
                for event in events:
                    if line := history_line(event):
                        note(line)
                seen = events[-1]["sequence"]
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
    study: StudyOfFolder = "",
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
    from autotune.cli.named_study import source_of
    from autotune.cli.study_text import logged_line
    from autotune.report.history import history_line

    with source_of(study, store, url, folder) as (source, study):
        if trial is None:
            events: list[dict[str, Any]] = []
            while more := source.events(study, after=events[-1]["sequence"] if events else 0):
                events += more
            if json:
                emit({"events": events})
                return
            for event in events:
                if line := logged_line(event) if verbose else history_line(event):
                    print(f"{event['at'][:19].replace('T', ' ')}  {line}")
            return
        found = [t for t in source.trials(study) if t["number"] == trial]
    if not found:
        raise NotFoundError(
            f"study {study} has no trial {trial}",
            remedy=f"`autotune status {study}` lists the study's trials",
        )
    if json:
        emit({"trial": found[0]})
        return
    failure = found[0]["failure"]
    print(f"trial {trial}: {found[0]['status'].lower()}  {found[0]['reason']}")
    if failure:
        where = "".join(f", {k} {failure[k]}" for k in ("rank", "step") if failure[k] is not None)
        print(f"{failure['kind']}{where}: {failure['message']}")
        for line in (failure["exception"], *failure["log_tail"]):
            if line:
                print(f"  {line}")


def _act(
    action: str, study: str, store: str | None, url: str | None, folder: Path | None, as_json: bool
) -> None:
    from autotune.cli.named_study import to_act_on
    from autotune.cli.source import in_folder, open_source

    study, store = in_folder(study, store, url, folder)
    with open_source(store, url) as source:
        document = source.act(to_act_on(source, study), action)
    if as_json:
        emit(document)
        return
    found = document["study"]
    note(
        f"study {found['id']} is {found['status'].lower()}"
        + (f": {found['message']}" if found["message"] else "")
    )


def _action(action: str, told: str) -> Callable[..., None]:
    """The command that asks a study for this."""

    def command(
        study: StudyOfFolder = "",
        store: StoreOption = None,
        url: UrlOption = None,
        folder: InOption = None,
        json: JsonOption = False,
    ) -> None:
        _act(action, study, store, url, folder, json)

    command.__name__, command.__doc__ = action, told
    return command


pause = _action("pause", "Pause a study: running trials finish, and no new trials start.")
resume = _action("resume", "Resume a paused study.")
stop = _action("stop", "Stop a study: running trials finish, then the best config is named.")
cancel = _action("cancel", "Cancel a study: running trials are killed at once.")
