"""Submitted specs: strict reading, and restriction to what this service allows.

A submitted spec may use allowed runners with harmless options, allowed trainers, and data in the
service's data folders. `autotune.schema` already rejects paths of models and spaces, and models
that a caller's code builds.

Files must lie in an allowed folder once all links are followed. A rejected path gets the same error
whether it lies elsewhere or does not exist, so that specs cannot be used to search for files. Paths
are stored with links resolved, so that links changed later have no effect.

Each trainer option declares its `Reach`, which decides who may set it:

    nothing                    numbers, flags and plain words       scope submit
    file, files                within a data folder (--data-root)   scope submit
    program                    within a program folder (--program-root)   scope run
    argument, address          unchanged                            scope run, on a service with a program folder
    environment, undeclared    rejected

The `command` trainer runs any program and is never allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.schema import ReadDocument, places_in
from autotune.schema.reading import check_size, parse_text, plain_problem
from autotune.schema.source_text import SourceText
from autotune.service.http.error_responses import RefusalError
from autotune.service.options import ServiceOptions
from autotune.spec import Study
from autotune.spec.checks import nearest
from autotune.spec.texts.json_text import RepeatedKeyError, read_json
from autotune.trainers import Option, trainer
from autotune.trainers.base.trainer_option import PYTHON, Reach

JSON, YAML = "application/json", "application/yaml"
MAX_YAML_BYTES = 1 << 16
"""largest spec in YAML, bytes; parsing larger ones takes seconds"""


def read_body(body: bytes, content_type: str) -> dict[str, Any]:
    """Return the document in a request body. Raises `RefusalError` for another media type, and
    `SpecError` for a body that is not a mapping."""
    media = content_type.partition(";")[0].strip().lower()
    if media not in (JSON, YAML):
        raise RefusalError(
            415,
            "media_type",
            f"a spec must be sent as {JSON} or {YAML}, but the Content-Type is {media[:80]!r}",
            remedy=f"set the header Content-Type: {JSON}",
        )
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError("the request is not UTF-8 text") from None
    if media == JSON:
        return _strict_json(text)
    return parse_text(text, where="the request", what="study spec", most_yaml_bytes=MAX_YAML_BYTES)


def allowed_study(
    document: dict[str, Any],
    options: ServiceOptions,
    *,
    may_run: bool = False,
    only_plans: bool = False,
) -> Study:
    """Return the document's study, if this service allows it. `may_run`: whether the caller may
    start programs (scope run). `only_plans`: no trial will run and no data be read, so any runner
    and data are allowed.

    Raises `RefusalError` if the caller's scope is insufficient, and `SpecError` or another
    `AutotuneError` with the field for other reasons.
    """
    from autotune.api import load_study

    study = load_study(document)
    with places_in(document):
        if not only_plans:
            _check_runner(study, options)
        if study.trainer not in options.trainers:
            raise SpecError(
                f"this service does not allow the {study.trainer!r} trainer",
                remedy=f"choose one of {', '.join(sorted(options.trainers))}; on your own machine `autotune tune` runs any trainer",
                field="trainer",
            )
        study = replace(
            study, trainer_options=allowed_trainer_options(study, options, may_run=may_run)
        )
        if study.data is None or only_plans:
            return study
        return replace(study, data=str(_data_file(study.data, options)))


def _check_runner(study: Study, options: ServiceOptions) -> None:
    if study.runner not in options.runners:
        raise SpecError(
            f"this service does not allow the {study.runner!r} runner",
            remedy=f"choose one of {', '.join(sorted(options.runners))}",
            field="runner",
        )
    allowed = options.runners[study.runner]
    for name, value in study.runner_options.items():
        if name not in allowed:
            raise SpecError(
                f"this service does not allow specs to set the {study.runner!r} runner's option {name!r}",
                remedy=nearest(name, allowed)
                or f"allowed options: {', '.join(sorted(allowed)) or 'none'}",
                field=f"runner.{name}",
            )
        is_plain = isinstance(value, int | float | list | dict) or (
            name == "device" and isinstance(value, str)
        )
        if not is_plain:
            raise SpecError(
                f"the option must be a number, but is {value!r:.80}", field=f"runner.{name}"
            )


def _data_file(text: str, options: ServiceOptions) -> Path:
    """Return the data file with links resolved, if it lies in an allowed folder. Raises the same
    `SpecError` for a file elsewhere and for a missing file."""
    path = find_within(text, options.data_roots)
    if path is not None and path.is_file():
        return path
    roots = [str(root.resolve()) for root in options.data_roots]
    raise SpecError(
        "the data must be a file in one of this service's data folders",
        remedy=f"the folders are {', '.join(roots)}"
        if roots
        else "the service has no data folders (autotune serve --data-root FOLDER adds one); omit `data` to use the bundled text",
        field="data",
    )


def _strict_json(text: str) -> ReadDocument:
    source = SourceText(text=text)
    try:
        document = read_json(text, parse_constant=_reject_constant)
    except SpecError:
        raise
    except RecursionError:
        raise SpecError("the request is nested too deeply") from None
    except RepeatedKeyError as error:
        raise SpecError(str(error)) from None
    except json.JSONDecodeError as error:
        place = source.place(error.lineno, error.colno)
        raise SpecError(f"the request is not valid JSON: {error.msg}", place=place) from None
    except ValueError as error:
        raise SpecError(f"the request is not valid JSON: {plain_problem(error)}") from None
    if not isinstance(document, dict):
        raise SpecError(
            f"a spec must be a mapping of keys to values, but this is {text.strip()[:40]}"
        )
    read = ReadDocument(document, source)
    with places_in(read):
        check_size(read)
    return read


def _reject_constant(word: str) -> Any:
    raise SpecError(f"JSON has no number {word}")


def find_within(
    text: str, roots: Iterable[Path], *, partial: bool = False, as_named: bool = False
) -> Path | None:
    """Return the file or folder `text`, relative to one of the folders or absolute; None if it is
    in no allowed folder.

    `partial`: `text` may also be the prefix of file names (`corpus` for `corpus.bin` and
    `corpus.idx`). `as_named`: do not follow a link in the last part of the path, because the
    interpreter of a virtual environment is a link to another folder.
    """
    if "\0" in text:
        return None
    for root in roots:
        try:
            base = root.resolve()
            joined = base / text
            path = (
                joined.parent.resolve() / joined.name
                if as_named and joined.name != ".."
                else joined.resolve()
            )
            if not path.is_relative_to(base):
                continue
            is_there = path.is_file() or path.is_dir()
            if is_there or (partial and any(path.parent.glob(_literal(path.name) + "*"))):
                return path
        except (
            OSError,
            RuntimeError,
            ValueError,
        ):
            # the path is too long, or its links form a loop
            continue
    return None


def _literal(name: str) -> str:
    """Return a glob pattern that only matches the name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")
