"""Checks a program that is new to the store before its study begins: a few steps detect faults that
would otherwise cost a budget of trials.

A program is known if a study in the store measured a trial with the same trainer, options and
runner. The native trainer and simulated trials need no check. Neither does a study that has begun,
as shown by its trials or by the event `program.checked` in its history.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from autotune.errors import AutotuneError, ProgramError
from autotune.ports import EventKind, StudyReader, TrialRunner
from autotune.spec import ParallelConfig, Study, Trial, TrialStatus
from autotune.spec.plain import canonical
from autotune.spec.study import SIMULATED
from autotune.study.assembly import Assembly
from autotune.study.check.contrast import contrast_of
from autotune.study.check.program_check import STEPS, check_program, launch_of, request_of
from autotune.study.check.verdict import continues, in_one_line, uncounted, verdict_of
from autotune.study.lease import StudyLease
from autotune.study.preflight import smallest_config
from autotune.study.program_remarks import listed
from autotune.study.progress import Notice, OnEvent
from autotune.trainers.base.executable import is_from_own_environment

NATIVE = "native"
LOOKED_AT = 200
"""number of newest studies with the same trainer and runner that are searched"""
GLANCE_S = 1.0
"""interval of checks for requests to pause or end the study, s"""
_MEASURED = (TrialStatus.COMPLETED, TrialStatus.STOPPED)


def needs_check(study: Study, store: StudyReader, study_id: str, past: Sequence[Trial]) -> bool:
    """Whether the study's program must be checked first. `past`: trials of the study so far."""
    if not study.check or study.trainer == NATIVE or study.runner == SIMULATED:
        return False
    if any(trial.is_measured or trial.failure is not None for trial in past):
        return False
    if any(event.kind == EventKind.PROGRAM_CHECKED for event in store.events(study_id)):
        return False
    earlier = store.studies(trainer=study.trainer, runner=study.runner, limit=LOOKED_AT)
    options = _options(study)
    return not any(
        _options(record.study) == options
        and any(record.trial_counts.get(status) for status in _MEASURED)
        for record in earlier
    )


def check_unseen(
    assembly: Assembly,
    runner: TrialRunner,
    lease: StudyLease,
    tell: OnEvent,
    stop: Callable[[], bool],
) -> None:
    """Run a few steps of the baseline and report the verdict. Raises `ProgramError` if the program
    cannot work with any config; a failure of this config only (e.g. out of memory) does not stop the
    study. Returns early if a pause or end of the study is requested."""
    study, config = assembly.study, config_to_check(assembly, runner.capacity)
    glanced_s = time.monotonic()
    is_wanted = True

    def interrupted() -> bool:
        nonlocal glanced_s, is_wanted
        lease.come_round()
        if time.monotonic() - glanced_s >= GLANCE_S:
            glanced_s = time.monotonic()
            is_wanted = lease.may_run()
        return stop() or not is_wanted

    tell(
        Notice(message=f"first run of this program: testing {STEPS} steps{_command(study, config)}")
    )
    second = second_config(assembly, config, runner.capacity)
    check = check_program(
        study, runner, config, study_id=lease.study_id, interrupted=interrupted, second=second
    )
    if check.interrupted:
        return
    verdict = verdict_of(check)
    if check.replaced:
        raise ProgramError(
            f"the study has not started, because its program writes to existing files: {listed({path: check.files[path] for path in check.replaced})}",
            remedy=verdict.remedy,
        )
    if check.failure is None and (why := continues(check)):
        raise ProgramError(
            f"the study has not started, because {why}", remedy="--no-check skips the check"
        )
    if uncounted(check):
        raise ProgramError(
            "the study has not started, because it is unclear whether a line of the program's log stands for an optimizer step or a micro-batch",
            remedy=verdict.remedy,
        )
    if check.is_programs_fault:
        patterns = f": {in_one_line(check.proposal)}" if check.proposal else ""
        raise ProgramError(
            f"the study has not started, because its program does not work: {verdict.message}",
            remedy=f"{verdict.remedy}{patterns}; `autotune check SPEC` shows the log, --no-check skips the check",
        )
    tell(Notice(message=str(verdict) if verdict.ready else f"the study starts, but {verdict}"))
    lease.store.record_event(
        lease.study_id, EventKind.PROGRAM_CHECKED, {"message": verdict.message}
    )


def config_to_check(assembly: Assembly, capacity: float = math.inf) -> ParallelConfig:
    """The baseline, or the smallest config of the space if the baseline needs more ranks than there
    are or the trainer cannot run it."""
    default = assembly.baseline
    is_runnable = default.world_size <= capacity and not assembly.refuse(default)
    return default if is_runnable else smallest_config(assembly.space)


def second_config(
    assembly: Assembly, first: ParallelConfig, capacity: float = math.inf
) -> ParallelConfig | None:
    """The second config of a check; None if there is none, or for the native trainer, whose knobs are
    known to have an effect."""
    return None if assembly.study.trainer == NATIVE else contrast_of(assembly, first, capacity)


def _command(study: Study, config: ParallelConfig) -> str:
    """The command of the launch for a message; empty if it cannot be rendered."""
    try:
        launch = launch_of(request_of(study, config))
    except AutotuneError:
        return ""
    command = f": {launch.placed('FILES').command}"
    if not is_from_own_environment(launch):
        return command
    return f"{command}. There is no {launch.argv[0]} on PATH, so trials use the one in autotune's own environment; to use a different one, set trainer.python"


def _options(study: Study) -> str:
    return canonical(dict(study.trainer_options))
