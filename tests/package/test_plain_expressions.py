"""Expressions of both packages are read in one pass: no ternary is inside another, and no
comprehension has two levels with conditions.

- A conditional expression has no other one anywhere in its branches or its test.
- A comprehension with a condition has one `for`.
- A comprehension with a condition has no other one with a condition anywhere inside.

The body of a lambda is an expression of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "autotune").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node, without those of lambdas."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda):
            yield child
            yield from inside(child)


def has_condition(node: ast.AST) -> bool:
    """Whether it is a comprehension with an `if`."""
    return isinstance(node, COMPREHENSIONS) and any(part.ifs for part in node.generators)


def reason(node: ast.AST) -> str:
    """Why an expression is hard to read; empty where it is plain."""
    if isinstance(node, ast.IfExp) and any(isinstance(below, ast.IfExp) for below in inside(node)):
        return "a conditional expression inside another"
    if not has_condition(node):
        return ""
    if len(node.generators) > 1:
        return "a comprehension with two `for` and a condition"
    return (
        "a comprehension with a condition inside another"
        if any(map(has_condition, inside(node)))
        else ""
    )


def hard_to_read(source: str) -> list[tuple[int, str]]:
    """(line, reason) of each such expression of a source."""
    nodes = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.IfExp, *COMPREHENSIONS))
    ]
    return sorted((node.lineno, why) for node in nodes if (why := reason(node)))


def test_expressions_are_plain() -> None:
    found = []
    for path in SOURCES:
        lines = hard_to_read(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(ROOT).as_posix()}:{line}: {why}" for line, why in lines]
    assert not found, "write a small function, a table or a loop instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "a if x else b if y else c",
        "(a if x else b) if y else c",
        "a if (x if y else z) else b",
        "f(a if x else b) if y else c",
        "f'{a if x else b}' if y else ''",
        "[a if x else b for a in c] if y else []",
        "[b for a in c for b in a if b]",
        "{b: 1 for a in c if a for b in a}",
        "[[b for b in a if b] for a in c if a]",
        "sum(a for a in (b for b in c if b) if a > 1)",
        "[a for a in c if any(b for b in a if b)]",
    ],
)
def test_nested_expressions_are_found(source: str) -> None:
    assert [line for line, _ in hard_to_read(source)] == [1]


@pytest.mark.parametrize(
    "source",
    [
        "(a if x else b) + (c if y else d)",
        "(lambda v: v if v else 0) if y else None",
        "[b for a in c for b in a]",
        "[[b for b in a if b] for a in c]",
        "[a if x else b for a in c if a]",
    ],
)
def test_plain_expressions_are_not_found(source: str) -> None:
    assert hard_to_read(source) == []
