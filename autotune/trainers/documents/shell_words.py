"""Parses a shell script into the commands that it runs, with variables expanded. Nothing is run, and
substitutions `$( )` are kept.

TP=2 MODEL_ARGS=(--num-layers 32 --hidden-size 4096) if [[ "$DTYPE" == fp8 ]]; then
MODEL_ARGS+=("--fp8-format hybrid"); fi srun torchrun --nproc_per_node $GPUS pretrain_gpt.py
"${MODEL_ARGS[@]}" --tensor-model-parallel-size $TP 2>&1 | tee train.log

Defaults (`${TP:-2}`), integer arithmetic (`$((NODES * 8))`, `$(expr 16 / $GPUS)`) and the variables
that Slurm sets for `#SBATCH` lines are expanded; after `set -- 8 train.py`, also the script's
arguments (`$1`, `"$@"`, `shift`). In conditions (`if`, `case`, `&&`, `||`), comparisons of words
and numbers, -n and -z are evaluated with the script's variables; any other condition counts as
false. Bodies of loops and functions are run once.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import NamedTuple, final

from autotune.errors import SpecError
from autotune.trainers.documents.placeholders import calculated
from autotune.trainers.documents.shell_folders import OF_SCRIPT, Folders, joined, with_plain_folders
from autotune.trainers.documents.shell_statements import Statement, statements_of

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_QUOTED = re.compile(r"^(['\"])(.*)\1$", re.DOTALL)
_OF_SHELL = ("read", "mapfile", "readarray", "eval")
"""shell built-ins for which `IFS=, read -ra NAMES` sets a variable without exporting it"""
_DECLARATIONS = ("export", "local", "declare", "readonly", "typeset")
_DEFAULT = r"(?::?[-=]((?:[^{}]|\$\{[^{}]*\})*))?"
_REFERENCE = re.compile(
    rf"\$\{{([A-Za-z_][A-Za-z0-9_]*|[0-9]+)(?:\[[@*]\])?{_DEFAULT}\}}|\$([A-Za-z_][A-Za-z0-9_]*|[0-9])"
)
_ARGUMENT = re.compile(r"\$\{?[1-9@*]")
_ARGUMENT_OR_QUOTED = re.compile(rf"'[^']*'|\$\{{([1-9][0-9]*){_DEFAULT}\}}|\$([1-9])")
"""an argument of the script; inside single quotes it is plain text"""
_SETS_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):?=([^{}]*)\}")
_ALL_ARGUMENTS = re.compile(r"\"\$\{?[@*]\}?\"|\$\{?[@*]\}?")
_QUOTED_ARRAY = re.compile(r"\"(\$\{[A-Za-z_][A-Za-z0-9_]*\[[@*]\]\})\"")
_INNER = r"\((?:[^()]|\([^()]{0,200}\)){0,200}\)"
_ARITHMETIC = re.compile(rf"\$\(\(((?:[^()]|{_INNER}){{1,200}})\)\)")
_EXPR = re.compile(r"\$\(\s*expr\s+([^()`]*)\)")
_SUBSTITUTION = re.compile(r"\$\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)|`[^`]*`")
_TEXT = re.compile(
    r"^[ \t]*(?:read (?:-\w+ +)*-d ?(?:''|\"\") *(?P<read>\w+)|(?P<set>\w+)=\"?\$\(cat) *<<-? ?['\"]?(?P<end>\w+)['\"]?[ \t]*\n"
    r"(?P<body>.*?)\n[ \t]*(?P=end)[ \t]*$(?:\n[ \t]*\)\"?[ \t]*$)?",
    re.MULTILINE | re.DOTALL,
)
"""a variable that gets the following lines: `read -r -d '' NAME <<EOF`, `NAME=$(cat <<EOF`"""
_ABOVE = re.compile(rf"\$\(dirname [\"']?({re.escape(OF_SCRIPT)}[\w./-]*)[\"']?\)")
"""the parent of a folder that is relative to the script's own"""
_OPERATOR = re.compile(r"\||\|&|;|&|&&|\|\||(?:\d|&)?>>?(?:&\d)?")
"""words that end a command"""
_SPACE = "\ue000"
"""replaces a space that does not separate words"""
_WITHIN = str.maketrans(" \t\n'\"\\", "\ue000\ue001\ue002\ue003\ue004\ue005")
"""replacements inside a substitution for characters that separate words elsewhere"""
_AGAIN = {kept: written for written, kept in _WITHIN.items()}
"""the characters by their replacements"""
_DEPTH = 8
"""maximum number of nested variables"""
_LONGEST = 1 << 16
"""maximum characters of a variable"""
_COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "==": fnmatchcase,
    "=": fnmatchcase,
    "!=": lambda word, pattern: not fnmatchcase(word, pattern),
}
_NUMERIC: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_SLURM = {
    **dict.fromkeys(("--nodes", "-N"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    **dict.fromkeys(("--gpus-per-node", "--gres"), ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    **dict.fromkeys(("--ntasks", "-n"), ("SLURM_NTASKS",)),
}
"""variables that Slurm sets, by the option of sbatch"""


class Command(NamedTuple):
    """A command of a script."""

    words: tuple[str, ...]
    """its words, with variables expanded"""
    unset: tuple[str, ...]
    """names of unset variables, which are kept as written"""
    folder: str = ""
    """where it runs, in the notation of `shell_folders`"""


class Commands(NamedTuple):
    """The commands of a script."""

    commands: tuple[Command, ...]
    """commands in order"""
    exported: Mapping[str, str]
    """variables that the script exports"""
    of_slurm: Mapping[str, str]
    """variables that Slurm sets for the script's `#SBATCH` lines"""


def command_of(text: str) -> Command:
    """The command with the most options. Raises `SpecError` if no command has any."""
    best = max(
        commands_of(text).commands,
        key=lambda command: _options(command.words),
        default=Command((), ()),
    )
    if not _options(best.words):
        raise SpecError(
            "the file has no command with options such as --tensor-model-parallel-size 2",
            field="FILE",
        )
    return best


def commands_of(text: str) -> Commands:
    """The commands of a script, with its exported variables."""
    of_slurm = _slurm_variables(text)
    text = _TEXT.sub(_assigned, text)
    script = _Script(variables=dict(of_slurm), folders=Folders(now=_folder_of_slurm(text)))
    statements = list(statements_of(with_plain_folders(text)))
    if statements and all(
        statement.words[:1] and statement.words[0].startswith("-") for statement in statements
    ):
        # a text file with only flags is one command
        statements = [
            Statement(tuple(word for statement in statements for word in statement.words), ";")
        ]
    script.follow(statements)
    found: list[Command] = []
    for command, folder in script.commands:
        unset: dict[str, None] = {}
        programs = tuple(_programs(_filled(command, script.variables, unset)))
        found += [
            Command(words, tuple(unset), joined(folder, inner) if inner else folder)
            for words, inner in programs
        ]
    exported = {
        name: _filled(script.variables[name], script.variables, {}) for name in script.exported
    }
    return Commands(tuple(found), exported, of_slurm)


def _assigned(found: re.Match[str]) -> str:
    """The same text as an assignment."""
    body = found["body"].replace("\\\n", " ").replace('"', '\\"')
    return f'{found["read"] or found["set"]}="{body}"'


@dataclass(slots=True)
class _Branch:
    """An open `if` or `case`."""

    counts: bool
    """whether the current branch is run"""
    was: bool
    """whether this or an earlier branch was run"""
    subject: str | None = None
    """the word that a `case` compares"""
    awaits: bool = False
    """whether a pattern of the `case` follows"""
    of_options: bool = False
    """whether it loops over the script's options, with `case $1 in`"""


@final
@dataclass(slots=True)
class _Script:
    """The state of a script after its statements: variables, and commands with unexpanded
    references."""

    variables: dict[str, str]
    commands: list[tuple[str, str]] = field(default_factory=list)
    """(command, its folder)"""
    folders: Folders = field(default_factory=Folders)
    exported: dict[str, None] = field(default_factory=dict)
    branches: list[_Branch] = field(default_factory=list)
    arguments: list[str] | None = None
    """current values of `$1`, `$2` and so on; None if unknown"""
    given: list[str] = field(default_factory=list)
    """their initial values"""

    def follow(self, statements: Sequence[Statement]) -> None:
        """Processes the statements."""
        chain: list[tuple[str, tuple[str, ...]]] = []
        before = ";"
        for words_written, after, opens in statements:
            words = tuple(map(self._bound, words_written))
            for _ in range(opens):
                self.folders.open()
            if self.branches and self.branches[-1].awaits and words[:1] != ("esac",):
                self._pattern(words, after)
                continue
            if words[:1] == ("case",) and "in" in words:
                place = words.index("in")
                subject = self._value(" ".join(words[1:place]))
                of_options = " ".join(words_written[1:place]).strip('"') == "$1"
                self.branches.append(_Branch(False, False, subject, True, of_options))
                if words[place + 1 :]:
                    self._pattern(words[place + 1 :], after)
                continue
            if words or chain:
                chain.append((before, words))
            before = after
            if after not in ("&&", "||"):
                if chain:
                    self._chain(chain)
                chain, before = [], ";"
            if after == ")":
                self.folders.close()
            if after == ";;" and self.branches:
                self.branches[-1].counts, self.branches[-1].awaits = False, True

    def _pattern(self, words: tuple[str, ...], after: str) -> None:
        branch = self.branches[-1]
        pattern = " ".join(words).strip("\"'")
        if branch.of_options and pattern in self.given:
            self.arguments = self.given[self.given.index(pattern) :]
            branch.counts = True
        elif not branch.was and fnmatchcase(branch.subject or "", pattern):
            branch.counts = branch.was = True
        branch.awaits = after == "|"

    def _chain(self, chain: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """Processes statements joined by && and ||."""
        (_, words), *more = chain
        while words[:1] and words[0] in ("then", "do", "{", "else"):
            if words[0] == "else" and self.branches:
                branch = self.branches[-1]
                branch.counts, branch.was = not branch.was, True
            words = words[1:]
        word = words[0] if words else ""
        if word in ("if", "elif"):
            condition = "".join(f" {joint} {' '.join(part)}" for joint, part in more)
            self._condition(word, " ".join(words[1:]) + condition)
        elif word in ("fi", "esac"):
            del self.branches[-1:]
        else:
            holds = True
            for joint, part in ((";", words), *more):
                is_skipped = (joint == "&&" and not holds) or (joint == "||" and holds)
                counts = not is_skipped and all(branch.counts for branch in self.branches)
                if part and part[0].startswith("["):
                    holds = holds if is_skipped else _test(" ".join(part), self.variables)
                elif part:
                    holds = holds if is_skipped else True
                    self._run(part, counts=counts)

    def _condition(self, word: str, text: str) -> None:
        if word == "if":
            holds = _holds(text, self.variables)
            self.branches.append(_Branch(holds, holds))
        elif self.branches:
            branch = self.branches[-1]
            branch.counts = not branch.was and _holds(text, self.variables)
            branch.was = branch.was or branch.counts

    def _run(self, words: tuple[str, ...], *, counts: bool) -> None:
        """Processes assignments, and stores the rest as a command. `counts`: whether it is run, and
        not under a false condition."""
        if counts and self._sets_arguments(words):
            return
        first, assigns = words[0], list[str]()
        if first in _DECLARATIONS:
            words = tuple(word for word in words[1:] if not word.startswith("-"))
        while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
            if counts:
                self._assign(assigned)
                assigns.append(assigned[1])
            elif self.arguments is None and _ARGUMENT.search(assigned[3]):
                # an argument of the script that is unknown
                if not self.variables.get(assigned[1]):
                    self.variables.pop(assigned[1], None)
            else:
                # a variable of the script that stays empty under this condition
                self.variables.setdefault(assigned[1], "")
            words = words[1:]
        words, given = _without_env(words)
        for assigned in given if counts else ():
            self._assign(assigned)
            assigns.append(assigned[1])
        if first == "export":
            assigns += [name for name in words if name in self.variables]
        # `NAME=value command` exports NAME to the command
        if first == "export" or (words and words[0] not in _OF_SHELL):
            self.exported.update(dict.fromkeys(assigns))
        command = " ".join(words)
        if counts and command:
            for name, value in _SETS_DEFAULT.findall(command):
                self.variables[name] = self.variables.get(name) or value
            if not self.folders.follow(_words(_filled(command, self.variables, {}))):
                self.commands.append((command, self.folders.now))

    def _assign(self, assigned: re.Match[str]) -> None:
        """Sets a variable. Commands and variables that refer to it get its previous value first."""
        name = assigned[1]
        if name in self.variables:

            def with_previous_value(text: str) -> str:
                text = _QUOTED_ARRAY.sub(r"\1", text)
                return _put_in(text, name, self.variables[name])

            self.commands = [
                (with_previous_value(command), folder) for command, folder in self.commands
            ]
            for other in self.variables.keys() - {name}:
                self.variables[other] = with_previous_value(self.variables[other])[:_LONGEST]
        _assign(self.variables, *assigned.groups())

    def _sets_arguments(self, words: tuple[str, ...]) -> bool:
        """Processes `set -- ...` and `shift`; False for any other command."""
        if words[:2] == ("set", "--"):
            self.given = [*_words(_filled(" ".join(words[2:]), self.variables, {}))]
            self.arguments = self.given
        elif words[0] == "shift" and self.arguments is not None:
            steps = words[1] if words[1:] and words[1].isdecimal() else "1"
            self.arguments = self.arguments[int(steps) :]
        else:
            return False
        return True

    def _bound(self, word: str) -> str:
        """The word with the script's arguments expanded."""
        given = self.arguments
        if given is None:
            return word

        def value(found: re.Match[str]) -> str:
            if (number := found[1] or found[3]) is None:
                return found[0]
            return "".join(given[int(number) - 1 : int(number)]) or _default(found[2])

        word = re.sub(r"\$#|\$\{#\}", str(len(given)), word)
        word = _ALL_ARGUMENTS.sub(lambda _: shlex.join(given), word)
        return _ARGUMENT_OR_QUOTED.sub(value, word)

    def _value(self, text: str) -> str:
        return " ".join(_words(_filled(text, self.variables, {})))


def _without_env(words: tuple[str, ...]) -> tuple[tuple[str, ...], list[re.Match[str]]]:
    """(a command without the variables that `env` sets for it, these assignments): `srun env
    NAME=value python train.py`."""
    begin = next((at for at, word in enumerate(words) if re.fullmatch(r"(/\S*/)?env", word)), None)
    if begin is None:
        return words, []
    kept, given = list(words[: begin + 1]), list[re.Match[str]]()
    for at in range(begin + 1, len(words)):
        assigned = _ASSIGNMENT.fullmatch(_QUOTED.sub(r"\2", words[at]))
        if assigned is not None:
            given.append(assigned)
        elif words[at].startswith("-") or words[at - 1] in ("-u", "-C"):
            kept.append(words[at])
        else:
            return (*kept, *words[at:]), given
    return words, []


def _slurm_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets for a script of sbatch."""
    found: dict[str, str] = {}
    for option, value in re.findall(
        r"^#SBATCH[ \t]+(--?[\w-]+)[= \t][ \t]*(\S+)", text, re.MULTILINE
    ):
        number = re.search(r"(?:^|:)(\d+)$", value)
        found |= dict.fromkeys(
            _SLURM.get(option, ()) if number else (), number[1] if number else ""
        )
    return found


def _folder_of_slurm(text: str) -> str:
    """The folder in which sbatch starts the script; empty for the default."""
    found = re.findall(r"^#SBATCH[ \t]+(?:--chdir|-D)[= \t][ \t]*([^\s%]+)", text, re.MULTILINE)
    return found[-1] if found else ""


def _options(words: tuple[str, ...]) -> int:
    return sum(word.startswith("--") for word in words)


def _programs(command: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(words, folder) of the command, up to a pipe or redirection from a variable; and of each
    command in a text that it passes to a shell (`srun bash -c "cd src && torchrun ..."`), with the
    words before the shell. Folders are relative to that of the command."""
    words = _words(command)
    yield tuple(takewhile(lambda word: not _OPERATOR.fullmatch(word), words)), ""
    for place, word in enumerate(words[:-1]):
        is_shell = (
            word.startswith("-")
            and word.endswith("c")
            and words[place - 1].rpartition("/")[2] in ("bash", "sh")
        )
        if is_shell or word == "eval":
            folders, before = Folders(), place if word == "eval" else place - 1
            for statement in statements_of(" ".join(words[place + 1 :])):
                inner = _words(" ".join(statement.words))
                if not folders.follow(inner):
                    yield (*words[:before], *inner), folders.now


def _assign(variables: dict[str, str], name: str, appends: str, value: str) -> None:
    """Sets a variable, or appends to it. References to itself are expanded, because they mean the
    previous value."""
    value, before = value.strip(), variables.get(name, "")
    is_array = value.startswith("(") and value.endswith(")")
    if is_array:
        value = _elements(_ALL_ARGUMENTS.sub("", _QUOTED_ARRAY.sub(r"\1", value[1:-1])))
    elif len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        is_json = value[0] == "'" and value[1] in "{["
        value = value[1:-1]
        if is_json:  # its quotes and spaces do not separate words
            value = re.sub(r"\s", _SPACE, value.replace('"', '\\"'))
    value = _put_in(value, name, before)
    value = _ARITHMETIC.sub(
        lambda found: _computed(_filled(found[1], variables, {}), variables) or found[0], value
    )  # computed now, because it may be an operand of the next
    gap = " " if is_array else ""
    joined = f"{before}{gap}{value}" if appends else value
    variables[name] = joined.strip()[:_LONGEST]


def _put_in(text: str, name: str, value: str) -> str:
    """The text with a variable expanded."""
    return re.sub(
        rf"\$(?:{name}\b|\{{{name}(?:\[[@*]\])?{_DEFAULT}\}})",
        lambda found: value or _default(found[1]),
        text,
    )


def _elements(text: str) -> str:
    """The words of an array in `${ARRAY[@]}` without quotes: an element that starts with an option
    is split at spaces."""
    try:
        elements = shlex.split(text)
    except ValueError:
        return text
    return " ".join(
        word
        if word.startswith(("-", "$")) or not re.search(r"[\s\"']", word)
        else shlex.quote(word)
        for word in elements
    )


def _holds(condition: str, variables: dict[str, str]) -> bool:
    """Whether a condition made of comparisons is true; False if it cannot be evaluated."""
    return any(
        all(_test(part, variables) for part in either.split("&&"))
        for either in condition.split("||")
    )


def _test(text: str, variables: dict[str, str]) -> bool:
    filled = _REFERENCE.sub(
        '""', _filled(text, variables, {})
    )  # an unset variable is an empty word
    words = [word for word in _words(filled) if word not in ("[", "[[", "]", "]]")]
    if words[:1] == ["!"]:
        return (
            bool(words[1:]) and words[1] not in ("-f", "-d", "-e", "-s") and not _decide(words[1:])
        )
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


def _filled(text: str, variables: dict[str, str], unset: dict[str, None]) -> str:
    """The text with variables, arithmetic and `expr` expanded. Names of unset variables are added
    to `unset`."""
    text = _ALL_ARGUMENTS.sub("", _QUOTED_ARRAY.sub(r"\1", text))
    text = _EXPR.sub(lambda found: "$((" + found[1].replace("\\", "") + "))", text)
    text = _ABOVE.sub(r"\1/..", _with_variables(text, variables, unset))
    return _ARITHMETIC.sub(lambda found: _computed(found[1], variables) or found[0], text)


def _with_variables(text: str, variables: dict[str, str], unset: dict[str, None]) -> str:
    def value(found: re.Match[str]) -> str:
        braced, default, plain = found.groups()
        name = braced or plain
        if name not in variables and default is None:
            unset[name] = None
            return found[0]  # kept as written, so that it is visible in the spec
        return variables.get(name, "") or _default(default)

    for _ in range(_DEPTH):
        before, text = text, _REFERENCE.sub(value, text)
        if text == before or len(text) > _LONGEST:
            break
    return text


def _default(written: str | None) -> str:
    """The text of a default. Quotes without content are no word where the variable is used without
    quotes."""
    return "" if written in (None, "''", '""') else written or ""


def _computed(expression: str, variables: dict[str, str]) -> str:
    """The value of an expression of integers and variables with + - * / % and parentheses; empty if
    it cannot be computed."""
    filled = re.sub(
        r"[A-Za-z_]\w*",
        # the value may be `${NAME:-8}`
        lambda found: _with_variables(variables.get(found[0], ""), variables, {}),
        expression,
    )
    try:
        whole = re.sub(r"\b0+(?=\d)", "", filled).strip().replace("/", "//")
        return str(calculated(ast.parse(whole, mode="eval").body, int))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return ""


def _words(command: str) -> tuple[str, ...]:
    """The words of a command; a substitution is one word, whatever spaces and quotes it has."""
    command = _SUBSTITUTION.sub(lambda found: found[0].translate(_WITHIN), command)
    try:
        return tuple(word.translate(_AGAIN) for word in shlex.split(command))
    except ValueError:
        return tuple(command.split())
