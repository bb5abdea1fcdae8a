"""Packs the folder of a program, or of a module that builds a model, once to send it to the nodes,
and unpacks it there.

    left out   matches of `.gitignore` and `.rayignore`, as in Ray, and `.git`, `.venv`, `venv`, `__pycache__`
    size       total of the remaining files before packing

Ray's `working_dir` is not used: for actors it only takes packages uploaded by private functions of
Ray, and it puts the folder first in the actor's module path, where a program's `queue.py` would
replace Python's.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import AutotuneError, RunnerError
from autotune.spec import ParallelConfig, Study
from autotune.trainers import trainer
from autotune_workers.gang.gang_runner import NATIVE
from autotune_workers.process.program.launch import UPLOAD

ALWAYS_LEFT_OUT = frozenset({".git", ".venv", "venv", "__pycache__"})
IGNORE_FILES = (".gitignore", ".rayignore")
MB = 1_000_000
SHOWN = 3
"""number of largest entries in an error message"""

Matcher = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFolder:
    """A folder's files as a zip archive."""

    digest: str
    """digest of the files' names, modes and contents"""
    data: bytes
    """the zip archive"""


def pack(folder: str | Path, *, limit_bytes: int) -> PackedFolder:
    """Packs the folder. Raises `RunnerError` if it is larger than `limit_bytes` or cannot be
    read."""
    root = Path(folder).resolve()
    try:
        return _packed(root, files_of(root, limit_bytes=limit_bytes))
    except OSError as error:
        raise RunnerError(
            f"the folder {root} cannot be sent: {error}",
            remedy=f"make the file readable, or list it in {root / IGNORE_FILES[1]}",
            field="trainer.working_dir",
        ) from None


def files_of(root: Path, *, limit_bytes: int) -> list[Path]:
    """The files to be sent. Raises `RunnerError` if they are larger than `limit_bytes`, `OSError`
    if they cannot be read."""
    files = sorted(_files(root, root, []))
    sizes = {path: path.stat().st_size for path in files}
    if sum(sizes.values()) > limit_bytes:
        raise _too_large(root, sizes, limit_bytes)
    return files


def _packed(root: Path, files: list[Path]) -> PackedFolder:
    digest, archive = hashlib.sha256(), io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for path in files:
            name, mode, data = (
                path.relative_to(root).as_posix(),
                stat.S_IMODE(path.stat().st_mode),
                path.read_bytes(),
            )
            digest.update(f"{name}\0{mode}\0{len(data)}\0".encode() + data)
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, data)
    return PackedFolder(digest=digest.hexdigest()[:16], data=archive.getvalue())


def check_upload(study: Study, config: ParallelConfig, *, limit_bytes: int) -> None:
    """Raises `RunnerError` if the folder of the study's program, or of its model's module, is to be
    sent and is too large."""
    if study.trainer_options.get("working_dir") != UPLOAD:
        return
    root = _sent_folder(study, config)
    if root is not None and root.is_dir():
        with contextlib.suppress(OSError):  # reported when it is packed
            files_of(root, limit_bytes=limit_bytes)


def _sent_folder(study: Study, config: ParallelConfig) -> Path | None:
    """The folder of the program, or of the module that builds the model; None if there is none, or
    the config cannot be launched."""
    if study.trainer == NATIVE:
        code = study.workload.model.code
        return Path(code.folder).resolve() if code is not None and code.folder else None
    try:
        launch = trainer(study.trainer).launch(study.workload, config, study.trainer_options)
    except AutotuneError:  # an error of the config, not of the folder
        return None
    return Path(launch.cwd).resolve()


def unpack(data: bytes, folder: str | Path) -> None:
    """Writes the files into this folder, with their modes."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        for entry in packed.infolist():
            path = packed.extract(entry, folder)
            os.chmod(path, stat.S_IMODE(entry.external_attr >> 16) | stat.S_IWUSR)


def _files(root: Path, folder: Path, above: list[tuple[Path, Matcher]]) -> Iterator[Path]:
    """Yields the files at any depth. Links are followed, except to a parent folder."""
    rules = above + [
        (folder, matcher) for name in IGNORE_FILES if (matcher := _matcher(folder / name))
    ]
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        is_folder = entry.is_dir()
        end = "/" if is_folder else ""
        if entry.name in ALWAYS_LEFT_OUT or any(
            matches(path.relative_to(base).as_posix() + end) for base, matches in rules
        ):
            continue
        if is_folder and not folder.resolve().is_relative_to(path.resolve()):
            yield from _files(root, path, rules)
        elif entry.is_file():
            yield path


def _matcher(file: Path) -> Matcher | None:
    from ray._private.thirdparty.pathspec import PathSpec

    if not file.is_file():
        return None
    lines = file.read_text(errors="replace").splitlines()
    return PathSpec.from_lines("gitwildmatch", lines).match_file


def _too_large(root: Path, sizes: dict[Path, int], limit_bytes: int) -> RunnerError:
    parts: Counter[str] = Counter()
    for path, size in sizes.items():
        first, *rest = path.relative_to(root).parts
        parts[f"{first}/" if rest else first] += size
    ranked = parts.most_common(SHOWN)
    shown = [part for part in ranked if part[1] >= MB] or ranked
    largest = ", ".join(f"{name} ({_mb(size)})" for name, size in shown)
    return RunnerError(
        f"a folder of at most {_mb(limit_bytes)} can be sent, but {root} has {_mb(sum(sizes.values()))}; the largest entries are {largest}",
        remedy=(
            f"list what is not needed in {root / IGNORE_FILES[1]}, put the folder on a file system that all nodes share "
            "(trainer.working_dir: shared), or raise runner.upload_limit_mb"
        ),
        field="trainer.working_dir",
    )


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / MB:.3g} MB"
