"""A file, or a folder that `autotune export` wrote, as the present configuration of a program; and the trainer that it belongs to.

A folder's launch.json tells command and environment; a single file is all that is known.
"""

from __future__ import annotations

import json
from pathlib import Path

from autotune.errors import SpecError
from autotune.trainers import Trainer, trainer, trainer_names
from autotune.trainers.launch_files import MANIFEST
from autotune.trainers.present_configuration import PresentConfiguration

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
    """The trainer whose configuration it is, by the words in it; None where no trainer's words occur."""
    text = "\n".join([*present.files.values(), " ".join(present.argv)])
    found = {name: _score(trainer(name), text) for name in trainer_names()}
    best = max(found, key=lambda name: found[name], default=None)
    return best if best is not None and found[best] else None


def importing_trainers() -> tuple[str, ...]:
    """Trainers whose present configuration can be read."""
    return tuple(name for name in trainer_names() if trainer(name).can_import)


def _score(candidate: Trainer, text: str) -> int:
    return sum(word in text for word in candidate.recognized_by) if candidate.can_import else 0


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(f"{path} is larger than {MAX_BYTES >> 20} MiB: it is no configuration", field="FILE")
        return path.read_text(encoding="utf-8-sig")  # editors of Windows begin files with a mark
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text", field="FILE") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", field="FILE") from None
