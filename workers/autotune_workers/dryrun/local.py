"""The dry runner of this machine: each dry run in a process of its own, within limits of time and
memory.

The user's code is imported in that process alone. A process that is stopped at a limit says how far
it came; one that dies says by what.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any, final

from autotune.errors import DryRunError
from autotune.ports import DryRunLimits
from autotune.spec import DryRun, ModelSpec, ParallelConfig, Workload
from autotune.spec.plain import to_plain
from autotune.spec.texts.as_text import format_duration
from autotune_workers.dryrun.memory_guard import beyond_memory, was_refused_memory
from autotune_workers.own_model.users_line import dumped_line
from autotune_workers.process.children import rank_environment

LAST_WORDS_S = 2.0
"""a process that is stopped has so long to say how far it came"""
DUMP_BEGINS = "Fatal Python error: "
"""what `faulthandler` writes first of a process that dies"""
LOG_TAIL = 400
"""characters of a dead process's output that are told"""
STUB = "one of the model's operators may read memory that a fake tensor does not have; replace this operator with a stub in dry runs"
FEWER = "use a smaller config (fewer layers, shorter sequences, fewer micro-batches), or raise the limit (`--max-wall-s` of `autotune fit`)"


@final
class LocalDryRunner:
    """See `autotune.ports.DryRunner`."""

    def inspect(self, model: ModelSpec, *, limits: DryRunLimits) -> ModelSpec:
        """See `DryRunner.inspect`."""
        return ModelSpec.from_dict(_ask({"task": "inspect", "model": to_plain(model)}, limits))

    def run(
        self, workload: Workload, config: ParallelConfig, *, pp_rank: int, limits: DryRunLimits
    ) -> DryRun:
        """See `DryRunner.run`."""
        if not 0 <= pp_rank < config.pp:
            raise DryRunError(
                f"pp_rank must be in [0, pp), but pp_rank={pp_rank} and pp={config.pp}",
                field="pp_rank",
            )
        task = {
            "task": "run",
            "workload": to_plain(workload),
            "config": config.to_dict(),
            "pp_rank": pp_rank,
        }
        return DryRun.from_dict(_ask(task, limits))


def _ask(task: Mapping[str, Any], limits: DryRunLimits) -> dict[str, Any]:
    """What the process answers. Raises `DryRunError`."""
    with (
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryFile() as asked,
        tempfile.TemporaryFile() as answers,
    ):
        asked.write(json.dumps({**task, "memory_bytes": limits.memory_bytes}).encode())
        asked.seek(0)
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "autotune_workers.dryrun.process",
                str(answers.fileno()),
                str(os.getpid()),
            ],
            stdin=asked,
            stdout=log,
            stderr=log,
            pass_fds=[answers.fileno()],
            start_new_session=True,
            env=rank_environment({"CUDA_VISIBLE_DEVICES": ""}, host="127.0.0.1"),
        )
        in_time = _ended_in_time(process, limits.wall_s)
        lines = [json.loads(line) for line in _text(answers).splitlines()]
        told: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
        if "result" in told and in_time:
            return told["result"]
        raise _error(told, in_time, process.returncode, _text(log), limits)


def _ended_in_time(process: subprocess.Popen[bytes], wall_s: float) -> bool:
    """Waits for its end; at the limit it is stopped, with all that it started."""
    try:
        process.wait(wall_s)
        return True
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS_S)
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _error(
    told: Mapping[str, Any], in_time: bool, code: int | None, output: str, limits: DryRunLimits
) -> DryRunError:
    """Why there is no result. `told`: how far the process came, and its own error."""
    if "error" in told:
        return DryRunError(**told["error"])
    reached = f"; the last part reached was {told.get('reached', 'starting Python')}"
    if not in_time:
        return DryRunError(
            f"the dry run was stopped after {format_duration(limits.wall_s)}{reached}", remedy=FEWER
        )
    if line := dumped_line(output):
        reached += f", at {line}"
    tail = " ".join(output.partition(DUMP_BEGINS)[0].split())[-LOG_TAIL:]
    if was_refused_memory(tail):
        return beyond_memory(limits.memory_bytes, reached)
    said = f"; the last output was {tail}" if tail else ""
    name = (
        f"was ended by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"ended with status {code}"
    )
    return DryRunError(
        f"the dry-run process {name} without a result{reached}{said}", remedy=_remedy(code)
    )


def _remedy(code: int | None) -> str:
    """What to do about a process that ended with this code."""
    if code == -signal.SIGKILL:
        return (
            "the machine may have run out of memory; stop other programs and run the command again"
        )
    if code is not None and code >= 0:
        return "the model's code may have ended the process itself (`os._exit`); raise an error instead"
    return STUB


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
