"""The launch that `autotune init` is given, as something that can be started: a shell script, a command, or a Python script by itself.

a shell script     its shell, in the folder in which its program is found; it is started as it is
a command          as it is written, where it is written
a Python script    the launcher that its imports ask for, on the ranks of the cluster, and none of its options
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from autotune.errors import SpecError
from autotune.onboarding.draft import Draft
from autotune.onboarding.launch_script import Started, started_by
from autotune.onboarding.started_program import where_it_runs
from autotune.trainers.placeholders import braced

_SHELL = re.compile(r"#!\S*?(?:/|env )((?:ba|z|da|k)?sh)\b")
_ALLOCATED = "SLURM_JOB_ID"
"""variable by which a process knows that it runs within an allocation of Slurm"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PresentLaunch:
    """A launch that can be started."""

    argv: tuple[str, ...]
    cwd: Path
    env: dict[str, str] = field(default_factory=dict)
    """what it needs beside the environment in which it is started"""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the trainer `command` that start it."""
        return {
            "argv": [braced(word) for word in self.argv],
            "cwd": str(self.cwd.resolve()),
            "env": {name: braced(text) for name, text in self.env.items()},
        }


def launch_of_script(path: Path) -> PresentLaunch:
    """A shell script as it is started from a terminal. Raises `SpecError` for one that needs more than this machine."""
    text = path.read_text(encoding="utf-8-sig")
    started = started_by(text)
    if started is not None:
        _refuse_elsewhere(started, path.name)
    shell = _SHELL.match(text)
    cwd = where_it_runs(path, started.file if started else "")
    return PresentLaunch(argv=(shell[1] if shell else "bash", str(path.resolve())), cwd=cwd)


def launch_of_command(words: Sequence[str]) -> PresentLaunch:
    """A command as it is written. Raises `SpecError` for one that needs more than this machine."""
    if (started := started_by(shlex.join(words))) is not None:
        _refuse_elsewhere(started, "the command")
    return PresentLaunch(argv=tuple(words), cwd=Path.cwd())


def launch_of_python(path: Path, draft: Draft, ranks: int) -> PresentLaunch:
    """A Python script by the launcher of its draft, without options."""
    trainer = draft.document["trainer"]
    words = trainer.get("argv", []) if isinstance(trainer, dict) else []
    if path.name not in words:
        raise SpecError(
            f"it is not known how {path.name} is started",
            remedy="give the whole command: autotune init --run -- torchrun --nproc-per-node=2 train.py ...",
            field="FILE",
        )
    end = words.index(path.name) + 1
    argv = [_on(ranks, word) for word in words[: end + (words[end : end + 1] == ["fit"])]]
    return PresentLaunch(
        argv=tuple(word for word in argv if not re.search(r"(?<!\{)\{\w", word)),
        cwd=path.parent,
        env=dict(trainer.get("env", {})),
    )


def _on(ranks: int, word: str) -> str:
    return re.sub(r"\{(nproc_per_node|world_size)\}", str(ranks), word)


def _refuse_elsewhere(started: Started, what: str) -> None:
    if started.nodes > 1:
        raise SpecError(
            f"{what} starts {started.program} on {started.nodes} nodes, and a run to look at it is one of this machine",
            remedy="give a command for one node behind `--`: autotune init --run -- torchrun --nproc-per-node=8 train.py ...; or leave --run out",
            field="--run",
        )
    if started.launcher == "srun" and _ALLOCATED not in os.environ:
        raise SpecError(
            f"{what} starts {started.program} by srun, which needs an allocation of Slurm",
            remedy="start autotune within one: salloc --nodes=1 --gpus=8 autotune init --run ...; or leave --run out",
            field="--run",
        )
