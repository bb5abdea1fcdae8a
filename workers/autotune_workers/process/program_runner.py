"""Trials of somebody's own program: any trainer that `autotune.trainers` can launch, the `command` trainer first of all.

What the `local` and the `ray` runner share; they differ in where nodes come from (`program_places`). Each node runs its part of the program under a
keeper, which reads its output line by line. The program is told to end when it is measured well enough, late, diverging or cancelled, and its end
is announced when everything that it started is gone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.errors import AutotuneError, RunnerError
from autotune.ports import AttemptEnded, RunnerEvent, TrialRequest
from autotune.settings import data_folder
from autotune.spec import Failure, FailureKind
from autotune_workers.gang.attempt_runner import AttemptRunner
from autotune_workers.gang.ladder import Patience
from autotune_workers.process.attempt_logs import keep_logs
from autotune_workers.process.program_attempt import ProgramAttempt
from autotune_workers.process.program_launch import ProgramJob, prepare
from autotune_workers.process.program_places import ProgramPlaces


class ProgramRunner(AttemptRunner[ProgramJob, ProgramAttempt]):
    """Runs programs at once as long as there are places for them. A `TrialRunner` but for the trainers, which its owner names."""

    def __init__(self, places: ProgramPlaces, *, patience: Patience | None = None, logs: Path | None = None) -> None:
        """`places`: closed with the runner; `logs`: where logs of failed attempts are kept, by default in the user's data folder."""
        super().__init__(places, patience)
        self._places, self._logs = places, logs

    def start(self, request: TrialRequest) -> None:
        """Begins the attempt, or lets it wait until ranks are free. Raises `RunnerError` when there is no such program here."""
        self._refuse_known(request.id)
        try:
            job = prepare(request, is_local=self._places.is_local)
        except RunnerError:
            raise
        except AutotuneError as error:
            failure = Failure(kind=FailureKind.INVALID, message=str(error))
            self._events.append(AttemptEnded(id=request.id, failure=failure))
            return
        self._enqueue(request.id, job)

    def _form(self, job: ProgramJob) -> ProgramAttempt | str | None:
        placement = job.placement
        place = self._places.form(
            nodes=placement.nnodes,
            ranks_per_node=placement.nproc_per_node,
            study=job.request.study,
            folder=job.upload,
        )
        if place is None:
            return self._places.shortage(placement) or None
        return ProgramAttempt(job, place, self._now_s)

    def _passed_on(self, attempt: ProgramAttempt, event: RunnerEvent) -> RunnerEvent:
        """The event; a failure says where the logs of its nodes are kept."""
        failure = event.failure if isinstance(event, AttemptEnded) else None
        if not isinstance(event, AttemptEnded) or failure is None or not failure.log_tail:
            return event
        folder = keep_logs(self._logs or data_folder() / "logs", event.id, attempt.logs)
        tail = (
            (*failure.log_tail, f"[autotune keeps the logs of all nodes in {folder}]") if folder else failure.log_tail
        )
        return replace(event, failure=replace(failure, log_tail=tail))
