"""The keeper's side of the probe, for one attempt on one node: the folder with the probe's code and
reports. Imports the standard library only.

    CODE/sitecustomize.py, CODE/autotune_probe/   copies, readable by a program of another user or another Python
    REPORTS/PID.jsonl                             reports of each process (`channel`)
    REPORTS/kept/PID.jsonl                        journals of backups of the user's files (`injected.written_files`)

If a keeper was killed, the next one on this machine restores the attempt's files and removes its
folders (`put_back_abandoned`).

AUTOTUNE_PROBE=off, in the environment of autotune or of the trainer, disables the probe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.temporary_folders import TemporaryFolder, abandoned
from autotune_workers.probe.injected.written_files import open_of

SWITCH = "AUTOTUNE_PROBE"
"""environment variable that disables the probe"""
OFF = frozenset({"off", "0", "false", "no"})
MOST_READ = 256 << 10
"""largest size of one read of a process's reports, bytes"""
ENDED_S = 10.0
"""longest wait for killed processes of an abandoned attempt to disappear, seconds"""
SLOW_S = 3.0
"""longest time from the start of a program's last write to a file to its end, seconds"""
NEWER = ".during-trial"
"""suffix of a version that another program wrote during a trial"""
_PROBE, _LAUNCH = "probe", "launch"
_JOURNALS = "reports/kept/*.jsonl"
_CODE = Path(__file__).parent / "injected"
_START = "sitecustomize.py"


def is_off(environment: Mapping[str, str]) -> bool:
    """Whether the user disabled the probe."""
    return environment.get(SWITCH, "").strip().lower() in OFF


class Reports:
    """Reads the reports of processes in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[str, int] = {}

    def read(self) -> list[dict[str, Any]]:
        """Reports since the last call, in order for each process."""
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
            content.seek(self._read_bytes.get(name, 0))
            chunk = content.read(MOST_READ)
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._read_bytes[name] = self._read_bytes.get(name, 0) + len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                report = json.loads(line)
                if isinstance(report, dict):
                    yield report


class ProbeFolder:
    """The probe's folder for one attempt."""

    def __init__(self) -> None:
        """Creates the folder. Raises `OSError` if that fails."""
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
        """Variables for the program's environment. `keeps_files`: whether existing files are backed
        up; `has_several_nodes`: whether other nodes may back them up."""
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
        """Reports since the last call, in order for each process."""
        return self._reader.read()

    def note_open(self, pids: Iterable[int]) -> None:
        """Enters into the journal which files these processes, which are about to be ended, have
        open for writing."""
        paths = {line[2] for line in _lines(self._reports) if line[1] == "wrote"}
        for path in {path for pid in pids for path in open_of(pid, paths)} if paths else ():
            with (self._reports / "kept" / "KEEPER.jsonl").open("a") as journal:
                journal.write(json.dumps([time.monotonic(), "wrote", path]) + "\n")

    def put_back(self) -> list[str]:
        """Restores the user's files, once no process of the trial is left. Returns messages about
        files that could not be restored, or that another program changed meanwhile."""
        return _put_back(self._reports)

    def remove(self) -> None:
        """Removes the folder."""
        self._folder.remove()


def launch_folder() -> TemporaryFolder:
    """Creates a folder for the files of an attempt. Raises `OSError`."""
    return TemporaryFolder(_LAUNCH, removes_abandoned=False)


def put_back_abandoned() -> list[str]:
    """Restores files of this user's attempts on this machine whose keeper was killed, after ending
    their remaining processes, and removes their folders. Returns messages about files that could
    not be restored. Running attempts are not touched."""
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
    lines = sorted(_lines(reports), key=lambda line: line[0])
    boot_s = time.time() - time.monotonic()
    undo = _Undo({line[2]: boot_s + line[0] for line in lines if line[1] == "wrote"})
    lost = []
    for _, act, path, *rest in reversed([line for line in lines if line[1] != "wrote"]):
        try:
            getattr(undo, act)(path, *rest)
        except FileNotFoundError:  # another node restored it, or the action never happened
            continue
        except OSError as error:
            where = f"; the backup is {rest[0]}" if act in ("link", "copy", "rename") else ""
            lost.append(f"{path} could not be restored: {error}{where}")
    return lost + undo.newer


def _lines(reports: Path) -> list[list[Any]]:
    return [line for journal in reports.parent.glob(_JOURNALS) for line in _journal(journal)]


def _journal(file: Path) -> list[list[Any]]:
    """The actions in a process's journal, except those that another node did instead. A full disk
    may have truncated lines."""
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
    """Undoes the actions of a journal (`injected.written_files`), the last one first. Each method
    undoes the action of its name."""

    def __init__(self, wrote: Mapping[str, float]) -> None:
        self._last_written_s = wrote
        """time of the program's last write, by path"""
        self._restored_identities: dict[str, list[int]] = {}
        """original identity (device, inode) of restored folders, by path"""
        self.newer: list[str] = []
        """messages about versions written by other programs, and where they are"""

    def link(self, path: str, kept: str) -> None:
        os.lstat(kept)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._keep_newer(path, kept)
        os.replace(kept, path)
        if os.path.lexists(kept):  # both were links to one file, so nothing was replaced
            os.unlink(kept)

    def copy(self, path: str, kept: str, identity: list[int]) -> None:
        """Restores the content of the same file, so that its owner and its other links stay."""
        mode = stat.S_IMODE(os.lstat(kept).st_mode)
        with contextlib.suppress(OSError):
            if self._identity(path) == identity and not os.path.islink(path):
                self._keep_newer(path, kept)
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
            self._merge(target, folder)
            self._restored_identities[folder] = identity

    def folder(self, path: str, mode: int, was_there: bool, identity: list[int]) -> None:
        if was_there:
            os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
        self._restored_identities[path] = identity

    def spare(self, path: str) -> None:
        """Removes the file, unless another process has locked it."""
        with contextlib.suppress(BlockingIOError), open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)

    def _keep_newer(self, path: str, kept: str) -> None:
        """Saves a version of the file that another program wrote after the trial's program did."""
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(path)
            is_own = found.st_ctime <= self._last_written_s.get(path, 0.0) + SLOW_S
            if is_own or os.path.samestat(found, os.lstat(kept)):
                return
            newer = f"{path}.{time.time_ns()}{NEWER}"
            shutil.copy2(path, newer, follow_symlinks=False)
            self.newer.append(
                f"{path} was changed by another program during the trial; the file was restored, and the changed version is {newer}"
            )

    def _merge(self, source: str, target: str) -> None:
        """Renames a folder. If the target exists, its content is kept, except files that are
        replaced."""
        if not os.path.isdir(target):
            os.rename(source, target)
            return
        for entry in list(os.scandir(source)):
            name = os.path.join(target, entry.name)
            if entry.is_dir(follow_symlinks=False):
                self._merge(entry.path, name)
            else:
                self._keep_newer(name, entry.path)
                os.replace(entry.path, name)
        os.rmdir(source)

    def _identity(self, path: str) -> list[int]:
        found = os.stat(path)
        return self._restored_identities.get(path, [found.st_dev, found.st_ino])


def _end_processes(mark: bytes) -> bool:
    """Kills all processes with this text in their environment, as all of an attempt have. Returns
    whether none is left."""
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
