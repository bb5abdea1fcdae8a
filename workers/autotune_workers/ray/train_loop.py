"""Measures a Ray Train loop: a replacement for `ray.train.report` in a trial's workers, and the
recorder that they report to.

    MeasuredReports   in each worker: times the span between reports, sends it with the metrics to the recorder, ends the loop on its answer
    Recorder          one actor per trial: joins the reports of all ranks into steps, and decides after which step the loop ends

A step is the span between two reports of a rank, without the time of reporting. Its time is that of
the slowest rank. Ray's own `report` is not called: it blocks until Ray Train's controller polls,
every two seconds (RAY_TRAIN_HEALTH_CHECK_INTERVAL_S), and trials keep no checkpoints. All ranks
must report equally often, which Ray requires too, so the loop ends at the same step on all.
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
"""names of the loss in reported metrics; the first one present is used"""
PASSED_ON = ("grad_norm", "step_time_s", "tokens_per_s", "peak_memory_bytes")
"""metrics that are recorded as reported"""


class TrialOver(BaseException):
    """Leaves the user's loop. Not an `Exception`, so that a loop that catches errors ends too."""


class Recorder:
    """Collects the steps of all ranks. A Ray actor, called by the workers and the runner."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._rows: dict[int, dict[int, dict[str, float]]] = {}
        self._steps: list[dict[str, float]] = []
        self._highest = -1
        self._last: int | None = None
        self._workers: list[Any] = []

    def join(self, worker: Any) -> None:
        """Call when a rank begins its loop. `worker`: its actor."""
        self._workers.append(worker)

    def report(self, rank: int, step: int, row: dict[str, float]) -> bool:
        """Takes a rank's figures of a step; `row` is empty for a first step without a time. Returns
        whether the loop ends here."""
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
        """{"began": whether all ranks have begun, "steps": steps since the last call}."""
        steps, self._steps = self._steps, []
        return {"began": len(self._workers) >= self._num_ranks, "steps": steps}

    def stop(self) -> None:
        """Ends the loop at the first step that no rank has reported yet."""
        self._last = self._highest + 1 if self._last is None else self._last

    def workers(self) -> list[Any]:
        """The actors of the ranks that have begun."""
        return self._workers


def joined(rows: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Joins the ranks' figures of one step: the longest time, the largest peak, the mean loss, and
    rank 0's other figures."""
    row = dict(rows[min(rows)])
    for name in ("step_time_s", "peak_memory_bytes"):
        row |= (
            {name: max(found)} if (found := [r[name] for r in rows.values() if name in r]) else {}
        )
    losses = [r["loss"] for r in rows.values() if "loss" in r]
    return {**row, "loss": sum(losses) / len(losses)} if losses else row


class MeasuredReports:
    """Replaces Ray Train's functions in a worker. All but `report` are forwarded to them."""

    def __init__(self, functions: Any, recorder: Any, rank: int) -> None:
        self._functions, self._recorder, self._rank = functions, recorder, rank
        self._step, self._report_ended_s = 0, math.nan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def report(self, metrics: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Measures the step that ends here. Raises `TrialOver` if it is the last one."""
        import ray

        synchronize()
        elapsed_s = time.perf_counter() - self._report_ended_s
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
        self._report_ended_s = time.perf_counter()


def measured(loop: Callable[..., Any], recorder: Any) -> Callable[[dict[str, Any]], None]:
    """The loop for a trial, with measured reports."""
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
    """The known metrics among the reported ones, as floats; also one-element tensors."""
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
    """Waits for the GPU, if torch uses one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_memory_bytes() -> float:
    """Peak memory of this rank: reserved on its GPU, else resident in its process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_reserved())
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
