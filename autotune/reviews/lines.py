"""Turns an edit of a config into changed lines of the user's files.

The trainer renders the launch before and after. Options and keys that differ are looked for in the
texts:

    --batch-size 4, --batch-size=4          the value after the option
    --batch-size $BATCH                     the line that sets the variable
    batch_size: 4, batch_size = 4           the value after the key; in Python, the default of the option that declares it
    a flag that is not there                after the last word of the command; in a manifest, after the last word of its `args`
    a key that is not there                 in its section of the file: TOML, YAML, or JSON

In a script that starts several programs, only the reviewed command changes. The pods of one job run
the same command, so each of them changes.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import AutotuneError
from autotune.onboarding.launch.launch_script import Started, arguments_of, started_by
from autotune.reviews.answer import LineEdit, Review
from autotune.reviews.new_keys import GONE, text_of, with_key, with_values
from autotune.spec import ParallelConfig, Study
from autotune.trainers import Launch, trainer
from autotune.trainers.present_configuration import DOCUMENTS, flat, parse_document

STAND_INS = 6
"""maximum number of a launch's options that get a placeholder"""


@dataclass(frozen=True, slots=True)
class Change:
    """An option or key whose value differs between two launches."""

    name: str
    """as written: `--batch-size`, or the path of a key"""
    old: str | None
    """old value; None: it is not there; empty: a flag without a value"""
    new: str | None
    file: str = ""
    """the launch's file that has the key; empty for an option of the command"""

    @property
    def is_needed(self) -> bool:
        """Whether the edited launch is incomplete without the change. A key to remove that no text
        has is no such change."""
        return self is not CONNECTIONS and (self.new is not None or self.name.startswith("-"))


CONNECTIONS = Change("CUDA_DEVICE_MAX_CONNECTIONS", "1", "8")
"""a variable that tensor parallelism requires, and that must change for Megatron-FSDP"""


def changed_lines(
    texts: Mapping[str, str],
    study: Study,
    before: ParallelConfig,
    after: ParallelConfig,
    *,
    beside: str = "",
    held: frozenset[str] = frozenset(),
    started: Started | None = None,
) -> tuple[tuple[LineEdit, ...], tuple[str, ...]]:
    """(the lines that change from one config to the other; settings without a line in the texts, as
    written). `held`: names of options that only Python code sets; `beside`: the keyword argument in
    the code after which new ones are written; `started`: the reviewed command."""
    lines = {name: _without_others(text, started) for name, text in texts.items()}
    unedited = {name: list(text) for name, text in lines.items()}
    passed = {argument.name for argument in started.arguments} if started else set()
    unplaced: list[str] = []
    for requested in _without_rewritten(lines, _requested_changes(texts, study, before, after)):
        settings_files = _holds_options(requested, texts, started)
        change = _as_key(requested) if settings_files else _as_given(requested, texts, passed)
        key = change.name.lstrip("-")
        is_held = key in held
        candidates = {
            n: text
            for n, text in _in_its_file(lines, change).items()
            if (n in settings_files if settings_files else n.endswith(".py") or not is_held)
            # a default has no effect if the command passes the option, even if its value is a variable
            # that the shell computes
            and not (n.endswith(".py") and key.replace("-", "_") in passed)
        }
        if (
            not _is_made(lines, candidates, change, beside if is_held else None)
            and change.is_needed
        ):
            name = key if is_held else change.name
            unplaced.append(f"{name}={change.new}" if change.new or is_held else name)
    return tuple(_edits(unedited, lines)), tuple(unplaced)


def _requested_changes(
    texts: Mapping[str, str], study: Study, before: ParallelConfig, after: ParallelConfig
) -> list[Change]:
    """The options, keys and variables that change between the two configs."""
    changes = list(_changes(study, before, after))
    if before.accumulation_steps != after.accumulation_steps:
        changes += _implicit_batch(texts, study, after)
    is_sharded = any(
        each.name == "--use-megatron-fsdp" and each.new is not None for each in changes
    )
    if is_sharded and any(CONNECTIONS.name in text for text in texts.values()):
        changes.append(CONNECTIONS)
    return changes


