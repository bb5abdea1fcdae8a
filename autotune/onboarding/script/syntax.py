"""A program's syntax tree, and small questions about parts of it."""

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
    """The text of a program, parsed."""

    tree: ast.Module

    @classmethod
    def of(cls, *statements: ast.stmt) -> Text:
        """A text of these statements."""
        return cls(ast.Module(body=[*statements], type_ignores=[]))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All parts of the tree, the outermost first."""
        return list(ast.walk(self.tree))

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of these names, or all."""
        return [call for call in self._calls if not names or called_name(call) in names]

    @cached_property
    def functions(self) -> list[ast.FunctionDef]:
        """The functions, also those in others."""
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef)]

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes by name."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def assignments(self) -> list[ast.Assign]:
        """The assignments."""
        return [node for node in self.nodes if isinstance(node, ast.Assign)]

    @cached_property
    def names(self) -> frozenset[str]:
        """All names in it: of variables, attributes, arguments with a value, and packages."""
        return frozenset(name for node in self.nodes for name in _names(node))

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Names that it sets once, to a literal."""
        names = [node for node in self.nodes if isinstance(node, ast.Name)]
        times = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
        plain = [node for node in self.assignments if len(node.targets) == 1]
        named = {ast.unparse(node.targets[0]): literal_or_none(node.value) for node in plain}
        return {name: value for name, value in named.items() if times[name] == 1}

    def value(self, node: ast.expr | None) -> Any:
        """The value of a literal, or of a name that is set once; None for anything that has to be
        computed."""
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
    """The calls in a part of a tree: of these names, or all."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if not names or called_name(call) in names]


def called_name(call: ast.Call) -> str:
    """The last part of what is called: `add_argument` for `parser.add_argument(...)`."""
    return last_name(call.func)


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name; empty for other expressions."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def literal(node: ast.expr) -> Any:
    """The value of a literal, or of products of numbers such as `5 * 8`. Raises `ValueError`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = literal(node.left), literal(node.right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return left * right
    return ast.literal_eval(node)


def literal_or_none(node: ast.expr | None) -> Any:
    """The value of a literal; None for anything that has to be computed."""
    try:
        return None if node is None else literal(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def is_none(node: ast.expr) -> bool:
    """Whether it is None as such."""
    return isinstance(node, ast.Constant) and node.value is None


def keywords_of(call: ast.Call) -> dict[str, ast.expr]:
    """The keyword arguments by name."""
    return {word.arg: word.value for word in call.keywords if word.arg}


def is_plain(call: ast.Call) -> bool:
    """Whether all that a call is given is named: no `*` and no `**`."""
    return not call.args and all(word.arg for word in call.keywords)


def condition_of(node: ast.expr | None) -> str:
    """The text of a value that a condition decides: `a if c else b`, `torch.cuda.is_available()`;
    else empty."""
    asks = isinstance(node, ast.Call) and called_name(node) in ("is_available", "is_bf16_supported")
    return (
        ast.unparse(node)
        if node is not None and (asks or isinstance(node, ast.IfExp | ast.BoolOp))
        else ""
    )
