"""What trainer options of a submitted spec may name: each option declares its `Reach`, and what is not declared is refused.

    nothing                    numbers, flags and plain words       scope submit
    file, files                within a data folder (--data-root)   scope submit
    program                    within a program folder (--program-root)   scope run
    argument, address          as they are                          scope run, on a service with a program folder
    environment, undeclared    refused

The trainer `command` runs any program and is never allowed. Paths are stored resolved, so that a link that is changed later leads nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.service.allowed_folders import find_within
from autotune.service.error_responses import RefusalError
from autotune.service.options import ServiceOptions
from autotune.spec import Study
from autotune.trainers import Option, trainer
from autotune.trainers.trainer_option import PYTHON, Reach

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")
_NEEDS_RUN = {
    Reach.PROGRAM: "names a program",
    Reach.ARGUMENT: "is passed on to a program as it is",
    Reach.ADDRESS: "names an address",
}


def confined_options(study: Study, options: ServiceOptions, *, may_run: bool) -> dict[str, Any]:
    """The study's trainer options with resolved paths. `may_run`: whether the caller may start programs (scope run).

    Raises `RefusalError` (403) for what needs the scope run, `SpecError` for the rest; both name the field.
    """
    known = {option.name: option for option in trainer(study.trainer).options}
    found = dict(study.trainer_options)
    for name, value in study.trainer_options.items():
        option = known[name]
        if value != option.default:
            found[name] = _confined(option, value, options, may_run)
    return found


def _confined(option: Option, value: Any, options: ServiceOptions, may_run: bool) -> Any:
    field = f"trainer.{option.name}"
    match option.reach:
        case Reach.NOTHING:
            if any(not _WORD.fullmatch(text) for text in _texts(value)):
                raise SpecError(f"{option.name} must be a plain word, but is {value!r:.80}", field=field)
            return value
        case Reach.FILE | Reach.FILES:
            words = value.split() if option.reach is Reach.FILES else [value]
            return " ".join(_file(word, option, options) for word in words)
        case Reach.PROGRAM | Reach.ARGUMENT | Reach.ADDRESS:
            _check_may_run(option, options, may_run)
            return _program(str(value), option, options) if option.reach is Reach.PROGRAM else value
    what = "sets variables of the environment" if option.reach else "does not declare what it names"
    raise SpecError(
        f"a service does not allow the option {option.name}, because it {what}",
        remedy="leave it out, or run the study on your own machine with `autotune tune`",
        field=field,
    )


def _check_may_run(option: Option, options: ServiceOptions, may_run: bool) -> None:
    assert option.reach is not None
    field = f"trainer.{option.name}"
    why = f"the option {option.name} {_NEEDS_RUN[option.reach]}"
    if not options.program_roots:
        raise SpecError(
            f"{why}, and this service runs no programs of its callers",
            remedy="ask whoever runs the service for --program-root FOLDER, or leave the option out",
            field=field,
        )
    if not may_run:
        raise RefusalError(
            403,
            "forbidden",
            f"{why}, which needs a token of scope run",
            remedy="ask whoever runs the service for one (`autotune token create --owner NAME --scope run`), or leave the option out",
            field=field,
        )


def _file(text: str, option: Option, options: ServiceOptions) -> str:
    if option.reach is Reach.FILES and _NUMBER.fullmatch(text):
        return text
    if path := find_within(text, options.data_roots, partial=True):
        return str(path)
    raise SpecError(
        f"{option.name} must name files in one of this service's data folders",
        remedy=_folders_remedy("--data-root", options.data_roots),
        field=f"trainer.{option.name}",
    )


def _program(text: str, option: Option, options: ServiceOptions) -> str:
    if path := find_within(text, options.program_roots, as_named=option.name == PYTHON.name):
        return str(path)
    raise SpecError(
        f"{option.name} must lie in one of this service's program folders",
        remedy=_folders_remedy("--program-root", options.program_roots),
        field=f"trainer.{option.name}",
    )


def _folders_remedy(flag: str, roots: Sequence[Path]) -> str:
    if roots:
        return f"the folders are {', '.join(str(root.resolve()) for root in roots)}"
    return f"it has none (autotune serve {flag} FOLDER adds one); leave the option out"


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value, keys included, except empty ones."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
