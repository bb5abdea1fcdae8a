"""Files that the program writes or removes outside of the folder of its trial, by Python's audit events (PEP 578) and torch's own writers.

A file that was there before the trial began is kept: before it is cut to nothing it is moved aside, before it is replaced or removed it gets a second link, before it
is written in place it is copied: to `.NAME.before-autotune` in the same folder, from where the keeper puts it back once nothing of the trial is left. That name
is also how processes of several nodes agree who keeps a file: only one can make it.

    not kept     a file that is too long to be copied, or that cannot be, and a folder with more than `MOST_FILES` files that is removed: the program waits here,
                 before it writes, until the keeper has ended it
    left alone   devices, temporary and cache folders, the folders of Python's own modules, and what the trial itself has made
"""

from __future__ import annotations

import os
import stat
import sys
import time
from _thread import _local

TYPE_CHECKING = False
# `typing` takes milliseconds that a program may not spend, as do `tempfile` and `shutil`
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel

KEPT = ".before-autotune"
"""end of the name of a file that is kept"""
COPY_BYTES = 256 << 20
"""a longer file that is written in place is not copied"""
MOST_FILES = 2000
"""files of one process that are reported; a folder with more is not kept"""
JOURNAL = "kept"
"""folder of the reports in which each process says what it keeps"""
_CACHES = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME",
    "MPLCONFIGDIR", "CUDA_CACHE_PATH", "PIP_CACHE_DIR", "NUMBA_CACHE_DIR", "TRITON_HOME", "TORCH_EXTENSIONS_DIR",
)  # fmt: skip
_ALONE = ("__pycache__", ".cache", ".triton", ".nv", ".ipython", ".matplotlib")
"""folders of caches, wherever they are"""
HELD_S = 60.0
"""time that the keeper gets to end a program which is about to change a file that cannot be kept"""
PATIENCE_S = 0.2
"""time that another process gets to move a file aside which both are about to cut"""


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
        self.seen: set[str] = set()
        self.local = _local()


_watch: _Watch | None = None


def watch(reports: Channel) -> None:
    """Begins to watch, for the life of this process."""
    global _watch
    _watch = _Watch(reports)
    sys.addaudithook(_heard)


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
            _noted(os.fspath(target), "written", cut=True)
        return write(*args, **kwargs)

    setattr(module, name, told)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = args
        if isinstance(mode, str):
            if not ("w" in mode or "a" in mode or "x" in mode or "+" in mode):
                return
            _noted(path, "written", cut="w" in mode)
        elif isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            _noted(path, "written", cut=bool(flags & os.O_TRUNC))
    elif event in ("os.remove", "os.rename", "shutil.rmtree", "os.truncate"):
        if (
            any(isinstance(at, int) and at >= 0 for at in args[2 if event == "os.rename" else 1 :])
            and event != "os.truncate"
        ):
            return  # relative to an open folder, as `shutil.rmtree` does it, which was heard itself
        if event == "os.truncate":
            _noted(args[0], "written", cut=False)
        else:
            _noted(args[0], "removed", cut=True, link_only=True)
        if event == "os.rename":
            _noted(args[1], "written", cut=True, link_only=True)


def _noted(path: Any, how: str, *, cut: bool, link_only: bool = False) -> None:
    """Reports the file once, and keeps what was there. Never raises. `link_only`: the program itself takes the name away."""
    watch = _watch
    if watch is None or getattr(watch.local, "busy", False):
        return
    watch.local.busy = True
    try:
        if isinstance(path, (bytes, os.PathLike)):
            path = os.fsdecode(path)
        if not isinstance(path, str) or not path:
            return
        found = os.path.realpath(path)
        if found in watch.seen or not _counts(watch, found) or len(watch.seen) >= MOST_FILES:
            return
        is_tree = os.path.isdir(found)
        if is_tree and how == "written":
            return  # opened to make a file without a name in it, or by mistake: no file of it changes
        watch.seen.add(found)
        files = _files_of(watch, found) if is_tree else [found]
        told: list[list[Any]] = []
        if len(files) > MOST_FILES:
            files = []
            told.append([found, how, True, False])
        for file in files:
            existed = _is_older(watch, file)
            kept = (
                existed
                and watch.keeps
                and _keep(
                    watch, file, cut=cut, link_only=link_only, tree=found if is_tree else file
                )
            )
            if how == "written" or existed:
                told.append([file, how, existed, kept])
        if told:
            watch.reports.send("files", files=told)
        unkept = [file for file, _, existed, kept in told if existed and not kept]
        if watch.keeps and unkept:
            watch.reports.send("unkept", files=unkept)
            time.sleep(HELD_S)
    except Exception:  # a file that cannot be looked at is not worth the program
        return
    finally:
        watch.local.busy = False


def _files_of(watch: _Watch, folder: str) -> list[str]:
    """The files below a folder that were there before the trial, of many not all."""
    found: list[str] = []
    for top, _, names in os.walk(folder):
        found += [file for name in names if _is_older(watch, file := os.path.join(top, name))]
        if len(found) > MOST_FILES:
            break
    return found


def _counts(watch: _Watch, path: str) -> bool:
    if path.startswith(watch.inside) or path.endswith(KEPT):
        return False
    at = path + os.sep  # a temporary folder itself is left alone as what lies in it is
    if at.startswith(watch.alone) and not (watch.here and path.startswith(watch.here)):
        return False
    return not any(os.sep + name + os.sep in path for name in _ALONE)


def _is_older(watch: _Watch, path: str) -> bool:
    """Whether it is a plain file that was there before the trial."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_ctime < watch.began_s


def _keep(watch: _Watch, path: str, *, cut: bool, link_only: bool, tree: str) -> bool:
    """Whether its content is kept beside it, or beside the folder `tree` that is removed with it."""
    beside = os.path.dirname(tree)
    import json
    import shutil

    kept = os.path.join(beside, "." + os.path.relpath(path, beside).replace(os.sep, "--") + KEPT)
    is_made = False
    try:
        if cut and link_only:
            os.link(path, kept)
        elif not cut and os.path.getsize(path) > COPY_BYTES:
            return False
        else:
            os.close(os.open(kept, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            is_made = True
            if cut:
                os.replace(path, kept)
            else:
                shutil.copy2(path, kept)
    except FileExistsError:  # another process of this trial keeps it
        end_s = time.monotonic() + PATIENCE_S
        while cut and not link_only and _is_older(watch, path) and time.monotonic() < end_s:
            time.sleep(1e-3)
        return True
    except OSError as error:
        if is_made:
            os.unlink(kept)
        # another process has taken it away meanwhile, and keeps it
        return isinstance(error, FileNotFoundError)
    journal = os.path.join(watch.reports.folder, JOURNAL)
    os.makedirs(journal, exist_ok=True)
    with open(os.path.join(journal, str(os.getpid()) + ".jsonl"), "a") as file:
        file.write(json.dumps([path, kept]) + "\n")
    return True
