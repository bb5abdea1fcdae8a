"""A program's syntax tree, and functions that query parts of it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

LOOPS = ast.For | ast.While | ast.AsyncFor


@final
@dataclass(frozen=True)
class Text:
    """The parsed code of a program."""

    tree: ast.Module

    @classmethod
    def of(cls, *statements: ast.stmt) -> Text:
        """The code of these statements."""
        return cls(ast.Module(body=[*statements], type_ignores=[]))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree in breadth-first order."""
        return list(ast.walk(self.tree))

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def calls(self, *names: str) -> list[ast.Call]:
        """Calls of functions with these names, or all calls."""
        return [call for call in self._calls if not names or called_name(call) in names]

    @cached_property
    def functions(self) -> list[ast.FunctionDef]:
        """All functions, also nested ones."""
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef)]

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """All classes by name."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def assignments(self) -> list[ast.Assign]:
        """All assignments."""
        return [node for node in self.nodes if isinstance(node, ast.Assign)]

    @cached_property
    def names(self) -> frozenset[str]:
        """All names in the code: variables, attributes, keyword arguments other than None, and
        packages."""
        return frozenset(name for node in self.nodes for name in _names(node))

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Values of names that are assigned once, by name; None if the value is not a literal."""
        names = [node for node in self.nodes if isinstance(node, ast.Name)]
        stores = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
        assignments = [node for node in self.assignments if len(node.targets) == 1]
        values = {ast.unparse(node.targets[0]): literal_or_none(node.value) for node in assignments}
        return {name: value for name, value in values.items() if stores[name] == 1}

    def value(self, node: ast.expr | None) -> Any:
        """The value of a literal, or of a name assigned once; None if it is computed."""
        return self.constants.get(node.id) if isinstance(node, ast.Name) else literal_or_none(node)


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.keyword) and node.arg and not is_none(node.value):
        yield node.arg
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.name.partition(".")[0] for alias in node.names)
        yield (getattr(node, "module", None) or "").partition(".")[0]


def calls_of(tree: ast.AST, *names: str) -> list[ast.Call]:
    """Calls in a subtree: of functions with these names, or all calls."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if not names or called_name(call) in names]


def called_name(call: ast.Call) -> str:
    """Last part of the called name: `add_argument` for `parser.add_argument(...)`."""
    return last_name(call.func)


def last_name(node: ast.expr) -> str:
    """Last part of a dotted name; empty for other expressions."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def literal(node: ast.expr) -> Any:
    """The value of a literal, or of a product of numbers such as `5 * 8`. Raises `ValueError` for
    other expressions."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = literal(node.left), literal(node.right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return left * right
    return ast.literal_eval(node)


def literal_or_none(node: ast.expr | None) -> Any:
    """The value of a literal; None for an expression that must be computed."""
    try:
        return None if node is None else literal(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def is_none(node: ast.expr) -> bool:
    """Whether the expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def keywords_of(call: ast.Call) -> dict[str, ast.expr]:
    """Keyword arguments by name, without `**`."""
    return {word.arg: word.value for word in call.keywords if word.arg}


def is_plain(call: ast.Call) -> bool:
    """Whether the call has only keyword arguments: no positional ones, no `*`, no `**`."""
    return not call.args and all(word.arg for word in call.keywords)


def condition_of(node: ast.expr | None) -> str:
    """Source text of an expression that depends on a condition: `a if c else b`,
    `torch.cuda.is_available()`; empty for others."""
    checks_device = isinstance(node, ast.Call) and called_name(node) in (
        "is_available",
        "is_bf16_supported",
    )
    return (
        ast.unparse(node)
        if node is not None and (checks_device or isinstance(node, ast.IfExp | ast.BoolOp))
        else ""
    )
