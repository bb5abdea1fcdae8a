"""Files that the program writes or removes outside of the folder of its trial, by Python's audit
events (PEP 578) and torch's own writers.

A file that was there before the trial began is kept as `.NAME.before-autotune` in the same folder,
from where the keeper puts it back once nothing of the trial is left. Only one can make that name,
which is also how processes of several nodes agree who keeps a file.

    cut, replaced, removed   it gets that name as a second link; where its own name is then written, that becomes another, empty file
    written in place         it is copied
    a folder is renamed      it gets its name again
    not kept                 a file that is too long to be copied, or that cannot be, a folder with more than `MOST_FILES` files that is removed, and a file that
                             another attempt keeps: the program waits here, before it writes, until the keeper has ended it, and never writes
    a lock                   is removed at the end if the trial has made it (`_LOCKS`)
    left alone               devices, temporary and cache folders, the folders of Python's own modules, and what the trial itself has made

What is done is written to the journal of the process before it is done, so that it can be undone,
in reverse order, wherever the process was killed.

    [AT_S, "link", PATH, KEPT]               PATH is also KEPT
    [AT_S, "copy", PATH, KEPT, ID]           KEPT has what PATH had; ID: device and inode of PATH
    [AT_S, "rename", FOLDER, TO, ID]         the program does it, or fails to
    [AT_S, "folder", FOLDER, MODE, OLD, ID]  is removed; OLD: nothing in it had changed since the trial began
    [AT_S, "not", PATH, KEPT]                another node keeps it, after all
    [AT_S, "spare", PATH]                    is left over if it is there
    [AT_S, "wrote", PATH]                    the program writes it now, or still has it open: what it becomes later is somebody else's
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
"""end of the name of a file that is kept"""
COPY_BYTES = 256 << 20
"""a longer file that is written in place is not copied"""
SMALL_BYTES, FREE_BYTES = 1 << 20, 1 << 30
"""a copy of a longer file must leave so much room on its disk"""
MOST_FILES = 2000
"""files of one process that are reported; a folder that is removed with more is not kept"""
LONGEST_NAME = 255
"""bytes"""
NO_LINKS = (1, 38, 95)
"""EPERM, ENOSYS, EOPNOTSUPP: what disks without links answer"""
JOURNAL = "kept"
"""folder of the reports in which each process says what it keeps"""
_CACHES = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME",
    "MPLCONFIGDIR", "CUDA_CACHE_PATH", "PIP_CACHE_DIR", "NUMBA_CACHE_DIR", "TRITON_HOME", "TORCH_EXTENSIONS_DIR",
)  # fmt: skip
_ALONE = ("__pycache__", ".cache", ".triton", ".nv", ".ipython", ".matplotlib")
"""folders of caches, wherever they are"""
WROTE_S = 1.0
"""time in which further writes to a file are not written down again"""
_LOCKS = (".lock", ".lck", ".pid")
"""ends of the names of files by which a program says that it runs: those that the trial makes are
removed at its end"""
HELD_S = 60.0
"""time that the keeper gets to end a program which is about to change a file that cannot be kept"""


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
        own = os.environ.get("AUTOTUNE_TRIAL_DIR")
        self.alone = tuple(
            {os.path.realpath(folder) + os.sep for folder in [*folders, own] if folder}
        )
        # a program that itself lies in a temporary folder is watched there
        here = os.path.realpath(os.getcwd()) + os.sep
        self.here = here if here.startswith(self.alone) and here != os.sep else ""
        self.inside = tuple(
            os.path.realpath(folder) + os.sep for folder in (reports.folder, own) if folder
        )
        self.has_several_nodes = os.environ.get("AUTOTUNE_PROBE_SEVERAL_NODES") == "1"
        self.seen: set[str] = set()
        self.renamed: set[str] = set()
        """names that something else got"""
        self.wrote: dict[str, float] = {}
        """when it was last written down that a file is written"""
        self.told = 0
        self.local = _local()


_watch: _Watch | None = None


def watch(reports: Channel) -> None:
    """Begins to watch, for the life of this process."""
    global _watch
    _watch = _Watch(reports)
    sys.addaudithook(_heard)
    atexit.register(_ends)


def watch_writer(module: Any, name: str, *, position: int, keyword: str) -> None:
    """Has the files told that a function writes which opens them outside of Python."""
    write = getattr(module, name, None)
    if write is None:
        return
    import functools

    @functools.wraps(write)
    def told(*args: Any, **kwargs: Any) -> Any:
        target = kwargs.get(keyword, args[position] if len(args) > position else None)
        if isinstance(target, (str, os.PathLike)):
            _noted(target, "written", cut=True)
        written = write(*args, **kwargs)
        if isinstance(target, (str, os.PathLike)):
            _noted(target, "written", cut=False)
        return written

    setattr(module, name, told)


def _ends() -> None:
    """Files that are still open when the process ends have been written until now."""
    if _watch is not None and _watch.keeps:
        for path in open_of(os.getpid(), set(_watch.wrote)):
            _journal(_watch, "wrote", path)


def open_of(pid: int, paths: set[str]) -> list[str]:
    """Those of these files that a process has open."""
    folder, found = f"/proc/{pid}/fd", []
    try:
        for number in os.listdir(folder):
            try:
                path = os.readlink(os.path.join(folder, number))
            except OSError:  # closed meanwhile
                continue
            found += [path] if path in paths else []
    except OSError:  # it has ended, or is another user's
        return found
    return found


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = args
        if not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)):
            return
        if flags & os.O_EXCL and not isinstance(path, int) and os.path.lexists(path):
            return  # it fails
        if isinstance(path, str) and path.endswith(_LOCKS) and not os.path.lexists(path):
            _made_lock(path)
            return
        # without a mode it may be relative to an open folder, and so not the file that it seems
        is_sure = mode is not None or os.path.isabs(path)
        _noted(path, "written", cut=bool(flags & os.O_TRUNC) and is_sure)
    elif event in ("os.symlink", "os.link"):
        _noted(args[1], "written", cut=False, is_name=True)
    elif event == "os.truncate":
        _noted(args[0], "written", cut=False)
    elif event in ("os.remove", "os.rmdir", "os.rename", "shutil.rmtree"):
        is_renamed = event == "os.rename"
        if any(isinstance(at, int) and at >= 0 for at in args[1 + is_renamed :]):
            return  # relative to an open folder, as `shutil.rmtree` does it, which was heard itself
        to = args[1] if is_renamed else ""
        how = "emptied" if event == "os.rmdir" else "removed"
        _noted(args[0], how, cut=True, is_name=True, to=to)
        _noted(to, "written", cut=True, is_name=True)


def _made_lock(path: str) -> None:
    """Such a file of a program that is ended would keep the user's next run from starting."""
    watch, found = _watch, os.path.realpath(path)
    if watch is not None and not getattr(watch.local, "busy", False):
        watch.local.busy = True
        try:
            if _counts(watch, found):
                _journal(watch, "spare", found)
        except OSError:  # it stays
            return
        finally:
            watch.local.busy = False


