"""A launch: command, environment and files of a training job, and how they are written into a
folder without overwriting other files.

File names are relative to the folder of the launch, in which its command runs unless `cwd` names
another. A launch without files can be started from any folder. `FOLDER` in an argument or variable
stands for the folder of the launch, which is known once it is written; `NODE_RANK`, `MASTER_ADDR`
and `MASTER_PORT` stand for what each node of a job receives when it starts: a runner fills them in
(`Launch.on_node`), and in `launch.sh` they are shell variables of these names. Files hold `FOLDER`
alone, and only those of trials (`output_options`). `launch.json` is the manifest: it lists every
written file with its SHA-256, so that a second export recognizes its own files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.errors import ExportError
from autotune.spec.texts.as_text import notes_of
from autotune.spec.texts.secrets import FROM_ENVIRONMENT, masked
from autotune.trainers.provenance_comments import comments
from autotune.whole_files import whole_file

MANIFEST = "launch.json"
SCRIPT = "launch.sh"
FOLDER = "@launch-folder@"
"""placeholder for the path of the launch folder in arguments and variables"""
OUTPUTS = "outputs"
"""the subfolder of `FOLDER` for the output of a trial's program"""
NODE_RANK, MASTER_ADDR, MASTER_PORT = "@node-rank@", "@master-addr@", "@master-port@"
"""placeholders for the number of a node, from 0, and for the rendezvous address and port"""
DEFAULT_PORT = 29500
"""rendezvous port unless MASTER_PORT is set: torchrun's own default"""
_SHELL = {
    FOLDER: "here",
    NODE_RANK: "NODE_RANK",
    MASTER_ADDR: "MASTER_ADDR",
    MASTER_PORT: "MASTER_PORT",
}
"""the shell variables that replace these placeholders in `launch.sh`"""
_WORD = re.compile("|".join(map(re.escape, _SHELL)))
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}){0,3}")
INTERPRETER = re.compile(r"python[0-9.]*")
"""names of the Python interpreter itself"""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A training job that is ready to start."""

    argv: tuple[str, ...]
    """the command, one string per argument; never passed through a shell"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables that are added to the environment"""
    files: Mapping[str, str] = field(default_factory=dict)
    """text by file name, relative to the launch folder"""
    cwd: str = ""
    """folder in which the command runs. Empty means the launch folder if there are files; `.` is
    the current folder"""
    python: str = ""
    """interpreter or environment whose programs take precedence over PATH; empty for PATH alone"""
    notes: tuple[str, ...] = ()
    """what you should know before you start it"""
    tuned: Mapping[str, Any] = field(default_factory=dict)
    """how its config was found and measured, from `autotune.results.provenance`; empty if it was
    not tuned"""

    def __post_init__(self) -> None:
        if not self.argv or any("\0" in argument for argument in self.argv):
            raise ExportError(
                "a launch needs a command of at least one argument, without NUL characters"
            )
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                raise ExportError(f"{name!r} is not a valid environment variable name", field="env")
        for name in self.files:
            check_file_name(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "argv": list(self.argv),
            "env": dict(self.env),
            "files": dict(self.files),
            "cwd": self.cwd,
            "python": self.python,
            "notes": list(self.notes),
            **({"tuned": dict(self.tuned)} if self.tuned else {}),
        }

    def placed(self, folder: str) -> Launch:
        """The same launch with its files in `folder`."""
        return replace(
            self,
            argv=tuple(argument.replace(FOLDER, folder) for argument in self.argv),
            env={name: text.replace(FOLDER, folder) for name, text in self.env.items()},
            files={name: text.replace(FOLDER, folder) for name, text in self.files.items()},
        )

    def on_node(self, rank: int, *, master_addr: str, master_port: int) -> Launch:
        """The same launch for node number `rank`, from 0. All nodes meet at
        `master_addr:master_port`, which is on node 0."""
        words = {NODE_RANK: str(rank), MASTER_ADDR: master_addr, MASTER_PORT: str(master_port)}
        return replace(
            self,
            argv=tuple(_told(argument, words) for argument in self.argv),
            env={name: _told(text, words) for name, text in self.env.items()},
        )

    @property
    def shown(self) -> Launch:
        """The launch without secrets, for display."""
        return replace(self, argv=masked(self.argv), env=masked(self.env), files=masked(self.files))

    @property
    def is_spread(self) -> bool:
        """Whether each node needs its number or the address of node 0, because there are
        several."""
        return self._uses(NODE_RANK) or self._uses(MASTER_ADDR)

    @property
    def programs_folder(self) -> str:
        """The folder with the programs of `python`; empty if `python` is empty."""
        if not self.python:
            return ""
        is_interpreter = INTERPRETER.fullmatch(os.path.basename(self.python))
        return os.path.dirname(self.python) if is_interpreter else os.path.join(self.python, "bin")

    @property
    def command_line(self) -> str:
        """The variables and the command as one line of POSIX shell."""
        return " ".join([*self._variables, self.command])

    @property
    def command(self) -> str:
        """The command alone as one line of POSIX shell; values that a node gets at start-up are
        variables, e.g. $NODE_RANK."""
        return " ".join(map(_quoted, self.argv))

    @property
    def _variables(self) -> list[str]:
        """NAME=VALUE for a shell."""
        path = [f'PATH={shlex.quote(self.programs_folder)}:"$PATH"'] if self.python else []
        given = [
            f'{name}="${name}"' if value == FROM_ENVIRONMENT else f"{name}={_quoted(value)}"
            for name, value in self.env.items()
        ]
        return [*given, *path]

    def _uses(self, word: str) -> bool:
        return any(word in text for text in (*self.argv, *self.env.values()))

    @property
    def script(self) -> str:
        """A POSIX shell script that starts the command, in `cwd`, or in its own folder if there are
        files. A job on several nodes is started by running the same script on each node, with the
        variables that it asks for."""
        runs_in, is_here = f"cd {shlex.quote(self.cwd)}", self.cwd in ("", ".")
        words = [(" \\\n  " if word.startswith("-") else " ") + _quoted(word) for word in self.argv]
        lines = [
            "#!/bin/sh",
            *(f"# {line}" for line in comments(self.tuned)),
            "# Written by autotune export; this script's arguments are appended to the command.",
            "set -e",
            *notes_of(
                (self._uses(NODE_RANK), ': "${NODE_RANK:?set this to the node number, from 0}"'),
                (self._uses(MASTER_ADDR), ': "${MASTER_ADDR:?set this to the address of node 0}"'),
                (self._uses(MASTER_PORT), f': "${{MASTER_PORT:={DEFAULT_PORT}}}"'),
                *(
                    (
                        value == FROM_ENVIRONMENT,
                        f': "${{{name}:?set this variable, which the study takes from the environment}}"',
                    )
                    for name, value in self.env.items()
                ),
                (self._uses(FOLDER), 'here=$(cd "$(dirname "$0")" && pwd)'),
                (not is_here, runs_in),
                (self.files and not self.cwd, 'cd "$(dirname "$0")"'),
            ),
            *(f"# {line}" for note in self.notes for line in note.splitlines()),
            *(f"export {variable}" for variable in self._variables),
            "exec" + "".join(words) + ' "$@"',
        ]
        return "\n".join(lines) + "\n"