def _without_rewritten(lines: dict[str, list[str]], changes: list[Change]) -> list[Change]:
    """The remaining changes after JSON files formatted by `json.dumps` have been rewritten."""
    for name, text in lines.items():
        file_changes = [
            change for change in changes if change.file and name in _in_its_file(lines, change)
        ]
        if (
            name.endswith(".json")
            and file_changes
            and with_values(text, {c.name: c.new for c in file_changes})
        ):
            changes = [change for change in changes if change not in file_changes]
    return changes


def _is_made(
    lines: dict[str, list[str]], among: dict[str, list[str]], change: Change, keyword: str | None
) -> bool:
    """Makes the change in one of these texts; False if no text has a place for it. `keyword`: the
    keyword argument after which a new one is written; None: the option is no keyword argument."""
    values = (keys_of(name, text_of(text)).get(change.name) for name, text in among.items())
    if change.file and change.new in values:
        return True  # set by an earlier edit of a YAML anchor
    if any(_applied(lines[name], name, change) for name in among) or _is_automatic(lines, change):
        return True
    return bool(
        _added(among, change) if keyword is None else _add_keyword_argument(among, change, keyword)
    )


def _edits(before: dict[str, list[str]], after: dict[str, list[str]]) -> Iterator[LineEdit]:
    for name in sorted(after):
        for at, (old, new) in enumerate(zip(before[name], after[name], strict=True), start=1):
            if old != new:
                yield LineEdit(file=name, line=at, before=old, after="" if new == GONE else new)


def _in_its_file(lines: dict[str, list[str]], change: Change) -> dict[str, list[str]]:
    """The texts to search for the change: only the file of that name, if it is among them."""
    own = PurePosixPath(change.file).name
    return {n: text for n, text in lines.items() if PurePosixPath(n).name == own} or lines


def _holds_options(change: Change, texts: Mapping[str, str], started: Started | None) -> list[str]:
    """Names of the settings file that is the program's only argument, and so has its options as
    keys; empty for an option of the launcher."""
    launcher_options = {argument.name for argument in started.options} if started else set()
    is_option = (
        change.name.startswith("--") and change.name[2:].replace("-", "_") not in launcher_options
    )
    settings_file = started.file_alone if started and is_option else ""
    return [name for name in texts if name.endswith(DOCUMENTS) and settings_file.endswith(name)]


def _as_given(change: Change, texts: Mapping[str, str], given: set[str]) -> Change:
    """The change under the short name of its option, if a parser declares one and the command uses
    it: `-b 8` for `add_argument("-b", "--batch-size")`."""
    pair = rf"""["']-(\w)["'],\s*["']{re.escape(change.name)}["']"""
    declared = (re.search(pair, text) for name, text in texts.items() if name.endswith(".py"))
    short = next((found[1] for found in declared if found), "")
    return replace(change, name=f"-{short}") if short and short in given else change


def _as_key(change: Change) -> Change:
    """The change of an option as that of a key, with flags as JSON and YAML write them."""
    old, new = (
        text.lower() if text in ("True", "False") else text for text in (change.old, change.new)
    )
    return Change(change.name.lstrip("-"), old, new)


def line_of_knob(found: Review, knob: str, usual: Any) -> str:
    """Where the launch sets a knob, as file:number: the line that would change if the knob had the
    value `usual`; empty if none is found."""
    if found.study is None or found.config is None:
        return ""
    lines, _ = changed_lines(
        found.texts, found.study, found.config, replace(found.config, **{knob: usual})
    )
    return f"{lines[0].file}:{lines[0].line}" if lines else ""


def baseline_line(
    name: str, text: str, after: ParallelConfig
) -> tuple[tuple[LineEdit, ...], tuple[str, ...]]:
    """As `changed_lines`, for a spec: its baseline changes."""
    for at, line in enumerate(text.splitlines(), start=1):
        if found := re.match(r"baseline:\s*[^\s#{]\S*", line):
            changed = f"baseline: {after}{line[found.end() :]}"
            return (LineEdit(file=name, line=at, before=line, after=changed),), ()
    return (), (f"baseline: {after}",)


