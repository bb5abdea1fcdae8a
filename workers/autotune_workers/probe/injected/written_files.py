"""Records files that the program writes or removes outside its trial's folder, and keeps backups of
existing ones. It uses Python's audit events (PEP 578) and wraps torch's own writers.

A file that existed before the trial is backed up as `.NAME.before-autotune` in the same folder. The
keeper restores it when all processes of the trial have ended. Only one process can create that
name, so processes of several nodes agree on who keeps a file.

    cut, replaced, removed   the backup is a second hard link; if the original name is then written, it first becomes another, empty file
    written in place         the backup is a copy
    a folder is renamed      it is renamed back
    not kept                 a file that is too large to copy or cannot be copied, a removed folder with more than `MOST_FILES` files, and a file that
                             another attempt keeps: the program is blocked before it writes until the keeper has ended it
    a lock                   is removed at the end if the trial created it (`_LOCKS`)
    left alone               devices, temporary and cache folders, folders of installed modules, and files created by the trial

Each action is written to the process's journal before it is done, so that it can be undone, in
reverse order, wherever the process was killed.

    [AT_S, "link", PATH, KEPT]               KEPT is a second link to PATH
    [AT_S, "copy", PATH, KEPT, ID]           KEPT is a copy of PATH; ID: device and inode of PATH
    [AT_S, "rename", FOLDER, TO, ID]         the program renames it, or fails to
    [AT_S, "folder", FOLDER, MODE, OLD, ID]  is removed; OLD: it had not changed since the trial began
    [AT_S, "not", PATH, KEPT]                another node keeps it instead
    [AT_S, "spare", PATH]                    a leftover to remove, if it exists
    [AT_S, "wrote", PATH]                    the program writes it now, or has it open: later changes are another program's
"""

from __future__ import annotations

import atexit
import os
import stat
import sys
import time
from _thread import _local

TYPE_CHECKING = False
# `typing` takes milliseconds that a program may not spend, as do `tempfile` and `shutil`
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .channel import Channel

KEPT = ".before-autotune"
"""suffix of the name of a backup"""
COPY_BYTES = 256 << 20
"""larger files that are written in place are not copied"""
SMALL_BYTES, FREE_BYTES = 1 << 20, 1 << 30
"""a copy of a file larger than the first must leave the second free on its disk, bytes"""
MOST_FILES = 2000
"""largest number of files that a process reports, and of files in a removed folder that is backed
up"""
LONGEST_NAME = 255
"""longest file name, bytes"""
NO_LINKS = (1, 38, 95)
"""EPERM, ENOSYS, EOPNOTSUPP: errors of file systems without hard links"""
JOURNAL = "kept"
"""subfolder of the reports for the journals"""
_CACHES = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME",
    "MPLCONFIGDIR", "CUDA_CACHE_PATH", "PIP_CACHE_DIR", "NUMBA_CACHE_DIR", "TRITON_HOME", "TORCH_EXTENSIONS_DIR",
)  # fmt: skip
_CACHE_FOLDERS = ("__pycache__", ".cache", ".triton", ".nv", ".ipython", ".matplotlib")
"""names of cache folders in any place"""
WROTE_S = 1.0
"""writes to a file within this time after a journal entry are not entered again, seconds"""
_LOCKS = (".lock", ".lck", ".pid")
"""suffixes of lock files: those that the trial creates are removed at its end"""
HELD_S = 60.0
"""longest wait for the keeper to end a program that is about to change a file without backup,
seconds"""


