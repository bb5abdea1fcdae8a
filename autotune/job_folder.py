"""The folder of a study that runs as a job of a scheduler: the spec, and the file that starts the
job. `slurm/submission.py` and `kubernetes/submission.py` make them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import ConflictError
from autotune.spec import Study
from autotune.whole_files import whole_file

SPEC = "study.yaml"
"""the spec in the folder"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The files of a job, and how it is started."""

    folder: Path
    files: Mapping[str, str]
    """by name"""
    start: str
    """the command that submits it"""


def folder_name(study: Study) -> str:
    """The name of the study's folder, and of its job."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", study.name).strip("-.") or "study"


def write(made: Submission) -> list[Path]:
    """Writes the files, which only this user can read. Raises `ConflictError` for a folder that
    holds another study or something else."""
    made.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = made.folder / SPEC
    if (
        is_another := kept.exists()
        and _without_job(kept.read_text(encoding="utf-8")) != _without_job(made.files[SPEC])
    ) or (not kept.exists() and any(made.folder.iterdir())):
        what = (
            "another study, or an earlier version of this one"
            if is_another
            else "files that do not belong to a study"
        )
        raise ConflictError(
            f"{made.folder} already holds {what}, but a folder can hold the results of only one spec",
            remedy="remove or rename the folder, or change the study's `name`",
            field="name",
        )
    written = []
    for name, text in made.files.items():
        path = made.folder / name
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _without_job(text: str) -> Any:
    import yaml

    return {
        key: value
        for key, value in yaml.safe_load(text).items()
        if key not in ("slurm", "kubernetes")
    }
