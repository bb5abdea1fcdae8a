"""The command `store`: maintenance of the results database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.output import (
    JsonOption,
    StoreOption,
    emit,
    note,
    print_table,
    reject_dash,
)
from autotune.store import open_store

MAX_LISTED_STUDIES = 20
"""number of newest studies that a check lists; older studies are listed only if they have faults"""


def check(store: StoreOption = None, json: JsonOption = False) -> None:
    """Check the database for damage and inconsistencies.

    The check covers the file, the checksums of events, trials and attempts, and each study's history: nothing was lost, nothing happened twice, and
    no terminal state changed. The output lists what was not checked.
    """
    from autotune.spec.texts.as_text import number_of
    from autotune.store.upkeep.examination import examine

    with closing(open_store(store, create=False)) as database:
        report = examine(database)
    unchecked = sum(study.unchecked for study in report.studies)
    if json:
        studies = [
            {"id": s.id, "rows": dict(s.rows), "unchecked": s.unchecked, "faults": list(s.faults)}
            for s in report.studies
        ]
        emit(
            {
                "ok": not report.faults,
                "findings": list(report.faults),
                "unchecked": unchecked,
                "studies": studies,
            }
        )
    elif report.studies:
        shown = [study for study in report.studies[:-MAX_LISTED_STUDIES] if study.faults] + [
            *report.studies[-MAX_LISTED_STUDIES:]
        ]
        heads = ("study", "events", "trials", "attempts", "faults")
        rows = [
            [s.id, *(f"{s.rows.get(name, 0):,}" for name in heads[1:4]), str(len(s.faults))]
            for s in shown
        ]
        print_table(heads, rows, numbers=heads[1:])
        if more := len(report.studies) - len(shown):
            note(f"{more:,} older studies without problems are not shown; --json lists them")
    if unchecked:
        note(
            f"not checked: {number_of(unchecked, 'row')} from earlier releases, whose checksums this release cannot read"
        )
    for fault in report.faults:
        note(fault)
    if report.faults:
        raise typer.Exit(1)
    note("no faults found")


def backup(
    target: Annotated[
        Path,
        typer.Argument(callback=reject_dash, help="File to write. The file must not exist yet."),
    ],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Copy the database, even while it is in use."""
    from autotune.store.upkeep import maintenance

    with closing(open_store(store, create=False)) as database:
        maintenance.backup(database, target)
    if json:
        emit({"wrote": str(target)})
    note(f"wrote {target}")


def restore(
    file: Annotated[Path, typer.Argument(help="Backup written by `autotune store backup`.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Restore the database from a backup.

    The backup is checked first. No other process may have the database open. The replaced database is kept under another name. SQLite only.
    """
    from autotune.spec.texts.as_text import number_of
    from autotune.store.connection.location import find_location
    from autotune.store.upkeep.restoring import restore as restore_database

    location = find_location(store)
    restored = restore_database(location, file)
    if json:
        kept = str(restored.kept) if restored.kept else None
        emit(
            {
                "version": restored.version,
                "studies": restored.studies,
                "trials": restored.trials,
                "kept": kept,
            }
        )
    contents = f"{number_of(restored.studies, 'study', 'studies')} with {number_of(restored.trials, 'trial')}"
    note(f"restored {location} from {file}: {contents}")
    if restored.kept:
        note(f"the previous store is kept as {restored.kept}")


def migrate(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Try the upgrade in a transaction and undo the transaction, so that nothing changes.",
        ),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Upgrade the database to this release's version.

    Every command upgrades an older database when the command opens it (SQLite: after a backup next to the file). This command does nothing else.
    """
    from autotune.store.connection.location import check_exists, find_location
    from autotune.store.upkeep.restoring import migrate as upgrade

    location = find_location(store)
    check_exists(location)
    before, after = upgrade(location, dry_run=dry_run)
    if json:
        emit({"before": before, "after": after, "dry_run": dry_run})
    if before == after:
        note(f"{location} already has version {after}")
    elif dry_run:
        note(f"{location} can be upgraded from version {before} to {after}; nothing was changed")
    else:
        note(f"{location} is upgraded from version {before} to {after}")


def export(
    folder: Annotated[
        Path,
        typer.Argument(
            callback=reject_dash, help="Folder for the files; created if it does not exist."
        ),
    ],
    format: Annotated[  # noqa: A002
        str, typer.Option("--format", help="csv, or parquet (needs pyarrow).")
    ] = "csv",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write the results as CSV or Parquet files.

    The four files are studies, trials, steps and events.
    """
    from autotune.store.upkeep import maintenance

    with closing(open_store(store, create=False)) as database:
        written = maintenance.export(database, folder, format=format)
    if json:
        emit({"wrote": [str(path) for path in written]})
    for path in written:
        note(f"wrote {path}")


def vacuum(store: StoreOption = None, json: JsonOption = False) -> None:
    """Return unused space to the disk."""
    from autotune.store.upkeep import maintenance

    with closing(open_store(store, create=False)) as database:
        maintenance.vacuum(database)
    if json:
        emit({"ok": True})
    note("returned unused space to the disk")
