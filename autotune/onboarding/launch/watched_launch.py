"""Starts a launch under the probe for a few optimizer steps, and reports what the probe observed.

The launch runs as an attempt of the `command` trainer. So options for output folders get a
temporary folder, changed files are restored, and nothing is left when it ends. Its results are not
compared with a spec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from autotune.errors import ProgramError
from autotune.onboarding.first_spec import PresentLaunch
from autotune.ports import (
    AttemptEnded,
    AttemptQueued,
    LogRead,
    ProgramSeen,
    StepsReported,
    TrialRequest,
    TrialRunner,
)
from autotune.spec import (
    ClusterSpec,
    Failure,
    FailureKind,
    MeasureSpec,
    ParallelConfig,
    Workload,
    catalog,
    number_of,
)
from autotune.trainers import Launch, trainer
from autotune.trainers.documents.output_options import with_own_outputs

STEPS = 3
"""optimizer steps before the launch is stopped: the first step may differ from the others, and the
third confirms what a step computes"""
START_S, STEP_S, ALL_S = 3600.0, 900.0, 7200.0
"""deadlines in seconds of the first step, of each further step, and of the whole run; long, because
a launch may prepare its data first"""
POLL_S = 0.2
"""seconds to wait for events"""
_TRAINER = "command"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLaunch:
    """The outcome of an observed launch."""

    seen: ProgramSeen | None
    """what the probe observed; None without a probe"""
    steps: int
    """optimizer steps that were completed"""
    failure: Failure | None
    """why the launch failed; None if it did not"""
    interrupted: bool
    """whether the user interrupted it"""

    @property
    def trained(self) -> bool:
        """Whether the probe observed an optimizer step."""
        return self.seen is not None and bool(self.seen.facts) and self.seen.measured


def request_of(launch: PresentLaunch, cluster: ClusterSpec) -> TrialRequest:
    """The launch as a request to a runner, on all GPUs of this machine, or on one CPU rank."""
    ranks = 1 if cluster.gpu.is_cpu else cluster.num_gpus
    return TrialRequest(
        study="init",
        number=0,
        attempt=0,
        workload=Workload(
            model=catalog.model("nano-gpt"),
            cluster=cluster,
            seq_len=1,
            global_batch_size=ranks,
            trainer=_TRAINER,
        ),
        config=ParallelConfig(dp=ranks),
        measure=MeasureSpec(
            warmup_steps=1,
            first_look=0,
            min_steps=STEPS - 1,
            max_steps=STEPS - 1,
            start_timeout_s=START_S,
            step_timeout_s=STEP_S,
            trial_timeout_s=ALL_S,
        ),
        trainer=_TRAINER,
        trainer_options={**launch.options, "fixed": {"dp": ranks}},
        with_log=True,
        as_it_is=True,
    )


def launch_shown(request: TrialRequest) -> Launch:
    """The launch as it is shown to the user, with the run's own output folder."""
    command_trainer = trainer(request.trainer)
    return with_own_outputs(
        command_trainer.launch(
            request.workload, request.config, command_trainer.in_trial(request.trainer_options)
        )
    ).shown


def watch_launch(
    request: TrialRequest,
    runner: TrialRunner,
    *,
    on_line: Callable[[str], None],
    on_wait: Callable[[str], None],
    interrupted: Callable[[], bool],
) -> WatchedLaunch:
    """Runs the launch and stops it after `STEPS` optimizer steps. Raises `RunnerError` if it cannot
    be run."""
    seen: ProgramSeen | None = None
    steps, is_cancelled = 0, False
    runner.start(request)
    while True:
        for event in runner.poll(POLL_S):
            match event:
                case LogRead(lines=lines):
                    # lines printed while it is being stopped are not shown
                    for line in lines if steps < STEPS else ():
                        on_line(line)
                case StepsReported(step_times_s=times):
                    steps += len(times)
                case ProgramSeen():
                    seen = event
                case AttemptQueued(reason=reason):
                    on_wait(reason)
                case AttemptEnded(failure=failure):
                    return WatchedLaunch(
                        seen=seen, steps=steps, failure=failure, interrupted=is_cancelled
                    )
        if not is_cancelled and interrupted():
            is_cancelled = True
            runner.cancel(request.id)


def check_trained(watched: WatchedLaunch) -> ProgramSeen:
    """What the probe observed. Raises `ProgramError` if the launch did not reach an optimizer step,
    or the probe observed none."""
    if watched.interrupted:
        raise ProgramError(
            "the run was interrupted before its optimizer steps were observed",
            remedy="start the run again",
        )
    failure = watched.failure
    if failure is not None and failure.kind is FailureKind.OUT_OF_MEMORY:
        raise ProgramError(
            f"the launch cannot be a baseline: {failure.message}",
            remedy="start the launch with a batch that fits into memory",
        )
    if watched.seen is not None and watched.trained:
        return watched.seen
    if failure is not None and not watched.steps:
        raise ProgramError(
            f"the launch failed before its first optimizer step: {failure.message}",
            remedy="start the program by hand, and add the options that it needs until it trains; then run autotune init --run -- COMMAND",
        )
    why = watched.seen.troubles[0] if watched.seen is not None and watched.seen.troubles else ""
    if watched.seen is not None and watched.seen.has_own_updates:
        raise ProgramError(
            f"the probe cannot count optimizer steps: {why}",
            remedy="omit --run, so that autotune reads the launch instead and takes the step times from its log (trainer.metrics)",
        )
    raise ProgramError(
        f"the probe observed no optimizer step{f' ({why})' if why else ''}",
        remedy="omit --run, so that autotune reads the launch instead; the probe cannot observe a program without torch, or one started with `python -I`, in an emptied environment or in a container",
    )


def ended_early(watched: WatchedLaunch) -> str:
    """A message on why the launch ended before `STEPS` steps; empty if it did not."""
    if watched.failure is None:
        return ""
    steps = f"{number_of(watched.steps, 'optimizer step')}"
    return f"the launch ended after {steps}, and later steps may differ: {watched.failure.message}"