def _noted(path: Any, how: str, *, cut: bool, is_name: bool = False, to: Any = "") -> None:
    """Reports the file once, and keeps what was there. Never raises. `is_name`: its name is taken
    away, or given to another; `to`: which name it gets."""
    watch = _watch
    if watch is None or getattr(watch.local, "busy", False):
        return
    watch.local.busy = True
    found = ""
    try:
        found, target = _place(path, is_name=is_name), _place(to, is_name=True)
        if not found or not _counts(watch, found):
            return
        if not os.path.isdir(found) or os.path.islink(found):
            _note_file(watch, found, how, cut=cut, is_name=is_name)
        elif how == "emptied":
            _note_emptied(watch, found)
        elif (
            how == "removed"
        ):  # one that is opened is so by mistake, or to make a file without a name in it
            _note_folder(watch, found, target)
    except FileNotFoundError:  # another process has taken it away meanwhile, and keeps it
        return
    except OSError as error:
        if watch.keeps and found:
            _wait_for_end(watch, found, how, error.strerror or str(error))
    except Exception:  # a file that cannot be looked at is not worth the program
        return
    finally:
        watch.local.busy = False


def _wait_for_end(watch: _Watch, path: str, how: str, why: str) -> None:
    """Says that it cannot be kept, and never comes back to change it."""
    watch.reports.send("files", files=[[path, how, True, False]])
    watch.reports.send("unkept", files=[path], why=why)
    time.sleep(HELD_S)
    os.write(2, f"ended before it changed {path}, which cannot be backed up: {why}\n".encode())
    os.kill(os.getpid(), 9)