class _Watch:
    def __init__(self, reports: Channel) -> None:
        self.reports = reports
        self.keeps = os.environ.get("AUTOTUNE_PROBE_KEEP_FILES") == "1"
        self.began_s = float(os.environ.get("AUTOTUNE_PROBE_BEGAN_S") or 0.0)
        variables = (os.environ.get(name) for name in (*_CACHES, "TMPDIR"))
        folders = [
            "/tmp",
            "/var/tmp",
            "/dev",
            "/proc",
            "/sys",
            "/run",
            reports.folder,
            *filter(None, variables),
        ]
        folders += [
            os.path.dirname(os.__file__),
            *(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))),
        ]
        trial_folder = os.environ.get("AUTOTUNE_TRIAL_DIR")
        self.alone = tuple(
            {os.path.realpath(folder) + os.sep for folder in [*folders, trial_folder] if folder}
        )
        # a program in a temporary folder is observed there
        here = os.path.realpath(os.getcwd()) + os.sep
        self.here = here if here.startswith(self.alone) and here != os.sep else ""
        self.inside = tuple(
            os.path.realpath(folder) + os.sep for folder in (reports.folder, trial_folder) if folder
        )
        self.has_several_nodes = os.environ.get("AUTOTUNE_PROBE_SEVERAL_NODES") == "1"
        self.seen: set[str] = set()
        self.renamed: set[str] = set()
        """names that were given to another file"""
        self.wrote: dict[str, float] = {}
        """time of the last journal entry about writing each file"""
        self.reported_count = 0
        self.local = _local()


_watch: _Watch | None = None


def watch(reports: Channel) -> None:
    """Starts the observation, until the process ends."""
    global _watch
    _watch = _Watch(reports)
    sys.addaudithook(_on_audit_event)
    atexit.register(_journal_open_files)


def watch_writer(module: Any, name: str, *, position: int, keyword: str) -> None:
    """Wraps a writer that opens files outside of Python, to report the files that it writes.
    `position`, `keyword`: of its argument with the path."""
    write = getattr(module, name, None)
    if write is None:
        return
    import functools

    @functools.wraps(write)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        target = kwargs.get(keyword, args[position] if len(args) > position else None)
        if isinstance(target, (str, os.PathLike)):
            _note_change(target, "written", cut=True)
        result = write(*args, **kwargs)
        if isinstance(target, (str, os.PathLike)):
            _note_change(target, "written", cut=False)
        return result

    setattr(module, name, reporting)


def _journal_open_files() -> None:
    """Enters files still open at exit into the journal, as written until now."""
    if _watch is not None and _watch.keeps:
        for path in open_of(os.getpid(), set(_watch.wrote)):
            _journal(_watch, "wrote", path)


def open_of(pid: int, paths: set[str]) -> list[str]:
    """The files among `paths` that a process has open; empty if the process has ended or is another
    user's."""
    folder, open_paths = f"/proc/{pid}/fd", []
    try:
        for number in os.listdir(folder):
            try:
                path = os.readlink(os.path.join(folder, number))
            except OSError:  # closed meanwhile
                continue
            open_paths += [path] if path in paths else []
    except OSError:  # it has ended, or is another user's
        return open_paths
    return open_paths


def _on_audit_event(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = args
        if not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)):
            return
        if flags & os.O_EXCL and not isinstance(path, int) and os.path.lexists(path):
            return  # opening will fail
        if isinstance(path, str) and path.endswith(_LOCKS) and not os.path.lexists(path):
            _note_lock_file(path)
            return
        # without a mode the path may be relative to an open folder, so it may be another file
        is_sure = mode is not None or os.path.isabs(path)
        _note_change(path, "written", cut=bool(flags & os.O_TRUNC) and is_sure)
    elif event in ("os.symlink", "os.link"):
        _note_change(args[1], "written", cut=False, is_name=True)
    elif event == "os.truncate":
        _note_change(args[0], "written", cut=False)
    elif event in ("os.remove", "os.rmdir", "os.rename", "shutil.rmtree"):
        is_renamed = event == "os.rename"
        if any(isinstance(at, int) and at >= 0 for at in args[1 + is_renamed :]):
            return  # relative to an open folder, as in `shutil.rmtree`, which has an event of its own
        to = args[1] if is_renamed else ""
        how = "emptied" if event == "os.rmdir" else "removed"
        _note_change(args[0], how, cut=True, is_name=True, to=to)
        _note_change(to, "written", cut=True, is_name=True)


