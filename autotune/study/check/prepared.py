"""`autotune check`: shows the launch of a study's baseline, and runs a few real steps of it.

prepare_check    validates the study, renders the launch, checks this machine; starts nothing
run_check        runs the steps on the study's runner
check_document   both as JSON
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from autotune.ports import KnowledgeStore
from autotune.spec import ParallelConfig, Study, config_label
from autotune.study.assembly import Assembly, assemble, make_runner_of
from autotune.study.check.program_check import (
    LogLine,
    ProgramCheck,
    check_program,
    launch_of,
    request_of,
)
from autotune.study.check.unseen_program import NATIVE, config_to_check, second_config
from autotune.study.check.verdict import verdict_of
from autotune.study.preflight import check_here
from autotune.trainers import Launch
from autotune.trainers.base.executable import find_executable, python_of, search_path

ANSWER_S = 10.0
"""timeout for asking an interpreter for its version, s"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCheck:
    """A check that is ready to be started."""

    assembly: Assembly
    """the assembled study; of a study with a target, its first proxy"""
    config: ParallelConfig
    """the config whose steps are run"""
    why_config: str
    """what the config is: the baseline, or the smallest one"""
    launch: Launch | None
    """the launch of the first node; None for the native trainer"""
    folder: str
    """the folder in which the program runs"""
    program: str
    """the executable; empty if this machine does not have it"""
    python: str
    """the Python interpreter of the program, with its version; empty for programs that are not
    Python, or not on this machine"""

    @property
    def study(self) -> Study:
        """The study that is checked."""
        return self.assembly.study

    @property
    def legal(self) -> int:
        """Number of configs in the space."""
        return len(self.assembly.space)


def prepare_check(study: Study, *, store: KnowledgeStore | None = None) -> PreparedCheck:
    """Prepare the check. Raises `InfeasibleError` for an empty space or one that does not fit,
    `SpecError`, and `RunnerError` if this machine cannot run the study."""
    of_study = assemble(study, store)
    of_study.check_fit()
    assembly = of_study.runs_here  # of a study with a target, its first proxy
    study = assembly.study
    check_here(study, assembly.space)
    config = config_to_check(assembly)
    launch = None
    if study.trainer != NATIVE:
        launch = launch_of(request_of(study, config))
    program = find_executable(launch) if launch is not None else ""
    if launch is None:
        folder = ""
    elif launch.cwd or not launch.files:
        folder = os.path.abspath(launch.cwd)
    else:
        folder = "FILES: a new folder for each trial, with the files below"
    return PreparedCheck(
        assembly=assembly,
        config=config,
        why_config="the baseline"
        if config == assembly.baseline
        else "the smallest config in the space",
        launch=launch.placed("FILES") if launch is not None else None,
        folder=folder,
        program=program,
        python=_described(python_of(program, _environment(launch)))
        if launch is not None and program
        else "",
    )


def _said_and_seen(found: ProgramCheck) -> dict[str, Any]:
    """The comparison of spec and program for one config, as plain JSON values."""
    seen = found.seen
    return {
        "config": config_label(found.config),
        "rows": [
            {"name": r.name, "said": r.said, "seen": r.seen, "agrees": r.agrees} for r in found.rows
        ],
        "micro_batches": seen.micro_batches if seen else None,
        "sequences": seen.sequences if seen else None,
        "tokens": seen.tokens if seen else None,
        "wait_share": seen.wait_share if seen else None,
        "facts": dict(seen.facts) if seen else {},
        "step_time_s": found.step_time_s,
        "witness": seen.witness if seen else "",
    }


def _environment(launch: Launch) -> dict[str, str]:
    """The environment of a launch, with the folder of its Python first in PATH."""
    return {**launch.env, "PATH": search_path(launch.env, launch.programs_folder)}


def _described(python: str) -> str:
    """Path and version of the interpreter, resolved if `python` is a shim (pyenv); `python` itself if
    it does not answer."""
    if not python:
        return ""
    command = [
        python,
        "-I",
        "-c",
        "import sys; print(f'{sys.executable} ({sys.version.split()[0]})')",
    ]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return python
    return answer.stdout.strip() or python


def run_check(
    prepared: PreparedCheck,
    *,
    on_line: Callable[[LogLine], None] = lambda _: None,
    on_wait: Callable[[str], None] = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> ProgramCheck:
    """Run the steps and return the result. Raises `RunnerError` if nothing can be run."""
    with closing(make_runner_of(prepared.assembly)) as runner:
        return check_program(
            prepared.study,
            runner,
            prepared.config,
            on_line=on_line,
            on_wait=on_wait,
            interrupted=interrupted,
            second=second_config(prepared.assembly, prepared.config, runner.capacity),
        )


def check_document(prepared: PreparedCheck, found: ProgramCheck) -> dict[str, Any]:
    """The launch and the result as plain JSON values: what `autotune check --json` prints."""
    study, launch, verdict = prepared.study, prepared.launch, verdict_of(found)
    return {
        "study": study.name,
        "trainer": study.trainer,
        "runner": study.runner,
        "legal": prepared.legal,
        "config": prepared.config.to_dict(),
        "launch": None
        if launch is None
        else {
            **launch.shown.to_dict(),
            "command": launch.shown.command,
            "folder": prepared.folder,
            "program": prepared.program,
            "python": prepared.python,
        },
        "lines": [
            {"node": line.node, "text": line.text, "metrics": dict(line.metrics)}
            for line in found.lines
        ],
        "metrics": list(found.metrics),
        "steps": len(found.step_times_s),
        "step_time_s": found.step_time_s,
        "time_from": found.time_from,
        "losses": list(found.losses),
        "peak_memory_bytes": found.peak_memory_bytes,
        "failure": found.failure.to_dict() if found.failure is not None else None,
        "proposal": dict(found.proposal),
        "said_and_seen": [
            _said_and_seen(found),
            *([_said_and_seen(found.second)] if found.second else []),
        ],
        "differences": list(found.differences),
        "files": {path: dict(file) for path, file in found.files.items()},
        "ready": verdict.ready,
        "message": verdict.message,
        "remedy": verdict.remedy,
    }
