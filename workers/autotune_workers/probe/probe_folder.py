"""The keeper's side of the probe, for one attempt on one node: a folder with the probe's code and its reports. Imports the standard library only.

    CODE/sitecustomize.py, CODE/autotune_probe/   copies, so that a program of another user, or of another Python, can read them
    REPORTS/PID.jsonl                             what each process says (`channel`)
    REPORTS/kept/PID.jsonl                        the journal of what is kept of the user's while the program changes it (`injected.written_files`)

Files of attempts whose keeper was killed are put back by whoever comes next on this machine (`put_back_abandoned`), which also removes their folders.

The variable AUTOTUNE_PROBE=off, in the environment of autotune or of the trainer, leaves the probe out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.temporary_folders import TemporaryFolder, abandoned

SWITCH = "AUTOTUNE_PROBE"
"""the variable that switches it off"""
OFF = frozenset({"off", "0", "false", "no"})
MOST_READ = 256 << 10
"""bytes of one process that are read at once"""
ENDED_S = 10.0
"""time that processes of an abandoned attempt get to be gone once they are killed"""
_PROBE, _LAUNCH = "probe", "launch"
_JOURNALS = "reports/kept/*.jsonl"
_CODE = Path(__file__).parent / "injected"
_START = "sitecustomize.py"


def is_off(environment: Mapping[str, str]) -> bool:
    """Whether a person switched the probe off."""
    return environment.get(SWITCH, "").strip().lower() in OFF


class Reports:
    """Reads what the processes say, in a folder of theirs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def read(self) -> list[dict[str, Any]]:
        """Reports since the last call, each process's in its order."""
        found = []
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self._folder)):
                if name.endswith(".jsonl"):
                    found += list(self._lines(name))
        return found

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        try:
            file = os.open(
                self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError:
            return
        with os.fdopen(file, "rb") as content:
            if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
                return
            content.seek(self._read.get(name, 0))
            chunk = content.read(MOST_READ)
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._read[name] = self._read.get(name, 0) + len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                report = json.loads(line)
                if isinstance(report, dict):
                    yield report


class ProbeFolder:
    """The folder of one attempt."""

    def __init__(self) -> None:
        """Raises `OSError` where no folder can be made."""
        self._folder = TemporaryFolder(_PROBE, removes_abandoned=False)
        self.path = self._folder.path
        self._code, self._reports = self.path / "code", self.path / "reports"
        package = self._code / "autotune_probe"
        package.mkdir(parents=True)
        self._reports.mkdir()
        self._reader = Reports(self._reports)
        for file in _CODE.glob("*.py"):
            shutil.copyfile(file, (self._code if file.name == _START else package) / file.name)

    def variables(
        self,
        environment: Mapping[str, str],
        *,
        trial_folder: str,
        keeps_files: bool,
        has_several_nodes: bool = False,
    ) -> dict[str, str]:
        """What the program's environment gets. `keeps_files`: whether what was there before the trial is kept; `has_several_nodes`: whether others may keep it."""
        path = environment.get("PYTHONPATH", "")
        return {
            "PYTHONPATH": f"{self._code}{os.pathsep}{path}" if path else str(self._code),
            "AUTOTUNE_PROBE_REPORTS": str(self._reports),
            "AUTOTUNE_PROBE_BEGAN_S": repr(time.time()),
            "AUTOTUNE_PROBE_KEEP_FILES": str(int(keeps_files)),
            "AUTOTUNE_PROBE_SEVERAL_NODES": str(int(has_several_nodes)),
            "AUTOTUNE_PROBE_ROOT": str(os.getpid()),
            "AUTOTUNE_TRIAL_DIR": trial_folder,
        }

    def read(self) -> list[dict[str, Any]]:
        """Reports since the last call, each process's in its order."""
        return self._reader.read()

    def put_back(self) -> list[str]:
        """Gives the user's files their names again, once nothing is left that writes; those that cannot be put back, with where they are."""
        return _put_back(self._reports)

    def remove(self) -> None:
        """Removes the folder."""
        self._folder.remove()


def launch_folder() -> TemporaryFolder:
    """A new folder for the files of an attempt. Raises `OSError`."""
    return TemporaryFolder(_LAUNCH, removes_abandoned=False)


def put_back_abandoned() -> list[str]:
    """Gives files their names again that attempts of this user have kept on this machine whose keeper was killed, once what is left of these attempts is ended,
    and removes the folders of these attempts; those that cannot be put back, with where they are. Attempts that run are left alone."""
    lost: list[str] = []
    for folder in abandoned(_PROBE, is_used=_has_journal):
        with contextlib.suppress(OSError):
            if _end_processes(f"{folder}/".encode()):
                lost += _put_back(folder / "reports")
                shutil.rmtree(folder, ignore_errors=True)
    for folder in abandoned(_LAUNCH):
        if _end_processes(f"{folder}/".encode()):
            shutil.rmtree(folder, ignore_errors=True)
    return lost


def _has_journal(folder: Path) -> bool:
    return any(folder.glob(_JOURNALS))


def _put_back(reports: Path) -> list[str]:
    lost, undo = [], _Undo()
    done = [line for journal in reports.parent.glob(_JOURNALS) for line in _journal(journal)]
    for _, act, path, *rest in sorted(done, key=lambda line: line[0], reverse=True):
        try:
            getattr(undo, act)(path, *rest)
        except FileNotFoundError:  # another node put it back, or it was not done any more
            continue
        except OSError as error:
            where = f" is now {rest[0]}" if act in ("link", "copy", "rename") else ""
            lost.append(f"{path}{where}: {error}")
    return lost


def _journal(file: Path) -> list[list[Any]]:
    """What a process has done, without what it then left to another. A full disk may have cut lines off."""
    lines = []
    for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(text))
    done, left = [], [line[3] for line in lines if line[1] == "not"]
    for line in lines:
        if line[1] in ("link", "copy") and line[3] in left:
            left.remove(line[3])
        elif line[1] != "not":
            done.append(line)
    return done


