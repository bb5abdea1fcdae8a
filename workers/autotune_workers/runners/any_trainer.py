"""Base class of the `local` and the `ray` runner: the native trainer runs on gangs of warm ranks,
other trainers as the programs that they launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.errors import RunnerError
from autotune.ports import AttemptId, RunnerEvent, TrialRequest
from autotune.slurm.allocation import in_container
from autotune.spec import ParallelConfig, Study
from autotune.trainers import python_line, trainer_names
from autotune_workers.gang.attempt_runner import LONGEST_TURN_S
from autotune_workers.gang.gang_runner import NATIVE, GangRunner, RankPools
from autotune_workers.gang.ladder import Patience
from autotune_workers.process.program.attempt import ProgramRunner
from autotune_workers.process.program.places import ProgramPlaces
from autotune_workers.runners.machine_limits import check_data, check_program
from autotune_workers.training.faults import Fault


def refuse_python_line(study: Study) -> None:
    """Raises `RunnerError` for a trainer that can only be started from Python."""
    if python_line(study.trainer):
        raise RunnerError(
            f"the {study.trainer} trainer is started from Python, not by a command, so the {study.runner} runner cannot run it",
            remedy="tune from the Python program (`autotune trainers` shows the function), or simulate the study with `--runner simulated`",
            field="trainer",
        )


class AnyTrainerRunner(GangRunner):
    """Runs trials of all trainers, on ranks or as programs."""

    def __init__(
        self,
        pools: RankPools,
        places: ProgramPlaces,
        *,
        faults: Iterable[Fault | Mapping[str, Any]] = (),
        patience: Patience | None = None,
    ) -> None:
        """`pools`: provides ranks; `places`: provides nodes for programs."""
        super().__init__(pools, faults=faults, patience=patience)
        self._programs = ProgramRunner(places, patience=patience)

    @classmethod
    def preflight(cls, study: Study) -> None:
        """Raises `RunnerError` for a trainer that can only be started from Python."""
        refuse_python_line(study)

    @classmethod
    def preflight_there(cls, study: Study, smallest: ParallelConfig) -> None:
        """Raises `RunnerError` for a program that is not visible to this machine and the nodes of
        the study's job, and for unusable data. Does nothing if trials run in a container, whose
        files are not visible here."""
        if in_container():
            return
        check_program(study, smallest)
        if study.trainer == NATIVE:
            check_data(study)

    @property
    def trainers(self) -> Sequence[str]:
        """Names of all trainers that a launch starts. Whether a program is installed is checked
        when a trial starts it."""
        return (
            NATIVE,
            *(name for name in trainer_names() if name != NATIVE and not python_line(name)),
        )

    def start(self, request: TrialRequest) -> None:
        """Starts the attempt, or queues it until ranks are free. Raises `RunnerError` if it cannot
        be run."""
        self.check(request)
        if request.trainer == NATIVE:
            super().start(request)
        else:
            self._programs.start(request)

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """The events since the last call. Waits up to `timeout_s` for the first one."""
        if not self._programs.busy:
            return super().poll(timeout_s)
        events = super().poll(0.0)
        return [*events, *self._programs.poll(0.0 if events else min(timeout_s, LONGEST_TURN_S))]

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt: cooperative stop, then kill. Unknown ids are ignored."""
        super().cancel(attempt)
        self._programs.cancel(attempt)

    def close(self) -> None:
        """Ends all attempts and frees all resources."""
        if not self._closed:
            self._programs.close()
            super().close()
