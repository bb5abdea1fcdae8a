"""The command in a shell script, by its words. Nothing is run: no substitution `$( )`.

TP=2
MODEL_ARGS=(--num-layers 32 --hidden-size 4096)
if [[ "$DTYPE" == fp8 ]]; then MODEL_ARGS+=("--fp8-format hybrid"); fi
torchrun --nproc_per_node $GPUS pretrain_gpt.py ${MODEL_ARGS[@]} --tensor-model-parallel-size $TP

Defaults (`${TP:-2}`) and arithmetic of whole numbers (`$((NODES * 8))`) are put in. Of conditions, comparisons of words and numbers, -n and -z are decided by the variables of the script; any other condition counts as false.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Mapping

from autotune.errors import SpecError

_ASSIGNMENT = re.compile(r"^(?:export\s+|local\s+|declare\s+)?([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)$", re.DOTALL)
_ARRAY = re.compile(r"^(?:export\s+|local\s+|declare\s+)?[A-Za-z_][A-Za-z0-9_]*\+?=\(")
_DEFAULT = r"(?::?[-=]((?:[^{}]|\$\{[^{}]*\})*))?"
_REFERENCE = re.compile(
    rf"\$\{{([A-Za-z_][A-Za-z0-9_]*|[0-9@*])(?:\[[@*]\])?{_DEFAULT}\}}|\$([A-Za-z_][A-Za-z0-9_]*|[0-9@*])"
)
_ARITHMETIC = re.compile(r"\$\(\(([^()]{1,200})\)\)")
_DEPTH = 8
"""variables inside variables"""
_LONGEST = 1 << 16
"""characters of a variable"""
_COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {"==": operator.eq, "=": operator.eq, "!=": operator.ne}
_NUMERIC: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def command_of(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the words of the longest command with options, names of variables that are not set). Raises `SpecError` when there is no option."""
    variables: dict[str, str] = {}
    commands: list[str] = []
    branches: list[tuple[bool, bool]] = []
    """of each open `if`: whether its present branch counts, and whether one before it or itself did"""
    for statement in _statements(text):
        word, _, rest = statement.partition(" ")
        if word == "if":
            holds = _holds(rest, variables)
            branches.append((holds, holds))
        elif word in ("elif", "else", "fi") and branches:
            _, was = branches.pop()
            if word != "fi":
                holds = not was and (word == "else" or _holds(rest, variables))
                branches.append((holds, was or holds))
        elif not all(counts for counts, _ in branches):
            if assigned := _ASSIGNMENT.match(statement):
                variables.setdefault(assigned[1], "")  # the script knows it, and leaves it empty here
        elif assigned := _ASSIGNMENT.match(statement):
            _assign(variables, *assigned.groups())
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


def _assign(variables: dict[str, str], name: str, appends: str, value: str) -> None:
    """Sets a variable, or appends to it. What it says of itself is put in, because it means its value until now."""
    value, before = value.strip(), variables.get(name, "")
    is_array = value.startswith("(") and value.endswith(")")
    if is_array:
        value = _elements(value[1:-1])
    elif len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    value = re.sub(
        rf"\$(?:{name}\b|\{{{name}(?:\[[@*]\])?{_DEFAULT}\}})", lambda found: before or found[1] or "", value
    )
    joined = f"{before}{' ' if is_array else ''}{value}" if appends else value
    variables[name] = joined.strip()[:_LONGEST]


def _elements(text: str) -> str:
    """An array's elements as the words that `${ARRAY[@]}` without quotes becomes: an element that starts with an option is split at its spaces."""
    try:
        elements = shlex.split(text)
    except ValueError:
        return text
    return " ".join(
        word if word.startswith(("-", "$")) or not re.search(r"\s", word) else shlex.quote(word) for word in elements
    )


def _holds(condition: str, variables: dict[str, str]) -> bool:
    """Whether a condition of comparisons holds; False where it cannot be told."""
    text = condition.strip().removesuffix("then").rstrip("; ")
    return any(all(_test(part, variables) for part in either.split("&&")) for either in text.split("||"))


