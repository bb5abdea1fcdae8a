"""The base class of schedulers: what starts a launch on the nodes of a cluster."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.torchrun import Placement
from autotune.trainers.base.trainer_option import Option
from autotune.trainers.launch_files import SCRIPT, Launch
from autotune.trainers.provenance_comments import comments

LONGEST_NAME = 40
"""characters of a job's name: Kubernetes appends indices to it and allows 63 in all"""


class Scheduler(ABC):
    """A way to start a launch on all its nodes. Stateless."""

    name: ClassVar[str]
    """its name in `autotune export --on`"""
    summary: ClassVar[str]
    """one line about it"""
    options: ClassVar[tuple[Option, ...]] = ()
    """its options; no trainer has an option of the same name"""

    @abstractmethod
    def files(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> Mapping[str, str]:
        """The job's own files, by name; they lie beside `launch.sh`."""

    @abstractmethod
    def start(self, launch: Launch, placement: Placement) -> str:
        """The command that starts the job, for a shell in the folder of `launch.sh`."""

    def notes(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """What a person should know before the start."""
        return ()


def heading(launch: Launch, *lines: str) -> list[str]:
    """Comment lines that begin a file: how the config was found and measured, then `lines`."""
    return [f"# {line}" for line in (*comments(launch.tuned), *lines)]


def job_name(launch: Launch) -> str:
    """A name for the job from the study's: lower-case letters, digits and `-`, as DNS labels (RFC
    1035) want it."""
    study = str(launch.tuned["study"]["name"]) if launch.tuned else ""
    words = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-")
    return f"autotune-{words}"[:LONGEST_NAME].strip("-")


class Shell(Scheduler):
    """No scheduler: `launch.sh`, started by hand, or by a tool of one's own, on each node."""

    name = "shell"
    summary = "launch.sh, started on each node"

    def files(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> Mapping[str, str]:
        """None: `launch.sh` is part of every launch."""
        return {}

    def start(self, launch: Launch, placement: Placement) -> str:
        """The script, with the variables of the first node where there are several."""
        return f"NODE_RANK=0 MASTER_ADDR=HOST sh {SCRIPT}" if launch.is_spread else f"sh {SCRIPT}"

    def notes(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """How the nodes differ."""
        return notes_of((
            launch.is_spread,
            f"start launch.sh on {placement.nnodes} nodes, with NODE_RANK from 0 to {placement.nnodes - 1} and MASTER_ADDR set to node 0's address",
        ))  # fmt: skip
