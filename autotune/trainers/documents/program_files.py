"""Configuration files of a program, rendered from templates for each config: JSON, YAML or TOML by
the file's suffix.

    files: {train.json: {batch: "{micro_batch_size}", name: "run-{tp}", compile: "{compile}"}}

A template is the file's contents with placeholders in its texts. A text that is a single
placeholder becomes the value itself, so that numbers and flags keep their type; any other text
stays text. Keys have no placeholders. A value that `values` maps to null is null in JSON and YAML;
in TOML, which has no null, its key is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.documents.file_formats import to_json, to_toml, to_yaml
from autotune.trainers.documents.placeholders import Expression, Values, check_names, parse
from autotune.trainers.launch_files import check_file_name

WRITERS = {".json": to_json, ".yaml": to_yaml, ".yml": to_yaml, ".toml": to_toml}
"""functions that write a file, by suffix"""


def render(templates: Mapping[str, Any], values: Values) -> dict[str, str]:
    """The text of each file."""
    return {
        name: WRITERS[_ending(name)](_rendered(template, values))
        for name, template in templates.items()
    }


def expressions(templates: Mapping[str, Any]) -> Iterator[Expression]:
    """All placeholders in the files."""
    for template in templates.values():
        for text in _texts(template):
            yield from parse(text).expressions


def check_templates(templates: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises `SpecError` for a file that cannot be written, an unknown placeholder, or a
    placeholder without quotes."""
    for name, template in templates.items():
        where = f"trainer.files.{name}"
        check_file_name(name)
        if _ending(name) not in WRITERS:
            raise SpecError(
                f"a rendered file must be JSON, YAML or TOML, but this one is named {name!r}",
                remedy=f"use one of the extensions {' '.join(WRITERS)}",
                field=where,
            )
        if not isinstance(template, Mapping):
            raise SpecError(
                f"a template must be a mapping of keys to values here, but is {template!r:.80}",
                remedy="a template's path is only read if the spec is a file; otherwise write the template inline",
                field=where,
            )
        _refuse_bare(template, known, where)
        for text in _texts(template):
            try:
                for expression in parse(text).expressions:
                    check_names(expression, known)
            except SpecError as error:
                raise SpecError(error.message, remedy=error.remedy, field=where) from None


def _ending(name: str) -> str:
    return PurePosixPath(name).suffix


def _rendered(node: Any, values: Values) -> Any:
    if isinstance(node, Mapping):
        return {key: _rendered(value, values) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_rendered(value, values) for value in node]
    return values.typed(node) if isinstance(node, str) else node


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping | list | tuple):
        for inner in node.values() if isinstance(node, Mapping) else node:
            yield from _texts(inner)


def _refuse_bare(node: Any, known: frozenset[str], where: str) -> None:
    """Raises `SpecError` for a placeholder without quotes: YAML parses `tp: {tp}` as a mapping with
    the key tp and no value."""
    if isinstance(node, Mapping):
        if len(node) == 1 and (name := next(iter(node))) in known and node[name] is None:
            raise SpecError(
                f"the placeholder {{{name}}} has no quotes",
                remedy=f'write "{{{name}}}"; the inserted value keeps its type',
                field=where,
            )
        for inner in node.values():
            _refuse_bare(inner, known, where)
    elif isinstance(node, list | tuple):
        for inner in node:
            _refuse_bare(inner, known, where)
