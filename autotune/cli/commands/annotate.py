"""The commands `note`, `tag` and `delete`, which annotate or delete a study."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.output import JsonOption, StoreOption, StudyArgument, UrlOption, emit
from autotune.cli.output import note as say
from autotune.errors import SpecError


def note(
    study: StudyArgument,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="Text of the note. Default: show the study's notes."),
    ] = None,
    remove: Annotated[
        int | None, typer.Option("--remove", help="Remove the note with this number.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Add a note to a study, show the study's notes, or remove a note."""
    from autotune.cli.named_study import source_with_study

    if text is not None and remove is not None:
        raise SpecError(
            "TEXT adds a note and --remove removes one; use only one of the two",
            field="--remove",
        )
    with source_with_study(study, store, url) as (source, study):
        if text is not None:
            document = source.add_note(study, text)
            message = f"added note {document['note']['number']} to study {study}"
        elif remove is not None:
            document = source.remove_note(study, remove)
            message = f"note {remove} of study {study} is removed"
        else:
            document = {"notes": source.notes(study)}
            message = "" if document["notes"] else f"study {study} has no notes"
    if json:
        emit(document)
        return
    if message:
        say(message)
        return
    for entry in document["notes"]:
        print(
            f"{entry['number']}  {entry['at'][:16].replace('T', ' ')}  {entry['author'] or 'this machine'}"
        )
        print("\n".join(f"    {line}" for line in entry["text"].splitlines()))


def tag(
    study: StudyArgument,
    tags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TAG]...", help="Tags to add. Default: show the study's tags."),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", help="Remove this tag; may be repeated.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Add, remove or show the tags of a study."""
    from autotune.cli.named_study import source_with_study

    with source_with_study(study, store, url) as (source, study):
        is_change = tags or remove
        document = (
            source.tag(study, add=tags or (), remove=remove or ())
            if is_change
            else source.status(study)
        )
    changed = document["study"]
    if json:
        emit({"study": changed})
        return
    say(
        f"study {changed['id']} ({changed['name']}) has the tags: {', '.join(changed['tags']) or 'none'}"
    )


def delete(
    study: StudyArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Permanently delete a finished study with its trials and history, after confirmation."""
    from autotune.cli.named_study import study_to_delete
    from autotune.cli.source import open_source
    from autotune.report.deletion_notice import deletion_lines

    with open_source(store, url) as source:
        study = study_to_delete(source, study)
        if not yes:
            for line in deletion_lines(source.deletion(study)["deletion"]):
                say(line)
            try:
                typer.confirm("delete the study permanently?", abort=True, err=True)
            except typer.Abort:
                say("nothing was deleted; use --yes to delete without confirmation")
                raise
        document = source.delete(study)
    if json:
        emit(document)
        return
    say(f"study {document['deletion']['study']} ({document['deletion']['name']}) is deleted")
