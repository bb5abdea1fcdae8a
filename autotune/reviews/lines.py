"""How an edit looks in somebody's own files: the lines that change.

The trainer renders the launch before and after. Options and keys in which the two differ are looked
for in the texts:

    --batch-size 4, --batch-size=4          the value behind the option
    --batch-size $BATCH                     the line that sets the variable
    batch_size: 4, batch_size = 4           the value behind the key; in Python, the default of the option that declares it
    a flag that is not there                behind the last word of the command; in a manifest, behind the last word of its `args`
    a key that is not there                 in its section of the file: TOML, YAML, or JSON

Of a script that starts several programs only the command that is reviewed changes. The pods of one
job run the same command, so each of them changes.
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
"""options of a launch that may be stand-ins"""


@dataclass(frozen=True, slots=True)
class Change:
    """An option or key whose value differs between two launches."""

    name: str
    """as it is written: `--batch-size`, or the path of a key"""
    old: str | None
    """None: it is not there; empty: a flag without a value"""
    new: str | None
    file: str = ""
    """the file of the launch that has the key; empty for an option of its command"""

    @property
    def is_needed(self) -> bool:
        """Whether the launch lacks something without it: a key that no text has need not go."""
        return self is not CONNECTIONS and (self.new is not None or self.name.startswith("-"))


CONNECTIONS = Change("CUDA_DEVICE_MAX_CONNECTIONS", "1", "8")
"""a variable without which tensor parallelism does not start, and with which Megatron-FSDP does
not"""


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
    """(the lines that change from one config to the other, settings for which the texts have no
    line, as they are written). `held`: options that Python code alone sets, and no command;
    `beside`: its keyword argument behind which new ones are written; `started`: the command that is
    reviewed."""
    lines = {name: _without_others(text, started) for name, text in texts.items()}
    unedited = {name: list(text) for name, text in lines.items()}
    given = {argument.name for argument in started.arguments} if started else set()
    unplaced: list[str] = []
    for asked in _without_rewritten(lines, _asked(texts, study, before, after)):
        alone = _holds_options(asked, texts, started)
        change = _as_key(asked) if alone else _as_given(asked, texts, given)
        key = change.name.lstrip("-")
        is_held = key in held
        among = {
            n: text
            for n, text in _in_its_file(lines, change).items()
            if (n in alone if alone else n.endswith(".py") or not is_held)
            # a default does not count where the command gives the option, by a variable that it
            # computes
            and not (n.endswith(".py") and key.replace("-", "_") in given)
        }
        if not _is_made(lines, among, change, beside if is_held else None) and change.is_needed:
            name = key if is_held else change.name
            unplaced.append(f"{name}={change.new}" if change.new or is_held else name)
    return tuple(_edits(unedited, lines)), tuple(unplaced)


def _asked(
    texts: Mapping[str, str], study: Study, before: ParallelConfig, after: ParallelConfig
) -> list[Change]:
    """The options, keys and variables that change."""
    changes = list(_changes(study, before, after))
    if before.accumulation_steps != after.accumulation_steps:
        changes += _batch_unsaid(texts, study, after)
    is_sharded = any(
        each.name == "--use-megatron-fsdp" and each.new is not None for each in changes
    )
    if is_sharded and any(CONNECTIONS.name in text for text in texts.values()):
        changes.append(CONNECTIONS)
    return changes


def _without_rewritten(lines: dict[str, list[str]], changes: list[Change]) -> list[Change]:
    """The changes that are left when JSON files as `json.dumps` writes them are written anew."""
    for name, text in lines.items():
        own = [change for change in changes if change.file and name in _in_its_file(lines, change)]
        if name.endswith(".json") and own and with_values(text, {c.name: c.new for c in own}):
            changes = [change for change in changes if change not in own]
    return changes


def _is_made(
    lines: dict[str, list[str]], among: dict[str, list[str]], change: Change, beside: str | None
) -> bool:
    """Makes the change in one of these texts, and says whether it is made. `beside`: the keyword
    argument behind which a new one is written; None: it is no keyword argument."""
    values = (keys_of(name, text_of(text)).get(change.name) for name, text in among.items())
    if change.file and change.new in values:
        return True  # YAML's anchors gave it the value
    if any(_applied(lines[name], name, change) for name in among) or _follows(lines, change):
        return True
    return bool(_added(among, change) if beside is None else _written(among, change, beside))


def _edits(before: dict[str, list[str]], after: dict[str, list[str]]) -> Iterator[LineEdit]:
    for name in sorted(after):
        for at, (old, new) in enumerate(zip(before[name], after[name], strict=True), start=1):
            if old != new:
                yield LineEdit(file=name, line=at, before=old, after="" if new == GONE else new)


def _in_its_file(lines: dict[str, list[str]], change: Change) -> dict[str, list[str]]:
    """The texts among which the change is looked for: the file of that name, where there is one."""
    own = PurePosixPath(change.file).name
    return {n: text for n, text in lines.items() if PurePosixPath(n).name == own} or lines


def _holds_options(change: Change, texts: Mapping[str, str], started: Started | None) -> list[str]:
    """The file that is the program's only argument, and so holds what would be its options; empty
    for an option of its launcher."""
    of_launcher = {argument.name for argument in started.options} if started else set()
    is_option = (
        change.name.startswith("--") and change.name[2:].replace("-", "_") not in of_launcher
    )
    alone = started.file_alone if started and is_option else ""
    return [name for name in texts if name.endswith(DOCUMENTS) and alone.endswith(name)]


def _as_given(change: Change, texts: Mapping[str, str], given: set[str]) -> Change:
    """The change by the short name of its option, where a parser declares one and the command has
    it: `-b 8` for `add_argument("-b", "--batch-size")`."""
    pair = rf"""["']-(\w)["'],\s*["']{re.escape(change.name)}["']"""
    declared = (re.search(pair, text) for name, text in texts.items() if name.endswith(".py"))
    short = next((found[1] for found in declared if found), "")
    return replace(change, name=f"-{short}") if short and short in given else change


def _as_key(change: Change) -> Change:
    """An option as the key of a file, with flags as JSON and YAML have them."""
    old, new = (
        text.lower() if text in ("True", "False") else text for text in (change.old, change.new)
    )
    return Change(change.name.lstrip("-"), old, new)


def line_of_knob(found: Review, knob: str, usual: Any) -> str:
    """Where the launch asks for a knob, as file:number: the line that would change if the knob had
    its usual value; empty where none is found."""
    if found.study is None or found.config is None:
        return ""
    lines, _ = changed_lines(
        found.texts, found.study, found.config, replace(found.config, **{knob: usual})
    )
    return f"{lines[0].file}:{lines[0].line}" if lines else ""


def baseline_line(
    name: str, text: str, after: ParallelConfig
) -> tuple[tuple[LineEdit, ...], tuple[str, ...]]:
    """As `changed_lines`, of a spec: its baseline is the launch."""
    for at, line in enumerate(text.splitlines(), start=1):
        if found := re.match(r"baseline:\s*[^\s#{]\S*", line):
            changed = f"baseline: {after}{line[found.end() :]}"
            return (LineEdit(file=name, line=at, before=line, after=changed),), ()
    return (), (f"baseline: {after}",)


def edited(texts: Mapping[str, str], lines: tuple[LineEdit, ...]) -> dict[str, str]:
    """The files that change, with their new texts."""
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
    """A unified diff, as `patch -p1` reads it."""
    parts = []
    for name, text in edited(texts, lines).items():
        old, new = texts[name].splitlines(keepends=True), text.splitlines(keepends=True)
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def _changes(study: Study, before: ParallelConfig, after: ParallelConfig) -> Iterator[Change]:
    launches = _launched(study, before), _launched(study, after)
    if launches[0] is None or launches[1] is None:
        return
    own = study.trainer_options.get("env") or {}  # variables that tell the program its config

    def said(launch: Launch) -> dict[tuple[str, str], str]:
        variables = {("", name): text for name, text in launch.env.items() if name in own}
        return {**{(file, name): value for file, name, value in _told(launch)}, **variables}

    old, new = said(launches[0]), said(launches[1])
    for at in dict.fromkeys([*old, *new]):
        if old.get(at) != new.get(at):
            yield Change(at[1], old.get(at), new.get(at), file=at[0])


def _batch_unsaid(
    texts: Mapping[str, str], study: Study, after: ParallelConfig
) -> Iterator[Change]:
    """The batch of a step where the launch tells it and the texts do not: there it follows from
    micro-batch and ranks, which change."""
    launch = _launched(study, after)
    for file, name, value in _told(launch) if launch else ():
        key = name.lstrip("-").rpartition(".")[2]
        is_batch = re.fullmatch(r"global[-_]batch[-_]size|train_batch_size", key) is not None
        if (
            is_batch
            and value != "auto"
            and not any(re.search(rf"\b{re.escape(key)}\b", text) for text in texts.values())
        ):
            yield Change(name, None, value, file=file)


def _launched(study: Study, config: ParallelConfig) -> Launch | None:
    """The launch of the config; None where it cannot be written. Options that a launch needs and a
    review does not, as a tokenizer's path, are stand-ins."""
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


def _told(launch: Launch) -> Iterator[tuple[str, str, str]]:
    """(file, name, value) of all that the launch says: options of its command, whose file is empty,
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
    """The values of a file of settings as they are written, by their path: of YAML, JSON, TOML, and
    of the nested calls of a Python configuration. Empty where it cannot be read."""
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
    """(path, text) of the keyword arguments of a call, and of calls among them."""
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        path = f"{before}{keyword.arg}"
        if isinstance(keyword.value, ast.Call) and keyword.value.keywords:
            yield from _arguments(keyword.value, f"{path}.")
        elif isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
            yield path, keyword.value.value
        else:
            yield path, ast.unparse(keyword.value)


def _as_written(value: Any) -> str:
    """A value as YAML and JSON have it; a text without its quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _apply(lines: list[str], file: str, change: Change) -> tuple[str, int] | None:
    """Makes the change in these lines, and says where; None where its place is not found."""
    key = change.name.lstrip("-").rpartition(".")[2]
    spelled = "[-_]".join(re.escape(part) for part in re.split(r"[-_]", key))
    if change.name.startswith("-"):
        at = _of_option(lines, spelled, change, has_flags=not file.endswith(".py"))
        if at is None and file.endswith(DOCUMENTS):
            at = _of_key(lines, file, spelled, change)
        if at is None and file.endswith(".py"):
            at = _of_default(lines, spelled, change)
        if (
            at is None
            and change.old in (None, "")
            and change.new is not None
            and not file.endswith((".py", *DOCUMENTS))
        ):
            at = _appended(lines, change)
    else:
        at = _of_key(lines, file, spelled, change)
        if at is None and change is CONNECTIONS:
            at = _of_variable(lines, change.name, change)
    return None if at is None else (file, at)


def _applied(lines: list[str], file: str, change: Change) -> list[tuple[str, int]]:
    """Makes the change in these lines, in each pod of a manifest, and says where."""
    places = [place] if (place := _apply(lines, file, change)) is not None else []
    while (
        places
        and _is_manifest(file, lines)
        and (place := _apply(lines, file, change)) not in (None, places[-1])
    ):
        places.append(place)
    return places


def _is_manifest(file: str, lines: list[str]) -> bool:
    return file.endswith((".yaml", ".yml")) and any(
        line.startswith("apiVersion:") for line in lines
    )


def commands_in(text: str) -> list[range]:
    """The lines of each command of a script that starts a program: a line that names a launcher,
    with those that continue it."""
    lines, found = text.splitlines(), list[range]()
    for at, line in enumerate(lines):
        if (found and at < found[-1].stop) or _is_comment(line) or not _STARTS.search(line):
            continue
        found.append(range(at, _last_line(lines, at) + 1))
    return found


def other_commands(text: str, started: Started | None) -> list[range]:
    """The commands of a script but the one that is reviewed, which has most of its words."""
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
    """The lines of a script, from 1, where it starts further trainings."""
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
    """The lines of a text, those of commands that are not reviewed empty: nothing in them
    changes."""
    lines = text.splitlines()
    for each in other_commands(text, started):
        lines[each.start : each.stop] = [""] * len(each)
    return lines


def _added(lines: Mapping[str, list[str]], change: Change) -> list[tuple[str, int]]:
    """Gives a command an option that no text mentions, or a file a key, because its default held so
    far."""
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
    """Gives each list `args` of a manifest one more word, and says in which lines. A list with the
    script of a shell takes none."""
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


def _written(lines: Mapping[str, list[str]], change: Change, beside: str) -> list[tuple[str, int]]:
    """Gives a call a keyword argument that no text mentions, because its default held so far."""
    key = change.name.lstrip("-").rpartition(".")[2].replace("-", "_")
    if change.new is None or any(
        re.search(rf"\b{key}\b", line) for text in lines.values() for line in text
    ):
        return []
    place = re.compile(rf"(?:^|[(,])\s*{beside}\s*=(?!=)\s*[^\s,#()]+")
    is_plain = re.fullmatch(r"True|False|None|[\d.]+", change.new) is not None
    for name, text in lines.items():
        for at, line in enumerate(text):
            if not _is_comment(line) and (found := place.search(line)):
                value = change.new if is_plain else repr(change.new)
                text[at] = f"{line[: found.end()]}, {key}={value}{line[found.end() :]}"
                return [(name, at)]
    return []


def _follows(lines: Mapping[str, list[str]], change: Change) -> bool:
    """Whether the texts leave the value to the program, by -1 or `auto`."""
    key = re.escape(change.name.lstrip("-").rpartition(".")[2])
    left = re.compile(rf"""\b{key}["']?\s*[:= ]\s*["']?(-1|auto)\b""")
    return any(left.search(line) for text in lines.values() for line in text)


def _of_option(lines: list[str], spelled: str, change: Change, *, has_flags: bool) -> int | None:
    """`has_flags`: whether a bare option is one that is on, and not one that is declared."""
    if change.new is None:  # an option that goes, with its values
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
                if not left.strip(" \\\t"):  # a line of its own goes whole
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
        if listed.match(line) and at + 1 < len(lines):  # a list of words, one to a line
            value = re.match(r"""(\s*-\s*["']?)([^\s"']+)""", lines[at + 1])
            if value and value[2] == change.old:
                lines[at + 1] = _put(lines[at + 1], value.span(2), change.new)
                return at + 1
        # on, without a word that says so
        if has_flags and _same(change.old, "true") and (flag := bare.search(line)):
            lines[at] = f"{line[: flag.end()]}={change.new}{line[flag.end() :]}"
            return at
        for found in option.finditer(line):
            value_text = found[3]
            if _same(value_text, change.old):
                lines[at] = _put(line, found.span(3), change.new)
                return at
            if name := re.fullmatch(r"\$\{?([A-Za-z_]\w*)(?::?-[^}]*)?\}?", value_text):
                return _of_variable(lines, name[1], change)
    return None


def _end_before(lines: list[str], at: int) -> None:
    """Ends a command before the line that was its last one and goes."""
    kept = next((n for n in range(at - 1, -1, -1) if lines[n] != GONE), -1)
    if kept >= 0 and lines[kept].rstrip().endswith("\\"):
        lines[kept] = lines[kept].rstrip()[:-1].rstrip()


def _of_variable(lines: list[str], name: str, change: Change) -> int | None:
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


def _of_default(lines: list[str], spelled: str, change: Change) -> int | None:
    """A default in Python: of the option that declares it, of a field, of a constant, or of a
    keyword argument."""
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


def _of_key(lines: list[str], file: str, spelled: str, change: Change) -> int | None:
    """The line with the key. In a file that has the very path, only the line that changes that
    value and no other one."""
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
            if change.new is None:  # a key that goes, where its line has nothing else
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
    """Whether the value of the change's key, and no other, is another one now. A text that cannot
    be read any more has no values."""
    differ = {path for path in (*held, *now) if held.get(path) != now.get(path)}
    key = change.name.lstrip("-").rpartition(".")[2]
    if change.name in held:  # one line changes several values where YAML's anchors repeat it
        return change.name in differ and {path.rpartition(".")[2] for path in differ} == {key}
    return {path.rpartition(".")[2].replace("-", "_") for path in differ} <= {key.replace("-", "_")}


def _appended(lines: list[str], change: Change) -> int | None:
    """The option behind the last word of the command that has the most options; of a command that
    a shell is given as text (`srun bash -c '...'`), inside its quotes."""
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
    said = change.name if change.new == "" else f"{change.name} {change.new}"
    lines[at] = f"{lines[at][:column]} {said}{lines[at][column:]}"
    return at


def _last_line(lines: list[str], at: int) -> int:
    """The last line of the command that begins there."""
    while lines[at].rstrip().endswith("\\") and at + 1 < len(lines):
        at += 1
    return at


_WORDS = re.compile(
    r"""(?:\s+(?!#)(?!\d?[<>])|"(?:\\.|[^"\\])*"|'[^']*'|`[^`]*`|\$\((?:[^()]|\([^()]*\))*\)|\\\S|\\\n(?!#|\d?[<>])|[^\s"'`\\;&|<>)])*""",
    re.DOTALL,
)
"""the words of a command, up to what ends it or redirects its output"""
_SCRIPT = re.compile(r"""\b(?:ba|da|z)?sh\s+-\w*c\s+(?:'([^']*)|"((?:\\.|[^"\\])*))""", re.DOTALL)
_STARTS = re.compile(
    r"\b(?:torchrun|python[0-9.]*|accelerate\s+launch|deepspeed|srun|mpirun|torch\.distributed)\b"
)


def _same(text: str, value: str) -> bool:
    if text.lower() == value.lower():
        return True
    try:
        return float(text) == float(value)
    except ValueError:
        return False


def _put(line: str, span: tuple[int, int], text: str) -> str:
    """The line with the text in place of what is there."""
    return line[: span[0]] + text + line[span[1] :]


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith(("#", "//"))
