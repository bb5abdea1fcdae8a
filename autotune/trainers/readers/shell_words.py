"""The command in a shell script, by its words. Nothing is run: no substitution `$( )`, no arithmetic, no conditions.

TP=2
MODEL_ARGS=(--num-layers 32 --hidden-size 4096)
torchrun --nproc_per_node $GPUS pretrain_gpt.py ${MODEL_ARGS[@]} --tensor-model-parallel-size $TP
"""

from __future__ import annotations

import re
import shlex

from autotune.errors import SpecError

_ASSIGNMENT = re.compile(r"^(?:export\s+|local\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9@*])(?:\[[@*]\])?(?::?-([^}]*))?\}?")
_DEPTH = 8
"""variables inside variables"""


def command_of(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the words of the longest command with options, names of variables that are not set). Raises `SpecError` when there is no option."""
    variables: dict[str, str] = {}
    commands: list[str] = []
    for statement in _statements(text):
        if assigned := _ASSIGNMENT.match(statement):
            name, value = assigned.groups()
            value = value.strip()
            if (value.startswith("(") and value.endswith(")")) or (
                len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            ):
                value = value[1:-1]
            variables[name] = value
        else:
            commands.append(statement)
    best: tuple[str, ...] = ()
    of_best: tuple[str, ...] = ()
    for command in commands:
        unset: dict[str, None] = {}
        words = _words(_filled(command, variables, unset))
        if _options(words) > _options(best):
            best, of_best = words, tuple(unset)
    if not best:
        raise SpecError("the file holds no command with options such as --tensor-model-parallel-size 2", field="FILE")
    return best, of_best


def _options(words: tuple[str, ...]) -> int:
    return sum(word.startswith("--") for word in words)


def _statements(text: str) -> list[str]:
    """The script's statements: continued lines joined, arrays over several lines as one, comments left out."""
    lines = [re.sub(r"(^|\s)#.*$", "", line) for line in text.replace("\\\n", " ").splitlines()]
    statements: list[str] = []
    is_open = False
    for line in lines:
        if is_open:
            statements[-1] += " " + line.strip()
        elif line.strip():
            statements.append(line.strip())
        if statements:
            last = statements[-1]
            is_array = re.match(r"^(?:export\s+|local\s+)?[A-Za-z_][A-Za-z0-9_]*=\(", last) is not None
            quotes = last.count('"') % 2 == 1 or last.count("'") % 2 == 1
            is_open = (is_array and not last.endswith(")")) or quotes
    # a text file of bare flags is one command, whatever its lines are
    if statements and all(statement.startswith("-") for statement in statements):
        return [" ".join(statements)]
    return statements


def _filled(text: str, variables: dict[str, str], unset: dict[str, None]) -> str:
    def value(found: re.Match[str]) -> str:
        name, default = found.groups()
        if name not in variables and default is None:
            unset[name] = None
            return found[0]  # it stays as it is written, where a reader of the spec sees it
        return variables.get(name, default or "")

    for _ in range(_DEPTH):
        before, text = text, _REFERENCE.sub(value, text)
        if text == before:
            break
    return text


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return tuple(command.split())
