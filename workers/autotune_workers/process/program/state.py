"""State machine of one attempt of a user's program. Takes log lines, the probe's reports and the
time; returns steps and the verdict. No clock, no I/O.

If the probe observes training (`program.probe`), its steps are the measurement, and the log serves
as a cross-check (`program.second_witness`) and as the source of losses and gradient norms.
Otherwise the steps of the log are the measurement. This is decided for the log once it has
`PROBE_STEPS` steps over `PROBE_S` and the probe, although the program imported torch with it, has
none. Each node's log is read separately (`program.log`). The node whose log ends a step first is
the measured one, because every node takes part in every step. Why a program failed is also read
from the logs (`failure.cause`). Deadlines, stopping rule and divergence checks are the same as for
ranks (`gang`). Peak memory comes from the logs or the probe; without either, from the largest
process on a CPU, and from the driver on GPUs, as the keepers measured it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.cost import training_flops_per_token
from autotune.diagnosis.collect import Reports
from autotune.ports import AttemptEnded, FirstStep, ProgramSeen, StepsReported, TrialRequest
from autotune.results.knobs_seen import ineffective_knobs
from autotune.spec import Failure, FailureKind, Measurement
from autotune.spec.texts.as_text import format_span, number_of
from autotune.stopping import trial_decision
from autotune.trainers.base.trainer import LineReader, StepMetrics
from autotune.trainers.logs.pattern_proposals import propose_patterns
from autotune_workers.gang.failure_kind import divergence, weigh
from autotune_workers.process.failure.cause import SURVIVED_STEPS, CauseReader
from autotune_workers.process.keeper.log import LeftOut
from autotune_workers.process.program.evidence import (
    NodeEnd,
    explain,
    log_tail,
    rank_behind,
    went_on,
)
from autotune_workers.process.program.limits import limits, logged_limits
from autotune_workers.process.program.log import LoggedStep, ProgramLog, as_series
from autotune_workers.process.program.probe import SETTLED, ProgramProbe
from autotune_workers.process.program.second_witness import SecondWitness

FIRST = 8
"""number of first steps that `ProgramSeen` lists one by one"""
PROBE_STEPS, PROBE_S = 3, 2.0
"""logged steps, and seconds between the first and the last of them, after which the log is measured
although a probe is present"""
OWN_END_S = 30.0
"""seconds that a measured program has to end by itself, if the request allows that"""


class ProgramTrial:
    """State of one attempt. `ending` becomes true when the program must be ended; call `end` for
    the verdict when it has ended."""

    def __init__(self, request: TrialRequest, readers: Sequence[LineReader], now_s: float) -> None:
        """`readers`: one reader of log lines per node, made by the trainer."""
        self.request, self.ending = request, False
        self._logs = [ProgramLog(request, read) for read in readers]
        self._probe = ProgramProbe(request)
        self._evidence = Reports()
        self._witness = SecondWitness()
        self._held_steps: list[LoggedStep] = []
        """logged steps that are held until it is decided whether log or probe is measured"""
        self._source: str = ""
        """source of the measured steps: "probe", "log", or "" if undecided"""
        self._enough_measured_s: float | None = None
        ranks_per_node = request.config.world_size // len(readers)
        self._causes = [
            CauseReader(first_rank=node * ranks_per_node) for node in range(len(readers))
        ]
        self._measured_node: int | None = None
        self._launched_s = self._progress_s = now_s
        self._last_output_s = now_s
        self._left_out = LeftOut()
        self._setup_s = 0.0
        self._environment: dict[str, str] | None = None
        self._steps: list[LoggedStep] = []
        """the measured steps"""
        self._peaks: list[float] = []
        """peak memory known at the end of each measured step, bytes; NaN if unknown"""
        self._ran_out_at: int | None = None
        """number of measured steps when the probe first reported that memory ran out"""
        self._stopped = ""
        self._cancelled = False
        self._failure: Failure | None = None

    def hold(self, now_s: float) -> None:
        """Restarts the deadlines at `now_s`, as the program is not placed yet."""
        self._launched_s = self._progress_s = self._last_output_s = now_s

    def note_environment(self, variables: Mapping[str, str]) -> None:
        """Stores the inherited variables that may change the program's speed, for the
        measurement."""
        self._environment = dict(variables)

    def hear_output(self, left_out: LeftOut, now_s: float) -> None:
        """Notes that a node's program printed something, even if no line is passed on. `left_out`:
        output that was dropped before it."""
        self._last_output_s = now_s
        self._left_out += left_out

    def hear(
        self, lines: Iterable[tuple[float, str]], now_s: float, node: int = 0
    ) -> list[StepsReported]:
        """Takes lines of a node's log that were received together, as (time of arrival on the
        node's own clock, line). Returns the steps that they end. Lines after the verdict are
        ignored."""
        reported: list[StepsReported] = []
        for arrived_s, line in lines:
            if self.ending:
                return reported
            steps = self._logs[node].hear(line, arrived_s)
            if self._source != "log" and self._measured_node in (None, node):
                self._note(self._logs[node].said, arrived_s)
            reported += self._add_logged(steps, now_s, node)
            self._causes[node].hear(line, len(self._steps))
        return (
            reported
            if self.ending
            else [*reported, *self._add_logged(self._logs[node].pause(), now_s, node)]
        )

    def _add_logged(
        self, steps: Sequence[LoggedStep], now_s: float, node: int
    ) -> list[StepsReported]:
        if not steps or self._measured_node not in (None, node):
            return []
        self._measured_node = node
        for step in steps:
            self._witness.log(step)
        if self._source == "log" or not (self._source or self._probe.is_watching):
            self._source = "log"
            return self._add_measured(steps, now_s)
        if not self._source:
            self._held_steps += steps
            if (
                len(self._held_steps) >= PROBE_STEPS
                and steps[-1].arrived_s - self._held_steps[0].arrived_s >= PROBE_S
            ):
                return self._measure_by_log(now_s)
        return []

    def see(
        self, reports: Iterable[Mapping[str, Any]], now_s: float, node: int = 0
    ) -> list[StepsReported]:
        """Takes the probe's reports from a node. Returns the steps that the probe observed, if the
        probe is measured."""
        reports = list(reports)
        self._evidence.hear(reports)
        steps = self._probe.hear(reports, node)
        if self._probe.shows_life(reports, node):
            self._last_output_s = now_s
        self._fail_on_unkept_files()
        if self._probe.ran_out and self._ran_out_at is None:
            self._ran_out_at = len(self._steps)
        self._fail_if_continued_without_memory()

        # the attempt is ended here, or the program would train to its end
        if self.request.as_it_is and self._probe.has_own_updates:
            self.ending = True
        if self.ending or self._source == "log" or not steps:
            return []
        self._source = "probe"
        self._held_steps.clear()
        measured = self._add_measured([self._witness.seen(step) for step in steps], now_s)
        if not self.ending and len(self._probe.steps) >= SETTLED:
            self._fail_on_disagreement()
        return measured

    def settle(self, now_s: float) -> list[StepsReported]:
        """Measures by the log if the source is still undecided: the program has ended, so no probe
        can report any more. Returns the steps that were held."""
        return [] if self.ending or self._source else self._measure_by_log(now_s)

    def _measure_by_log(self, now_s: float) -> list[StepsReported]:
        steps, self._held_steps = self._held_steps, []
        if steps:
            self._source = "log"
        return self._add_measured(steps, now_s)

    def _add_measured(self, steps: Iterable[LoggedStep], now_s: float) -> list[StepsReported]:
        """Adds measured steps until one of them decides the attempt. Returns the added ones."""
        reported = []
        for step in steps:
            if self.ending or self._enough_measured_s is not None:
                break
            reported.append(self._end_step(step, now_s))
        return reported

    def _note(self, metrics: StepMetrics, arrived_s: float) -> None:
        """Notes the loss and gradient norm of a log line, to be matched with a step of the
        probe."""
        if metrics.loss is None and metrics.grad_norm is None:
            return
        self._witness.hear(metrics, arrived_s)
        self._fail_on_divergence(metrics)

    def _assign_logged_losses(self) -> None:
        """Sets losses and gradient norms from the log on the probe's steps. Done at the end because
        a line may arrive before the probe reports its step."""
        if self._source == "probe":
            for index, metrics in self._witness.said_of_steps():
                if index < len(self._steps):
                    self._steps[index] = replace(
                        self._steps[index], loss=metrics.loss, grad_norm=metrics.grad_norm
                    )

    def _fail_on_unkept_files(self) -> None:
        """Ends the program before it changes a file of the user that cannot be restored."""
        if self.ending or not (files := self._probe.unkept):
            return
        listed = " and ".join(f"{file} ({why})" for file, why in files.items())
        message = f"the program was stopped before changing {listed}, which existed and cannot be backed up"
        self._fail(
            FailureKind.INVALID,
            f"{message}; make the program write to {{trial_dir}}, or set `outputs: keep`",
        )

    def _ran_out(self) -> tuple[str, int] | None:
        """(the evidence that memory ran out, number of steps done by then); None if it did not."""
        if self._ran_out_at is not None:
            return next(iter(self._probe.ran_out.values()))[0], self._ran_out_at
        return next((cause.ran_out for cause in self._causes if cause.ran_out is not None), None)

    def _fail_if_continued_without_memory(self) -> None:
        """Fails a program that caught an out-of-memory exception and continued: it skips batches or
        makes them smaller, so its steps do not measure the config. It continued if one process ran
        out twice, or if `SURVIVED_STEPS` more steps follow."""
        ran_out = self._ran_out()
        if ran_out is None or self.ending:
            return
        is_again = any(len(reports) > 1 for reports in self._probe.ran_out.values())
        if is_again or len(self._steps) - ran_out[1] >= SURVIVED_STEPS:
            self._failure = went_on(ran_out)
            self.ending = True

    def _fail_on_disagreement(self) -> None:
        """Fails the attempt if the program's batch differs from the config's."""
        if not self.request.as_it_is and (difference := self._probe.disagreement()):
            remedy = "correct the batch options in trainer.argv, or the workload; `autotune check` compares the spec with what is observed"
            self._fail(FailureKind.INVALID, f"{difference}; {remedy}")

    def _end_step(self, step: LoggedStep, now_s: float) -> StepsReported:
        if not self._steps:
            self._setup_s = max(0.0, now_s - self._launched_s - step.time_s * step.together)
        self._progress_s = now_s
        self._steps.append(step)
        self._peaks.append(
            max(
                (
                    b
                    for b in (self._probe.peak_bytes, *(log.peak_bytes for log in self._logs))
                    if b is not None
                ),
                default=math.nan,
            )
        )
        self._fail_on_divergence(step)
        self._fail_if_continued_without_memory()
        if not self.ending:
            counted = [step.time_s for step in self._steps[self.request.measure.warmup_steps :]]
            verdict = trial_decision(
                counted,
                self.request.measure,
                self.request.beat_step_time_s,
                together=self._together,
            )
            self._stopped = verdict.reason if verdict.stopped_early else ""
            if verdict.stop and self.request.ends_itself:
                self._enough_measured_s = now_s
            else:
                self.ending = verdict.stop
        return StepsReported(
            id=self.request.id,
            first_step=len(self._steps) - 1,
            step_times_s=(step.time_s,),
            losses=(math.nan if step.loss is None else step.loss,),
            grad_norms=(math.nan if step.grad_norm is None else step.grad_norm,),
        )

    @property
    def _together(self) -> int:
        """Largest number of steps whose lines arrived at once."""
        return max((step.together for step in self._steps), default=1)

    def _fail_on_divergence(self, step: LoggedStep | StepMetrics) -> None:
        problem = ""
        if not step.skipped and not all(
            math.isfinite(x) for x in (step.loss, step.grad_norm) if x is not None
        ):
            values = {"loss": step.loss, "gradient norm": step.grad_norm}
            described = [f"{name} {value:g}" for name, value in values.items() if value is not None]
            problem = f"{' and '.join(described)} must be finite"
        elif step.loss is not None:
            known = (each.loss for each in self._steps if each.loss is not None)
            logged = [loss for loss in known if not math.isnan(loss)]
            problem = divergence(logged, self.request.workload.model.vocab_size) if logged else ""
        if problem:
            self._fail(
                FailureKind.DIVERGED, f"training diverged: {problem}", step=len(self._steps) - 1
            )

    def tick(self, now_s: float) -> None:
        """Checks the deadlines."""
        measure, done = self.request.measure, len(self._steps)
        if self.ending:
            return
        if self._enough_measured_s is not None:
            self.ending = now_s - self._enough_measured_s >= OWN_END_S
            return
        if now_s - self._launched_s >= measure.trial_timeout_s:
            message = f"the trial took longer than trial_timeout_s={measure.trial_timeout_s:g}"
            if done and (silent_s := now_s - self._progress_s) >= measure.step_timeout_s:
                message += f"; the program was still active, but no step came in the last {format_span(silent_s)}"
            self._fail(FailureKind.TIMEOUT, message, step=done or None)
        elif not done and now_s - self._launched_s >= measure.start_timeout_s:
            message = (
                f"the log has no first step within start_timeout_s={measure.start_timeout_s:g}"
            )
            if why := self._still_builds():
                self._fail(FailureKind.TIMEOUT, f"{message}; {why}; raise measure.start_timeout_s")
            else:
                remedy = "if it needs longer to start, raise measure.start_timeout_s"
                self._fail(FailureKind.HANG, f"{message}; {remedy}")
        elif done and now_s - max(self._progress_s, self._last_output_s) >= measure.step_timeout_s:
            message = f"the log has no step after step {done - 1}, and nothing else, within step_timeout_s={measure.step_timeout_s:g}"
            self._fail(FailureKind.HANG, message, step=done)

    def _still_builds(self) -> str:
        """Why the program may still be preparing its first step; empty if there is no sign of that.
        Step lines that no reader matches are not a compiler's output."""
        if any(cause.is_building for cause in self._causes):
            return "the last lines show that the program is still compiling"
        is_unread = any(propose_patterns(cause.last_lines) for cause in self._causes)
        return (
            ""
            if is_unread or not self.request.config.compile
            else "the program may still be compiling"
        )

    def cancel(self) -> None:
        """Ends the attempt as cancelled, unless it is already ending."""
        self._cancelled = self._cancelled or not self.ending
        self.ending = True

    def refuse(self, kind: FailureKind, message: str, exception: str = "") -> None:
        """Ends the attempt with this failure before the program ran."""
        self._fail(kind, message, exception=exception)

    def end(self, ends: Sequence[NodeEnd]) -> AttemptEnded:
        """The verdict, once the program and all its processes have ended on every node. `ends`: in
        the order in which the nodes ended."""
        self._assign_logged_losses()
        if self._cancelled:
            return AttemptEnded(id=self.request.id, cancelled=True)
        failure = self._cause(ends)
        if failure is not None and self._left_out:
            failure = replace(
                failure,
                message=f"{failure.message}; not read from the program's log: {self._left_out.text}",
            )
        if failure is not None and not failure.log_tail:
            # output after the order to end is no evidence: `SignalException: Process
            # 71 got signal: 15`
            with_tails = [
                replace(end, log_tail=self._causes[end.node].last_lines) if self.ending else end
                for end in ends
            ]
            failure = replace(failure, log_tail=log_tail(with_tails))
        stopped = "" if failure else self._stopped
        return AttemptEnded(
            id=self.request.id, failure=failure, measurement=self._measured(ends), stopped=stopped
        )

    def _cause(self, ends: Sequence[NodeEnd]) -> Failure | None:
        """Why the attempt failed; None if it did not. A failure decided while the program ran takes
        precedence, except a timeout or hang that a lost node explains."""
        done = len(self._steps)
        if (
            self._enough_measured_s is None
            and not self.ending
            and self._probe.steps
            and len(self._probe.steps) < SETTLED
        ):
            self._fail_on_disagreement()
        is_late = self._failure is not None and self._failure.kind in (
            FailureKind.HANG,
            FailureKind.TIMEOUT,
        )
        ran_out = self._ran_out()
        if ran_out is not None and (self._failure is None or is_late):
            evidence = None if self.ending else explain(ends, self._causes, done)
            return evidence.failure() if evidence is not None else went_on(ran_out)
        if self.ending and not (is_late and any(end.gone for end in ends)):
            return self._failure and self._with_exception(self._with_rank(self._failure, ends))
        evidence = explain(ends, self._causes, done)
        if evidence is not None:
            return evidence.failure()
        if self._enough_measured_s is not None:
            return None
        counted, min_steps = (
            max(0, done - self.request.measure.warmup_steps),
            self.request.measure.min_steps,
        )
        if counted >= min_steps:
            return None
        source = "the probe observed" if self._source == "probe" else "the log has"
        counted_text = f" ({counted} after warm-up)" if done else ""
        message = f"the program ended successfully, but {source} {number_of(done, 'step') if done else 'no step'} with a time{counted_text}, and {min_steps} are needed after warm-up"
        if differs := self._witness.difference():
            message += f"; {differs}"
        if not done and (lines := max(log.arrived_at_once for log in self._logs)) > 1:
            message += f"; the lines of all {lines} steps arrived at once, probably because output is buffered; make the program flush its output (`stdbuf -oL`, `flush=True`), or print step times"
        else:
            message += ". If the program continues what an earlier trial saved, set its output folder to {trial_dir}; if the data is too short, use more data"
        return self._with_exception(
            Failure(kind=FailureKind.METRICS_MISSING, message=message, step=done or None)
        )

    def seen(self) -> ProgramSeen:
        """What the probe observed, as the event sent before the end of the attempt."""
        probe, typical = self._probe, self._probe.typical
        total_s = sum(step.time_s for step in probe.steps)
        tokens = typical.tokens if typical else None
        if typical and typical.sequences and probe.lengths_vary:
            tokens = round(typical.sequences[0] * sum(probe.lengths) / len(probe.lengths))
        return ProgramSeen(
            id=self.request.id,
            facts={**probe.facts, "is_split": probe.is_split} if probe.facts else {},
            steps=len(probe.steps),
            options=probe.options,
            micro_batches=typical.micro_batches if typical else None,
            sequences=typical.sequences[0] if typical and typical.sequences else None,
            other_sequences=typical.sequences[1:] if typical else (),
            tokens=tokens,
            first_steps=tuple(
                FirstStep(
                    sequences=step.sequences[0] if step.sequences else None, tokens=step.tokens
                )
                for step in probe.steps[:FIRST]
            ),
            wait_share=sum(step.wait_s for step in probe.steps) / total_s if total_s > 0 else None,
            skipped_steps=sum(step.skipped for step in probe.steps),
            files=probe.files,
            lost=tuple(dict.fromkeys(probe.lost)),
            troubles=tuple(dict.fromkeys(probe.troubles)),
            has_own_updates=probe.has_own_updates,
            fills_by_tokens=probe.fills_by_tokens,
            lengths_vary=probe.lengths_vary,
            unevenness=probe.unevenness(),
            remarks=self._limits(),
            disagreement="" if self.request.as_it_is or self._ran_out() else probe.disagreement(),
            witness=self._witness.difference() if self._source == "probe" else "",
            measured=self._source == "probe",
            together=self._together,
            left_out=self._left_out.text if self._left_out else "",
        )

    @property
    def hangs(self) -> bool:
        """Whether it is ended because no step came in time."""
        return self._failure is not None and self._failure.kind is FailureKind.HANG

    @staticmethod
    def _with_rank(failure: Failure, ends: Sequence[NodeEnd]) -> Failure:
        """The failure of a hanging program with the rank that kept the others waiting, if NCCL's
        flight recorder shows it."""
        if failure.kind is not FailureKind.HANG or (behind := rank_behind(ends)) is None:
            return failure
        return replace(failure, message=f"{failure.message}; {behind[1]}", rank=behind[0])

    def _with_exception(self, failure: Failure) -> Failure:
        """The failure of a program without further steps with the exception in its log, since one
        of its ranks may have raised without ending."""
        evidence = weigh(e for cause in self._causes for e in cause.evidence(len(self._steps)))
        if evidence is None or failure.kind not in (
            FailureKind.HANG,
            FailureKind.TIMEOUT,
            FailureKind.METRICS_MISSING,
        ):
            return failure
        message = f"{failure.message}; before that, {evidence.message}"
        return replace(
            failure,
            message=message,
            exception=evidence.exception,
            rank=evidence.rank,
            log_tail=evidence.log_tail,
        )

    def _fail(
        self, kind: FailureKind, message: str, *, step: int | None = None, exception: str = ""
    ) -> None:
        self._failure = Failure(kind=kind, message=message, exception=exception, step=step)
        self.ending = True

    def _peak_bytes(self, ends: Sequence[NodeEnd]) -> float | None:
        reported = [log.peak_bytes for log in self._logs if log.peak_bytes is not None]
        if self._probe.peak_bytes is not None:
            reported.append(self._probe.peak_bytes)
        if reported:
            return max(reported)
        is_cpu = self.request.workload.cluster.gpu.is_cpu
        observed = [end.peak_bytes if is_cpu else end.gpu_peak_bytes for end in ends]
        return float(max(filter(None, observed), default=0)) or None

    def _limits(self) -> tuple[str, ...]:
        """Warnings about what the figures mean, from the probe or the log, whichever is measured:
        knobs without effect first."""
        request = self.request
        if request.as_it_is:
            return ()
        if self._source == "probe":
            warmup_steps, facts = request.measure.warmup_steps, self._probe.facts
            return (
                *ineffective_knobs(request.config, facts, source="spec").values(),
                *limits(self._probe, request.workload, warmup_steps=warmup_steps),
            )
        if request.workload.rl is not None:  # lengths of generated responses vary
            return ()
        return logged_limits(
            self._steps, request.config.global_batch_size * request.workload.seq_len
        )

    def _measured(self, ends: Sequence[NodeEnd]) -> Measurement | None:
        """The measurement of the steps after warm-up; None if there are none."""
        warmup, workload, config = (
            self.request.measure.warmup_steps,
            self.request.workload,
            self.request.config,
        )
        steps, peaks = self._steps[warmup:], tuple(self._peaks[warmup:])
        if not steps:
            return None
        times_s = tuple(step.time_s for step in steps)
        evidence = self._evidence.evidence(step_times_s=times_s)
        return Measurement(
            versions=dict(self._probe.facts.get("versions") or {}),
            files=self._probe.own_files,
            environment=self._environment,
            remarks=self._limits(),
            evidence=evidence.shortened().to_dict() if evidence is not None else {},
            step_times_s=times_s,
            losses=as_series(step.loss for step in steps),
            grad_norms=as_series(step.grad_norm for step in steps),
            skipped_steps=sum(step.skipped for step in steps),
            peak_memory_bytes=self._peak_bytes(ends),
            step_peak_memory_bytes=() if any(map(math.isnan, peaks)) else peaks,
            tokens_per_step=config.global_batch_size * workload.seq_len,
            num_ranks=config.world_size,
            setup_s=self._setup_s,
            time_from=steps[-1].time_from,
            utilization={"reserved_memory_bytes": float(self._probe.reserved_bytes)}
            if self._probe.reserved_bytes
            else {},
            time_resolution_s=steps[-1].resolution_s,
            steps_together=self._together,
            flops_per_token=training_flops_per_token(workload),
            peak_flops_per_s=workload.cluster.gpu.peak_flops_per_s.get(config.precision),
            memory_capacity_bytes=workload.cluster.gpu.memory_bytes,
        )