def _place(path: Any, *, is_name: bool) -> str:
    """The whole path: of a link its own where its name is meant, else that of what it leads to.
    Empty for what is none."""
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
        return  # it fails
    is_known, is_older = path in watch.seen, _is_older(watch, path)
    is_kept = _is_kept(watch, path)
    existed = is_older or (is_kept and path not in watch.renamed)
    if watch.keeps:
        kept = _beside(path, os.path.dirname(path))
        if not is_known and (existed or os.path.lexists(kept)):
            _keep(watch, path, kept, by_link=cut)
        if not is_name and (is_kept or (cut and existed)):
            _part(watch, path, cut=cut)
    if is_name and how == "written":
        watch.renamed.add(path)
    if watch.keeps and how == "written":
        _write_down(watch, path)
    if not is_known and (existed or len(watch.seen) < MOST_FILES):
        watch.seen.add(path)
        if how == "written" or existed:
            _tell(watch, how, {path: existed})


def _write_down(watch: _Watch, path: str) -> None:
    now_s = time.monotonic()
    if now_s - watch.wrote.get(path, -WROTE_S) >= WROTE_S:
        watch.wrote[path] = now_s
        _journal(watch, "wrote", path)


def _note_folder(watch: _Watch, folder: str, to: str) -> None:
    """A folder that is renamed, or removed with all that is in it."""
    files, folders = _older_in(watch, folder)
    if watch.keeps and to and (files or any(folders.values())):
        _journal(watch, "rename", folder, to, _identity(folder))
    elif watch.keeps and not to:
        if len(files) > MOST_FILES:
            raise OSError(0, f"more than {MOST_FILES:,} files")
        _journal_folders(watch, folders)
        for file in files:
            _keep(watch, file, _beside(file, os.path.dirname(folder)), by_link=True)
    _tell(watch, "removed", dict.fromkeys(files[:MOST_FILES], True))


def _note_emptied(watch: _Watch, folder: str) -> None:
    """A folder that is removed once it is empty, so what is kept in it is moved out."""
    names = os.listdir(folder)
    if not watch.keeps or not all(name.endswith(KEPT) for name in names):
        return
    _journal_folders(watch, {folder: os.stat(folder).st_ctime < watch.began_s})
    for path in (os.path.join(folder, name) for name in names):
        _keep(watch, path, _beside(path, os.path.dirname(folder)), by_link=True)
        os.unlink(path)


def _journal_folders(watch: _Watch, older: dict[str, bool]) -> None:
    for folder, is_older in older.items():
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        _journal(watch, "folder", folder, mode, is_older, _identity(folder))


def _tell(watch: _Watch, how: str, existed: dict[str, bool]) -> None:
    """Files that changed, and whether they were there before."""
    told = [
        [path, how, there, there and watch.keeps]
        for path, there in existed.items()
        if not path.endswith(KEPT)
    ]
    if told := told[: MOST_FILES - watch.told]:
        watch.told += len(told)
        watch.reports.send("files", files=told)


