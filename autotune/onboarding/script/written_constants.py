"""What the text of a program without options sets by itself, read as the options of these names.

BATCH_SIZE = 16
config.accumulate = 4
"""

from __future__ import annotations

import ast
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from autotune.onboarding.script.option_names import meaning_of
from autotune.onboarding.script.options import ScriptOption, kind_of, option_of
from autotune.onboarding.script.syntax import literal_or_none
from autotune.onboarding.script.written_arguments import Written
from autotune.trainers.command.overriding import UnclearPlaceError, find

PARSER = "constants"
_KNOBS = frozenset({"micro_batch_size", "accumulation_steps", "global_batch_size"})
"""without one of them nothing can be tuned"""


def written_constants(tree: ast.Module) -> Written | None:
    """What it sets once, to a literal, by a name that stands for a knob or a figure of the workload; None where no batch is among them."""
    found = {place: option for node in ast.walk(tree) for place, option in _set_by(node)}
    names = Counter(option.name for option in found.values())
    places = {}
    for place, option in found.items():
        with suppress(UnclearPlaceError):
            if names[option.name] == 1 and find(tree, place):
                places[option.name] = (place, option)
    meanings = {name: meaning_of(option) for name, (_, option) in places.items()}
    if not _KNOBS & {meaning.target for meaning in meanings.values() if meaning}:
        return None
    options = [option for _, option in places.values()]
    return Written(
        options=tuple(replace(option, default=None) for option in options),
        values={option.name: option.default for option in options},
        lines={option.name: option.line for option in options},
        workload={},
        parser=PARSER,
        elsewhere={name: (place,) for name, (place, _) in places.items()},
    )


def _set_by(node: ast.AST) -> list[tuple[str, ScriptOption]]:
    """(place, the option that it is read as)"""
    target: ast.expr | None = None
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    if not isinstance(target, ast.Name | ast.Attribute):
        return []
    value = literal_or_none(getattr(node, "value", None))
    if not isinstance(value, bool | int | str):
        return []
    name = target.id if isinstance(target, ast.Name) else target.attr
    option = replace(option_of(name, kind_of(value), value), line=target.lineno)
    return [(ast.unparse(target), option)] if meaning_of(option) is not None else []