_NEEDS_RUN = {
    Reach.PROGRAM: "names a program",
    Reach.ARGUMENT: "is passed on to a program unchanged",
    Reach.ADDRESS: "names an address",
}


def allowed_trainer_options(
    study: Study, options: ServiceOptions, *, may_run: bool
) -> dict[str, Any]:
    """Return the study's trainer options with resolved paths. `may_run`: whether the caller may
    start programs (scope run).

    Raises `RefusalError` (403) for options that need the scope run, and `SpecError` for other
    reasons; both name the field.
    """
    options_by_name = {option.name: option for option in trainer(study.trainer).options}
    allowed = dict(study.trainer_options)
    for name, value in study.trainer_options.items():
        option = options_by_name[name]
        if value != option.default:
            allowed[name] = _allowed_value(option, value, options, may_run)
    return allowed


def _allowed_value(option: Option, value: Any, options: ServiceOptions, may_run: bool) -> Any:
    field = f"trainer.{option.name}"
    match option.reach:
        case Reach.NOTHING:
            if any(not _WORD.fullmatch(text) for text in _strings(value)):
                raise SpecError(
                    f"{option.name} must be a plain word, but is {value!r:.80}", field=field
                )
            return value
        case Reach.FILE | Reach.FILES:
            words = value.split() if option.reach is Reach.FILES else [value]
            return " ".join(_file(word, option, options) for word in words)
        case Reach.PROGRAM | Reach.ARGUMENT | Reach.ADDRESS:
            _check_may_run(option, options, may_run)
            return _program(str(value), option, options) if option.reach is Reach.PROGRAM else value
    reason = (
        "sets variables of the environment"
        if option.reach
        else "does not declare whether it refers to files or programs"
    )
    raise SpecError(
        f"a service does not allow the option {option.name}, because it {reason}",
        remedy="omit the option, or run the study on your own machine with `autotune tune`",
        field=field,
    )


def _check_may_run(option: Option, options: ServiceOptions, may_run: bool) -> None:
    assert option.reach is not None
    field = f"trainer.{option.name}"
    why = f"the option {option.name} {_NEEDS_RUN[option.reach]}"
    if not options.program_roots:
        raise SpecError(
            f"{why}, and this service does not run callers' programs",
            remedy="ask whoever runs the service for --program-root FOLDER, or omit the option",
            field=field,
        )
    if not may_run:
        raise RefusalError(
            403,
            "forbidden",
            f"{why}, which needs a token with the `run` scope",
            remedy="ask whoever runs the service for such a token (`autotune token create --owner NAME --scope run`), or omit the option",
            field=field,
        )


def _file(text: str, option: Option, options: ServiceOptions) -> str:
    if option.reach is Reach.FILES and _NUMBER.fullmatch(text):
        return text
    if path := find_within(text, options.data_roots, partial=True):
        return str(path)
    raise SpecError(
        f"{option.name} must be a file in one of this service's data folders",
        remedy=_folders_remedy("--data-root", options.data_roots),
        field=f"trainer.{option.name}",
    )


def _program(text: str, option: Option, options: ServiceOptions) -> str:
    if path := find_within(text, options.program_roots, as_named=option.name == PYTHON.name):
        return str(path)
    raise SpecError(
        f"{option.name} must be in one of this service's program folders",
        remedy=_folders_remedy("--program-root", options.program_roots),
        field=f"trainer.{option.name}",
    )


def _folders_remedy(flag: str, roots: Sequence[Path]) -> str:
    if roots:
        return f"the folders are {', '.join(str(root.resolve()) for root in roots)}"
    return (
        f"the service has no such folder (autotune serve {flag} FOLDER adds one); omit the option"
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield all nonempty strings in a value, including keys."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