def edited(texts: Mapping[str, str], lines: tuple[LineEdit, ...]) -> dict[str, str]:
    """The changed files with their new texts."""
    found = {}
    for name in dict.fromkeys(line.file for line in lines):
        kept = texts[name].splitlines(keepends=True)
        for line in lines:
            if line.file == name:
                end = kept[line.line - 1][len(kept[line.line - 1].rstrip("\r\n")) :]
                kept[line.line - 1] = line.after + end if line.after else ""
        found[name] = "".join(kept)
    return found


def patch(texts: Mapping[str, str], lines: tuple[LineEdit, ...]) -> str:
    """A unified diff for `patch -p1`."""
    parts = []
    for name, text in edited(texts, lines).items():
        old, new = texts[name].splitlines(keepends=True), text.splitlines(keepends=True)
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def _changes(study: Study, before: ParallelConfig, after: ParallelConfig) -> Iterator[Change]:
    """The changes between the launches of two configs; none if one of them cannot be written."""
    launches = _launched(study, before), _launched(study, after)
    if launches[0] is None or launches[1] is None:
        return
    env = study.trainer_options.get("env") or {}  # environment variables that set knobs

    def values_of(launch: Launch) -> dict[tuple[str, str], str]:
        variables = {("", name): text for name, text in launch.env.items() if name in env}
        return {**{(file, name): value for file, name, value in _settings_of(launch)}, **variables}

    old, new = values_of(launches[0]), values_of(launches[1])
    for at in dict.fromkeys([*old, *new]):
        if old.get(at) != new.get(at):
            yield Change(at[1], old.get(at), new.get(at), file=at[0])


def _implicit_batch(
    texts: Mapping[str, str], study: Study, after: ParallelConfig
) -> Iterator[Change]:
    """The batch per step, if the launch sets it and the texts do not. There it follows from
    micro-batch and ranks, which change."""
    launch = _launched(study, after)
    for file, name, value in _settings_of(launch) if launch else ():
        key = name.lstrip("-").rpartition(".")[2]
        is_batch = re.fullmatch(r"global[-_]batch[-_]size|train_batch_size", key) is not None
        if (
            is_batch
            and value != "auto"
            and not any(re.search(rf"\b{re.escape(key)}\b", text) for text in texts.values())
        ):
            yield Change(name, None, value, file=file)


def _launched(study: Study, config: ParallelConfig) -> Launch | None:
    """The launch of a config; None if it cannot be written. Options that a launch requires but a
    review does not, such as a tokenizer's path, get a placeholder."""
    subject, options = trainer(study.trainer), dict(study.trainer_options)
    for _ in range(STAND_INS):
        try:
            return subject.launch(study.workload, config, options)
        except AutotuneError as error:
            if (
                error.field not in {option.name for option in subject.options}
                or error.field in options
            ):
                return None
            options[error.field] = error.field
    return None


def _settings_of(launch: Launch) -> Iterator[tuple[str, str, str]]:
    """(file, name, value) of all that the launch sets: options of its command, with an empty file,
    and keys of its files."""
    for argument in arguments_of(launch.argv):
        settings = [word for word in argument.values if re.match(r"\+*[A-Za-z_][\w.]*=", word)]
        if argument.name:
            rest = [word for word in argument.values if word not in settings]
            yield "", argument.words[0].partition("=")[0], " ".join(rest)
        for word in settings:
            name, _, value = word.partition("=")
            yield "", name, value
    for file, text in launch.files.items():
        yield from ((file, path, value) for path, value in keys_of(file, text).items())


def keys_of(file: str, text: str) -> dict[str, str]:
    """The values of a settings file as written, by path: of YAML, JSON, TOML, and of nested calls
    in a Python configuration. Empty if it cannot be parsed."""
    if file.endswith(".py"):
        try:
            calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Return)]
        except SyntaxError:
            return {}
        return {path: value for call in calls for path, value in _arguments(call.value, "")}
    if not file.endswith(DOCUMENTS):
        return {}
    try:
        document = parse_document(file, text)
    except AutotuneError:
        return {}
    return {
        path: _as_written(value) for path, value in flat(document) if not isinstance(value, Mapping)
    }


def _arguments(node: ast.AST | None, before: str) -> Iterator[tuple[str, str]]:
    """(path, text) of a call's keyword arguments, also of nested calls."""
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        path = f"{before}{keyword.arg}"
        if isinstance(keyword.value, ast.Call) and keyword.value.keywords:
            yield from _arguments(keyword.value, f"{path}.")
        elif isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
            yield path, keyword.value.value
        else:
            yield path, ast.unparse(keyword.value)


