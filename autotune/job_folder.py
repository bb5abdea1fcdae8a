"""Writes the folder of a study that runs as a scheduler's job: the spec, and the file that starts
the job. `slurm/submission.py` and `kubernetes/submission.py` create the contents."""

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
"""file name of the spec in the folder"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The files of a job, and the command that submits it."""

    folder: Path
    files: Mapping[str, str]
    """texts by file name"""
    start: str
    """the command that submits the job"""


def folder_name(study: Study) -> str:
    """The name of the study's folder and of its job: the study's, without special characters."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", study.name).strip("-.") or "study"


def write(submission: Submission) -> list[Path]:
    """Write the files, readable only by this user, and return their paths. Raises `ConflictError` if
    the folder contains another study or other files."""
    submission.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if other_content := _other_content(submission):
        raise ConflictError(
            f"{submission.folder} already holds {other_content}, but a folder can hold the results of only one spec",
            remedy="remove or rename the folder, or change the study's `name`",
            field="name",
        )
    written = []
    for name, text in submission.files.items():
        path = submission.folder / name
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _other_content(submission: Submission) -> str:
    """What the folder contains besides this study, in words; empty if nothing."""
    existing = submission.folder / SPEC
    if not existing.exists():
        return "files that do not belong to a study" if any(submission.folder.iterdir()) else ""
    if _without_job(existing.read_text(encoding="utf-8")) == _without_job(submission.files[SPEC]):
        return ""
    return "another study, or an earlier version of this one"


def _without_job(text: str) -> Any:
    """The spec without the scheduler's settings, which may change between submissions."""
    import yaml

    return {
        key: value
        for key, value in yaml.safe_load(text).items()
        if key not in ("slurm", "kubernetes")
    }
