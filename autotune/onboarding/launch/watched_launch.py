"""A launch that is started under the probe for a few optimizer steps, and what was seen of it.

It runs as an attempt of the `command` trainer does, so that all that holds there holds here:
options that name an output folder have one of the run's own, files that were there before are put
back, and nothing of it is left when it ends. What it trains is held against nothing.
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
"""optimizer steps after which it is ended: the first may differ from the others, and after the
third it is clear what a step computes"""
START_S, STEP_S, ALL_S = 3600.0, 900.0, 7200.0
"""deadlines, s, of the first step, of each further one, and of the whole run: a launch may prepare
its data first"""
POLL_S = 0.2
_TRAINER = "command"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLaunch:
    """What came of it."""

    seen: ProgramSeen | None
    """None where the runner has no probe"""
    steps: int
    """optimizer steps that were done"""
    failure: Failure | None
    """why it failed; None when it did not"""
    interrupted: bool
    """whether a person ended it"""

    @property
    def trained(self) -> bool:
        """Whether the probe saw it train."""
        return self.seen is not None and bool(self.seen.facts) and self.seen.measured


def request_of(launch: PresentLaunch, cluster: ClusterSpec) -> TrialRequest:
    """The launch as a request to a runner, with all ranks of the machine as its place."""
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
    """What is started, with the options that name an output folder as the run has them."""
    own = trainer(request.trainer)
    return with_own_outputs(
        own.launch(request.workload, request.config, own.in_trial(request.trainer_options))
    ).shown


def watch_launch(
    request: TrialRequest,
    runner: TrialRunner,
    *,
    on_line: Callable[[str], None],
    on_wait: Callable[[str], None],
    interrupted: Callable[[], bool],
) -> WatchedLaunch:
    """Runs it, and ends it after `STEPS` optimizer steps. Raises `RunnerError` when nothing can be
    run."""
    seen: ProgramSeen | None = None
    steps, is_cancelled = 0, False
    runner.start(request)
    while True:
        for event in runner.poll(POLL_S):
            match event:
                case LogRead(lines=lines):
                    # what it says while it is ended is of no interest
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
    """What the probe saw. Raises `ProgramError` where the launch did not get to an optimizer step,
    or the probe saw none."""
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
    """Why it ended before all of its steps, in words; empty where it did not."""
    if watched.failure is None:
        return ""
    steps = f"{number_of(watched.steps, 'optimizer step')}"
    return f"the launch ended after {steps}, and later steps may differ: {watched.failure.message}"
