"""Regular expressions from a spec, which are matched against the log of a training job line by line.

Python's matcher backtracks, and for some patterns it needs exponential time even on a line of a hundred characters. Only patterns whose worst
case is a small power of the line's length are accepted:

    - a repetition contains neither another open repetition nor alternatives;
    - a pattern has few open repetitions, and no two of the same kind follow each other, or stand with nothing between that must be there;
    - the choices of its other repetitions and alternatives, multiplied, are at most `MAX_CHOICES`;
    - lines are cut at `MAX_SEARCHED` characters.

This prevents accidents. It is not a defence against a malicious spec: such a spec chooses the command, too.
"""

from __future__ import annotations

import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from typing import Any

from autotune.errors import SpecError

MAX_PATTERN = 300
"""characters of a pattern"""
MAX_SEARCHED = 500
"""characters of a line that are searched"""
MAX_OPEN = 6
"""open repetitions (without an upper bound) in one pattern"""
MAX_WIDE = 2
"""open repetitions that match nearly any character (`.`, `[^x]`)"""
MAX_CHOICES = 10_000
"""ways to match, of repetitions with an upper bound and of alternatives together"""
_LONG = 64
"""a repetition with an upper bound up to this counts as closed"""


def compile_pattern(pattern: object, *, field: str) -> re.Pattern[str]:
    """The compiled pattern. Raises `SpecError` when it is not a regular expression, has no group, or could take exponential time."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        raise SpecError(f"a pattern must be text of 1 to {MAX_PATTERN} characters, but is {pattern!r}", field=field)
    try:
        compiled = re.compile(pattern)
        tree = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise SpecError(f"{pattern!r} is not a regular expression: {error}", field=field) from None
    if not compiled.groups:
        raise SpecError(
            f"the pattern {pattern!r} has no group",
            remedy="put brackets around the number, as in 'loss=([0-9.]+)'",
            field=field,
        )
    counts = {"open": 0, "wide": 0, "choices": 1}
    _walk(tree, counts, inside=False, pattern=pattern, field=field)
    kinds = _kinds(tree)
    if _meet_again(kinds):
        raise SpecError(
            f"the pattern {pattern!r} has two open repetitions of the same kind next to each other",
            remedy="write the text that separates them into the pattern",
            field=field,
        )
    if counts["choices"] > MAX_CHOICES:
        raise SpecError(
            f"the pattern {pattern!r} has repetitions and alternatives that match in more than {MAX_CHOICES:,} ways together",
            remedy="match only the text around the number",
            field=field,
        )
    if counts["open"] > MAX_OPEN or counts["wide"] > MAX_WIDE:
        raise SpecError(
            f"the pattern {pattern!r} has {counts['open']} open repetitions, {counts['wide']} of them of nearly any character; "
            f"at most {MAX_OPEN} and {MAX_WIDE} are allowed",
            remedy="match only the text around the number",
            field=field,
        )
    return compiled


def mark(pattern: str) -> str:
    """The longest text that every match of the pattern contains, as far as it is plain to see; empty where there is none."""
    runs, run = [""], ""
    tree = parser.parse(pattern)
    if tree.state.flags & re.IGNORECASE:
        return ""
    for code, argument in tree:
        run = run + chr(argument) if code is op.LITERAL else ""
        runs.append(run)
    return max(runs, key=len)


def _walk(tree: Any, counts: dict[str, int], *, inside: bool, pattern: str, field: str) -> None:
    for code, argument in tree:
        if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, body = argument
            is_open = most > _LONG or (most != least and inside)
            if is_open and inside:
                raise _endless(pattern, field)
            if is_open:
                counts["open"] += 1
                counts["wide"] += any(_is_wide(item) for item in body)
            else:
                counts["choices"] *= most - least + 1
            _walk(body, counts, inside=inside or most > 1, pattern=pattern, field=field)
        elif code is op.BRANCH:
            if inside:
                raise _endless(pattern, field)
            counts["choices"] *= len(argument[1])
            for branch in argument[1]:
                _walk(branch, counts, inside=inside, pattern=pattern, field=field)
        elif code is op.SUBPATTERN:
            _walk(argument[3], counts, inside=inside, pattern=pattern, field=field)
        elif code in (op.ASSERT, op.ASSERT_NOT):
            _walk(argument[1], counts, inside=inside, pattern=pattern, field=field)
        elif code in (op.GROUPREF, op.GROUPREF_EXISTS):
            raise SpecError(f"the pattern {pattern!r} refers back to a group, which is not allowed", field=field)


def _meet_again(kinds: list[tuple[str, bool]]) -> bool:
    """Whether two open repetitions of one kind have nothing between them that must be there."""
    near: set[str] = set()
    for kind, is_needed in kinds:
        if kind and kind in near:
            return True
        near = {kind} if is_needed else near | {kind}
        near.discard("")
    return False


def _kinds(tree: Any) -> list[tuple[str, bool]]:
    """The items in order, each with whether it must be there: "wide" or the repeated class for an open repetition, "" for any other; optional items
    are left out."""
    kinds: list[tuple[str, bool]] = []
    for code, argument in tree:
        if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, body = argument
            if most > _LONG:
                kinds.append(("wide" if any(_is_wide(item) for item in body) else str(body), bool(least)))
            elif least:
                kinds.append(("", True))
        elif code is op.SUBPATTERN:
            kinds += _kinds(argument[3])
        elif code is not op.AT:
            kinds.append(("", True))
    return kinds


def _is_wide(item: tuple[Any, Any]) -> bool:
    code, argument = item
    if code is op.IN:
        return any(part[0] is op.NEGATE for part in argument)
    if code is op.SUBPATTERN:
        return any(_is_wide(inner) for inner in argument[3])
    return code in (op.ANY, op.NOT_LITERAL)


def _endless(pattern: str, field: str) -> SpecError:
    return SpecError(
        f"the pattern {pattern!r} has a repetition or alternatives inside a repetition, which can take exponential time",
        remedy="match only the text around the number",
        field=field,
    )