def _test(text: str, variables: dict[str, str]) -> bool:
    filled = _REFERENCE.sub("", _filled(text, variables, {}))  # what is not set is empty
    words = [word for word in _words(filled) if word not in ("[", "[[", "]", "]]")]
    if words[:1] == ["!"]:
        return bool(words[1:]) and words[1] not in ("-f", "-d", "-e", "-s") and not _decide(words[1:])
    return _decide(words)


def _decide(words: list[str]) -> bool:
    if len(words) == 3 and words[1] in _COMPARISONS:
        return _COMPARISONS[words[1]](words[0], words[2])
    if len(words) == 3 and words[1] in _NUMERIC and words[0].isdecimal() and words[2].isdecimal():
        return _NUMERIC[words[1]](int(words[0]), int(words[2]))
    if words[:1] in (["-n"], ["-z"]):
        is_empty = not any(words[1:])
        return is_empty if words[0] == "-z" else not is_empty
    return words == ["true"]


def _statements(text: str) -> list[str]:
    """The script's statements: continued lines joined, arrays over several lines as one, comments left out, `if` and `then` apart."""
    lines = [re.sub(r"(^|\s)#.*$", "", line) for line in text.replace("\\\n", " ").splitlines()]
    statements: list[str] = []
    is_open = False
    for line in lines:
        if is_open:
            statements[-1] += " " + line.strip()
        elif line.strip():
            statements += _parts(line.strip())
        if statements:
            last = statements[-1]
            quotes = last.count('"') % 2 == 1 or last.count("'") % 2 == 1
            is_open = (_ARRAY.match(last) is not None and not last.rstrip().endswith(")")) or quotes
    # a text file of bare flags is one command, whatever its lines are
    if statements and all(statement.startswith("-") for statement in statements):
        return [" ".join(statements)]
    return statements


def _parts(line: str) -> list[str]:
    """A line's statements: those of an `if` on one line, else the line itself."""
    if not re.match(r"(if|elif|then|else|fi)\b", line):
        return [line]
    pieces = [re.sub(r"^then\b\s*", "", piece.strip()) for piece in line.split(";")]
    parts: list[str] = []
    for piece in pieces:
        found = re.match(r"else\b\s*(.*)$", piece)
        parts += ["else", found[1]] if found else [piece]
    return [part for part in parts if part]


def _filled(text: str, variables: dict[str, str], unset: dict[str, None]) -> str:
    def value(found: re.Match[str]) -> str:
        braced, default, plain = found.groups()
        name = braced or plain
        if name not in variables and default is None:
            unset[name] = None
            return found[0]  # it stays as it is written, where a reader of the spec sees it
        return variables.get(name, "") or default or ""

    for _ in range(_DEPTH):
        before, text = text, _REFERENCE.sub(value, text)
        if text == before or len(text) > _LONGEST:
            break
    return _ARITHMETIC.sub(lambda found: _computed(found[1], variables) or found[0], text)


def _computed(expression: str, variables: dict[str, str]) -> str:
    """The value of whole numbers and variables with + - * / %; empty for anything else."""
    filled = re.sub(r"[A-Za-z_]\w*", lambda found: variables.get(found[0], ""), expression)
    terms = re.findall(r"\d{1,12}|\S", filled)
    total, product, sign, operation = 0, 1, 1, "*"
    if not terms or len(terms) % 2 == 0:
        return ""
    for place, term in enumerate(terms):
        if place % 2 == 0:
            if not term.isdecimal() or (operation != "*" and int(term) == 0):
                return ""
            product = {"*": operator.mul, "/": operator.floordiv, "%": operator.mod}[operation](product, int(term))
        elif term in "*/%":
            operation = term
        elif term in "+-":
            total, product, operation = total + sign * product, 1, "*"
            sign = 1 if term == "+" else -1
        else:
            return ""
    return str(total + sign * product)


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return tuple(command.split())
