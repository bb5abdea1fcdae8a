"""A program that this store has never seen is checked before its study begins: a few steps show
what a budget of trials would.

A program is known when a study of this store measured a trial with the same trainer, options and
runner. The native trainer and simulated trials need no check, nor does a study that has begun: its
trials, or the event `program.checked` in its history, show that it passed.
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
"""newest studies with the same trainer and runner that are looked through"""
GLANCE_S = 1.0
"""seconds between two looks at whether somebody asked the study to pause or end"""
_MEASURED = (TrialStatus.COMPLETED, TrialStatus.STOPPED)


def needs_check(study: Study, store: StudyReader, study_id: str, past: Sequence[Trial]) -> bool:
    """Whether nothing is known of the study's program."""
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
    """Runs a few steps of the baseline. Raises `ProgramError` when the program does not work with
    any config; that only this config fails (out of memory, say) does not stop the study. Ends early
    when the study is to pause or end."""
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
    found = check_program(
        study, runner, config, study_id=lease.study_id, interrupted=interrupted, second=second
    )
    if found.interrupted:
        return
    verdict = verdict_of(found)
    if found.replaced:
        raise ProgramError(
            f"the study has not started, because its program writes to existing files: {listed({path: found.files[path] for path in found.replaced})}",
            remedy=verdict.remedy,
        )
    if found.failure is None and (why := continues(found)):
        raise ProgramError(
            f"the study has not started, because {why}", remedy="--no-check skips the check"
        )
    if uncounted(found):
        raise ProgramError(
            "the study has not started, because it is unclear whether a line of the program's log stands for an optimizer step or a micro-batch",
            remedy=verdict.remedy,
        )
    if found.is_programs_fault:
        patterns = f": {in_one_line(found.proposal)}" if found.proposal else ""
        raise ProgramError(
            f"the study has not started, because its program does not work: {verdict.message}",
            remedy=f"{verdict.remedy}{patterns}; `autotune check SPEC` shows the log, --no-check skips the check",
        )
    tell(Notice(message=str(verdict) if verdict.ready else f"the study starts, but {verdict}"))
    lease.store.record_event(
        lease.study_id, EventKind.PROGRAM_CHECKED, {"message": verdict.message}
    )


def config_to_check(assembly: Assembly, capacity: float = math.inf) -> ParallelConfig:
    """The baseline; where it needs more ranks than there are, or the trainer refuses it, the
    smallest of the space."""
    default = assembly.baseline
    is_runnable = default.world_size <= capacity and not assembly.refuse(default)
    return default if is_runnable else smallest_config(assembly.space)


def second_config(
    assembly: Assembly, first: ParallelConfig, capacity: float = math.inf
) -> ParallelConfig | None:
    """The other config of a check of a program; None for the native trainer, whose knobs need no
    proof."""
    return None if assembly.study.trainer == NATIVE else contrast_of(assembly, first, capacity)


def _command(study: Study, config: ParallelConfig) -> str:
    try:
        launch = launch_of(request_of(study, config))
    except AutotuneError:
        return ""
    command = f": {launch.placed('FILES').command}"
    if not is_from_own_environment(launch):
        return command
    return f"{command}. There is no {launch.argv[0]} on PATH, so trials use that of autotune's own environment; to use another, set trainer.python"


def _options(study: Study) -> str:
    return canonical(dict(study.trainer_options))