def _note_lock_file(path: str) -> None:
    """Notes a lock file for removal: if the program is killed, the file would block the user's next
    run."""
    watch, path_of_lock = _watch, os.path.realpath(path)
    if watch is not None and not getattr(watch.local, "busy", False):
        watch.local.busy = True
        try:
            if _is_observed(watch, path_of_lock):
                _journal(watch, "spare", path_of_lock)
        except OSError:  # it stays
            return
        finally:
            watch.local.busy = False


def _note_change(path: Any, how: str, *, cut: bool, is_name: bool = False, to: Any = "") -> None:
    """Reports the file once and backs it up. Never raises. `cut`: the content is discarded;
    `is_name`: the name itself is removed or given to another file; `to`: new name of a renamed
    file."""
    watch = _watch
    if watch is None or getattr(watch.local, "busy", False):
        return
    watch.local.busy = True
    absolute = ""
    try:
        absolute, target = _absolute_path(path, is_name=is_name), _absolute_path(to, is_name=True)
        if not absolute or not _is_observed(watch, absolute):
            return
        if not os.path.isdir(absolute) or os.path.islink(absolute):
            _note_file(watch, absolute, how, cut=cut, is_name=is_name)
        elif how == "emptied":
            _note_emptied(watch, absolute)
        elif how == "removed":  # opening a folder fails, or creates an unnamed file in it
            _note_folder(watch, absolute, target)
    except FileNotFoundError:  # another process has moved it meanwhile, and keeps it
        return
    except OSError as error:
        if watch.keeps and absolute:
            _wait_for_end(watch, absolute, how, error.strerror or str(error))
    except Exception:  # errors here must not affect the program
        return
    finally:
        watch.local.busy = False


def _wait_for_end(watch: _Watch, path: str, how: str, why: str) -> None:
    """Reports that the file cannot be kept, waits for the keeper to end the process, else kills
    it."""
    watch.reports.send("files", files=[[path, how, True, False]])
    watch.reports.send("unkept", files=[path], why=why)
    time.sleep(HELD_S)
    os.write(2, f"ended before it changed {path}, which cannot be backed up: {why}\n".encode())
    os.kill(os.getpid(), 9)


def _absolute_path(path: Any, *, is_name: bool) -> str:
    """The absolute path: of a link itself if its name is changed, else of its target. Empty if
    `path` is not a path."""
    if isinstance(path, (bytes, os.PathLike)):
        path = os.fsdecode(path)
    if not isinstance(path, str) or not path:
        return ""
    folder, name = os.path.split(path.rstrip(os.sep))
    if not is_name or name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)


def _note_file(watch: _Watch, path: str, how: str, *, cut: bool, is_name: bool) -> None:
    if not is_name and os.path.exists(path) and not os.access(path, os.W_OK):
        return  # writing will fail
    is_known, is_older = path in watch.seen, _is_older(watch, path)
    is_kept = _is_kept(watch, path)
    existed = is_older or (is_kept and path not in watch.renamed)
    if watch.keeps:
        kept = _backup_path(path, os.path.dirname(path))
        if not is_known and (existed or os.path.lexists(kept)):
            _keep(watch, path, kept, by_link=cut)
        if not is_name and (is_kept or (cut and existed)):
            _separate_from_backup(watch, path, cut=cut)
    if is_name and how == "written":
        watch.renamed.add(path)
    if watch.keeps and how == "written":
        _journal_write(watch, path)
    if not is_known and (existed or len(watch.seen) < MOST_FILES):
        watch.seen.add(path)
        if how == "written" or existed:
            _report_files(watch, how, {path: existed})


def _journal_write(watch: _Watch, path: str) -> None:
    now_s = time.monotonic()
    if now_s - watch.wrote.get(path, -WROTE_S) >= WROTE_S:
        watch.wrote[path] = now_s
        _journal(watch, "wrote", path)


