"""`autotune store ...`: looks after the results database."""

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
    group = typer.Typer(help="Looks after the results database.", no_args_is_help=True, rich_markup_mode=None)
    for command in (check, backup, export, vacuum):
        group.command()(command)
    app.add_typer(group, name="store")


def check(store: StoreOption = None, json: JsonOption = False) -> None:
    """Checks the file and the laws over its history: nothing lost, nothing twice, no terminal state changed."""
    from autotune.store import maintenance

    database = _kept(store)
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
    note("no fault found")


def backup(
    target: Annotated[Path, typer.Argument(help="File to write; it must not exist.")],
    store: StoreOption = None,
) -> None:
    """Copies the database while it is in use."""
    from autotune.store import maintenance

    database = _kept(store)
    try:
        maintenance.backup(database, target)
    finally:
        database.close()
    note(f"wrote {target}")


def export(
    folder: Annotated[Path, typer.Argument(help="Folder for one file per table; made when missing.")],
    format: Annotated[str, typer.Option("--format", help="csv or parquet (needs pyarrow).")] = "csv",  # noqa: A002
    store: StoreOption = None,
) -> None:
    """Writes studies, trials and steps as CSV or Parquet."""
    from autotune.store import maintenance

    database = _kept(store)
    try:
        written = maintenance.export(database, folder, format=format)
    finally:
        database.close()
    for path in written:
        note(f"wrote {path}")


def vacuum(store: StoreOption = None) -> None:
    """Gives unused space back to the disk."""
    from autotune.store import maintenance

    database = _kept(store)
    try:
        maintenance.vacuum(database)
    finally:
        database.close()
    note("done")


def _kept(store: str | None) -> SqlStore:
    """The store, which must be there: looking after one is no reason to make it. Raises `NotFoundError`."""
    from autotune.store import open_store
    from autotune.store.location import find_location

    place = find_location(store)
    if place.path is not None and not place.path.exists():
        raise NotFoundError(f"there is no store at {place}", remedy="check --store and AUTOTUNE_STORE")
    return open_store(store)
