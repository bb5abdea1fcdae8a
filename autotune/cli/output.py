"""What every command says the same way: one JSON document or a table on stdout, notes and errors on stderr."""

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
    bool, typer.Option("--json", help="Print one JSON document on stdout, everything else on stderr.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Results database: a file or an SQLAlchemy URL. Default: AUTOTUNE_STORE, else a file in the user's data folder.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Ask a running service instead of the store. Default: AUTOTUNE_URL."),
]
SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="Study spec: a YAML or JSON file, or - for standard input.")
]
StudyArgument = Annotated[str, typer.Argument(metavar="ID", help="Study: its id, the start of the id, or its name.")]


PIPE_WIDTH = 200
"""columns of a table that no terminal limits"""


def consoles() -> tuple[Console, Console]:
    """Console of stdout and console of stderr; a file or a pipe has room for whole tables."""
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
    """Prints one strict JSON document: no NaN, no infinity (they become null)."""
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
    """A line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def report_error(error: Exception, *, as_json: bool) -> int:
    """Prints an error as law, values and remedy (or as the JSON envelope) and returns the exit code."""
    from autotune.cli.exit_codes import BAD_INPUT, FAILED
    from autotune.errors import AutotuneError, ConflictError, InfeasibleError, ServiceError

    if isinstance(error, AutotuneError):
        envelope = {"kind": error.kind, "message": error.message, "field": error.field, "remedy": error.remedy}
        text = str(error)
        code = FAILED if isinstance(error, InfeasibleError | ConflictError | ServiceError) else BAD_INPUT
    else:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        if type(error).__name__ == "NoArgsIsHelpError":  # `autotune` alone: the text is the help
            print(text, file=sys.stderr)
            return BAD_INPUT
        envelope = {"kind": "usage", "message": text, "field": "", "remedy": "see autotune --help"}
        code = BAD_INPUT
    if as_json:
        emit({"error": envelope})
    print(f"error: {text}", file=sys.stderr)
    return code
