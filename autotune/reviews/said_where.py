"""Finds the lines of a launch that set the values in an error message: `tp=3 must divide ...`
refers to the line with `--tensor-model-parallel-size 3`.

A value is looked for after a name of the knob, as an option, a key, or a shell variable (`TP=3`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from autotune.errors import SpecError
from autotune.reviews.dangers import code_lines
from autotune.spec.texts.usual_names import setting_of

_VALUE = re.compile(
    r"\b(tp|pp|cp|ep|dp|micro_batch_size|accumulation_steps|global_batch_size)=(\d+)"
)
_IN_WORDS = (
    ("global_batch_size", re.compile(r"global batch of (\d+)")),
    ("nproc_per_node", re.compile(r"the (\d+) ranks")),
)
_SET = re.compile(
    r"""(?:^|[\s"'{,(])(?:export\s+|--?)?([A-Za-z][\w.-]*)["']?(?:\s*[:=]\s*|\s+)["']?(?:\$\{\w+:?-)?(\d+)\b"""
)
MOST = 4
"""maximum number of lines that are named"""


def with_lines(error: SpecError, texts: Mapping[str, str]) -> SpecError:
    """The error with the lines that set its values; unchanged if none is found."""
    places = lines_of_values(error.message, texts)
    if not places:
        return error
    return SpecError(f"{error.message} ({places})", remedy=error.remedy, field=error.field)


def lines_of_values(words: str, texts: Mapping[str, str]) -> str:
    """The lines that set the values of knobs in a message, as `train.sh:4: tp=3, train.sh:9: pp=2`;
    empty if none is found."""
    values = [(knob, int(value)) for knob, value in _VALUE.findall(words)]
    values += [
        (knob, int(found[1])) for knob, pattern in _IN_WORDS if (found := pattern.search(words))
    ]
    places = [
        f"{place}: {knob}={value}"
        for knob, value in dict.fromkeys(values)
        if (place := _line_of(knob, value, texts))
    ]
    return ", ".join(places[:MOST])


def _line_of(knob: str, value: int, texts: Mapping[str, str]) -> str:
    """`file:number` of the first line that sets a knob to this value; empty if none does."""
    for name, text in texts.items():
        if name.endswith(".py"):
            continue
        for number, line in code_lines(text):
            if (knob, value) in _values_of(line):
                return f"{name}:{number}"
    return ""


def _values_of(line: str) -> Iterator[tuple[str, int]]:
    """(knob, value) of the knobs that a line sets."""
    for name, value in _SET.findall(line):
        target = setting_of(name.rpartition(".")[2].replace("-", "_").lower())
        if target is not None:
            yield target, int(value)
