"""Commands that make a first spec: init (from a script, a launch script or a configuration), import (from a trainer's present configuration)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.output import JsonOption, emit, note

if TYPE_CHECKING:
    from autotune.onboarding.draft import Draft

OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to write the spec to. Default: print it.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file that -o names if it exists.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Catalog name, hub id, or path of the model's config.json.")
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Cluster: GPU-NODESxGPUS, e.g. h100-sxm-2x8, or local.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(init)
    app.command("import")(import_)


def init(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A training script, the script that launches it, or a trainer's configuration file."
        ),
    ],
    output: OutputOption = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Makes a first spec from a script, a launch script or a configuration file.

    A script is read, not run. Comments in the spec say in which line each value was found, and what to fill in.
    """
    from autotune.onboarding.first_spec import first_draft

    folder = output.parent if output else Path()
    _hand_over(first_draft(file, model=model, cluster=cluster, folder=folder), output, force=force, json=json)


def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The trainer's configuration, or a folder that `autotune export` wrote."),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="TRAINER", help="Trainer that the configuration is of, e.g. deepspeed or megatron."
        ),
    ],
    output: OutputOption = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Makes a spec from a trainer's present configuration.

    That configuration is the baseline: the config to beat. Its keys that are no knobs are kept, and every export writes them again.
    """
    from autotune.onboarding.configuration_files import read_present
    from autotune.onboarding.imported_spec import import_draft
    from autotune.trainers import trainer

    name = trainer(source).name
    folder = output.parent if output else Path()
    draft = import_draft(read_present(file), name, file, model=model, cluster=cluster, folder=folder)
    _hand_over(draft, output, force=force, json=json)


def _hand_over(draft: Draft, output: Path | None, *, force: bool, json: bool) -> None:
    """Writes or prints the draft, and says what is to be done with it."""
    problem = _problem(draft, output.parent if output else Path())
    if output:
        _write(draft, output, force=force)
    if json:
        emit({**draft.to_dict(), "problem": problem, "written": str(output) if output else None})
    elif not output:
        print(draft.text, end="")
    for remark in draft.notes:
        note(f"note: {remark}")
    if draft.fill_in:
        note(f"fill in: {', '.join(draft.fill_in)}")
    if problem and not {"cluster", "model"} & set(draft.fill_in):  # a stand-in would be complained of
        note(f"the spec does not load yet: {problem}")
    if output:
        step = "check" if draft.document["trainer"] != "native" and "argv" in draft.document["trainer"] else "plan"
        note(f"wrote {output}; next: autotune {step} {output}")


def _problem(draft: Draft, folder: Path) -> str:
    """Why the spec cannot be loaded; empty if it can."""
    from autotune import api
    from autotune.errors import AutotuneError
    from autotune.schema.files import with_program_files

    document = draft.document
    try:
        if isinstance(document["trainer"], dict):
            document["trainer"] = with_program_files(document["trainer"], folder.absolute())
        api.load_study(document, base=folder)
    except AutotuneError as error:
        return str(error)
    return ""


def _write(draft: Draft, output: Path, *, force: bool) -> None:
    from autotune.errors import SpecError

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(draft.text)
    except FileExistsError:
        raise SpecError(
            f"{output} exists", remedy="name another file with -o, or replace it with --force", field="--output"
        ) from None
    except OSError as error:
        raise SpecError(
            f"{output} cannot be written: {error.strerror}", remedy="name another file with -o", field="--output"
        ) from None