def _note_folder(watch: _Watch, folder: str, to: str) -> None:
    """Handles a folder that is renamed, or removed with its content."""
    files, folders = _older_in(watch, folder)
    if watch.keeps and to and (files or any(folders.values())):
        _journal(watch, "rename", folder, to, _identity(folder))
    elif watch.keeps and not to:
        if len(files) > MOST_FILES:
            raise OSError(0, f"more than {MOST_FILES:,} files")
        _journal_folders(watch, folders)
        for file in files:
            _keep(watch, file, _backup_path(file, os.path.dirname(folder)), by_link=True)
    _report_files(watch, "removed", dict.fromkeys(files[:MOST_FILES], True))


def _note_emptied(watch: _Watch, folder: str) -> None:
    """Handles the removal of an emptied folder: backups inside it are moved out first."""
    names = os.listdir(folder)
    if not watch.keeps or not all(name.endswith(KEPT) for name in names):
        return
    _journal_folders(watch, {folder: os.stat(folder).st_ctime < watch.began_s})
    for path in (os.path.join(folder, name) for name in names):
        _keep(watch, path, _backup_path(path, os.path.dirname(folder)), by_link=True)
        os.unlink(path)


def _journal_folders(watch: _Watch, older: dict[str, bool]) -> None:
    for folder, is_older in older.items():
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        _journal(watch, "folder", folder, mode, is_older, _identity(folder))


def _report_files(watch: _Watch, how: str, existed: dict[str, bool]) -> None:
    """Reports changed files. `existed`: by path, whether it existed before the trial."""
    entries = [
        [path, how, there, there and watch.keeps]
        for path, there in existed.items()
        if not path.endswith(KEPT)
    ]
    if entries := entries[: MOST_FILES - watch.reported_count]:
        watch.reported_count += len(entries)
        watch.reports.send("files", files=entries)


def _older_in(watch: _Watch, folder: str) -> tuple[list[str], dict[str, bool]]:
    """(files and links below a folder that existed before the trial, at least `MOST_FILES` if there
    are more; folders, each with whether it has not changed since)."""
    files: list[str] = []
    folders: dict[str, bool] = {}
    for top, below, names in os.walk(folder):
        folders[top] = os.stat(top).st_ctime < watch.began_s
        paths = [os.path.join(top, name) for name in (*below, *names)]
        files += [path for path in paths if _is_older(watch, path)]
        if len(files) > MOST_FILES:
            break
    return files, folders


def _is_observed(watch: _Watch, path: str) -> bool:
    at = path + os.sep  # the separator makes a temporary folder itself match, too
    if path.startswith(watch.inside) or (
        at.startswith(watch.alone) and not (watch.here and path.startswith(watch.here))
    ):
        return False
    return not any(os.sep + name + os.sep in path for name in _CACHE_FOLDERS)


def _is_older(watch: _Watch, path: str) -> bool:
    """Whether it is a file or link from before the trial, or a backup."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    return is_plain and (status.st_ctime < watch.began_s or path.endswith(KEPT))


def _is_kept(watch: _Watch, path: str) -> bool:
    """Whether it has a backup as a second link. Its change time is then after the start of the
    trial, though its content is unchanged."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if status.st_nlink < 2 or status.st_ctime < watch.began_s:
        return False
    # tried first, because journals of many backups are long
    if _is_file(status, _backup_path(path, os.path.dirname(path))):
        return True
    return any(_is_file(status, kept) for kept in _kept_here(watch))


def _backup_path(path: str, folder: str) -> str:
    """Path of the backup of `path` in that folder."""
    name = os.path.relpath(path, folder).replace("%", "%25").replace(os.sep, "%2F")
    if len(os.fsencode(name)) + len(KEPT) >= LONGEST_NAME:
        import hashlib

        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, "." + name + KEPT)


