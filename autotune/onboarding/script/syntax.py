"""Small questions about Python's syntax trees."""

from __future__ import annotations

import ast
from typing import Any


def called_name(call: ast.Call) -> str:
    """The last part of what is called: `add_argument` for `parser.add_argument(...)`."""
    return last_name(call.func)


LOOPS = ast.For | ast.While | ast.AsyncFor


def calls_of(tree: ast.AST, *names: str) -> list[ast.Call]:
    """The calls in a tree: of these names, or all."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if not names or called_name(call) in names]


def functions_of(tree: ast.AST) -> list[ast.FunctionDef]:
    """The functions in a tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


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


def keywords_of(call: ast.Call) -> dict[str, ast.expr]:
    """The keyword arguments by name."""
    return {word.arg: word.value for word in call.keywords if word.arg}


def condition_of(node: ast.expr | None) -> str:
    """The text of a value that a condition decides: `a if c else b`, `torch.cuda.is_available()`; else empty."""
    asks = isinstance(node, ast.Call) and called_name(node) in ("is_available", "is_bf16_supported")
    return (
        ast.unparse(node)
        if node is not None and (asks or isinstance(node, ast.IfExp | ast.BoolOp))
        else ""
    )
