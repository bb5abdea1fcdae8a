"""`autotune store`: maintenance of the results database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.output import JsonOption, StoreOption, emit, note
from autotune.errors import NotFoundError

if TYPE_CHECKING:
    from autotune.store import SqlStore


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = typer.Typer(
        help="Checks, backs up, exports and compacts the results database.", no_args_is_help=True, rich_markup_mode=None
    )
    for command in (check, backup, export, vacuum):
        group.command()(command)
    app.add_typer(group, name="store")


def check(store: StoreOption = None, json: JsonOption = False) -> None:
    """Checks the database for damage and contradictions.

    It checks the integrity of the file and the laws of each study's history: nothing is lost, nothing happened twice, and no terminal state
    changed.
    """
    from autotune.store import maintenance

    database = _existing_store(store)
    try:
        findings = maintenance.check(database)
    finally:
        database.close()
    if json:
        emit({"ok": not findings, "findings": list(findings)})
    for finding in findings:
        note(finding)
    if findings:
        raise typer.Exit(1)
    note("no faults found")


def backup(
    target: Annotated[Path, typer.Argument(help="File to write; it must not exist yet.")],
    store: StoreOption = None,
) -> None:
    """Copies the database; it may be in use."""
    from autotune.store import maintenance

    database = _existing_store(store)
    try:
        maintenance.backup(database, target)
    finally:
        database.close()
    note(f"wrote {target}")


def export(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; made if it does not exist.")],
    format: Annotated[str, typer.Option("--format", help="csv, or parquet (needs pyarrow).")] = "csv",  # noqa: A002
    store: StoreOption = None,
) -> None:
    """Writes the results as CSV or Parquet files.

    It writes four files: studies, trials, steps and events.
    """
    from autotune.store import maintenance

    database = _existing_store(store)
    try:
        written = maintenance.export(database, folder, format=format)
    finally:
        database.close()
    for path in written:
        note(f"wrote {path}")


def vacuum(store: StoreOption = None) -> None:
    """Returns unused space to the disk."""
    from autotune.store import maintenance

    database = _existing_store(store)
    try:
        maintenance.vacuum(database)
    finally:
        database.close()
    note("unused space is returned to the disk")


def _existing_store(store: str | None) -> SqlStore:
    """The store, which must exist: maintenance makes no new one. Raises `NotFoundError`."""
    from autotune.store import open_store
    from autotune.store.location import find_location

    location = find_location(store)
    if location.path is not None and not location.path.exists():
        raise NotFoundError(
            f"there is no store at {location}", remedy="name an existing one with --store or AUTOTUNE_STORE"
        )
    return open_store(store)
