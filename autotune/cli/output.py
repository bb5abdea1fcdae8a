"""Parts shared by all commands: common options, one JSON document or a table on stdout, and notes
and errors on stderr.

Placeholders are the values in a draft spec that people must still fill in; `autotune init` and
`autotune import` mark them with the comment `fill in`.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from shutil import get_terminal_size
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.exit_codes import BAD_INPUT, FAILED, UNAVAILABLE
from autotune.errors import (
    AutotuneError,
    ConflictError,
    InfeasibleError,
    ProgramError,
    ServiceError,
    ServiceUnavailableError,
    SpecError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from autotune.ports import DryRunLimits
    from autotune.report.terminal import Palette
    from autotune.spec import Study


JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document on stdout; everything else goes to stderr."
    ),
]


def dash_as_stdout(path: Path | None) -> Path | None:
    """Option callback: return None for `-`, which means standard output."""
    return None if path is not None and str(path) == "-" else path


def reject_dash(
    context: typer.Context, parameter: typer.CallbackParam, path: Path | None
) -> Path | None:
    """Parameter callback: raise `SpecError` for `-`, because this file cannot be standard
    output."""
    if path is not None and str(path) == "-" and not context.resilient_parsing:
        field = parameter.opts[-1] if parameter.param_type_name == "option" else str(parameter.name)
        raise SpecError(
            f"{field} must be a file name; `-` (standard output) is not allowed here",
            remedy="specify a path",
            field=field,
        )
    return path


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
        "--url",
        metavar="URL",
        help="Use the service at this address instead of a store. Default: AUTOTUNE_URL.",
    ),
]
VersionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--version",
        metavar="NAME=VERSION",
        help="Only measurements made with this version, e.g. torch=2.12 or driver=580. May be repeated.",
    ),
]
SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", help="Study spec: a YAML or JSON file, or - for standard input."
    ),
]
NoCheckOption = Annotated[
    bool,
    typer.Option(
        "--no-check",
        help="Skip the five-step check that a new program gets before the first trial.",
    ),
]
NoProfileOption = Annotated[
    bool,
    typer.Option(
        "--no-profile",
        help="Skip dry runs of your own model; memory then comes from earlier dry runs or from formulas.",
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        help="Also print what was excluded, where ranks ran, and why the winner is faster.",
    ),
]
StudyArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Study: id, prefix of the id, or name.")
]
OptionalStudyArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Study: id, prefix of the id, or name. Not needed with --in."
    ),
]
InOption = Annotated[
    Path | None,
    typer.Option(
        "--in",
        metavar="FOLDER",
        help="Read the results from a job's folder (`autotune tune SPEC --on slurm`) instead of a store.",
    ),
]


PIPE_WIDTH = 100_000
"""characters per line in a file or a pipe; above any line's length, so that nothing is wrapped or
cut"""


def consoles() -> tuple[Console, Console]:
    """Return the consoles of stdout and stderr. They print text without interpreting markup. In a
    file or a pipe, lines are not wrapped and tables are separated by tabs."""
    from rich.console import Console

    out, err = (Console(stderr=is_err, highlight=False, markup=False) for is_err in (False, True))
    for console in (out, err):
        if not console.is_terminal:
            console.width = PIPE_WIDTH
    return out, err


def line_width() -> int:
    """Return the width of a line on stdout, in characters."""
    return get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def palette_of(out: Console) -> Palette:
    """Return the palette for bars: blocks if the console has colors to distinguish them, otherwise
    letters."""
    from autotune.report.terminal import Palette

    return (
        Palette.of(sys.stdout) if out.color_system and not out.no_color else Palette(unicode=False)
    )


def bare_table() -> Table:
    """Return an empty table without borders. In a file or a pipe, tabs separate its columns."""
    from autotune.report.table_layout import TabTable

    return TabTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str] = ()
) -> None:
    """Print a table on stdout. `numbers`: heads of the columns to align right."""
    table = bare_table()
    for head in heads:
        table.add_column(head, justify="right" if head in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    consoles()[0].print(table)


def emit(document: Mapping[str, Any]) -> None:
    """Print one strict JSON document on stdout; NaN and infinity become null."""
    sys.stdout.write(json.dumps(strict(document), indent=2, allow_nan=False, default=str) + "\n")


def strict(value: Any) -> Any:
    """Return `value` for strict JSON: None for NaN and infinity, and Python's numbers for
    numpy's."""
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [strict(v) for v in value]
    if hasattr(value, "tolist"):
        return strict(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_text(path: Path, text: str, *, field: str, remedy: str = "") -> None:
    """Write a file and create its folder. `?` replaces lone surrogates, which logs of programs can
    contain. Raises `SpecError` if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror or error}", remedy=remedy, field=field
        ) from None


def note(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def note_changes() -> Callable[[str], None]:
    """Return a function like `note` that omits a line if it equals the line before."""
    printed: list[str] = []

    def note_if_new(text: str) -> None:
        if printed[-1:] != [text]:
            printed.append(text)
            note(text)

    return note_if_new


def report_error(error: Exception, *, as_json: bool) -> int:
    """Print an error on stderr, with `as_json` also as an error document on stdout, and return the
    exit code."""

    if isinstance(error, AutotuneError):
        body = error.document()
        text = _error_text(error)
        code = (
            FAILED
            if isinstance(error, InfeasibleError | ConflictError | ProgramError | ServiceError)
            else BAD_INPUT
        )
        code = (
            UNAVAILABLE
            if isinstance(error, StoreUnavailableError | ServiceUnavailableError)
            else code
        )
    else:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        if type(error).__name__ == "NoArgsIsHelpError":  # `autotune` alone: the text is the help
            print(text, file=sys.stderr)
            return BAD_INPUT
        context = getattr(error, "ctx", None)
        remedy = f"`{context.command_path if context else 'autotune'} --help` shows the usage"
        body = {"kind": "usage", "message": text, "field": "", "remedy": remedy}
        text, code = f"error: {_usage_message(text, remedy)}", BAD_INPUT
    if as_json:
        emit({"error": body})
    print(text, file=sys.stderr)
    return code


def _usage_message(text: str, remedy: str) -> str:
    """Return one sentence with the mistake in the command line and its remedy."""
    from autotune.spec.config import capitalized
    from autotune.spec.texts.validation import violated_rule

    # messages of older click releases
    text = re.sub(r"'[^']*' is not a valid integer( range)?\.$", "must be a whole number", text)
    text = violated_rule({"msg": text}).rstrip(".")
    text = re.sub(r"(\S+) is not in the range (?:(\S+)<=)?x(?:([<>]=)(\S+))?$", _range_rule, text)
    return f"{text} {capitalized(remedy)}" if text.endswith("?") else f"{text}; {remedy}"


def _range_rule(match: re.Match[str]) -> str:
    """Return the violated bound of a number's range, from click's message."""
    value, low, sign, other = match.groups()
    if low is not None and not float(value) >= float(low):
        sign, other = ">=", low
    return f"must be {'less' if sign == '<=' else 'greater'} than or equal to {float(other):g}"


def _error_text(error: AutotuneError) -> str:
    """Return all mistakes in an error, in the order of the spec, each with the lines of the spec
    that it concerns."""
    shown = []
    for mistake in error.by_line():
        excerpt = (
            indent(mistake.place.excerpt, "  ") + "\n"
            if mistake.place and mistake.place.excerpt
            else ""
        )
        shown.append(f"error: {mistake}" + (f"\n\n{excerpt}" if excerpt else ""))
    return "\n".join(shown).rstrip("\n")


_COMMENT = re.compile(r"#\s*fill in\b")
_KEY = re.compile(r"\s*(?:- )?([\w.-]+):")


def read_study(
    spec: str | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    base: Path | None = None,
    limits: DryRunLimits | None = None,
) -> tuple[Study, AbstractContextManager[None]]:
    """Return the study, and a context that adds positions in the spec to errors raised in it.
    `base`: folder for relative paths; default: the spec's folder, or the current folder for a
    mapping. `limits`: limits for the process that builds your own model."""
    from autotune import api
    from autotune.schema import folder_of, places_in

    document = api.read_document(spec)
    base = base or (folder_of(spec) if isinstance(spec, str) else Path.cwd())
    with _asking_for_values(spec):
        study = api.load_study(document, overrides=overrides, base=base, limits=limits)
    return study, _asking_for_values(spec, places_in(document, but=overrides or ()))


@contextmanager
def _asking_for_values(
    spec: str | Mapping[str, Any], places: AbstractContextManager[None] | None = None
) -> Iterator[None]:
    """Add the lines of placeholders to the remedy of errors in a spec that still has them, because
    an error about a placeholder is no error of the user's."""
    try:
        with places or nullcontext():
            yield
    except AutotuneError as error:
        if error.field and isinstance(spec, str) and (lines := _placeholder_lines(spec)):
            own = f"first enter your own values at {lines}"
            error.remedy = f"{error.remedy}; {own}" if error.remedy else own
        raise


def note_probe_off(study: Study) -> None:
    """Print a note if the probe is off, so that trials of the study's program are not observed."""
    from autotune.observing.watched import probe_off

    environment = {**os.environ, **study.trainer_options.get("env", {})}
    if study.trainer != "native" and (reason := probe_off(environment)):
        note(f"note: {reason}")


def note_placeholders(spec: str) -> None:
    """Print a note with the lines of the spec file that still have placeholders."""
    if lines := _placeholder_lines(spec):
        note(
            f"note: {spec} still has the comment `fill in` at {lines}, so the results are for a placeholder; enter your own value and delete the comment"
        )


def _placeholder_lines(spec: str) -> str:
    """Return the lines of the spec file that still have placeholders, as text. Standard input (`-`)
    and pipes are skipped, because they cannot be read twice."""
    path = Path(spec)
    if spec == "-" or not path.is_file():
        return ""
    unfilled = dict.fromkeys(placeholders(path.read_text(encoding="utf-8")))
    return ", ".join(f"line {number}{f' ({key})' if key else ''}" for number, key in unfilled)


def _line_after_comments(lines: Sequence[str], number: int) -> int:
    """Return the number of the first line after the comments that begin in line `number`, or
    `number` at the end of the text."""
    rest = range(number + 1, len(lines) + 1)
    return next(
        (value_line for value_line in rest if not lines[value_line - 1].lstrip().startswith("#")),
        number,
    )


def placeholders(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, key) of each value with the comment `fill in`, at the end of its
    line or on the line above. The key is empty for an entry of a list."""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if (comment := _COMMENT.search(line)) is None:
            continue
        is_above = not line[: comment.start()].strip()
        value_line = _line_after_comments(lines, number) if is_above else number
        key = _KEY.match(lines[value_line - 1])
        yield value_line, key[1] if key is not None else ""
