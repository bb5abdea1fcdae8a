"""The user's files that this process runs, with hashes of their contents: imported Python files
outside of libraries, and files named by its command and its launchers' commands.

A file larger than `MOST_BYTES`, such as data, has its size and modification time instead of a hash.
Files written for this trial and the program itself (`model_facts.script_version`) are left out.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator

from .versions import text_of

MOST_FILES, MOST_BYTES = 512, 1 << 20
MOST_PARENTS = 8
_LIBRARIES = (
    os.path.dirname(os.__file__),
    "site-packages",
    "dist-packages",
    os.path.dirname(os.path.abspath(__file__)),
    os.environ.get("TORCHINDUCTOR_CACHE_DIR") or "torchinductor_",
)
"""parts of paths of libraries' files, including files written by torch's compiler"""
_PROBE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def is_library(path: str) -> bool:
    """Whether a Python file belongs to a library, not to the program."""
    return path.startswith("<") or any(part in path for part in _LIBRARIES)


def own_files(program: str) -> dict[str, str]:
    """Hashes by path; paths of files in the program's folder are relative to it."""
    folder, trial = os.path.dirname(program), os.environ.get("AUTOTUNE_TRIAL_DIR", "")
    launch = os.path.dirname(trial) + os.sep if trial else ""
    found: dict[str, str] = {}
    for path in dict.fromkeys((*_imported(), *_named())):
        is_ours = path == program or path.startswith(_PROBE) or (launch and path.startswith(launch))
        if is_ours or len(found) >= MOST_FILES or not (contents := _identity(path)):
            continue
        is_in_folder = path.startswith(folder + os.sep)
        found[os.path.relpath(path, folder) if is_in_folder else path] = contents
    return found


def _imported() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not is_library(path):
            yield os.path.abspath(path)


def _named() -> Iterator[str]:
    """Yields files named in this process's command and in those of its launchers, without
    executables."""
    for pid in _launch_processes():
        words = text_of(f"/proc/{pid}/cmdline").split("\0")[1:]
        try:
            where = os.readlink(f"/proc/{pid}/cwd")
        except OSError:  # it has ended, or is another user's
            continue
        for word in words:
            for text in (word, word.partition("=")[2]):
                path = os.path.abspath(os.path.join(where, text))
                if text and os.path.isfile(path) and not _is_installed(path):
                    yield path


def _launch_processes() -> Iterator[int]:
    """Yields the numbers of this process and its parents within the launch."""
    root, pid = os.environ.get("AUTOTUNE_PROBE_ROOT", ""), os.getpid()
    for _ in range(MOST_PARENTS):
        if pid <= 1 or str(pid) == root:
            return
        yield pid
        fields = text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) < 2:  # it has ended
            return
        pid = int(fields[1])


def _is_installed(path: str) -> bool:
    return is_library(path) or os.path.dirname(path) == os.path.dirname(sys.executable)


def _identity(path: str) -> str:
    try:
        known = os.stat(path)
        if known.st_size > MOST_BYTES:
            return f"{known.st_size} bytes of {known.st_mtime:.0f}"
        with open(path, "rb") as content:
            return hashlib.sha256(content.read()).hexdigest()[:12]
    except OSError:
        return ""
