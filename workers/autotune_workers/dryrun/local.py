"""The dry runner of this machine: runs each dry run in its own process, with time and memory
limits.

User code is imported in that process only. The error names the last part reached if the process was
stopped at a limit, and the signal or exit status if it died.
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
"""grace period in which a terminated process can report how far it came"""
DUMP_BEGINS = "Fatal Python error: "
"""first words of the dump that `faulthandler` writes when a process dies"""
LOG_TAIL = 400
"""maximum number of characters of a dead process's output in an error message"""
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
    """Runs a task in a new process and returns its result. Raises `DryRunError`."""
    with (
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryFile() as request,
        tempfile.TemporaryFile() as answers,
    ):
        request.write(json.dumps({**task, "memory_bytes": limits.memory_bytes}).encode())
        request.seek(0)
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "autotune_workers.dryrun.process",
                str(answers.fileno()),
                str(os.getpid()),
            ],
            stdin=request,
            stdout=log,
            stderr=log,
            pass_fds=[answers.fileno()],
            start_new_session=True,
            env=rank_environment({"CUDA_VISIBLE_DEVICES": ""}, host="127.0.0.1"),
        )
        in_time = _ended_in_time(process, limits.wall_s)
        messages = [json.loads(message) for message in _text(answers).splitlines()]
        report: dict[str, Any] = {
            key: value for message in messages for key, value in message.items()
        }
        if "result" in report and in_time:
            return report["result"]
        raise _error(report, in_time, process.returncode, _text(log), limits)


def _ended_in_time(process: subprocess.Popen[bytes], wall_s: float) -> bool:
    """Waits until the process ends, and returns True; at the limit stops it and its children, and
    returns False."""
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
    report: Mapping[str, Any], in_time: bool, code: int | None, output: str, limits: DryRunLimits
) -> DryRunError:
    """The error for a run without a result. `report`: the process's messages merged, with keys
    `reached` and `error`; `code`: exit status; `output`: its log."""
    if "error" in report:
        return DryRunError(**report["error"])
    reached = f"; the last part reached was {report.get('reached', 'starting Python')}"
    if not in_time:
        return DryRunError(
            f"the dry run was stopped after {format_duration(limits.wall_s)}{reached}", remedy=FEWER
        )
    if line := dumped_line(output):
        reached += f", at {line}"
    tail = " ".join(output.partition(DUMP_BEGINS)[0].split())[-LOG_TAIL:]
    if was_refused_memory(tail):
        return beyond_memory(limits.memory_bytes, reached)
    if code is not None and code < 0:
        ended = f"was ended by {signal.Signals(-code).name}"
    else:
        ended = f"ended with status {code}"
    last_output = f"; the last output was {tail}" if tail else ""
    return DryRunError(
        f"the dry-run process {ended} without a result{reached}{last_output}", remedy=_remedy(code)
    )


def _remedy(code: int | None) -> str:
    """The remedy for a process that ended with this exit status."""
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
