"""What all commands share: common options, one JSON document or a table on stdout, notes and errors on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; everything else goes to stderr.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Results database: an SQLite file, or a PostgreSQL URL. Default: AUTOTUNE_STORE, or a file in your data folder.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Use the service at this address instead of a store. Default: AUTOTUNE_URL."
    ),
]
SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="Study spec: a YAML or JSON file, or - for standard input.")
]
NoCheckOption = Annotated[
    bool,
    typer.Option(
        "--no-check", help="Begin without trying a program that the store has never seen for a few steps first."
    ),
]
StudyArgument = Annotated[str, typer.Argument(metavar="ID", help="Study: id, start of the id, or name.")]


PIPE_WIDTH = 200
"""width of tables that go to a file or a pipe, in characters"""


def consoles() -> tuple[Console, Console]:
    """The consoles of stdout and of stderr. A file or a pipe gets tables of `PIPE_WIDTH`."""
    from rich.console import Console

    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    for console in (out, err):
        if not console.is_terminal:
            console.width = PIPE_WIDTH
    return out, err


def bare_table() -> Table:
    """An empty table without lines."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def emit(document: Mapping[str, Any]) -> None:
    """Prints one strict JSON document: NaN and infinity become null."""
    sys.stdout.write(json.dumps(strict(document), indent=2, allow_nan=False, default=str) + "\n")


def strict(value: Any) -> Any:
    """`value` with every number that JSON cannot hold as None, and numpy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [strict(v) for v in value]
    if hasattr(value, "tolist"):
        return strict(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def note(text: str) -> None:
    """Prints a line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def report_error(error: Exception, *, as_json: bool) -> int:
    """Prints an error, with --json also as an error document on stdout, and returns the exit code."""
    from autotune.cli.exit_codes import BAD_INPUT, FAILED
    from autotune.errors import AutotuneError, ConflictError, InfeasibleError, ProgramError, ServiceError

    if isinstance(error, AutotuneError):
        body = {"kind": error.kind, "message": error.message, "field": error.field, "remedy": error.remedy}
        text = str(error)
        code = FAILED if isinstance(error, InfeasibleError | ConflictError | ProgramError | ServiceError) else BAD_INPUT
    else:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        if type(error).__name__ == "NoArgsIsHelpError":  # `autotune` alone: the text is the help
            print(text, file=sys.stderr)
            return BAD_INPUT
        context = getattr(error, "ctx", None)
        remedy = f"`{context.command_path if context else 'autotune'} --help` shows the usage"
        body = {"kind": "usage", "message": text, "field": "", "remedy": remedy}
        text, code = f"{text.rstrip('.')}; {remedy}", BAD_INPUT
    if as_json:
        emit({"error": body})
    print(f"error: {text}", file=sys.stderr)
    return code