def _older_in(watch: _Watch, folder: str) -> tuple[list[str], dict[str, bool]]:
    """The files and links below a folder that were there before the trial, of many not all; and the
    folders, with whether nothing of them has changed since."""
    files: list[str] = []
    folders: dict[str, bool] = {}
    for top, below, names in os.walk(folder):
        folders[top] = os.stat(top).st_ctime < watch.began_s
        paths = [os.path.join(top, name) for name in (*below, *names)]
        files += [path for path in paths if _is_older(watch, path)]
        if len(files) > MOST_FILES:
            break
    return files, folders


def _counts(watch: _Watch, path: str) -> bool:
    at = path + os.sep  # a temporary folder itself is left alone as what lies in it is
    if path.startswith(watch.inside) or (
        at.startswith(watch.alone) and not (watch.here and path.startswith(watch.here))
    ):
        return False
    return not any(os.sep + name + os.sep in path for name in _ALONE)


def _is_older(watch: _Watch, path: str) -> bool:
    """Whether it is a file or link that was there before the trial, or one that is kept."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
    return is_plain and (found.st_ctime < watch.began_s or path.endswith(KEPT))


def _is_kept(watch: _Watch, path: str) -> bool:
    """Whether it has a second name under which it is kept: it has then changed since the trial
    began, though its content has not."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if found.st_nlink < 2 or found.st_ctime < watch.began_s:
        return False
    # journals are long where many files are kept, so this is tried first
    if _is_file(found, _beside(path, os.path.dirname(path))):
        return True
    return any(_is_file(found, kept) for kept in _kept_here(watch))


def _beside(path: str, folder: str) -> str:
    """The name in that folder under which a file is kept."""
    name = os.path.relpath(path, folder).replace("%", "%25").replace(os.sep, "%2F")
    if len(os.fsencode(name)) + len(KEPT) >= LONGEST_NAME:
        import hashlib

        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, "." + name + KEPT)


class _Turn:
    """The turn to keep files: no two processes or threads of this node do it at once."""

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

        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that was forked meanwhile has it, too
        os.close(self._lock)


def _keep(watch: _Watch, path: str, kept: str, *, by_link: bool) -> None:
    """Keeps a file that was there before. Raises `OSError` where that cannot be done."""
    with _Turn(watch):
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


def _part(watch: _Watch, path: str, *, cut: bool) -> None:
    """Gives a name whose file is kept as well a file of its own, before it is written: an empty one
    where it is about to be cut."""
    with _Turn(watch):
        if _is_kept(watch, path):
            os.replace(_copied(watch, path, empty=cut), path)


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _is_file(found: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(found, os.lstat(path))
    except OSError:
        return False


def _copied(watch: _Watch, path: str, *, empty: bool = False) -> str:
    """A copy in the same folder, with the same mode and, where we may, owner. Raises `OSError`
    where there cannot be one."""
    import shutil

    found, folder = os.stat(path), os.path.dirname(path)
    if not empty:
        disk = os.statvfs(folder)
        if found.st_size > COPY_BYTES:
            raise OSError(0, f"larger than the {COPY_BYTES >> 20} MiB that can be copied")
        is_full = disk.f_bavail * disk.f_frsize < found.st_size + FREE_BYTES
        if is_full and found.st_size > SMALL_BYTES:
            raise OSError(0, "a copy would leave less than 1 GiB free on the disk")
    spare = os.path.join(folder, f".{os.getpid()}-{time.monotonic_ns()}{KEPT}")
    _journal(watch, "spare", spare)
    os.close(os.open(spare, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    (shutil.copymode if empty else shutil.copy2)(path, spare)
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        try:
            os.chown(spare, found.st_uid, found.st_gid)
        except OSError:  # only root may: it is put back by its content
            return spare
    return spare


def _journal(watch: _Watch, *what: Any) -> None:
    import json

    folder = os.path.join(watch.reports.folder, JOURNAL)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, str(os.getpid()) + ".jsonl"), "a") as file:
        # the line before may have been cut off by a full disk
        file.write("\n" + json.dumps([time.monotonic(), *what]) + "\n")


def _kept_here(watch: _Watch) -> Iterator[str]:
    """Where processes of this node keep files."""
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
