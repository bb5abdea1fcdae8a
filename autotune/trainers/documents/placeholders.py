"""Placeholders: `{tp}` and `{accumulation_steps * dp}` in a text, and their replacement by values.

An expression is a name, or integer arithmetic over names: + - * // % and parentheses, at most
`MAX_EXPRESSION` characters. It is parsed into a syntax tree with only these nodes; nothing is
evaluated as Python. `{{` and `}}` are literal braces.

    values: {precision: {bf16: bfloat16}, flash: {true: --flash, false: null}}

`values` maps a name's values to the text that is written for them, if the name is alone in its
braces. Values without an entry are written unchanged, and arithmetic uses the values themselves. A
value that is mapped to null omits a text that consists of only that placeholder.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from string import Formatter
from typing import Any, final

from autotune.errors import SpecError
from autotune.spec.checks import nearest
from autotune.spec.texts.as_text import value_word

MAX_EXPRESSION = 200
"""maximum characters between the braces of a placeholder"""
MAX_NUMBER = 1 << 63
"""bound of arithmetic results"""
FIELD = "trainer.argv"
"""field of the spec that errors name"""
_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_BRACES = "write {{ and }} for literal braces"
_ARITHMETIC = "use knob names, whole numbers, + - * // % and parentheses"


def calculated(node: ast.expr, value_of: Callable[[str], int]) -> int:
    """The value of a tree of integers and names with + - * / // % and parentheses. Raises
    `ValueError` for any other node."""
    match node:
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _BINARY[type(sign)](calculated(left, value_of), calculated(right, value_of))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -calculated(operand, value_of)
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return value_of(name)
    raise ValueError(f"no arithmetic: {ast.dump(node)}")


@final
@dataclass(frozen=True, slots=True)
class Expression:
    """The expression in the braces of a placeholder."""

    text: str
    """as written"""
    tree: ast.expr
    """its syntax tree: only names, integers and operators"""
    names: frozenset[str]
    """names in it, at least one"""

    @property
    def name(self) -> str:
        """The name, if the expression is only a name; empty for arithmetic."""
        return self.tree.id if isinstance(self.tree, ast.Name) else ""


@final
@dataclass(frozen=True, slots=True)
class TextTemplate:
    """A text with placeholders."""

    parts: tuple[str | Expression, ...]
    """plain texts and placeholders in order; no text is empty"""

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The placeholders."""
        return tuple(part for part in self.parts if isinstance(part, Expression))

    @property
    def only(self) -> Expression | None:
        """The placeholder, if the text consists of only that; None otherwise."""
        (first, *rest) = self.parts or ("",)
        return first if isinstance(first, Expression) and not rest else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of placeholders in one launch."""

    known: Mapping[str, Any]
    """values by name"""
    written: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """text by value, for each name: the option `values`, with its keys as words"""

    def of(self, expression: Expression) -> Any:
        """The value to write. Raises `SpecError` for an unknown name, and for arithmetic without a
        result."""
        check_names(expression, self.known)
        if not expression.name:
            return self._calculate(expression)
        value = self.known[expression.name]
        return self.written.get(expression.name, {}).get(value_word(value), value)

    def fill(self, text: str) -> str | None:
        """The text with all placeholders replaced; None if it is a single placeholder whose value
        is mapped to null."""
        template = parse(text)
        values = [part if isinstance(part, str) else self.of(part) for part in template.parts]
        if template.only is not None and values == [None]:
            return None
        if None in values:
            raise null_inside(text)
        return "".join(map(value_word, values))

    def typed(self, text: str) -> Any:
        """As `fill`, but a text that is a single placeholder becomes the value itself, so that
        numbers and flags keep their type."""
        alone = parse(text).only
        return self.fill(text) if alone is None else self.of(alone)

    def _calculate(self, expression: Expression) -> int:
        try:
            result = calculated(expression.tree, self._whole)
        except ZeroDivisionError:
            raise SpecError(
                f"{{{expression.text}}} divides by zero for {self._used(expression)}", field=FIELD
            ) from None
        if abs(result) >= MAX_NUMBER:
            raise SpecError(f"{{{expression.text}}} must be below 2^63, but is not", field=FIELD)
        return result

    def _whole(self, name: str) -> int:
        value = self.known[name]
        if type(value) is not int:
            raise SpecError(
                f"arithmetic in placeholders needs whole numbers, but {name} is {value!r}",
                remedy=f"use {{{name}}} without arithmetic, and map each value under `values`",
                field=FIELD,
            )
        return value

    def _used(self, expression: Expression) -> str:
        return ", ".join(f"{name}={self.known[name]}" for name in sorted(expression.names))


@lru_cache(maxsize=4096)
def parse(text: str) -> TextTemplate:
    """The parts of a text. Raises `SpecError` for empty braces, formats, and anything other than
    names and arithmetic."""
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        message = f"{text!r} is not valid text with placeholders: {error}"
        raise SpecError(message, remedy=_BRACES, field=FIELD) from None
    parts: list[str | Expression] = []
    for literal, name, form, conversion in pieces:
        if literal:
            parts.append(literal)
        if name is None:
            continue
        if form or conversion:
            raise SpecError(
                f"a placeholder is a name or arithmetic in braces, without a format, but {text!r} has a format in {{{name}}}",
                remedy=_BRACES,
                field=FIELD,
            )
        parts.append(_expression(name, text))
    return TextTemplate(tuple(parts))


def check_names(expression: Expression, known: Mapping[str, Any] | frozenset[str]) -> None:
    """Raises `SpecError` for the first unknown name, with the nearest known one."""
    for name in sorted(expression.names):
        if name not in known:
            raise SpecError(
                f"there is no placeholder {{{name}}}",
                remedy=nearest(name, known) or f"placeholders: {', '.join(sorted(known))}",
                field=FIELD,
            )


def null_inside(text: str) -> SpecError:
    """The error for a value mapped to null inside a longer text."""
    return SpecError(
        f"a null value omits a whole argument, but {text!r} has other text around the placeholder",
        remedy="move that text into `values`, as in {flash: {true: --flash, false: null}}",
        field=FIELD,
    )


def braced(text: str) -> str:
    """The text with its braces doubled, so that they are literal."""
    return text.replace("{", "{{").replace("}", "}}")


def _expression(source: str, text: str) -> Expression:
    where = f"in {text!r}, {{{source}}}"
    if len(source) > MAX_EXPRESSION:
        raise SpecError(
            f"a placeholder may have at most {MAX_EXPRESSION} characters, but {where} has more",
            field=FIELD,
        )
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(
            f"{where} is neither a name nor arithmetic",
            remedy=f"{_ARITHMETIC}; {_BRACES}",
            field=FIELD,
        ) from None
    _check(tree, where)
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    if not names:
        raise SpecError(
            f"{where} names no knob",
            remedy=f"write the number without braces; {_BRACES}",
            field=FIELD,
        )
    return Expression(source, tree, names)


def _check(node: ast.expr, where: str) -> None:
    """Raises `SpecError` if the tree has nodes other than names, integers and the allowed
    operators."""
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        _check(node.left, where)
        _check(node.right, where)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(node.operand, where)
    elif not isinstance(node, ast.Name) and not (
        isinstance(node, ast.Constant) and type(node.value) is int
    ):
        raise SpecError(
            f"{where} is neither a name nor arithmetic",
            remedy=f"{_ARITHMETIC}; {_BRACES}",
            field=FIELD,
        )