class _BackupLock:
    """Lock for backing up files, held by one process or thread of this node at a time."""

    def __init__(self, watch: _Watch) -> None:
        folder = os.path.join(watch.reports.folder, JOURNAL)
        os.makedirs(folder, exist_ok=True)
        self._lock = os.open(
            os.path.join(folder, "TURN"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def __enter__(self) -> None:
        import fcntl

        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        import fcntl

        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child forked meanwhile has the descriptor too
        os.close(self._lock)


def _keep(watch: _Watch, path: str, kept: str, *, by_link: bool) -> None:
    """Backs up a file. Raises `OSError` if that fails."""
    with _BackupLock(watch):
        if not os.path.lexists(kept):
            try:
                _link(watch, path, kept) if by_link else _copy(watch, path, kept)
            except FileNotFoundError:  # another process has taken it away meanwhile, and keeps it
                return
        elif not watch.has_several_nodes and kept not in _kept_here(watch):
            raise OSError(
                0,
                f"{kept} is another trial's backup; if no trial is running, rename this backup to {path}",
            )


def _link(watch: _Watch, path: str, kept: str) -> None:
    _journal(watch, "link", path, kept)
    try:
        os.link(path, kept, follow_symlinks=False)
    except FileExistsError:  # another node was faster
        _journal(watch, "not", path, kept)
    except OSError as error:
        is_plain = stat.S_ISREG(os.lstat(path).st_mode) and os.stat(path).st_uid == os.geteuid()
        if error.errno not in NO_LINKS or not is_plain:
            raise
        _copy(watch, path, kept)


def _copy(watch: _Watch, path: str, kept: str) -> None:
    identity, spare = _identity(path), _copied(watch, path)
    _journal(watch, "copy", path, kept, identity)
    try:
        os.link(spare, kept)
    except FileExistsError:
        _journal(watch, "not", path, kept)
    except OSError:  # a disk without links
        os.rename(spare, kept)
        return
    os.unlink(spare)


def _separate_from_backup(watch: _Watch, path: str, *, cut: bool) -> None:
    """Replaces a file that shares its inode with a backup by a separate file before it is written:
    an empty one if `cut`."""
    with _BackupLock(watch):
        if _is_kept(watch, path):
            os.replace(_copied(watch, path, empty=cut), path)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_file(status: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(status, os.lstat(path))
    except OSError:
        return False


def _copied(watch: _Watch, path: str, *, empty: bool = False) -> str:
    """A copy in the same folder, with the same mode and, if permitted, owner. Raises `OSError` if
    it cannot be made."""
    import shutil

    status, folder = os.stat(path), os.path.dirname(path)
    if not empty:
        disk = os.statvfs(folder)
        if status.st_size > COPY_BYTES:
            raise OSError(0, f"larger than the {COPY_BYTES >> 20} MiB that can be copied")
        is_full = disk.f_bavail * disk.f_frsize < status.st_size + FREE_BYTES
        if is_full and status.st_size > SMALL_BYTES:
            raise OSError(0, "a copy would leave less than 1 GiB free on the disk")
    spare = os.path.join(folder, f".{os.getpid()}-{time.monotonic_ns()}{KEPT}")
    _journal(watch, "spare", spare)
    os.close(os.open(spare, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    (shutil.copymode if empty else shutil.copy2)(path, spare)
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        try:
            os.chown(spare, status.st_uid, status.st_gid)
        except OSError:  # only root may: the content is restored
            return spare
    return spare


def _journal(watch: _Watch, *what: Any) -> None:
    import json

    folder = os.path.join(watch.reports.folder, JOURNAL)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, str(os.getpid()) + ".jsonl"), "a") as file:
        # a full disk may have truncated the previous line
        file.write("\n" + json.dumps([time.monotonic(), *what]) + "\n")


def _kept_here(watch: _Watch) -> Iterator[str]:
    """Yields the paths of backups kept by processes of this node."""
    import json

    folder = os.path.join(watch.reports.folder, JOURNAL)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if not name.endswith(".jsonl"):
            continue
        with open(os.path.join(folder, name)) as file:
            lines = [json.loads(line) for line in file if line.endswith("]\n")]
        others = [line[3] for line in lines if line[1] == "not"]
        for line in lines:
            if line[1] in ("link", "copy"):
                if line[3] in others:
                    others.remove(line[3])
                else:
                    yield line[3]