class _Undo:
    """What the lines of a journal say (`injected.written_files`), undone, the last one first."""

    def __init__(self) -> None:
        self._again: dict[str, list[int]] = {}
        """folders that have been made again, and which they were"""

    def link(self, path: str, kept: str) -> None:
        os.lstat(kept)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.replace(kept, path)
        if os.path.lexists(kept):  # both are names of one file, so nothing was replaced
            os.unlink(kept)

    def copy(self, path: str, kept: str, identity: list[int]) -> None:
        """The same file gets its content again, so that its owner and its other names stay."""
        mode = stat.S_IMODE(os.lstat(kept).st_mode)
        with contextlib.suppress(OSError):
            if self._identity(path) == identity and not os.path.islink(path):
                os.chmod(path, mode | stat.S_IWUSR)
                with open(kept, "rb") as source, open(path, "r+b") as target:
                    shutil.copyfileobj(source, target)
                    target.truncate()
                shutil.copystat(kept, path)
                os.unlink(kept)
                return
        self.link(path, kept)

    def rename(self, folder: str, target: str, identity: list[int]) -> None:
        if self._identity(target) == identity:
            _merge(target, folder)
            self._again[folder] = identity

    def folder(self, path: str, mode: int, was_there: bool, identity: list[int]) -> None:
        if was_there:
            os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
        self._again[path] = identity

    def spare(self, path: str) -> None:
        os.unlink(path)

    def _identity(self, path: str) -> list[int]:
        found = os.stat(path)
        return self._again.get(path, [found.st_dev, found.st_ino])


def _merge(source: str, target: str) -> None:
    """Renames a folder; what is in one that has its name already stays there, unless it is replaced."""
    if not os.path.isdir(target):
        os.rename(source, target)
        return
    for entry in list(os.scandir(source)):
        name = os.path.join(target, entry.name)
        if entry.is_dir(follow_symlinks=False):
            _merge(entry.path, name)
        else:
            os.replace(entry.path, name)
    os.rmdir(source)


def _end_processes(mark: bytes) -> bool:
    """Kills what has this text in its environment, as all of an attempt has; whether nothing of it is left."""
    end_s = time.monotonic() + ENDED_S
    while time.monotonic() < end_s:
        living = [
            int(name) for name in os.listdir("/proc") if name.isdigit() and _has(int(name), mark)
        ]
        if not living:
            return True
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return False


def _has(pid: int, mark: bytes) -> bool:
    if pid == os.getpid():
        return False
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
