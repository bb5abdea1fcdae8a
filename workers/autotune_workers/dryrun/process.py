"""The process of one dry run: reads its task from the standard input and writes JSON lines to a descriptor.

    {"reached": TEXT}      how far it has come
    {"result": {...}}      the dry run, or the inspected model
    {"error": {...}}       message, remedy and field

Started by `local`, as `python -m autotune_workers.dryrun.process DESCRIPTOR PARENT`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from autotune.errors import DryRunError
from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.plain import model_from_dict, to_plain, workload_from_dict
from autotune_workers.dryrun.memory_guard import MemoryGuard, beyond_memory
from autotune_workers.own_model.users_line import running_line, user_line
from autotune_workers.process.machine import be_expendable, die_with_parent

PLACE_S = 0.2
"""the main thread has so long to say where it is, while the memory that it takes grows on"""
Reach = Callable[[str], None]
"""is told the part that begins"""


def main() -> None:
    """Entry of the process."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    be_expendable()
    task = json.loads(sys.stdin.buffer.read())
    limit_bytes = task["memory_bytes"]

    def reached() -> str:
        return "starting"

    def tell(line: dict[str, Any]) -> None:
        os.write(descriptor, json.dumps(line).encode() + b"\n")

    def follow(position: Callable[[], str]) -> None:
        nonlocal reached
        reached = position

    def reach(part: str) -> None:
        follow(lambda: part)
        tell({"reached": part})

    def fail(error: DryRunError) -> None:
        tell({"error": {"message": error.message, "remedy": error.remedy, "field": error.field}})

    def stop_at(line: str) -> None:
        place = reached() + (f", at {line}" if line else "")
        if guard.is_passed:
            fail(beyond_memory(limit_bytes, f"; it came as far as: {place}"))
        else:
            tell({"reached": place})
        os._exit(1)

    def terminated(*_: Any) -> None:
        error = sys.exc_info()[1]  # memory that is refused ends what ran before the limit is seen
        stop_at((user_line(error.__cause__ or error) if error else "") or running_line())

    def stop() -> None:
        """From the guard's thread. The main thread knows the place best, unless it is within a long call."""
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        signal.pthread_kill(main_thread, signal.SIGTERM)
        time.sleep(PLACE_S)
        stop_at(running_line(sys._current_frames().get(main_thread)))

    guard = MemoryGuard(limit_bytes, stop)
    faulthandler.enable()  # the line of a process that dies within a library
    signal.signal(signal.SIGTERM, terminated)
    reach("importing torch")
    try:
        with guard.guarding():
            if task["task"] == "inspect":
                answer = to_plain(_inspected(model_from_dict(task["model"]), reach))
            else:
                workload, config = workload_from_dict(task["workload"]), ParallelConfig.from_dict(task["config"])
                answer = to_plain(_run(workload, config, task, reach, follow))
        if guard.is_passed:
            terminated()
        tell({"result": answer})
    except BaseException as error:
        from autotune_workers.dryrun.failures import error_of

        fail(error_of(error, limit_bytes, reached()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that the user's code left behind keep nobody waiting


def _inspected(model: ModelSpec, reach: Reach) -> ModelSpec:
    from autotune_workers.own_model.inspection import inspect

    reach("building the model")
    return inspect(model)


def _run(
    workload: Workload,
    config: ParallelConfig,
    task: dict[str, Any],
    reach: Reach,
    follow: Callable[[Callable[[], str]], None],
) -> Any:
    """`follow`: is given what says, from now on, how far the run has come."""
    from autotune_workers.dryrun.played_rank import dry_run, first_rank_of_stage
    from autotune_workers.dryrun.stand_ins import stand_in

    reach("building the model")
    replaced = stand_in(workload, config)
    return dry_run(
        replaced.request,
        rank=first_rank_of_stage(config, task["pp_rank"]),
        notes=replaced.notes,
        watched=lambda watch: follow(watch.position.said),
    )


if __name__ == "__main__":
    main()
