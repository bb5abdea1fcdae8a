"""A spec that came over the wire: read strictly, and confined to what this service lets strangers do.

What a spec may name here: runners and their harmless options, trainers, and data in the allowed folders. It cannot name a
program, a module, an address or an environment; paths of models and spaces are refused by `autotune.schema` already.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.schema.reading import check_size, parse_text
from autotune.service.error_responses import RefusalError
from autotune.service.options import ServiceOptions
from autotune.spec import Study
from autotune.spec.checks import nearest

JSON, YAML = "application/json", "application/yaml"


def read_body(body: bytes, content_type: str) -> dict[str, Any]:
    """The document of a request. Raises `RefusalError` for another media type, `SpecError` for what is no mapping in it."""
    media = content_type.partition(";")[0].strip().lower()
    if media not in (JSON, YAML):
        raise RefusalError(415, "media_type", f"a spec comes as {JSON} or {YAML}, not as {media[:80] or 'nothing'!r}")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError("the request is not UTF-8 text") from None
    if media == JSON:
        return _strict_json(text)
    return parse_text(text, where="the request", what="study spec")


def confined(document: dict[str, Any], options: ServiceOptions) -> Study:
    """The study of the document. Raises `SpecError` (or another error of the service) that names the field."""
    from autotune.api import load_study

    study = load_study(document)
    _check_runner(study, options)
    if study.trainer not in options.trainers:
        raise SpecError(
            f"this service does not run the trainer {study.trainer!r}",
            remedy=f"it runs {', '.join(sorted(options.trainers))}; autotune tune runs any",
            field="trainer",
        )
    return study if study.data is None else replace(study, data=str(_data(study.data, options)))


def _check_runner(study: Study, options: ServiceOptions) -> None:
    if study.runner not in options.runners:
        raise SpecError(
            f"this service does not run studies on the runner {study.runner!r}",
            remedy=f"choose one of {', '.join(sorted(options.runners))}",
            field="runner",
        )
    allowed = options.runners[study.runner]
    for name, value in study.runner_options.items():
        if name not in allowed:
            raise SpecError(
                f"this service does not let a spec set the option {name!r} of the runner {study.runner!r}",
                remedy=nearest(name, allowed) or f"options: {', '.join(sorted(allowed)) or 'none'}",
                field=f"runner.{name}",
            )
        plain = isinstance(value, int | float | list | dict) or (name == "device" and isinstance(value, str))
        if not plain:
            raise SpecError(f"must be a number, but is {value!r:.80}", field=f"runner.{name}")


def _data(text: str, options: ServiceOptions) -> Path:
    """The file, links followed, when it lies in an allowed folder. The answer is the same whether it is elsewhere or nowhere."""
    roots = [root.resolve() for root in options.data_roots]
    refused = SpecError(
        "the data must be a file in one of this service's data folders",
        remedy=f"they are {', '.join(map(str, roots))}"
        if roots
        else "it has none (autotune serve --data-root FOLDER); leave `data` out for the text that ships",
        field="data",
    )
    if "\0" in text:
        raise refused
    for root in roots:
        try:
            path = (root / text).resolve()
            if path.is_relative_to(root) and path.is_file():
                return path
        except (OSError, RuntimeError, ValueError):  # too long, a loop of links
            continue
    raise refused


def _strict_json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except SpecError:
        raise
    except RecursionError:
        raise SpecError("the request is nested too deeply") from None
    except ValueError as error:
        raise SpecError(f"the request is no JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise SpecError(f"a spec must hold keys and values, but this is a {type(document).__name__}")
    check_size(document)
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise SpecError("a key is given twice")
    return document


def _no_constant(word: str) -> Any:
    raise SpecError(f"{word} is no number in JSON")
