"""A file or standard input as a plain document: mappings, lists, text, numbers, true, false, null.

YAML is read by the safe loader; a document that is JSON, as JSON. Limits keep a hostile document cheap: its size in bytes, its open brackets,
its depth, and its number of nodes with every alias followed, so that a few lines of aliases cannot stand for billions.

What is wrong with a text that is no YAML: the parser's findings in words that somebody who writes specs understands.

PyYAML says what its scanner expected (`expected <block end>, but found '<scalar>'`). People make few mistakes: a tab, an indentation that fits no line
above, a bracket or quote that is never closed, a colon inside plain text.
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
    """The mapping that the file holds. `what` names it in errors, and so do the `built_in` names
    that may be passed instead of a path."""
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
    """What a document that is no mapping is."""
    if document is None:
        return "empty"
    if isinstance(document, list):
        return "a list"
    return "text" if isinstance(document, str) else "one value"


def parse_text(
    text: str, *, where: str, what: str, file: str = "", most_yaml_bytes: int = MAX_BYTES
) -> ReadDocument:
    """The mapping that the text holds, as YAML or JSON. `file`: the name of the text in the places of mistakes."""
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
                    f"a {what} in YAML may have {most_yaml_bytes >> 10} KiB here, but this one has {size >> 10}",
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
    """Raises `SpecError` when the document is too deep, too large (aliases followed), or holds what JSON cannot."""
    left = MAX_NODES
    stack: list[tuple[Any, int, Any]] = [(document, 0, ())]
    while stack:
        node, depth, place = stack.pop()
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise SpecError(
                f"a spec may have at most {MAX_NODES:,} values, nested {MAX_DEPTH} deep, but this one has more"
            )
        if node is None or isinstance(node, _PLAIN):  # first: nearly all values are plain
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
_HALF = re.compile("[\ud800-\udfff]")


def _why_not_json(node: str | float | None) -> str:
    """Why a plain value is none of JSON, in words; empty when it is one."""
    if isinstance(node, str):
        is_whole = node.isascii() or not _HALF.search(node)
        return (
            ""
            if is_whole
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
    """The dotted name of a place, which is its parent's and its key."""
    parts: list[str] = []
    while place:
        place, key = place
        parts.insert(0, str(key)[:40])
    return ".".join(parts)


def _json(text: str) -> Any:
    """The JSON document, or None when it is no JSON (a YAML flow mapping begins with a brace as well)."""
    try:
        return read_json(text)
    except RepeatedKeyError as error:
        raise SpecError(str(error)) from None
    except json.JSONDecodeError:
        return None


def _loader() -> Any:
    """The safe loader, which also refuses a key that is given twice (YAML would silently take the last)."""
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
        """YAML 1.1 reads 1:30 as 90, in base 60, and 0100 as 64, in base 8; here they stay text, which is refused where a number is due."""
        is_old = ":" in node.value or re.fullmatch(r"[-+]?0[0-9_]+", node.value)
        return node.value if is_old else loader.construct_yaml_int(node)

    Loader.add_constructor("tag:yaml.org,2002:int", whole_number)
    return Loader


_WORDS: tuple[tuple[str, str, str], ...] = (
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
"""patterns of the parser's words, what they mean, and what to do; the first that matches counts"""


def plain_problem(error: Exception) -> str:
    """What a parser says of a value. Python tells its programmers what to do about long numbers, which no caller can."""
    said = " ".join(str(error).split())[:200]
    return "a whole number has too many digits" if "integer string conversion" in said else said


def _yaml_mistake(error: Exception, source: SourceText, *, what: str) -> SpecError:
    """The parser's error as a `SpecError`, with its place when the parser knows it."""
    if isinstance(error, RecursionError):
        return SpecError(f"the {what}{_named(source)} is not YAML: it is nested too deeply")
    mark: Any = getattr(error, "problem_mark", None)
    begin: Any = getattr(error, "context_mark", None) or mark
    problem = str(getattr(error, "problem", None) or "")
    if mark is None or not problem:
        return SpecError(f"the {what}{_named(source)} is not YAML: {plain_problem(error)}")
    message, remedy = problem, ""
    for pattern, words, todo in _WORDS:
        if re.search(pattern, problem):
            message, remedy = words.format(begin=begin.line + 1), todo.format()
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
    return f" in {source.file}" if source.file else ""
