"""The base class of schedulers: what starts a launch on the nodes of a cluster."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from autotune.trainers.base.trainer import Option
from autotune.trainers.launch_files import Launch
from autotune.trainers.provenance_comments import comments

LONGEST_NAME = 40
"""characters of a job's name: Kubernetes appends indices to it and allows 63 in all"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """The nodes of a job."""

    nodes: int
    """>= 1"""
    ranks_per_node: int
    """>= 1, the same on all nodes"""
    gpus_per_node: int
    """one per rank; 0 if ranks run on CPUs"""


class Scheduler(ABC):
    """A way to start a launch on all its nodes. Stateless."""

    name: ClassVar[str]
    """its name in `autotune export --on`"""
    summary: ClassVar[str]
    """one line about it"""
    options: ClassVar[tuple[Option, ...]] = ()
    """its options; no trainer has an option of the same name"""

    @abstractmethod
    def files(self, launch: Launch, shape: JobShape, options: Mapping[str, Any]) -> Mapping[str, str]:
        """The job's own files, by name; they lie beside `launch.sh`."""

    @abstractmethod
    def start(self, launch: Launch, shape: JobShape) -> str:
        """The command that starts the job, for a shell in the folder of `launch.sh`."""

    def notes(self, launch: Launch, shape: JobShape, options: Mapping[str, Any]) -> tuple[str, ...]:
        """What a person should know before the start."""
        return ()


def heading(launch: Launch, *lines: str) -> list[str]:
    """Comment lines that begin a file: how the config was found and measured, then `lines`."""
    return [f"# {line}" for line in (*comments(launch.tuned), *lines)]


def job_name(launch: Launch) -> str:
    """A name for the job from the study's: lower-case letters, digits and `-`, as DNS labels (RFC 1035) want it."""
    study = str(launch.tuned["study"]["name"]) if launch.tuned else ""
    words = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-")
    return f"autotune-{words}"[:LONGEST_NAME].strip("-")
