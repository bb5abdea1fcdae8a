"""Step times from a table: what was measured on a cluster far away is tuned here, without that
cluster.

The table is CSV with a header: `config` (as tables of autotune print it, or `tp=1,pp=1,...`) and
`step_time_s`. A runner reports what happens as events and decides nothing: each attempt is started,
reports its steps and ends exactly once, with a measurement, a failure, or as cancelled.
"""

from __future__ import annotations

import csv
from collections import deque
from pathlib import Path

from autotune.errors import RunnerError, SpecError
from autotune.ports import (
    AttemptEnded,
    AttemptId,
    AttemptStarted,
    RunnerEvent,
    StepsReported,
    TrialRequest,
)
from autotune.spec import Failure, FailureKind, Measurement, ParallelConfig
from autotune.trainers import trainer_names


class RecordedRunner:
    """Plays trials from a table of step times."""

    def __init__(self, table: str = "step_times.csv") -> None:
        """`table`: path of the CSV file. Raises `SpecError` when it cannot be read."""
        try:
            with Path(table).open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self._times_s = {
                ParallelConfig.parse(row["config"]): float(row["step_time_s"]) for row in rows
            }
        except (OSError, KeyError, ValueError) as error:
            raise SpecError(
                f"the table {table} cannot be read: {error}", field="runner.table"
            ) from None
        self.trainers = trainer_names()  # a table says nothing of the program, so that any will do
        self._events: deque[RunnerEvent] = deque()
        self._is_closed = False

    @property
    def capacity(self) -> int:
        """Ranks of the largest config of the table."""
        return max((config.world_size for config in self._times_s), default=1)

    def start(self, request: TrialRequest) -> None:
        """All that will be reported of the attempt waits for `poll`."""
        if self._is_closed:
            raise RunnerError("the runner is closed")
        self._events.append(AttemptStarted(id=request.id))
        step_time_s = self._times_s.get(request.config)
        if step_time_s is None:
            failure = Failure(
                kind=FailureKind.INVALID, message=f"the table has no row for {request.config}"
            )
            self._events.append(AttemptEnded(id=request.id, failure=failure))
            return
        count = request.measure.min_steps
        times = (step_time_s,) * (request.measure.warmup_steps + count)
        losses, norms = tuple(10.0 / (step + 1) for step in range(len(times))), (1.0,) * len(times)
        self._events.append(
            StepsReported(
                id=request.id, first_step=0, step_times_s=times, losses=losses, grad_norms=norms
            )
        )
        measurement = Measurement(
            step_times_s=times[-count:],
            tokens_per_step=request.config.global_batch_size * request.workload.seq_len,
            num_ranks=request.config.world_size,
            losses=losses[-count:],
            grad_norms=norms[-count:],
        )
        self._events.append(AttemptEnded(id=request.id, measurement=measurement))

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """What happened since the last call; nothing happens by itself, so that there is nothing to
        wait for."""
        events = list(self._events)
        self._events.clear()
        return events

    def cancel(self, attempt: AttemptId) -> None:
        """An attempt whose end was not heard yet ends as cancelled."""
        if any(event.id == attempt for event in self._events):
            self._events = deque(event for event in self._events if event.id != attempt)
            self._events.append(AttemptEnded(id=attempt, cancelled=True))

    def close(self) -> None:
        """Nothing runs any more."""
        self._is_closed = True
        self._events.clear()
