"""The configuration that a training program has now: its files and command (`PresentConfiguration`), and what was read of them (`Reading`).

A trainer that writes a launch also reads one: `read_config(build(config).present)` gives the same knobs back. The files may be the user's own: keys
that are no knob and no option of the trainer are its `settings`, which every launch writes again.

    ranks   the world size; a file alone seldom tells it, a launch command does
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.launch_files import Launch
from autotune.trainers.trainer_option import Option, Reach

SETTINGS = Option(
    name="settings",
    meaning="further settings of the trainer, written into its file or command as they are",
    default={},
    reach=Reach.ARGUMENT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentConfiguration:
    """Files, command and environment of a training program."""

    files: Mapping[str, str] = field(default_factory=dict)
    """text by name, as in a launch; a single file has its own name"""
    argv: tuple[str, ...] = ()
    """the command, where it is known"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables that it is started with"""
    cwd: str = ""
    """folder in which it runs, where that is known and not the folder of the files"""

    @classmethod
    def of_launch(cls, launch: Launch) -> PresentConfiguration:
        """What a launch writes."""
        return cls(files=launch.files, argv=launch.argv, env=launch.env, cwd=launch.cwd)

    @property
    def ranks(self) -> int | None:
        """The world size by the options of torchrun, which other launchers share; None where the command does not tell: `--nnodes $NODES` may be any."""
        nodes, per_node = (self._launcher_count(name) for name in ("nnodes", "nproc-per-node"))
        return None if nodes is None or per_node is None else nodes * per_node

    @property
    def tf32(self) -> bool:
        """Whether fp32 matrix products are computed in TF32."""
        return self.env.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1"

    def named(self, *endings: str) -> tuple[str, str]:
        """Name and text of the first file with one of these endings. Raises `SpecError`."""
        for name, text in self.files.items():
            if PurePosixPath(name).suffix.lower() in endings:
                return name, text
        raise SpecError(
            f"none of the files {', '.join(self.files) or '(none)'} ends in {' or '.join(endings)}",
            remedy="`autotune init FILE` finds out whose file it is",
            field="FILE",
        )

    def option(self, name: str) -> str | None:
        """The value of the program's option `--name VALUE` or `--name=VALUE`; None where the command has none."""
        return next((value for given, value in options_of(self.argv) if given == name), None)

    def _launcher_count(self, name: str) -> int | None:
        values = {"nnodes": "1", **{given.replace("_", "-"): value for given, value in options_of(self.argv)}}
        text = values.get(name)
        return int(text) if text and text.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A present configuration in the tuner's terms. What the files do not tell is left out."""

    knobs: Mapping[str, Any]
    """values of knobs, by name"""
    model: Mapping[str, Any] = field(default_factory=dict)
    """fields of `ModelSpec`"""
    model_file: str = ""
    """name of the file that is the model's config.json, among those that were read, or the path that they name"""
    seq_len: int | None = None
    """tokens per sequence"""
    global_batch_size: int | None = None
    """sequences per optimizer step"""
    optimizer: str = ""
    """one of `Workload.optimizer`"""
    pure_bf16: bool = False
    """whether weights, gradients and moments are all in bf16"""
    unfused_attention: bool = False
    """whether attention stores its scores"""
    cluster: str = ""
    """name of the cluster"""
    rl: Mapping[str, Any] = field(default_factory=dict)
    """keys of a spec's `rl`, of programs that post-train; lengths are the largest that the files allow"""
    rollout: Mapping[str, Any] = field(default_factory=dict)
    """keys of its `rollout`"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """options of the trainer"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """keys that are neither knobs nor options, with their values"""
    remarks: tuple[str, ...] = ()
    """what was not understood, in words"""


def options_of(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of each option of a command; the value of a flag is empty."""
    for at, word in enumerate(argv):
        if not word.startswith("--") or len(word) < 3:
            continue
        name, sign, value = word[2:].partition("=")
        following = argv[at + 1] if at + 1 < len(argv) else ""
        is_value = bool(following) and (not following.startswith("-") or _is_number(following))
        yield name, value if sign else following if is_value else ""


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-[0-9.]+([eE]-?[0-9]+)?", word) is not None
