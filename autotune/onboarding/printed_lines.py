"""Patterns for what a script prints: a log is made of its print statements, filled with sample numbers, and the patterns are proposed from that.

So a script gets the same patterns as `autotune check` proposes from its real log, without a run: lines of an evaluation come now and then, those
before the loop once, and a clock grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.onboarding.print_statements import CLOCK, Printed
from autotune.trainers.pattern_proposals import propose_patterns

STEPS = 12
"""steps of the log"""
_STEP = re.compile(r"\b(\w*_)?(it|iter|iteration|step|i|batch_idx|idx|n_iter|iter_num)s?\b|step|iter(?!s_per)")
_TOTAL = re.compile(r"total|max|num_|len\(|n_|epoch")
_WHOLE = re.compile(r"[dn]$")
_FACTORS = (1.0, 1.09, 0.97, 1.04, 0.99, 1.01)
"""by which sample numbers vary from line to line, so that none of them looks like a clock"""


def patterns_of(printed: Sequence[Printed]) -> dict[str, str]:
    """The option `metrics` of the trainer `command`; empty where no print statement looks like a step's, or where its lines cannot be told from others."""
    return propose_patterns(list(sample_log(printed)))


def sample_log(printed: Sequence[Printed]) -> Iterator[str]:
    """The log of some steps."""
    for step in range(STEPS):
        for each in printed:
            if (step % each.every if each.every else step) == 0 and (line := sample_line(each.parts, step)) is not None:
                yield from line.splitlines()


def sample_line(parts: tuple[Any, ...], step: int) -> str | None:
    """The line that the print statement would write in this step; None where its format cannot be filled."""
    words = []
    for part in parts:
        if isinstance(part, str):
            words.append(part)
        else:
            word = _sample(*part, step=step)
            if word is None:
                return None
            words.append(word)
    return "".join(words).strip()


def _sample(expression: str, spec: str, *, step: int) -> str | None:
    is_clock = expression.startswith(CLOCK)
    is_step = _STEP.search(expression) is not None and "/" not in expression and "loss" not in expression
    is_total = _TOTAL.search(expression) is not None
    is_whole = bool(_WHOLE.search(spec)) or (not spec and (is_step or is_total) and not is_clock)
    value: float = 1000 if is_total and is_whole else step * 10 if is_whole else 2.3125 * _FACTORS[step % len(_FACTORS)]
    if is_clock:
        value, is_whole = 2.3125 * (step + 1), False
    try:
        return format(int(value) if is_whole else value, spec or ("" if is_whole else ".4f"))
    except (ValueError, TypeError):
        return None
