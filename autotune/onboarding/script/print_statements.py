"""Finds a script's print statements, with how often each one prints, and derives log patterns.

    once           outside of loops, and outside of functions that a loop calls
    every step     in a loop, also under a test of the rank or the log interval (`if rank == 0`, `if it % log_interval == 0`)
    now and then   in a loop under a test that counts (`if it % 50 == 0`), or that evaluates or saves

A number that is the time since a moment before the loop is a clock: `time.time() - begin`, if
nothing in the loop assigns `begin`.

For the patterns, a sample log is generated from the print statements with sample numbers. The
patterns are derived from that log as `autotune check` derives them from a real log: lines of an
evaluation come now and then, those before the loop once, and a clock grows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.onboarding.script.syntax import (
    LOOPS,
    Text,
    called_name,
    calls_of,
    literal,
    literal_or_none,
)
from autotune.trainers.logs.pattern_proposals import is_known_log, propose_patterns

CLOCK = "clock "
"""prefix of the expression of a number that grows with time"""
ONCE, EVERY_STEP, NOW_AND_THEN = 0, 1, 4
"""values of `Printed.every`, in steps"""
_DIVIDES = ast.FloorDiv | ast.Div | ast.Mod
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_PRINTS = re.compile(r"\w*print\w*|(?:\w+_)?info(?:_\w+)?|write|debug|log|log_\w+|\w+_log")
_LOGS = re.compile(r"log|print|report|display|verbose|rank|master|main_process|is_main|world|local")
_RARE = re.compile(r"eval|(?<![a-z])val|valid|test|save|ckpt|checkpoint|sampl|generat")
_FIRST = re.compile(r"[\w.]*(?:step|iter)\w* == \d+")
"""a test for one step"""
_JUDGES = re.compile(
    r"(?!.*(?:train|fit))(?:.*_)?(?:eval\w*|val|valid\w*|test\w*|infer\w*|sample|generate|save\w*|checkpoint\w*|ckpt)(?:_.*)?"
)
"""names of functions that evaluate or save; their print statements are ignored"""
_NOW = re.compile(
    r"\b(?:time|perf_counter|monotonic|process_time|default_timer)\(\) - (?P<since>[A-Za-z_][\w.]*)"
)


@dataclass(frozen=True, slots=True)
class Printed:
    """A print statement."""

    parts: tuple[Any, ...]
    """literal texts, and (expression, format) of the values between them"""
    every: int
    """steps between two prints; 0: it prints once"""
    loop: int = 0
    """line of the innermost loop around it; 0: none"""


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """A loop over a range, inside another loop."""

    line: int
    names: frozenset[str]
    """variables and attributes from which its length is computed"""
    around: int
    """line of the innermost loop around it"""


def counted_loops(tree: ast.AST, around: int = 0) -> Iterator[CountedLoop]:
    """Loops over a range inside other loops, which may accumulate gradients."""
    for node in ast.iter_child_nodes(tree):
        counted = node.iter if isinstance(node, ast.For) else None
        if around and isinstance(counted, ast.Call) and called_name(counted) == "range":
            divisions = (part for part in ast.walk(counted) if isinstance(part, ast.BinOp))
            divisors = (part.right for part in divisions if isinstance(part.op, _DIVIDES))
            skipped = {id(part) for divisor in divisors for part in ast.walk(divisor)}
            # a divisor is no length: `len(data) // steps`
            parts = [part for part in ast.walk(counted) if id(part) not in skipped]
            names = {part.id for part in parts if isinstance(part, ast.Name)}
            names |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
            yield CountedLoop(getattr(node, "lineno", 0), frozenset(names), around)
        if isinstance(node, LOOPS):
            yield from counted_loops(node, node.lineno)
        else:
            yield from counted_loops(node, 0 if isinstance(node, _FUNCTIONS) else around)


def print_statements(text: Text) -> Iterator[Printed]:
    """Print and logger calls with numbers in their text, in order."""
    loops = [node for node in text.nodes if isinstance(node, LOOPS)]
    in_loops = {called_name(call) for loop in loops for call in calls_of(loop)}
    assigned: dict[str, list[ast.expr]] = {}
    for node in text.assignments:
        if isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    texts = {name: values[0] for name, values in assigned.items() if len(values) == 1}
    yield from _statements(text.tree.body, in_loops, texts, loop=None, every=ONCE)


def _statements(
    body: list[ast.stmt],
    in_loops: set[str],
    texts: Mapping[str, ast.expr],
    *,
    loop: ast.AST | None,
    every: int,
) -> Iterator[Printed]:
    """Print statements of a block. `loop`: the innermost loop around it; `every`: steps between two
    runs of the block."""
    for node in body:
        inner_loop, inner_every = loop, every  # for nested blocks
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _JUDGES.fullmatch(node.name):
                continue
            is_called = node.name in in_loops and node.name != "main"
            inner_loop, inner_every = None, EVERY_STEP if is_called else ONCE
        elif isinstance(node, ast.ClassDef):
            inner_loop = None
        elif isinstance(node, LOOPS):
            inner_loop, inner_every = node, max(every, EVERY_STEP)
        elif isinstance(node, ast.If):
            test = ast.unparse(node.test).lower()
            is_rare = _RARE.search(test) or ("%" in test and not _LOGS.search(test))
            inner_every = NOW_AND_THEN if every and is_rare else every
            inner_every = ONCE if _FIRST.fullmatch(test) else inner_every
        elif not isinstance(node, ast.With | ast.AsyncWith | ast.Try):
            yield from _printed_by(node, texts, loop, every)
            continue
        blocks = {name: getattr(node, name, []) for name in ("body", "orelse", "finalbody")}
        yield from _statements(
            blocks.pop("body"), in_loops, texts, loop=inner_loop, every=inner_every
        )
        for block in blocks.values():
            yield from _statements(block, in_loops, texts, loop=loop, every=every)


def _printed_by(
    node: ast.stmt, texts: Mapping[str, ast.expr], loop: ast.AST | None, every: int
) -> Iterator[Printed]:
    """The print statements of a statement without nested blocks."""
    for call in calls_of(node):
        if call.args and _PRINTS.fullmatch(called_name(call)):
            is_level = called_name(call) == "log" and "INFO" in ast.unparse(call.args[0])
            text, *arguments = call.args[1:] if is_level and call.args[1:] else call.args
            # line = f"step {step}"; print(line)
            if isinstance(text, ast.Name) and not arguments:
                text = texts.get(text.id, text)
            parts = tuple(_clocked(part, loop) for part in _parts(text, arguments))
            if any(isinstance(part, tuple) for part in parts):
                yield Printed(parts, every, getattr(loop, "lineno", 0))


def _clocked(part: Any, loop: ast.AST | None) -> Any:
    """The part, with `CLOCK` before its expression if it is a time since a moment before the
    loop."""
    if loop is None or isinstance(part, str):
        return part
    set_inside: dict[str, str] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                set_inside |= {ast.unparse(name): ast.unparse(node.value) for name in names}
        elif isinstance(node, ast.AugAssign):
            set_inside[ast.unparse(node.target)] = ""
    expression = part[0]
    for _ in range(2):  # `ms = 1000 * (now - begin)`, `now = time.time()`
        expression = re.sub(
            r"(?<![\w.])[A-Za-z_][\w.]*(?![\w(.])",
            lambda found: (
                f"({set_inside[found[0]]})"
                if 0 < len(set_inside.get(found[0], "")) < 200
                else found[0]
            ),
            expression,
        )[:2000]
    since = [found["since"] for found in _NOW.finditer(re.sub(r"[()]+(?= - )", "()", expression))]
    is_clock = bool(since) and all(name not in set_inside for name in since)
    return (f"{CLOCK}{part[0]}", part[1]) if is_clock else part


def _parts(text: ast.expr, arguments: list[ast.expr]) -> Iterator[Any]:
    """Literal texts and (expression, format) of a printed text, by f-string, `%`, `format` or
    concatenation. `arguments`: further arguments of the call."""
    if isinstance(text, ast.JoinedStr):
        for value in text.values:
            if isinstance(value, ast.FormattedValue):
                yield ast.unparse(value.value), _format(value.format_spec)
            else:
                yield str(literal(value))
    elif isinstance(text, ast.BinOp) and isinstance(text.op, ast.Mod):
        values = text.right.elts if isinstance(text.right, ast.Tuple) else [text.right]
        yield from _percent(str(literal_or_none(text.left) or ""), values)
    elif isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        yield from _parts(text.left, [])
        yield from _parts(text.right, [])
    elif (
        isinstance(text, ast.Call)
        and isinstance(text.func, ast.Attribute)
        and text.func.attr == "format"
    ):
        yield from _braces(str(literal_or_none(text.func.value) or ""), text.args)
    elif isinstance(value := literal_or_none(text), str):
        if "%" in value and arguments:  # logger.info("step %d", step)
            yield from _percent(value, arguments)
        else:  # print("step", step)
            yield value
            for other in arguments:
                yield " "
                known = literal_or_none(other)
                yield known if isinstance(known, str) else (ast.unparse(other), "")


def _percent(text: str, values: list[ast.expr]) -> Iterator[Any]:
    """Parts of a text with `%` placeholders."""
    rest = iter(values)
    for literal_text, code in re.findall(r"([^%]*)(%[-+ 0-9.]*[a-zA-Z]|%%|$)", text):
        if literal_text:
            yield literal_text
        if code == "%%":
            yield "%"
        elif code and (value := next(rest, None)) is not None:
            yield ast.unparse(value), "" if code[-1] in "sr" else code[1:].replace("i", "d")


def _braces(text: str, values: list[ast.expr]) -> Iterator[Any]:
    """Parts of a text with `{}` placeholders, by position or name: `[{0}/{1}] Time
    {batch_time.val:.3f}`."""
    at = 0
    for literal_text, field, name, spec in re.findall(
        r"([^{]*)(\{([\w.\[\]]*)(?:![rsa])?(?::([^{}]*))?\}|$)", text
    ):
        if literal_text:
            yield literal_text
        if name and not name.isdecimal():
            yield name, spec
        elif field and (place := int(name) if name else at) < len(values):
            yield ast.unparse(values[place]), spec
            at += 1


def _format(spec: ast.expr | None) -> str:
    """The text of a format specification; empty without one."""
    if not isinstance(spec, ast.JoinedStr):
        return ""
    parts = [part.value for part in spec.values if isinstance(part, ast.Constant)]
    return "".join(map(str, parts))


STEPS = 12
"""number of steps in the sample log"""
_STEP = re.compile(
    r"\b(\w*_)?(it|iter|iteration|step|i|batch_idx|idx|n_iter|iter_num)s?\b|step|iter(?!s_per)"
)
_TOTAL = re.compile(r"total|max|num_|len\(|n_|epoch", re.IGNORECASE)
_WHOLE = re.compile(r"[dn]$")
_FACTORS = (1.0, 1.09, 0.97, 1.04, 0.99, 1.01)
"""factors by which sample numbers vary from line to line, so that none of them looks like a
clock"""


def patterns_of(printed: Sequence[Printed]) -> dict[str, str]:
    """The option `metrics` of the `command` trainer; empty if no print statement looks like that of
    a step, or if its lines cannot be distinguished from others."""
    return propose_patterns(list(sample_log(printed)))


def is_known(printed: Sequence[Printed]) -> bool:
    """Whether the log is read by a built-in format, without patterns."""
    return is_known_log(list(sample_log(printed)))


def sample_log(printed: Sequence[Printed]) -> Iterator[str]:
    """Lines of a sample log of `STEPS` steps."""
    for step in range(STEPS):
        for each in printed:
            if (step % each.every if each.every else step) == 0 and (
                line := sample_line(each.parts, step)
            ) is not None:
                yield from line.splitlines()


def sample_line(parts: tuple[Any, ...], step: int) -> str | None:
    """The line that the print statement would print in a step; None if its format cannot be
    filled."""
    words: list[Any] = [
        part if isinstance(part, str) else _sample(*part, step=step) for part in parts
    ]
    return None if None in words else "".join(words).strip()


def _sample(expression: str, spec: str, *, step: int) -> str | None:
    """A sample value of an expression, formatted; None if the format does not fit."""
    is_clock = expression.startswith(CLOCK)
    is_step = (
        _STEP.search(expression) is not None and "/" not in expression and "loss" not in expression
    )
    is_total = _TOTAL.search(expression) is not None
    is_whole = bool(_WHOLE.search(spec)) or (not spec and (is_step or is_total) and not is_clock)
    value: float
    if is_clock:
        value, is_whole = 2.3125 * (step + 1), False
    elif is_whole:
        value = 1000 if is_total else step * 10
    else:
        value = 2.3125 * _FACTORS[step % len(_FACTORS)]
    try:
        return format(int(value) if is_whole else value, spec or ("" if is_whole else ".4f"))
    except (ValueError, TypeError):
        return None
