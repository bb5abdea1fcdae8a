"""Runs a Python program with other values in the place of some that its own text sets. The file
itself stays as it is.

    {"TrainingArguments.bf16": True, "DataLoader:41.batch_size": 8, "BATCH": 16, "config.accumulate": 2}

    CALL.KEYWORD       a keyword argument of the one call of that name; it is added where the call does not have it
    CALL:LINE.KEYWORD  the same of the call in that line, where there are several
    NAME, OBJECT.NAME  the one assignment to it

A launch has this file with the program's path and the values in it; it needs nothing but Python.
The program runs as `__main__`, with its own `__file__`, folder, arguments and line numbers.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import tokenize
from collections.abc import Sequence

PROGRAM = ""
"""the program's path, relative to the folder in which it runs; or its module"""
VALUES: dict[str, object] = {}
"""values by the place that sets them"""
_PLACE = re.compile(r"(?P<of>(?:\w+\.)*\w+)?(?::(?P<line>\d+))?\.(?P<name>\w+)|\w+")


class UnclearPlaceError(ValueError):
    """A place that the text does not have, or has several times."""


def with_values(tree: ast.Module, values: dict[str, object]) -> ast.Module:
    """The program with these values. Raises `UnclearPlaceError`."""
    for place, value in values.items():
        node = find(tree, place)
        if not isinstance(node, ast.Call):
            node.value = _literal(value, node)
            continue
        name = place.rpartition(".")[2]
        given = next((word for word in node.keywords if word.arg == name), None)
        if given is not None:
            given.value = _literal(value, given.value)
        else:
            node.keywords.append(ast.keyword(arg=name, value=_literal(value, node)))
    return ast.fix_missing_locations(tree)


def find(tree: ast.Module, place: str) -> ast.Assign | ast.AnnAssign | ast.Call:
    """The assignment or call of a place. Raises `UnclearPlaceError`."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise UnclearPlaceError(f"{place!r} is neither NAME, CALL.KEYWORD nor CALL:LINE.KEYWORD")
    assigned = [] if found["line"] else [node for node in ast.walk(tree) if _assigns(node, place)]
    if len(assigned) > 1:
        raise UnclearPlaceError(
            f"{place} is set {len(assigned)} times, on lines {_lines(assigned)}"
        )
    for node in assigned:
        targets = node.targets if isinstance(node, ast.Assign) else _parts_of(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and [
            ast.unparse(each) for each in targets
        ] == [place]:
            return node
        raise UnclearPlaceError(f"line {_lines(assigned)} does more than set {place}")
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _name(node.func) == found["of"]
    ]
    if found["line"]:
        calls = [call for call in calls if call.lineno == int(found["line"])]
    if not calls or not found["of"]:
        raise UnclearPlaceError(f"nothing sets {place}")
    if len(calls) > 1:
        first = f"{found['of']}:{calls[0].lineno}.{found['name']}"
        raise UnclearPlaceError(
            f"{found['of']}(...) is called on lines {_lines(calls)}; write {first} for the first call"
        )
    return calls[0]


def _assigns(node: ast.AST, place: str) -> bool:
    """Whether it sets the place anew; `x //= 2` only changes it."""
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return False
    return any(ast.unparse(part) == place for part in _parts_of(node))


def _parts_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [part for target in node.targets for part in _parts(target)]
    if isinstance(node, (ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
        return _parts(node.target)
    return []


def _parts(target: ast.expr) -> list[ast.expr]:
    """What an assignment sets: each of `a, b = ...`."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return [part for each in target.elts for part in _parts(each)]
    return [target]


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _literal(value: object, at: ast.AST) -> ast.expr:
    tree = ast.parse(repr(value), mode="eval").body
    for node in ast.walk(tree):
        ast.copy_location(node, at)
    return tree


def _lines(nodes: Sequence[ast.AST]) -> str:
    return ", ".join(str(getattr(node, "lineno", "")) for node in nodes)


def _main() -> None:
    path, package, folder = (
        os.path.abspath(PROGRAM),
        None,
        os.path.dirname(os.path.abspath(PROGRAM)),
    )
    if not PROGRAM.endswith(".py"):  # a module, as `python -m` starts it
        folder = os.getcwd()
        sys.path.insert(0, folder)
        module = importlib.util.find_spec(PROGRAM)
        if module is None or not module.origin:
            sys.exit(f"autotune: there is no module {PROGRAM} to start")
        path, package = module.origin, module.parent
        del sys.path[0]
    with tokenize.open(path) as file:
        text = file.read()
    try:
        tree = with_values(ast.parse(text, path), VALUES)
    except UnclearPlaceError as error:
        sys.exit(
            f"autotune: {PROGRAM} cannot be started with the overrides: {error}; correct trainer.overrides in the spec"
        )
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        sys.path[0] = folder
    sys.argv[0] = PROGRAM if package is None else path
    program = compile(tree, path, "exec", dont_inherit=True)
    space = sys.modules["__main__"].__dict__
    for name in [name for name in space if not name.startswith("__")]:
        del space[name]
    space["__file__"], space["__doc__"], space["__package__"] = path, None, package
    exec(program, space)


if __name__ == "__main__":
    _main()
