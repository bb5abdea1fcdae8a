"""A file, or a folder that `autotune export` wrote, as the present configuration of a program; and the trainer that it belongs to.

A folder's launch.json tells command and environment; a single file is all that is known.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.onboarding.foreign_files import paths_of
from autotune.trainers import Trainer, trainer, trainer_names
from autotune.trainers.launch_files import MANIFEST
from autotune.trainers.nested_documents import parse_document
from autotune.trainers.present_configuration import PresentConfiguration

DOCUMENTS = (".yaml", ".yml", ".json", ".toml")
"""endings of files that are told apart by their keys"""
MAX_BYTES = 1 << 20
"""A file larger than this is no configuration."""


def read_present(path: Path) -> PresentConfiguration:
    """The present configuration in a file or an exported folder. Raises `SpecError` for what cannot be read."""
    if not path.is_dir():
        return PresentConfiguration(files={path.name: _text(path)})
    if not (path / MANIFEST).is_file():
        raise SpecError(
            f"the folder {str(path)!r} has no {MANIFEST}, so it was not written by `autotune export`",
            remedy="name the trainer's own file in it",
            field="FILE",
        )
    try:
        launch = json.loads(_text(path / MANIFEST))
        names, argv, env = list(launch["files"]), tuple(launch["argv"]), dict(launch["env"])
        cwd = str(launch.get("cwd", ""))
    except (ValueError, KeyError, TypeError):
        raise SpecError(f"{path / MANIFEST} is not a manifest of `autotune export`", field="FILE") from None
    # the files themselves, not the manifest's copy: somebody may have edited them since
    return PresentConfiguration(files={name: _text(path / name) for name in names}, argv=argv, env=env, cwd=cwd)


def recognized(present: PresentConfiguration) -> str | None:
    """The trainer whose configuration it is: by the keys of its documents and the words of its command, each where that trainer has them; None where
    it is no trainer's."""
    found = frozenset(present.argv).union(*(_marks(name, text) for name, text in present.files.items()))
    scores = {name: _score(trainer(name), found) for name in trainer_names()}
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best is not None and scores[best] else None


def document_of(name: str, text: str) -> dict[str, Any]:
    """The contents of a YAML, JSON or TOML file; empty for other files and for those that hold something else."""
    with suppress(SpecError):
        return parse_document(name, text) if PurePosixPath(name).suffix.lower() in DOCUMENTS else {}
    return {}


def importing_trainers() -> tuple[str, ...]:
    """Trainers whose present configuration can be read."""
    return tuple(name for name in trainer_names() if trainer(name).can_import)


def _marks(name: str, text: str) -> frozenset[str]:
    if PurePosixPath(name).suffix.lower() in DOCUMENTS:
        return frozenset(paths_of(document_of(name, text)))
    words = re.findall(r"[\w.-]+", text)
    return frozenset(word.replace("_", "-") if word.startswith("--") else word for word in words)


def _score(candidate: Trainer, found: frozenset[str]) -> int:
    return len(found.intersection(candidate.recognized_by)) if candidate.can_import else 0


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(f"{path} is larger than {MAX_BYTES >> 20} MiB: it is no configuration", field="FILE")
        return path.read_text(encoding="utf-8-sig")  # editors of Windows begin files with a mark
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text", field="FILE") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", field="FILE") from None
