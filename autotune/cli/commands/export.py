"""The commands that pass results on: `export` (files that launch a trainer), `report` (an HTML
page, or Markdown) and `compare` (two studies side by side)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from autotune.cli.output import (
    InOption,
    JsonOption,
    OptionalStudyArgument,
    StoreOption,
    StudyArgument,
    UrlOption,
    consoles,
    dash_as_stdout,
    emit,
    note,
    write_text,
)
from autotune.errors import AutotuneError


def export(
    study: OptionalStudyArgument = "",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TRAINER",
            help="Trainer to launch (`autotune trainers` lists all). Default: the study's trainer.",
        ),
    ] = "",
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial", min=0, help="Export this trial's config. Default: the best config."
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="SCHEDULER",
            help="How to start the nodes: shell (launch.sh), slurm (job.sbatch), ray (ray_job.py) or kubernetes (job.yaml).",
        ),
    ] = "shell",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            callback=dash_as_stdout,
            help="Folder for the files. The default, -, prints the files.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="Option of the trainer or scheduler, e.g. data_path=/data or partition=gpu; may be repeated.",
        ),
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    json: JsonOption = False,
) -> None:
    """Write the files that launch a trainer with the best config, or with a trial's config.

    The files are a command with its environment, and configuration files. `launch.sh` starts one node. With --on, a job for the cluster's
    scheduler starts all nodes. Each file begins with a comment that says what was tuned and how it was measured.
    """
    import shlex

    from autotune.cli.named_study import source_with_study
    from autotune.spec.checks import options_of
    from autotune.spec.texts.secrets import masked
    from autotune.trainers import Launch, trainer, write_launch
    from autotune.trainers.schedulers import scheduler

    options = options_of(option or (), field="--option", example="--option data_path=/data")
    starter = scheduler(on)
    if to:
        trainer(to)
    with source_with_study(study, store, url, folder) as (source, study), _options_as_typed():
        exported = source.export(
            study,
            to or source.status(study)["study"]["trainer"],
            options,
            on=starter.name,
            trial=trial,
        )
    launch = Launch(
        argv=tuple(exported["argv"]),
        env=exported["env"],
        files=exported["files"],
        cwd=exported.get("cwd", ""),
        python=exported.get("python", ""),
        notes=tuple(exported["notes"]),
        tuned=exported.get("tuned", {}),
    )
    job = exported.get("job", {"files": {}, "notes": []})
    written = write_launch(launch, output, job=job) if output else []
    has_secrets = launch.shown != launch
    if json:
        if has_secrets:
            note("note: the output contains the secrets in the spec")
        emit({**exported, "written": [str(path) for path in written]})
        return
    if has_secrets and not output:
        note(
            "note: secrets in the spec are shown as ***; -o FOLDER writes the secrets to files that only you can read"
        )
        launch, job = launch.shown, masked(job)
    for remark in (*launch.notes, *job["notes"]):
        note(f"note: {remark}")
    if output:
        for path in written:
            note(f"wrote {path}")
    else:
        for name, text in {**launch.files, **job["files"]}.items():
            print(f"# --- {name}\n{text}")
    if job["files"]:
        prefix = f"cd {shlex.quote(str(output))} && " if output else ""
        print(f"{prefix}{job['start']}")
        return
    launch = launch.placed(str((output or Path()).absolute()))
    if launch.cwd not in ("", "."):
        print(f"cd {shlex.quote(launch.cwd)} && ", end="")
    print(launch.command_line)


@contextmanager
def _options_as_typed() -> Iterator[None]:
    """Write a trainer option in the remedy of an error the way it is typed on the command line."""
    try:
        yield
    except AutotuneError as error:
        error.remedy = re.sub(
            r"\bthe option (\w+)(=\w+)?",
            lambda match: f"--option {match[1]}{match[2] or '=VALUE'}",
            error.remedy,
        )
        raise


def report(
    study: OptionalStudyArgument = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            callback=dash_as_stdout,
            help="File to write. The default, -, prints the report.",
        ),
    ] = None,
    form: Annotated[
        Literal["html", "markdown"] | None,
        typer.Option(
            "--format",
            help="html: one page with figures. markdown: for a pull request. Default: markdown for a .md file, otherwise html.",
        ),
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    json: JsonOption = False,
) -> None:
    """Write a study's report as one HTML page, or as Markdown for a pull request.

    The report shows the trials, the winner, why the winner is faster, and the failures. The HTML page is self-contained. In Markdown, tables with bars replace the figures.
    """
    from autotune.cli.named_study import source_with_study
    from autotune.cli.source import study_with_trials
    from autotune.report.markdown_page import markdown_report
    from autotune.report.page import html_report

    with source_with_study(study, store, url, folder) as (source, study):
        record, trials = study_with_trials(source, study)
        service = source.url
    is_markdown = form == "markdown" or (
        form is None and output is not None and output.suffix.lower() == ".md"
    )
    text = (
        markdown_report(record, trials, service=service)
        if is_markdown
        else html_report(record, trials)
    )
    if output is None:
        if json:
            emit({"format": "markdown" if is_markdown else "html", "report": text})
        else:
            print(text, end="")
        return
    write_text(output, text, field="--output", remedy="choose another file with -o")
    if json:
        emit({"wrote": str(output)})
    note(f"wrote {output}")


def compare(
    first: StudyArgument,
    second: StudyArgument,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show two studies side by side."""
    from autotune.cli.source import open_source, study_with_trials
    from autotune.report.comparison import compare as compare_studies
    from autotune.report.comparison import differing_versions

    with open_source(store, url) as source:
        if json:
            differences = differing_versions(
                *(source.result(study).best for study in (first, second))
            )
            versions = [
                {"name": name, "first": left, "second": right} for name, left, right in differences
            ]
            emit(
                {
                    "studies": [source.status(study) for study in (first, second)],
                    "versions": versions,
                }
            )
            return
        a, b = (study_with_trials(source, study) for study in (first, second))
    consoles()[0].print(compare_studies(a, b))
