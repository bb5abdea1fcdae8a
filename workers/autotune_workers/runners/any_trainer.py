"""What the `local` and the `ray` runner share: the native trainer runs on gangs of warm ranks, the
programs of all other trainers are started as they are."""

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
    """Raises `RunnerError` for a trainer that only Python can start."""
    if python_line(study.trainer):
        raise RunnerError(
            f"the {study.trainer} trainer is started from Python, not by a command, so the {study.runner} runner cannot run it",
            remedy="tune from the Python program (`autotune trainers` shows the function), or simulate the study with `--runner simulated`",
            field="trainer",
        )


class AnyTrainerRunner(GangRunner):
    """Runs trials of every trainer: on ranks or as programs."""

    def __init__(
        self,
        pools: RankPools,
        places: ProgramPlaces,
        *,
        faults: Iterable[Fault | Mapping[str, Any]] = (),
        patience: Patience | None = None,
    ) -> None:
        """`pools`: where ranks come from; `places`: where nodes for programs come from."""
        super().__init__(pools, faults=faults, patience=patience)
        self._programs = ProgramRunner(places, patience=patience)

    @classmethod
    def preflight(cls, study: Study) -> None:
        """Raises `RunnerError` for a trainer that only Python can start."""
        refuse_python_line(study)

    @classmethod
    def preflight_there(cls, study: Study, smallest: ParallelConfig) -> None:
        """Raises `RunnerError` for a program that is not where this machine and those of the
        study's job see it, and for data that cannot be used. A container's files are not seen."""
        if in_container():
            return
        check_program(study, smallest)
        if study.trainer == NATIVE:
            check_data(study)

    @property
    def trainers(self) -> Sequence[str]:
        """Every trainer that a launch starts; whether its program is installed shows when a trial
        starts it."""
        return (
            NATIVE,
            *(name for name in trainer_names() if name != NATIVE and not python_line(name)),
        )

    def start(self, request: TrialRequest) -> None:
        """Begins the attempt, or lets it wait until ranks are free. Raises `RunnerError` when
        nothing can be run."""
        self.check(request)
        if request.trainer == NATIVE:
            super().start(request)
        else:
            self._programs.start(request)

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """Events since the last call; waits up to `timeout_s` for the first one."""
        if not self._programs.busy:
            return super().poll(timeout_s)
        events = super().poll(0.0)
        return [*events, *self._programs.poll(0.0 if events else min(timeout_s, LONGEST_TURN_S))]

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt: cooperative stop, then kill. Unknown ids are ignored."""
        super().cancel(attempt)
        self._programs.cancel(attempt)

    def close(self) -> None:
        """Ends what runs and frees everything."""
        if not self._closed:
            self._programs.close()
            super().close()
