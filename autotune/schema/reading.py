"""Read a file or standard input as a plain document: mappings, lists, text, numbers, true, false,
null.

JSON is read by the json module, YAML by the safe loader. Limits make hostile documents cheap: the
size in bytes, the open brackets, the depth, and the number of nodes with aliases expanded, because
a few lines of aliases can expand to billions of nodes.

PyYAML's errors name tokens of its scanner (`expected <block end>, but found '<scalar>'`). They are
replaced by messages about the usual mistakes: a tab, inconsistent indentation, a bracket or quote
that is not closed, a colon in plain text.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.schema.source_text import (
    MAX_BRACKETS,
    ReadDocument,
    SourceText,
    open_brackets,
    places_in,
)
from autotune.spec.checks import nearest_file
from autotune.spec.texts.json_text import RepeatedKeyError, read_json

MAX_BYTES = 1 << 18
MAX_NODES = 50_000
MAX_DEPTH = 20


def read_document(source: str | Path, *, what: str, built_in: Collection[str] = ()) -> ReadDocument:
    """Return the mapping in a file. `what`: kind of document, for errors; `built_in`: names that
    the caller accepts instead of a path, for errors. Raises `SpecError`."""
    if str(source) == "-":
        return parse_text(
            sys.stdin.read(MAX_BYTES + 1), where="standard input", what=what, file="standard input"
        )
    path = Path(source)
    try:
        if not path.is_file():
            raise SpecError(
                f"the {what} {str(source)!r} "
                + ("is not a file" if path.exists() else "does not exist"),
                remedy=nearest_file(path, built_in)
                or "pass the path of a YAML or JSON file, or - for standard input"
                + (f", or a built-in name: {', '.join(built_in)}" if built_in else ""),
            )
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        return parse_text(content.decode("utf-8"), where=str(source), what=what, file=str(source))
    except UnicodeDecodeError:
        raise SpecError(
            f"the {what} {str(source)!r} is not UTF-8 text",
            remedy="pass a YAML or JSON file, saved as UTF-8",
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SpecError(f"the {what} {str(source)!r} cannot be read: {reason}") from None


def _kind(document: Any) -> str:
    """Return the kind of a document that is not a mapping, for errors."""
    if document is None:
        return "empty"
    if isinstance(document, list):
        return "a list"
    return "text" if isinstance(document, str) else "one value"


def parse_text(
    text: str, *, where: str, what: str, file: str = "", most_yaml_bytes: int = MAX_BYTES
) -> ReadDocument:
    """Return the mapping in a YAML or JSON text. `where`: the text's source, for errors; `file`:
    its name next to the lines that errors show. Raises `SpecError`."""
    import yaml

    size = len(text.encode("utf-8", errors="replace"))
    if size > MAX_BYTES:
        raise SpecError(f"the {what} in {where} is larger than {MAX_BYTES >> 10} KiB")
    source = SourceText(text=text, file=file)
    try:
        document = _json(text) if text.lstrip().startswith("{") else None
        if document is None:
            if size > most_yaml_bytes:
                raise SpecError(
                    f"a {what} in YAML may have at most {most_yaml_bytes >> 10} KiB here, but this one has {size >> 10}",
                    remedy="send JSON, which is much faster to read",
                )
            if open_brackets(text) > MAX_BRACKETS:
                raise SpecError(f"the {what} in {where} is nested too deeply")
            document = yaml.load(text, Loader=_loader())
    except SpecError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise _yaml_mistake(error, source, what=what) from None
    if not isinstance(document, dict):
        raise SpecError(
            f"the {what} in {where} must be a mapping of keys to values, but is {_kind(document)}",
            remedy="write `key: value` on each line, with a space after the colon",
        )
    read = ReadDocument(document, source)
    with places_in(read):
        check_size(read)
    return read


def check_size(document: Mapping[str, Any]) -> None:
    """Raise `SpecError` if the document is too deep, too large with aliases expanded, or has values
    that JSON cannot represent."""
    left = MAX_NODES
    stack: list[tuple[Any, int, Any]] = [(document, 0, ())]
    while stack:
        node, depth, place = stack.pop()
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise SpecError(
                f"a spec may have at most {MAX_NODES:,} values, nested {MAX_DEPTH} deep, but this one has more"
            )
        if node is None or isinstance(node, _PLAIN):  # first, because most values are plain
            if why := _why_not_json(node):
                raise SpecError(why, field=_field(place))
        elif isinstance(node, Mapping):
            stack.extend((key, depth + 1, place) for key in node)
            stack.extend((value, depth + 1, (place, key)) for key, value in node.items())
        elif isinstance(node, list | tuple):
            stack.extend((value, depth + 1, (place, index)) for index, value in enumerate(node))
        else:
            raise SpecError(
                "a spec may contain text, numbers, true, false and null, but a value is a "
                f"{type(node).__name__}: {str(node)[:40]!r}",
                remedy="put quotes around the value if it is text",
                field=_field(place),
            )


_PLAIN = (str, int, float)
_SURROGATE = re.compile("[\ud800-\udfff]")


def _why_not_json(node: str | float | None) -> str:
    """Return why JSON cannot represent a plain value; empty if it can."""
    if isinstance(node, str):
        is_valid = node.isascii() or not _SURROGATE.search(node)
        return (
            ""
            if is_valid
            else f"a spec's text must be Unicode, but {node[:40]!a} contains an unpaired surrogate"
        )
    if isinstance(node, int):
        return (
            ""
            if abs(node) < 1 << 63
            else "a spec's whole numbers must be below 2^63, but one is larger"
        )
    if isinstance(node, float) and not math.isfinite(node):
        return f"a spec's numbers must be finite, but one is {node}"
    return ""


def _field(place: Any) -> str:
    """Return the dotted name of a place, which is a pair (parent's place, key)."""
    parts: list[str] = []
    while place:
        place, key = place
        parts.insert(0, str(key)[:40])
    return ".".join(parts)


def _json(text: str) -> Any:
    """Return the JSON document; None if it is not JSON, because a YAML flow mapping also begins
    with a brace. Raises `SpecError` for a repeated key."""
    try:
        return read_json(text)
    except RepeatedKeyError as error:
        raise SpecError(str(error)) from None
    except json.JSONDecodeError:
        return None


def _loader() -> Any:
    """Return PyYAML's safe loader, which here also rejects repeated keys, where YAML uses the last
    one."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"the key {key.value!r} is given twice", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    def whole_number(loader: Loader, node: yaml.ScalarNode) -> Any:
        """Return the number, or text for 1:30 and 0100, which YAML 1.1 reads in base 60 and base 8.
        Numeric keys reject text."""
        is_other_base = ":" in node.value or re.fullmatch(r"[-+]?0[0-9_]+", node.value)
        return node.value if is_other_base else loader.construct_yaml_int(node)

    Loader.add_constructor("tag:yaml.org,2002:int", whole_number)
    return Loader


_MESSAGES: tuple[tuple[str, str, str], ...] = (
    (r"character '\\t'", "YAML does not allow tabs for indentation", "replace the tab with spaces"),
    (
        r"mapping values are not allowed",
        "a key and its colon cannot begin here",
        "check the indentation of this line and the one above; quote text that contains a colon and a space",
    ),
    (
        r"expected <block end>|expected the node content|expected <document start>",
        "this line does not match the lines above",
        "indent the keys of a mapping equally, and begin each list entry with `- `",
    ),
    (
        r"expected ',' or '\]'",
        "the list that begins on line {begin} is not closed, or lacks a comma",
        "put `,` between the entries and `]` after the last entry",
    ),
    (
        r"expected ',' or '\}'",
        "the braces that open on line {begin} are not closed, or lack a comma",
        "put `,` between the entries and `}}` after them",
    ),
    (
        r"could not find expected ':'",
        "the key that begins on line {begin} has no colon",
        "write `key: value`, with a space after the colon",
    ),
    (
        r"unexpected end of stream",
        "the quote that opens on line {begin} is not closed",
        "close the quote on the same line",
    ),
    (
        r"unknown escape character",
        "a backslash in double quotes begins an escape that YAML does not recognize",
        "use single quotes",
    ),
    (
        r"character '.' that cannot start any token",
        "an unquoted value cannot begin with this character",
        "put quotes around the value",
    ),
    (
        r"but found another document",
        "`---` begins a second document",
        "write one document per file",
    ),
    (
        r"found undefined alias",
        "`*` begins the name of an anchor, but there is no anchor with this name",
        "put quotes around the text",
    ),
)
"""(pattern of PyYAML's message, our message, remedy); the first match is used"""


def plain_problem(error: Exception) -> str:
    """Return a parser's message in at most 200 characters. For long numbers it is replaced, because
    Python's remedy is for programmers."""
    message = " ".join(str(error).split())[:200]
    is_long = "integer string conversion" in message
    return "a whole number has too many digits" if is_long else message


def _yaml_mistake(error: Exception, source: SourceText, *, what: str) -> SpecError:
    """Return the parser's error as a `SpecError`, with its place if the parser reports one."""
    if isinstance(error, RecursionError):
        return SpecError(f"the {what}{_named(source)} is not YAML: it is nested too deeply")
    mark: Any = getattr(error, "problem_mark", None)
    begin: Any = getattr(error, "context_mark", None) or mark
    problem = str(getattr(error, "problem", None) or "")
    if mark is None or not problem:
        return SpecError(f"the {what}{_named(source)} is not YAML: {plain_problem(error)}")
    message, remedy = problem, ""
    for pattern, text, what_to_do in _MESSAGES:
        if re.search(pattern, problem):
            message, remedy = text.format(begin=begin.line + 1), what_to_do.format()
            break
    lines = source.text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "mapping values" in problem and (glued := re.match(r"\s*[\w.-]+:(?=[^\s:])", line)):
        message, remedy = "a colon needs a space after it", f"write `{glued[0].strip()} ...`"
        return SpecError(
            f"the {what} is not YAML: {message}",
            remedy=remedy,
            place=source.place(mark.line + 1, glued.end()),
        )
    place = source.place(mark.line + 1, mark.column + 1)
    return SpecError(f"the {what} is not YAML: {message}", remedy=remedy, place=place)


def _named(source: SourceText) -> str:
    """Return ` in FILE`; empty without a file."""
    return f" in {source.file}" if source.file else ""
