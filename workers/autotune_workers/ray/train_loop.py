"""A Ray Train loop under measurement: what takes the place of `ray.train.report` in a trial's
workers, and the recorder to which all of them report.

    MeasuredReports   in each worker: times the span between two reports, sends it with the metrics to the recorder, ends the loop when told to
    Recorder          one actor per trial: joins the reports of all ranks into steps, and decides after which step the loop ends

A step is what lies between two reports of one rank, without the time that reporting takes; its time
is that of the slowest rank. Ray's own report is not called: it blocks until Ray Train's controller
looks for it, every two seconds (RAY_TRAIN_HEALTH_CHECK_INTERVAL_S), and a trial keeps no
checkpoints. All ranks must report equally often, as Ray asks of them anyway, so the end comes at
the same step for all.
"""

from __future__ import annotations

import inspect
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

LOSSES = ("loss", "train_loss", "train/loss")
"""names of the loss among reported metrics; the first that is there counts"""
PASSED_ON = ("grad_norm", "step_time_s", "tokens_per_s", "peak_memory_bytes")
"""metrics that are taken as they are reported"""


class TrialOver(BaseException):
    """Leaves the user's loop. Not an `Exception`, so that a loop that goes on after errors ends
    too."""


class Recorder:
    """Steps of all ranks. An actor: its methods are called by the workers and by the runner."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._rows: dict[int, dict[int, dict[str, float]]] = {}
        self._steps: list[dict[str, float]] = []
        self._highest = -1
        self._last: int | None = None
        self._workers: list[Any] = []

    def join(self, worker: Any) -> None:
        """A rank begins its loop; `worker`: its actor."""
        self._workers.append(worker)

    def report(self, rank: int, step: int, row: dict[str, float]) -> bool:
        """What a rank says of a step (nothing of its first one, unless it timed that itself).
        Whether the loop ends here."""
        self._highest = max(self._highest, step)
        if self._last is not None and step >= self._last:
            return True
        if row:
            rows = self._rows.setdefault(step, {})
            rows[rank] = row
            if len(rows) == self._num_ranks:
                self._steps.append(joined(self._rows.pop(step)))
        return False

    def news(self) -> dict[str, Any]:
        """Whether all ranks have begun, and the steps since the last call."""
        steps, self._steps = self._steps, []
        return {"began": len(self._workers) >= self._num_ranks, "steps": steps}

    def stop(self) -> None:
        """Ends the loop at the first step that no rank has reported yet."""
        self._last = self._highest + 1 if self._last is None else self._last

    def workers(self) -> list[Any]:
        """The actors of all ranks that have begun."""
        return self._workers


def joined(rows: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """One step of all ranks: the longest time, the largest peak, the mean loss, and rank 0's other
    figures."""
    row = dict(rows[min(rows)])
    for name in ("step_time_s", "peak_memory_bytes"):
        row |= (
            {name: max(found)} if (found := [r[name] for r in rows.values() if name in r]) else {}
        )
    losses = [r["loss"] for r in rows.values() if "loss" in r]
    return {**row, "loss": sum(losses) / len(losses)} if losses else row


class MeasuredReports:
    """Stands in for Ray Train's functions in a worker: everything but `report` is passed on to
    them."""

    def __init__(self, functions: Any, recorder: Any, rank: int) -> None:
        self._functions, self._recorder, self._rank = functions, recorder, rank
        self._step, self._left_s = 0, math.nan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def report(self, metrics: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Measures the step that ends here. Raises `TrialOver` when it was the last one."""
        import ray

        synchronize()
        elapsed_s = time.perf_counter() - self._left_s
        row = figures(metrics)
        if "step_time_s" not in row and "tokens_per_s" not in row and math.isfinite(elapsed_s):
            row["step_time_s"] = elapsed_s
        timed = "step_time_s" in row or "tokens_per_s" in row
        row.setdefault("peak_memory_bytes", peak_memory_bytes())
        is_over = ray.get(
            self._recorder.report.remote(self._rank, self._step, row if timed else {})
        )
        self._step += 1
        if is_over:
            raise TrialOver
        self._left_s = time.perf_counter()


def measured(loop: Callable[..., Any], recorder: Any) -> Callable[[dict[str, Any]], None]:
    """The loop as a trial runs it."""
    takes_config = bool(inspect.signature(loop).parameters)

    def train_loop(config: dict[str, Any]) -> None:
        import ray
        from ray.train.v2._internal.execution.train_fn_utils import (
            get_train_fn_utils,
            set_train_fn_utils,
        )

        functions = get_train_fn_utils()
        rank = ray.train.get_context().get_world_rank()
        ray.get(recorder.join.remote(ray.get_runtime_context().current_actor))
        set_train_fn_utils(MeasuredReports(functions, recorder, rank))
        try:
            if takes_config:
                loop(config)
            else:
                loop()
        except TrialOver:
            pass
        finally:
            set_train_fn_utils(functions)

    return train_loop


def figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What is known by name among the reported metrics, as numbers; tensors of one element too."""
    named = {name: metrics[name] for name in PASSED_ON if name in metrics}
    loss = next((metrics[name] for name in LOSSES if name in metrics), None)
    row: dict[str, float] = {}
    for name, value in {**named, **({} if loss is None else {"loss": loss})}.items():
        try:
            row[name] = float(value)
        except (TypeError, ValueError):
            continue
    return row


def synchronize() -> None:
    """Waits for the GPU, where there is one in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_memory_bytes() -> float:
    """The peak of this rank: reserved on its GPU, else resident in its process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_reserved())
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
