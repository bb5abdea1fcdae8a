"""Programs under the probe's eyes, as a keeper starts them, without a keeper: what was reported,
and what became of the files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune_workers.probe.probe_folder import ProbeFolder

PROGRAMS = Path(__file__).with_name("programs")
LIMIT_S = 900.0
"""far beyond what any of the programs needs"""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One run of a program."""

    code: int
    text: str
    reports: list[dict[str, Any]]
    lost: list[str] = field(default_factory=list)

    def of(self, kind: str, pid: int | None = None) -> list[dict[str, Any]]:
        return [r for r in self.reports if r["kind"] == kind and pid in (None, r["pid"])]

    @property
    def trainers(self) -> list[int]:
        """Processes that took steps."""
        return list(dict.fromkeys(r["pid"] for r in self.of("step")))

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return [
            step for report in self.of("step") if report["rank"] == rank for step in report["steps"]
        ]

    def facts(self, rank: int = 0) -> dict[str, Any]:
        return [r for r in self.of("facts") if r["rank"] == rank][-1]

    @property
    def files(self) -> dict[str, list[Any]]:
        return {path: rest for report in self.of("files") for path, *rest in report["files"]}


def watched(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    keeps_files: bool = True,
) -> Watched:
    """Runs the command to its end."""
    probe = ProbeFolder()
    try:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            **(env or {}),
        }
        trial = cwd / ".trial"
        trial.mkdir(exist_ok=True)
        variables = probe.variables(environment, trial_folder=str(trial), keeps_files=keeps_files)
        # that one is joined
        own = {name: text for name, text in (env or {}).items() if name != "PYTHONPATH"}
        done = subprocess.run(
            list(argv),
            cwd=cwd,
            env={**environment, **variables, **own},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        reports = []
        while more := probe.read():
            reports += more
        return Watched(
            code=done.returncode,
            text=done.stdout + done.stderr,
            reports=reports,
            lost=probe.put_back(),
        )
    finally:
        probe.remove()


def python(name: str, *arguments: str) -> list[str]:
    """The command of one of the programs here."""
    return [sys.executable, str(PROGRAMS / name), *arguments]


def torchrun(name: str, *arguments: str) -> list[str]:
    """The same on two ranks."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(PROGRAMS / name),
        *arguments,
    ]