def _told(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _quoted(text: str) -> str:
    """One word of a shell script, with shell variables for what is known only when it starts."""
    plain, words = _WORD.split(text), _WORD.findall(text)
    parts = [shlex.quote(part) if part else "" for part in plain]
    variables = [f'"${_SHELL[word]}"' for word in words] + [""]
    return "".join(part + variable for part, variable in zip(parts, variables, strict=True)) or "''"


def check_file_name(name: str) -> str:
    """`name`, if it is a safe relative path: letters, digits, `_.-`, at most four parts, none of
    them hidden or `..`."""
    if not _NAME.fullmatch(name) or name in (MANIFEST, SCRIPT):
        raise ExportError(
            f"a launch file must have a plain relative name, but is named {name!r}",
            remedy="use letters, digits, '_', '-' and '.', and no '..'",
            field="files",
        )
    return name


def write_launch(
    launch: Launch, directory: str | Path, *, job: Mapping[str, Any] | None = None
) -> tuple[Path, ...]:
    """Writes the launch files, `launch.sh` and `launch.json`, into `directory` and returns their
    paths, manifest last.

    `job`: the scheduler job for this launch (`schedulers.job_of`); its files are written with the
    others.

    Each file is written atomically. An existing file is replaced only if an earlier export wrote it
    and it has not changed since. Any other file, link or folder in the way raises `ExportError`
    before anything is written.
    """
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        root = folder.resolve(strict=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    texts = {**launch.files, SCRIPT: launch.script, **(job["files"] if job else {})}
    digests = {name: digest_of(text.encode()) for name, text in texts.items()}
    manifest = {**launch.to_dict(), **({"job": dict(job)} if job else {}), "sha256": digests}
    texts[MANIFEST] = json.dumps(manifest, indent=2) + "\n"
    mine = _manifest(root)
    for name in texts:
        _check_free(root, name, texts[name], mine)
    written = []
    for name, text in texts.items():
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(path, text, executable=name == SCRIPT, secret=launch.shown != launch)
        except OSError as error:
            raise _unwritable(path, error) from None
        written.append(path)
    return tuple(written)


def _manifest(root: Path) -> Mapping[str, str]:
    try:
        digests = json.loads((root / MANIFEST).read_bytes()[: 1 << 22]).get("sha256", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return digests if isinstance(digests, dict) else {}


def _check_free(root: Path, name: str, text: str, mine: Mapping[str, str]) -> None:
    path = root / name
    if not path.parent.resolve().is_relative_to(root):
        raise ExportError(
            f"{name} would leave the folder {root}, because a part of its path is a link",
            field="files",
        )
    if not path.is_symlink() and not path.exists():
        return
    if path.is_symlink() or not path.is_file():
        raise ExportError(
            f"{path} exists and is not a plain file", remedy="export to another folder"
        )
    present = path.read_bytes()
    ours = name == MANIFEST and bool(mine)
    if present != text.encode() and not ours and mine.get(name) != digest_of(present):
        raise ExportError(
            f"{path} exists and was not written by an export, or has been edited since",
            remedy="export to another folder, or move that file away",
        )


def _write_whole(path: Path, text: str, *, executable: bool, secret: bool) -> None:
    """`secret`: for its owner's eyes alone."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.chmod((0o755 if executable else 0o644) & (0o700 if secret else 0o777))


def digest_of(data: bytes) -> str:
    """The digest of a launch file, as the manifest contains it."""
    return hashlib.sha256(data).hexdigest()


def _unwritable(path: Path, error: OSError) -> ExportError:
    return ExportError(
        f"{path} cannot be written: {error.strerror or error}", remedy="choose another folder"
    )


def started_by(python: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command, resolved for this Python. A named interpreter starts the program directly: the
    `python` in its folder may be a different release."""
    is_one = INTERPRETER.fullmatch(os.path.basename(python)) and INTERPRETER.fullmatch(argv[0])
    return (python, *argv[1:]) if is_one else argv
