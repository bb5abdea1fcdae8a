"""The process of one dry run: reads its task from standard input and writes JSON lines to a file
descriptor.

    {"reached": TEXT}      the part that begins
    {"result": {...}}      the dry run, or the inspected model
    {"error": {...}}       message, remedy and field

`local` starts it as `python -m autotune_workers.dryrun.process DESCRIPTOR PARENT`.

Errors become a `DryRunError` that names the operator or the line of user code, and a remedy.
Autograd and pipelines wrap exceptions, so the root cause is reported. An exception of a builder is
reported as the builder's error, unless it can only occur in dry runs.

Dry runs use fake CPU tensors. Features that need a compiler or GPU kernels are replaced by plain
ones (`stand_in`), and the result says so.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.errors import AutotuneError, DryRunError
from autotune.ports import TrialRequest
from autotune.spec import DryRun, MeasureSpec, ModelSpec, ParallelConfig, Workload
from autotune.spec.plain import to_plain
from autotune_workers.dryrun.memory_guard import MemoryGuard, beyond_memory, was_refused_memory
from autotune_workers.dryrun.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from autotune_workers.gang.failure_kind import root_cause
from autotune_workers.own_model.users_line import error_with_line, running_line, user_line
from autotune_workers.process.machine import be_expendable, die_with_parent

if TYPE_CHECKING:
    from autotune_workers.dryrun.rank_watch import RankWatch

WITHOUT_KERNEL = (
    r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>",
    r"Could not run '([\w:.]+)' with arguments from the 'Meta' backend",
)
"""messages of torch about an operator without a fake kernel; the group is its name"""
READ_AS_NUMBER = "_local_scalar_dense"
"""the operator behind `if`, `.item()`, `float()` and `int()` on a tensor"""
ELSEWHERE = "or add a builder argument that omits this part in dry runs"
SHAPES_ALONE = f"let shapes and control flow depend only on shapes and arguments, {ELSEWHERE}"
GPU_WORDS = (
    "No CUDA GPUs are available",
    "not compiled with CUDA",
    "support for cuda devices",
    "Found no NVIDIA driver",
    "CUDA driver",
    "from the 'CUDA' backend",
)
NO_GPU = "use the device of an input or weight instead of cuda, and import GPU kernels only where they are used"
NO_LINE = (
    "if the module needs other inputs, write a function that returns a dict with the module as `model`, and your own `input` and `loss` "
    "(see the page `Train your own module` in the documentation)"
)
LINE_IN_TEXT = re.compile(r" \(at \S+ of the model's code: [^)]*\)")
"""what `OwnStage` adds to an error message"""


def error_of(error: BaseException, memory_bytes: float, reached: str = "") -> DryRunError:
    """Explains an error of a dry run. `memory_bytes`: memory limit of the process. `reached`: the
    last part reached."""
    error = root_cause(error)
    raised = error.__cause__ if isinstance(error, AutotuneError) and error.__cause__ else error
    place = user_line(raised)
    known = _only_in_dry_runs(raised, f" ({place})" if place else "")
    if known is not None:
        return known
    if isinstance(error, MemoryError) or was_refused_memory(str(error)):
        parts = [part for part in (reached, f"at {place}" if place else "") if part]
        return beyond_memory(
            memory_bytes, f"; the last part reached was {', '.join(parts)}" if parts else ""
        )
    needs_gpu = any(words in str(error) for words in GPU_WORDS)
    if isinstance(error, AutotuneError):
        remedy = f"a dry run has no GPU; {NO_GPU}" if needs_gpu else error.remedy
        return DryRunError(error.message, remedy=remedy, field=error.field)
    text = LINE_IN_TEXT.sub("", error_with_line(error))
    if needs_gpu:
        first, _, _ = text.partition(". ")
        at = f" ({place})" if place and place not in first else ""
        return DryRunError(f"the model needs a GPU to be built or run: {first}{at}", remedy=NO_GPU)
    if reached and not place:
        text += f" ({reached})"
    remedy = "fix that line, or the builder's `input` and `loss`" if place else NO_LINE
    return DryRunError(
        f"the model's code failed, and may also fail in real training: {text}", remedy=remedy
    )


def _only_in_dry_runs(error: BaseException, where: str) -> DryRunError | None:
    """Explains an error that real tensors would not have raised; None for any other. `where`: the
    line of user code, appended to messages."""
    if isinstance(error, UnsupportedOperatorException):
        return _without_kernel(
            str(error.func).removesuffix(".default").replace(".", "::", 1), where
        )
    for pattern in WITHOUT_KERNEL:
        if found := re.search(pattern, str(error)):
            return _without_kernel(found[1], where)
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        runs = f"runs {error.func}, whose result"
        if READ_AS_NUMBER in str(error.func):
            runs = (
                f"reads a tensor as a number with `if`, `while` or `.item()` ({error.func}), which"
            )
        return DryRunError(
            f"the model {runs} depends on values that a dry run does not have{where}",
            remedy=SHAPES_ALONE,
        )
    if ".numpy() is not supported for tensor subclasses" in str(error):
        return DryRunError(
            f"the model reads a tensor's values with `.numpy()`, which a dry run does not have{where}",
            remedy=f"compute the result with torch, {ELSEWHERE}",
        )
    if isinstance(error, NotImplementedError) and "meta tensor" in str(error):
        return DryRunError(
            f"the model's code reads weight values, which a dry run does not have{where}",
            remedy="initialize weights without reading their values, or skip this step if `weight.is_meta`",
        )
    return None


def _without_kernel(operator: str, where: str) -> DryRunError:
    return DryRunError(
        f"the operator {operator} has no fake kernel (shapes without computation){where}",
        remedy=f'register a fake kernel with `@torch.library.register_fake("{operator}")`, {ELSEWHERE}',
    )


def stand_in(workload: Workload, config: ParallelConfig) -> tuple[TrialRequest, list[str]]:
    """The trial request without features that need a compiler or GPU kernels, and a note about each
    replacement."""
    notes = []
    if config.compile:
        notes.append(
            "torch.compile is skipped, and layers run in eager mode, which needs at least as much memory"
        )
        config = replace(config, compile=False, activation_budget=100)
    if config.precision == "fp8":
        notes.append(
            "fp8 matrix products run in bf16, without the 8-bit copies of weights and inputs"
        )
        config = replace(config, precision="bf16")
    if config.precision == "tf32":  # the same numbers in memory
        config = replace(config, precision="fp32")
    request = TrialRequest(
        study="dry-run",
        number=0,
        attempt=1,
        workload=workload,
        config=config,
        measure=MeasureSpec(),
    )
    return request, notes


PLACE_S = 0.2
"""how long the main thread has to report its position; short, because its memory keeps growing"""


class Reporter:
    """Writes the messages of this process, and ends it at a limit."""

    def __init__(self, descriptor: int, limit_bytes: float) -> None:
        self._descriptor, self._limit_bytes = descriptor, limit_bytes
        self.guard = MemoryGuard(limit_bytes, self._stop)
        self.position: Callable[[], str] = lambda: "starting"
        """returns the last part reached"""

    def reach(self, part: str) -> None:
        """A part of the task begins."""
        self.position = lambda: part
        self.write({"reached": part})

    def write(self, message: dict[str, Any]) -> None:
        """Writes a message."""
        os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def fail(self, error: DryRunError) -> None:
        """Writes an error."""
        self.write(
            {"error": {"message": error.message, "remedy": error.remedy, "field": error.field}}
        )

    def terminate(self, *_: Any) -> NoReturn:
        """Reports the position of this thread and ends the process. Accepts the arguments of a
        signal handler."""
        # a refused allocation may raise before the guard sees that the limit is exceeded
        error = sys.exc_info()[1]
        self._stop_at((user_line(error.__cause__ or error) if error else "") or running_line())

    def _stop(self) -> None:
        """Called from the guard's thread. Lets the main thread report its position and exit; does
        so itself if the main thread is within a long call."""
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        signal.pthread_kill(main_thread, signal.SIGTERM)
        time.sleep(PLACE_S)
        self._stop_at(running_line(sys._current_frames().get(main_thread)))

    def _stop_at(self, line: str) -> NoReturn:
        place = self.position() + (f", at {line}" if line else "")
        if self.guard.is_passed:
            self.fail(beyond_memory(self._limit_bytes, f"; the last part reached was {place}"))
        else:
            self.write({"reached": place})
        os._exit(1)


def main() -> None:
    """Runs the task of this process and ends the process."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    be_expendable()
    task = json.loads(sys.stdin.buffer.read())
    limit_bytes = task["memory_bytes"]
    reporter = Reporter(descriptor, limit_bytes)
    faulthandler.enable()  # prints the line of user code if the process crashes within a library
    signal.signal(signal.SIGTERM, reporter.terminate)
    reporter.reach("importing torch")
    try:
        with reporter.guard.guarding():
            if task["task"] == "inspect":
                result = to_plain(_inspected(ModelSpec.from_dict(task["model"]), reporter))
            else:
                result = to_plain(_run(task, reporter))
        if reporter.guard.is_passed:
            reporter.terminate()
        reporter.write({"result": result})
    except BaseException as error:
        reporter.fail(error_of(error, limit_bytes, reporter.position()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # does not wait for threads that user code started


def _inspected(model: ModelSpec, reporter: Reporter) -> ModelSpec:
    from autotune_workers.own_model.inspection import inspect

    reporter.reach("building the model")
    return inspect(model)


def _run(task: dict[str, Any], reporter: Reporter) -> DryRun:
    workload = Workload.from_dict(task["workload"])
    config = ParallelConfig.from_dict(task["config"])
    from autotune_workers.dryrun.played_rank import dry_run, first_rank_of_stage

    reporter.reach("building the model")
    request, notes = stand_in(workload, config)

    def follow(watch: RankWatch) -> None:
        reporter.position = watch.position.in_words

    return dry_run(
        request, rank=first_rank_of_stage(config, task["pp_rank"]), notes=notes, watched=follow
    )


if __name__ == "__main__":
    main()