def _as_written(value: Any) -> str:
    """A value as YAML and JSON write it; a text without its quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _apply(lines: list[str], file: str, change: Change) -> tuple[str, int] | None:
    """Makes the change in these lines, and returns (file, line index); None if no place is
    found."""
    key = change.name.lstrip("-").rpartition(".")[2]
    spelled = "[-_]".join(re.escape(part) for part in re.split(r"[-_]", key))
    if change.name.startswith("-"):
        at = _change_option(lines, spelled, change, has_flags=not file.endswith(".py"))
        if at is None and file.endswith(DOCUMENTS):
            at = _change_key(lines, file, spelled, change)
        if at is None and file.endswith(".py"):
            at = _change_default(lines, spelled, change)
        if (
            at is None
            and change.old in (None, "")
            and change.new is not None
            and not file.endswith((".py", *DOCUMENTS))
        ):
            at = _appended(lines, change)
    else:
        at = _change_key(lines, file, spelled, change)
        if at is None and change is CONNECTIONS:
            at = _change_variable(lines, change.name, change)
    return None if at is None else (file, at)


def _applied(lines: list[str], file: str, change: Change) -> list[tuple[str, int]]:
    """Makes the change in these lines, in each pod of a manifest, and returns the places."""
    places = [place] if (place := _apply(lines, file, change)) is not None else []
    while (
        places
        and _is_manifest(file, lines)
        and (place := _apply(lines, file, change)) not in (None, places[-1])
    ):
        places.append(place)
    return places


def _is_manifest(file: str, lines: list[str]) -> bool:
    """Whether the lines are those of a Kubernetes manifest."""
    return file.endswith((".yaml", ".yml")) and any(
        line.startswith("apiVersion:") for line in lines
    )


def commands_in(text: str) -> list[range]:
    """Line ranges of a script's commands that start programs: a line that names a launcher, with
    its continuation lines."""
    lines, found = text.splitlines(), list[range]()
    for at, line in enumerate(lines):
        if (found and at < found[-1].stop) or _is_comment(line) or not _STARTS.search(line):
            continue
        found.append(range(at, _last_line(lines, at) + 1))
    return found


def other_commands(text: str, started: Started | None) -> list[range]:
    """Line ranges of a script's commands other than the reviewed one, which is the one with most of
    its words."""
    commands = commands_in(text)
    if started is None or len(commands) < 2:
        return []
    lines = text.splitlines()
    words = [started.program, *started.words]
    shared = [
        sum(word in "\n".join(lines[at] for at in each) for word in words) for each in commands
    ]
    reviewed = commands[max(range(len(commands)), key=lambda at: shared[at])]
    return [each for each in commands if each is not reviewed]


def other_trainings(text: str, started: Started | None) -> list[int]:
    """Line numbers, from 1, at which a script starts further trainings."""
    lines, found = text.splitlines(), list[int]()
    for each in other_commands(text, started):
        other = started_by("\n".join(lines[at] for at in each))
        if (
            other is not None
            and started is not None
            and (other.launcher, other.program) == (started.launcher, started.program)
        ):
            found.append(each.start + 1)
    return found


def _without_others(text: str, started: Started | None) -> list[str]:
    """The lines of a text; those of commands that are not reviewed are empty, so that they do not
    change."""
    lines = text.splitlines()
    for each in other_commands(text, started):
        lines[each.start : each.stop] = [""] * len(each)
    return lines


def _added(lines: Mapping[str, list[str]], change: Change) -> list[tuple[str, int]]:
    """Adds an option to a command, or a key to a file, that no text has because its default applied
    so far. Returns the places."""
    if change.new is None:
        return []
    if not change.name.startswith("-"):
        return with_key(
            {n: text for n, text in lines.items() if not _is_manifest(n, text)},
            change.name,
            change.new,
        )
    if not change.name.startswith("--"):
        return []
    spelled = re.compile(
        "[-_]".join(re.escape(part) for part in re.split(r"[-_]", change.name.lstrip("-"))) + r"\b"
    )
    if any(spelled.search(line) for text in lines.values() for line in text):
        return []
    for name, text in lines.items():
        if _is_manifest(name, text) and (rows := _with_argument(text, change)):
            return [(name, at) for at in rows]
        if not name.endswith((".py", *DOCUMENTS)) and (at := _appended(text, change)) is not None:
            return [(name, at)]
    return []


def _with_argument(lines: list[str], change: Change) -> list[int]:
    """Adds a word to each list `args` of a manifest, and returns the line indexes. A list with a
    shell script is left unchanged."""
    word, rows = change.name if change.new == "" else f"{change.name}={change.new}", list[int]()
    for at, line in enumerate(lines):
        flow = re.match(r"\s*args:\s*\[.*\S(?=\s*\]\s*$)", line)
        if flow and not _STARTS.search(line):
            lines[at] = f"{flow[0]}, {word}{line[flow.end() :]}"
            rows.append(at)
        elif re.match(r"\s*args:\s*$", line):
            items = [n for n in range(at + 1, len(lines)) if re.match(r"\s*- ", lines[n])]
            last = at + sum(1 for n, item in enumerate(items) if item == at + 1 + n)
            if last > at and not re.match(r"\s*- *[|>]", lines[last]):
                indent = re.match(r"\s*", lines[last])
                lines[last] += f"\n{indent[0] if indent else ''}- {word}"
                rows.append(last)
    return rows


def _add_keyword_argument(
    lines: Mapping[str, list[str]], change: Change, keyword: str
) -> list[tuple[str, int]]:
    """Adds a keyword argument to a call that no text has because its default applied so far.
    Returns the place."""
    key = change.name.lstrip("-").rpartition(".")[2].replace("-", "_")
    if change.new is None or any(
        re.search(rf"\b{key}\b", line) for text in lines.values() for line in text
    ):
        return []
    place = re.compile(rf"(?:^|[(,])\s*{keyword}\s*=(?!=)\s*[^\s,#()]+")
    is_plain = re.fullmatch(r"True|False|None|[\d.]+", change.new) is not None
    for name, text in lines.items():
        for at, line in enumerate(text):
            if not _is_comment(line) and (found := place.search(line)):
                value = change.new if is_plain else repr(change.new)
                text[at] = f"{line[: found.end()]}, {key}={value}{line[found.end() :]}"
                return [(name, at)]
    return []


def _is_automatic(lines: Mapping[str, list[str]], change: Change) -> bool:
    """Whether the texts leave the value to the program, with -1 or `auto`."""
    key = re.escape(change.name.lstrip("-").rpartition(".")[2])
    left = re.compile(rf"""\b{key}["']?\s*[:= ]\s*["']?(-1|auto)\b""")
    return any(left.search(line) for text in lines.values() for line in text)


def _change_option(
    lines: list[str], spelled: str, change: Change, *, has_flags: bool
) -> int | None:
    """Changes the value of an option in these lines, or removes the option, and returns the line
    index; None if it is not found. `has_flags`: whether a bare option is a flag that is on, and not
    a declaration."""
    if change.new is None:  # remove the option with its values
        count = len(change.old.split()) if change.old else 0
        pattern = re.compile(
            rf"""(?:^|\s|(?<==["'(]))--?{spelled}"""
            + r"""(?:(?:=|\s+)(?!-)[^\s\\"')]+)""" * count
            + r"""(?=[\s\\;)]|["']\s*(?:\#|$)|$)"""
        )
        for at, line in enumerate(lines):
            if not _is_comment(line) and pattern.search(line):
                left = pattern.sub("", line, count=1)
                lines[at] = left
                if not left.strip(" \\\t"):  # nothing else is on the line
                    lines[at] = GONE
                    if not left.rstrip().endswith("\\"):
                        _end_before(lines, at)
                return at
        return None
    if change.old in (None, ""):
        return None
    option = re.compile(
        rf"""((?<![\w-])--?(?:[\w.]+\.)?{spelled}(?:=|\s+|["']\s*,\s*["']|["']?\s*$))(["']?)([^\s"'\\;)]+)"""
    )
    listed = re.compile(rf"""^\s*-\s*["']?--?(?:[\w.]+\.)?{spelled}["']?\s*$""")
    bare = re.compile(rf"""(?<![\w-])--?(?:[\w.]+\.)?{spelled}(?=\s+-|["',\]]|\s*\\?$)""")
    for at, line in enumerate(lines):
        if _is_comment(line):
            continue
        if listed.match(line) and at + 1 < len(lines):  # a list with one word per line
            value = re.match(r"""(\s*-\s*["']?)([^\s"']+)""", lines[at + 1])
            if value and value[2] == change.old:
                lines[at + 1] = _put(lines[at + 1], value.span(2), change.new)
                return at + 1
        # a flag that is on without a value
        if has_flags and _same(change.old, "true") and (flag := bare.search(line)):
            lines[at] = f"{line[: flag.end()]}={change.new}{line[flag.end() :]}"
            return at
        for found in option.finditer(line):
            value_text = found[3]
            if _same(value_text, change.old):
                lines[at] = _put(line, found.span(3), change.new)
                return at
            if name := re.fullmatch(r"\$\{?([A-Za-z_]\w*)(?::?-[^}]*)?\}?", value_text):
                return _change_variable(lines, name[1], change)
    return None


def _end_before(lines: list[str], at: int) -> None:
    """Ends a command before its removed last line."""
    kept = next((n for n in range(at - 1, -1, -1) if lines[n] != GONE), -1)
    if kept >= 0 and lines[kept].rstrip().endswith("\\"):
        lines[kept] = lines[kept].rstrip()[:-1].rstrip()


def _change_variable(lines: list[str], name: str, change: Change) -> int | None:
    """Changes the assignment of a variable in these lines, and returns the line index; None if it
    is not found."""
    assert change.old is not None
    assert change.new is not None
    assignment = re.compile(
        rf"""((?:^|[\s;]){re.escape(name)}=["']?(?:\$\{{{re.escape(name)}:?-)?|\$\{{{re.escape(name)}:?=)([^\s"';}}]+)"""
    )
    for at, line in reversed(list(enumerate(lines))):
        if (
            not _is_comment(line)
            and (found := assignment.search(line))
            and _same(found[2], change.old)
        ):
            lines[at] = _put(line, found.span(2), change.new)
            return at
    listed = re.compile(rf"""\s*-?\s*name:\s*["']?{re.escape(name)}["']?\s*$""")
    for at, line in enumerate(lines[1:], start=1):  # in a manifest
        found = re.match(r"""(\s*value:\s*["']?)([^\s"']+)""", line)
        if found and listed.match(lines[at - 1]) and _same(found[2], change.old):
            lines[at] = _put(line, found.span(2), change.new)
            return at
    return None


def _change_default(lines: list[str], spelled: str, change: Change) -> int | None:
    """Changes a default in Python: of a declared option, a field, a constant, or a keyword
    argument. Returns the line index; None if it is not found."""
    if not change.old or not change.new:
        return None
    declares = re.compile(rf"""["']--?(?:[\w.]+\.)?{spelled}["']""")
    assigns = re.compile(rf"(?:^|[(,])\s*{spelled}\s*(?::[^=,()]+)?=(?!=)\s*")
    default = re.compile(r"default\s*=\s*(?P<value>[^,)\s]+)")
    for at, line in enumerate(lines):
        is_declared = declares.search(line)
        for behind in range(at, min(at + 6, len(lines))) if is_declared else ():
            found = default.search(lines[behind])
            if found and _same(found["value"].strip("\"'"), change.old):
                value = found["value"].replace(found["value"].strip("\"'"), change.new)
                lines[behind] = _put(lines[behind], found.span("value"), value)
                return behind
        begin = None if _is_comment(line) else assigns.search(line)
        found = re.match(r"[^\s,#()]+", line[begin.end() :]) if begin else None
        if begin and found and _same(found[0].strip("\"'"), change.old):
            value = found[0].replace(found[0].strip("\"'"), change.new)
            lines[at] = line[: begin.end()] + value + line[begin.end() + found.end() :]
            return at
    return None


def _change_key(lines: list[str], file: str, spelled: str, change: Change) -> int | None:
    """Changes the value of a key, or removes it, and returns the line index; None if it is not
    found. If the file has a key with exactly this path, only the line that changes that value
    alone."""
    if change.old is None:
        return None
    key = re.compile(
        rf"""(^|[\s{{,\[(])(?:--)?(["']?)(?:[\w.]+\.)?{spelled}\2\s*[:=]\s*(["']?)(?P<value>[^\s,"'}}#)]+)\3"""
    )
    held = keys_of(file, text_of(lines))
    call = re.compile(rf"\b{spelled}=(?P<value>{re.escape(change.old)})(?=,|$)")  # Python's
    for at, line in enumerate(lines):
        if _is_comment(line):
            continue
        for found in chain(key.finditer(line), call.finditer(line)):
            if not _same(found["value"], change.old):
                continue
            if change.new is None:  # remove the key if nothing else is on the line
                if line.strip().rstrip(",") != found[0].strip():
                    continue
                lines[at] = GONE
            else:
                is_python = found["value"] in ("True", "False")
                new = change.new.capitalize() if is_python else change.new
                lines[at] = _put(line, found.span("value"), new)
            if not held or _changes_alone(held, keys_of(file, text_of(lines)), change):
                return at
            lines[at] = line
    return None


def _changes_alone(held: Mapping[str, str], now: Mapping[str, str], change: Change) -> bool:
    """Whether the value of the change's key differs now, and no other. A text that can no longer be
    parsed has no values."""
    differ = {path for path in (*held, *now) if held.get(path) != now.get(path)}
    key = change.name.lstrip("-").rpartition(".")[2]
    if change.name in held:  # with YAML anchors, one line may change several values
        return change.name in differ and {path.rpartition(".")[2] for path in differ} == {key}
    return {path.rpartition(".")[2].replace("-", "_") for path in differ} <= {key.replace("-", "_")}


def _appended(lines: list[str], change: Change) -> int | None:
    """Appends the option to the last command that starts a program, and returns the line index;
    None without such a command. If a shell gets the command as text (`srun bash -c '...'`), inside
    its quotes."""
    begins = [at for at, line in enumerate(lines) if not _is_comment(line) and _STARTS.search(line)]
    if not begins:
        return None
    begin, end = begins[-1], _last_line(lines, begins[-1])
    text = "\n".join(lines[begin : end + 1])
    script = _SCRIPT.search(text)
    first, last = script.span(script.lastindex or 0) if script else (0, len(text))
    started = _STARTS.search(text, first, last)
    words = _WORDS.match(text, started.end() if started else first, last)
    cut = words.start() + len(re.sub(r"(?:\s|\\(?=\n))+\Z", "", words[0])) if words else 0
    at = begin + text.count("\n", 0, cut)
    column = cut - (text.rfind("\n", 0, cut) + 1)
    words_added = change.name if change.new == "" else f"{change.name} {change.new}"
    lines[at] = f"{lines[at][:column]} {words_added}{lines[at][column:]}"
    return at


def _last_line(lines: list[str], at: int) -> int:
    """Index of the last line of the command that begins at this index."""
    while lines[at].rstrip().endswith("\\") and at + 1 < len(lines):
        at += 1
    return at


_WORDS = re.compile(
    r"""(?:\s+(?!#)(?!\d?[<>])|"(?:\\.|[^"\\])*"|'[^']*'|`[^`]*`|\$\((?:[^()]|\([^()]*\))*\)|\\\S|\\\n(?!#|\d?[<>])|[^\s"'`\\;&|<>)])*""",
    re.DOTALL,
)
"""the words of a command, up to a separator or redirection"""
_SCRIPT = re.compile(r"""\b(?:ba|da|z)?sh\s+-\w*c\s+(?:'([^']*)|"((?:\\.|[^"\\])*))""", re.DOTALL)
"""a command that a shell gets as text"""
_STARTS = re.compile(
    r"\b(?:torchrun|python[0-9.]*|accelerate\s+launch|deepspeed|srun|mpirun|torch\.distributed)\b"
)
"""words that start a training program"""


def _same(text: str, value: str) -> bool:
    """Whether a text means this value: equal without regard to case, or equal numbers."""
    if text.lower() == value.lower():
        return True
    try:
        return float(text) == float(value)
    except ValueError:
        return False


def _put(line: str, span: tuple[int, int], text: str) -> str:
    """The line with the text in place of a span."""
    return line[: span[0]] + text + line[span[1] :]


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith(("#", "//"))
