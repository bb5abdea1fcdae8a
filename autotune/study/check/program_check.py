"""Checks a program: runs five real steps of one config on the study's runner, then of another config,
and collects what was read from the log and observed by the probe.

The check is not a trial: it is neither stored nor counted. The first run gets the study's number of
steps as an option, so that it logs as in trials, and is ended after `STEPS` steps, or earlier if its
lines clearly belong to steps but none of them is understood. The second run gets `STEPS` steps as an
option and may run to its own end, to observe what it writes there.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from autotune.ports import (
    AttemptEnded,
    AttemptQueued,
    LogRead,
    ProgramSeen,
    StepsReported,
    TrialRequest,
    TrialRunner,
)
from autotune.results.knobs_seen import Row
from autotune.spec import Failure, FailureKind, Measurement, ParallelConfig, Study, config_label
from autotune.study.check.doubts import doubts_of
from autotune.study.check.said_and_seen import rows_of, without_effect
from autotune.trainers import Launch, StepMetrics, trainer
from autotune.trainers.base.trainer import LineReader
from autotune.trainers.documents.output_options import with_own_outputs
from autotune.trainers.logs.formats import stock_reader
from autotune.trainers.logs.pattern_proposals import TIMES, ends_step, propose_patterns, steps_read

STEPS = 5
"""number of steps, the first being warm-up; fewer if a trial of the study is shorter"""
SPARE = 2
"""additional steps of a program that runs to its own end, because the first line of a log only starts
the clock"""
KEPT_LINES = 500
"""number of last lines of the log that are kept"""
PLAIN_STEPS = 5
"""number of steps that proposed patterns must read before a program whose log is not understood is
ended"""
FIRST_NODE, MEETING_PORT = "FIRST-NODE", 29500
"""placeholders for the rendezvous address and port of a launch; a trial gets the real ones when it
starts"""
POLL_S = 0.2
"""longest wait for the runner's next event, s"""
UNREAD_LOOKS = 2
"""number of consecutive attempts with such patterns after which the program is ended"""
LOOK_S = 1.0
"""interval of attempts to find patterns for lines that were not understood, s"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of the program's log."""

    node: int
    """rank of the node, from 0"""
    text: str
    """the line as it was printed"""
    metrics: Mapping[str, Any]
    """values read from it, by the field names of `StepMetrics`; empty if there are none"""
    counts: str = ""
    """what the line counts, if its format determines that: steps, or micro-batches"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCheck:
    """The result of a check."""

    study: Study
    """the study whose program was run"""
    config: ParallelConfig
    """the config that was run"""
    lines: tuple[LogLine, ...]
    """the last lines of the log; empty if the runner reports none, as for the native trainer"""
    step_times_s: tuple[float, ...]
    """times of the steps that were read, including the warm-up step, s"""
    losses: tuple[float, ...]
    """losses of the same steps; nan if the log has none"""
    time_from: str
    """source of the times: probe, log, rate or arrival; empty if nothing was measured"""
    peak_memory_bytes: float | None
    """highest peak memory of any rank; None if unknown"""
    failure: Failure | None
    """why the run failed; None if it did not"""
    interrupted: bool
    """whether a user ended it"""
    proposal: Mapping[str, str]
    """patterns that would read the log; empty if a step was read, or the program failed for another
    reason"""
    needs_no_patterns: bool
    """whether the log would be understood without the study's own patterns, which read no step"""
    doubts: tuple[str, ...] = ()
    """disagreements of the log with the spec or the clock, each with a remedy"""
    seen: ProgramSeen | None = None
    """what the probe observed; None if the runner has no probe"""
    second: ProgramCheck | None = None
    """the check of another config, if there was one"""
    last: ProgramCheck | None = None
    """a run of the first config to the program's own end, if the second config failed"""

    @property
    def understood(self) -> tuple[LogLine, ...]:
        """Lines from which a value was read."""
        return tuple(line for line in self.lines if line.metrics)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics that were read from the log."""
        return tuple(dict.fromkeys(name for line in self.lines for name in line.metrics))

    @property
    def rows(self) -> list[Row]:
        """Comparison of the spec with what the probe observed; empty without a probe."""
        return rows_of(self.study, self.config, self.seen) if self.seen is not None else []

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """Files that the program wrote or removed outside the trials' folders, by path, in all
        runs."""
        files: dict[str, Mapping[str, Any]] = {}
        for run in (self.second, self.last, self.seen):
            if run is not None:
                files |= run.files
        return files

    @property
    def replaced(self) -> tuple[str, ...]:
        """Paths of such files that existed before; empty if the spec allows overwriting."""
        return (
            ()
            if self.study.keeps_outputs
            else tuple(p for p, file in self.files.items() if file["existed"])
        )

    @property
    def differences(self) -> tuple[str, ...]:
        """Differences between the spec and the program, each with a remedy. Those of the second
        config are included if the first does not show them."""
        mine = self.rows
        differences = [row.difference for row in mine if row.difference]
        known = {row.name for row in mine if row.difference}
        if self.second is not None:
            theirs = self.second.rows
            no_effect = without_effect(mine, theirs)
            known |= set(no_effect)
            label = config_label(self.second.config)
            more = [row for row in theirs if row.difference and row.name not in known]
            differences = [*no_effect.values(), *differences]
            differences += [f"with {label}, {row.difference}" for row in more]
        return tuple(differences)

    @property
    def step_time_s(self) -> float | None:
        """Median time of the steps after the first, s; None with fewer than two."""
        return median(self.step_times_s[1:]) if len(self.step_times_s) > 1 else None

    @property
    def is_programs_fault(self) -> bool:
        """Whether the failure can be expected with any config. Running out of memory, divergence and
        a lost worker concern one config only."""
        if self.failure is None or self.interrupted:
            return False
        hangs = self.failure.kind is FailureKind.HANG and not self.step_times_s
        return hangs or self.failure.kind in _OF_THE_PROGRAM


_OF_THE_PROGRAM = frozenset({FailureKind.ERROR, FailureKind.INVALID, FailureKind.METRICS_MISSING})


def check_program(
    study: Study,
    runner: TrialRunner,
    config: ParallelConfig,
    *,
    study_id: str = "check",
    on_line: Callable[[LogLine], None] = lambda _: None,
    on_wait: Callable[[str], None] = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
    second: ParallelConfig | None = None,
) -> ProgramCheck:
    """Run the steps of one config, then those of `second` if the program works, and return the
    result. `interrupted()` is polled several times a second. Raises `RunnerError` if nothing can be
    run."""
    check = _run(request_of(study, config, study_id), study, runner, on_line, on_wait, interrupted)
    if second is None or check.failure is not None or check.interrupted:
        return check
    other = to_its_end(request_of(study, second, study_id), number=1)
    check = replace(check, second=_run(other, study, runner, lambda _: None, on_wait, interrupted))
    if check.second is None or check.second.failure is None or check.second.interrupted:
        return check
    # to observe what it writes at its end
    again = to_its_end(request_of(study, config, study_id), number=2)
    return replace(check, last=_run(again, study, runner, lambda _: None, on_wait, interrupted))


def to_its_end(request: TrialRequest, *, number: int) -> TrialRequest:
    """The request with few steps, after which the program may run to its own end."""
    steps = request.measure.warmup_steps + request.measure.max_steps + SPARE
    own = trainer(request.trainer).with_own({}, steps=steps)
    options = {**request.trainer_options, **own}
    return replace(request, number=number, trainer_options=options, ends_itself=True)


def _run(
    request: TrialRequest,
    study: Study,
    runner: TrialRunner,
    on_line: Callable[[LogLine], None],
    on_wait: Callable[[str], None],
    interrupted: Callable[[], bool],
) -> ProgramCheck:
    config = request.config
    reading = _Reading(
        study, on_line, steps=request.measure.warmup_steps + request.measure.max_steps
    )
    runner.start(request)
    is_cancelled = is_unread = False
    looked_s, unread_looks = time.monotonic(), 0
    while (end := reading.end) is None:
        for event in runner.poll(POLL_S):
            if event.id == request.id:
                reading.hear(event, on_wait)
        if not is_cancelled and interrupted():
            is_cancelled = True
            reading.stop()
            runner.cancel(request.id)
        elif not (is_cancelled or is_unread) and time.monotonic() - looked_s >= LOOK_S:
            looked_s = time.monotonic()
            unread_looks = unread_looks + 1 if reading.is_plainly_unread else 0
            # only after several attempts, because the probe may still report steps
            if is_unread := unread_looks >= UNREAD_LOOKS:
                reading.stop()
                runner.cancel(request.id)
    return reading.result(config, end, interrupted=is_cancelled, is_unread=is_unread)


def request_of(study: Study, config: ParallelConfig, study_id: str = "check") -> TrialRequest:
    """The check as a request to a runner. Its attempt number is 0; those of trials start at 1."""
    of_trial = study.measure.warmup_steps + study.measure.max_steps
    measured = max(1, min(STEPS, of_trial) - 1)
    return TrialRequest(
        study=study_id,
        number=0,
        attempt=0,
        workload=study.workload,
        config=config,
        measure=replace(
            study.measure, warmup_steps=1, first_look=0, min_steps=measured, max_steps=measured
        ),
        seed=study.seed,
        trainer=study.trainer,
        trainer_options=trainer(study.trainer).with_own(study.trainer_options, steps=of_trial),
        data=study.data,
        with_log=True,
        watched=not study.unwatched,
        keeps_outputs=study.keeps_outputs,
    )


def launch_of(request: TrialRequest) -> Launch:
    """The launch of the first node, as in a trial. Raises `ExportError` if the trainer cannot express
    the config."""
    own = trainer(request.trainer)
    options = own.with_own(request.trainer_options, in_exports=True, seed=request.seed)
    launch = own.launch(request.workload, request.config, own.in_trial(options))
    launch = launch if request.keeps_outputs else with_own_outputs(launch)
    return (
        launch.on_node(0, master_addr=FIRST_NODE, master_port=MEETING_PORT)
        if launch.is_spread
        else launch
    )


class _Reading:
    """Collects the runner's events until it has `steps` steps. Later lines are ignored, because a
    program that is being ended prints tracebacks."""

    def __init__(self, study: Study, on_line: Callable[[LogLine], None], *, steps: int) -> None:
        self._study, self._on_line, self._steps = study, on_line, steps
        self._readers: dict[int, LineReader] = {}
        self._lines: deque[LogLine] = deque(maxlen=KEPT_LINES)
        self._is_read = False
        self._times: list[float] = []
        self._losses: list[float] = []
        self._arrivals: list[tuple[float, int]] = []
        self._is_stopped = False
        self._seen: ProgramSeen | None = None
        self.end: AttemptEnded | None = None

    def stop(self) -> None:
        """Ignore further lines, because the program is being ended."""
        self._is_stopped = True

    def hear(self, event: Any, on_wait: Callable[[str], None]) -> None:
        """Process an event of the runner."""
        match event:
            case LogRead(node=node, lines=lines) if not self._is_stopped:
                for line in lines:
                    self._read(node, line)
            case StepsReported(step_times_s=times, losses=losses):
                self._times += times
                self._losses += losses
                self._is_stopped = self._is_stopped or len(self._times) >= self._steps
            case ProgramSeen():
                self._seen = event
            case AttemptQueued(reason=reason):
                on_wait(reason)
            case AttemptEnded():
                self.end = event

    def _losses_of(self, measured: Measurement | None) -> tuple[float, ...]:
        """The reported losses; if none is finite, those of the measurement, which also assigns lines
        that were printed before the end of their step."""
        reported = tuple(self._losses)
        if measured is None or any(map(math.isfinite, reported)):
            return reported
        return tuple(measured.losses)[: len(self._times)]

    def _read(self, node: int, text: str) -> None:
        if node not in self._readers:
            self._readers[node] = trainer(self._study.trainer).reader(self._study.trainer_options)
        step = self._readers[node](text)
        self._is_read = self._is_read or (step is not None and ends_step(step))
        if step is not None and step.step is not None and ends_step(step):
            self._arrivals.append((time.monotonic(), step.step))
        metrics, counts = (_values_read(step), step.counts) if step is not None else ({}, "")
        line = LogLine(node=node, text=text, metrics=metrics, counts=counts)
        self._lines.append(line)
        self._on_line(line)

    @property
    def is_plainly_unread(self) -> bool:
        """Whether the lines clearly belong to steps, but none of them was understood."""
        if self._is_read or self._times or not self._lines:
            return False
        texts = self._texts()
        proposal = propose_patterns(texts)
        is_plain = "loss" in proposal or any(name in proposal for name in TIMES)
        return is_plain and steps_read(proposal, texts) >= PLAIN_STEPS

    def result(
        self, config: ParallelConfig, end: AttemptEnded, *, interrupted: bool, is_unread: bool
    ) -> ProgramCheck:
        """The result after the end of the run."""
        failure, measured = end.failure, end.measurement
        if failure is not None and not self._lines:  # a runner that reports no lines
            for line in failure.log_tail:
                self._read(0, line)
        texts = self._texts()
        if is_unread:
            message = "the program prints steps, but none of its lines were understood"
            failure = Failure(
                kind=FailureKind.METRICS_MISSING, message=message, log_tail=tuple(texts[-20:])
            )
        is_silent = not self._is_read
        is_unclear = failure is None or failure.kind in (
            FailureKind.METRICS_MISSING,
            FailureKind.HANG,
        )
        stock = stock_reader()
        time_from = measured.time_from if measured is not None else ""
        read = [line.text for line in self._lines if line.metrics]
        return ProgramCheck(
            study=self._study,
            config=config,
            lines=tuple(self._lines),
            step_times_s=tuple(self._times),
            losses=self._losses_of(measured),
            time_from=time_from,
            peak_memory_bytes=measured.peak_memory_bytes if measured is not None else None,
            failure=failure,
            interrupted=interrupted,
            proposal=propose_patterns(texts) if is_silent and is_unclear else {},
            doubts=()
            if time_from == "probe"
            else tuple(
                doubts_of(self._study, config, read, self._times, self._arrivals, time_from)
            ),
            seen=self._seen,
            needs_no_patterns=is_silent
            and any(m is not None and ends_step(m) for m in map(stock, texts)),
        )

    def _texts(self) -> list[str]:
        return [line.text for line in self._lines]


def _values_read(metrics: StepMetrics) -> dict[str, Any]:
    """The values read from a line, by field name."""
    defaults = asdict(StepMetrics())
    return {
        name: value
        for name, value in asdict(metrics).items()
        if value != defaults[name] and name not in ("resolution_s", "counts")
    }
