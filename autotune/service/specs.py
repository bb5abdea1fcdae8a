"""Submitted specs: read strictly, and restricted to what this service allows.

A submitted spec may name allowed runners with harmless options, allowed trainers, and data in the allowed folders. Of a trainer's options it may
set what `autotune.service.trainer_access` allows: programs only with the scope `run`, an environment never. `autotune.schema` refuses paths of models
and spaces, and models that a caller's code builds, before that.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.schema import ReadDocument, places_in
from autotune.schema.reading import check_size, once, parse_text
from autotune.schema.source_text import SourceText
from autotune.service.allowed_folders import find_within
from autotune.service.error_responses import RefusalError
from autotune.service.options import ServiceOptions
from autotune.service.trainer_access import confined_options
from autotune.spec import Study
from autotune.spec.checks import nearest

JSON, YAML = "application/json", "application/yaml"
MOST_YAML_BYTES = 1 << 16
"""size of the largest spec in YAML: its parser takes seconds for larger ones"""


def read_body(body: bytes, content_type: str) -> dict[str, Any]:
    """The document in a request body. Raises `RefusalError` for another media type, `SpecError` for a body that is not a mapping."""
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
    return parse_text(text, where="the request", what="study spec", most_yaml_bytes=MOST_YAML_BYTES)


def confined(document: dict[str, Any], options: ServiceOptions, *, may_run: bool = False) -> Study:
    """The study of the document, if this service allows it. `may_run`: whether the caller may have programs run (scope run).

    Raises `RefusalError` for what the caller's scope does not include, and `SpecError` (or another `AutotuneError`) that names the field.
    """
    from autotune.api import load_study

    study = load_study(document)
    with places_in(document):
        _check_runner(study, options)
        if study.trainer not in options.trainers:
            raise SpecError(
                f"this service does not allow the trainer {study.trainer!r}",
                remedy=f"choose one of {', '.join(sorted(options.trainers))}; on your own machine `autotune tune` runs any trainer",
                field="trainer",
            )
        study = replace(study, trainer_options=confined_options(study, options, may_run=may_run))
        return study if study.data is None else replace(study, data=str(_data(study.data, options)))


def _check_runner(study: Study, options: ServiceOptions) -> None:
    if study.runner not in options.runners:
        raise SpecError(
            f"this service does not allow the runner {study.runner!r}",
            remedy=f"choose one of {', '.join(sorted(options.runners))}",
            field="runner",
        )
    allowed = options.runners[study.runner]
    for name, value in study.runner_options.items():
        if name not in allowed:
            raise SpecError(
                f"this service does not allow specs to set the option {name!r} of the runner {study.runner!r}",
                remedy=nearest(name, allowed) or f"allowed options: {', '.join(sorted(allowed)) or 'none'}",
                field=f"runner.{name}",
            )
        is_plain = isinstance(value, int | float | list | dict) or (name == "device" and isinstance(value, str))
        if not is_plain:
            raise SpecError(f"the option must be a number, but is {value!r:.80}", field=f"runner.{name}")


def _data(text: str, options: ServiceOptions) -> Path:
    """The file, with links resolved, if it lies in an allowed folder. The error is the same for a file elsewhere and for one that does not exist."""
    path = find_within(text, options.data_roots)
    if path is not None and path.is_file():
        return path
    roots = [str(root.resolve()) for root in options.data_roots]
    raise SpecError(
        "the data must be a file in one of this service's data folders",
        remedy=f"the folders are {', '.join(roots)}"
        if roots
        else "it has no data folders (autotune serve --data-root FOLDER adds one); leave `data` out to use the text that ships with autotune",
        field="data",
    )


def _strict_json(text: str) -> ReadDocument:
    source = SourceText(text=text)
    try:
        document = json.loads(text, object_pairs_hook=once, parse_constant=_no_constant)
    except SpecError:
        raise
    except RecursionError:
        raise SpecError("the request is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = source.place(error.lineno, error.colno)
        raise SpecError(f"the request is not valid JSON: {error.msg}", place=place) from None
    except ValueError as error:
        raise SpecError(f"the request is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise SpecError(f"a spec must be a mapping of keys to values, but this is a {type(document).__name__}")
    check_size(document)
    return ReadDocument(document, source)


def _no_constant(word: str) -> Any:
    raise SpecError(f"JSON has no number {word}")
