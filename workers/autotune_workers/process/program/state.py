"""One attempt of somebody's own program as a state machine: log lines, the probe's reports and time
in, steps and the verdict out. No clock, no I/O.

Where the probe sees the program train (`program.probe`), its steps are the measurement, and the log
is the second witness, which also tells losses and gradient norms. Else the log counts: a program
that imports torch under the probe's eyes and prints `PROBE_STEPS` steps of which the probe sees
none in `PROBE_S` is one that it cannot see. Each node's log is read for itself (`program.log`); the
first one that ends a step is the one that is measured, because every node takes part in every step.
Why a program failed is read from the logs too (`failure.cause`). Deadlines, stop rule and
divergence are those of a gang (`gang`). Peak memory comes from the logs; without it, on a CPU, from
the fullest process, and on GPUs from the driver, as the keepers saw it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.cost import training_flops_per_token
from autotune.diagnosis.collect import Reports
from autotune.ports import AttemptEnded, FirstStep, ProgramSeen, StepsReported, TrialRequest
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
"""steps that are told one by one"""
PROBE_STEPS, PROBE_S = 3, 2.0
"""steps of the log, and the time since the first of them, after which it counts though a probe was
there"""
OWN_END_S = 30.0
"""time that a program gets to end by itself once it is measured, where it may"""


class ProgramTrial:
    """What is known of one attempt. `ending` turns true when the program shall end; `end` gives the
    verdict once it has."""

    def __init__(self, request: TrialRequest, readers: Sequence[LineReader], now_s: float) -> None:
        """`readers`: the trainer's reader of log lines, one for each node."""
        self.request, self.ending = request, False
        self._logs = [ProgramLog(request, read) for read in readers]
        self._probe = ProgramProbe(request)
        self._evidence = Reports()
        self._witness = SecondWitness()
        self._waiting: list[LoggedStep] = []
        """steps of the log that do not count yet, because a probe may come"""
        self._counts: str = ""
        """whose steps count: probe or log; empty if undecided"""
        self._measured_s: float | None = None
        ranks_per_node = request.config.world_size // len(readers)
        self._causes = [
            CauseReader(first_rank=node * ranks_per_node) for node in range(len(readers))
        ]
        self._measured_node: int | None = None
        self._launched_s = self._progress_s = now_s
        self._heard_s = now_s
        self._left_out = LeftOut()
        self._setup_s = 0.0
        self._environment: dict[str, str] | None = None
        self._steps: list[LoggedStep] = []
        """those that count"""
        self._peaks: list[float] = []
        """bytes at the end of each of them"""
        self._ran_out_at: int | None = None
        """steps that were done when the probe said that memory ran out"""
        self._stopped = ""
        self._cancelled = False
        self._failure: Failure | None = None

    def hold(self, now_s: float) -> None:
        """The time until now does not count: the program had no place yet."""
        self._launched_s = self._progress_s = self._heard_s = now_s

    def note_environment(self, variables: Mapping[str, str]) -> None:
        """Keeps the inherited variables that may change the program's speed."""
        self._environment = dict(variables)

    def hear_output(self, left_out: LeftOut, now_s: float) -> None:
        """Some output of a node has come, lines or not; what was left out before it."""
        self._heard_s = now_s
        self._left_out += left_out

    def hear(
        self, lines: Iterable[tuple[float, str]], now_s: float, node: int = 0
    ) -> list[StepsReported]:
        """Lines of a node's log that came together, each with the time of its arrival on the node's
        own clock; the steps that they end. What comes after the verdict says nothing more."""
        reported: list[StepsReported] = []
        for arrived_s, line in lines:
            if self.ending:
                return reported
            steps = self._logs[node].hear(line, arrived_s)
            if self._counts != "log" and self._measured_node in (None, node):
                self._note(self._logs[node].said, arrived_s)
            reported += self._hear_steps(steps, now_s, node)
            self._causes[node].hear(line, len(self._steps))
        return (
            reported
            if self.ending
            else [*reported, *self._hear_steps(self._logs[node].pause(), now_s, node)]
        )

    def _hear_steps(
        self, steps: Sequence[LoggedStep], now_s: float, node: int
    ) -> list[StepsReported]:
        if not steps or self._measured_node not in (None, node):
            return []
        self._measured_node = node
        for step in steps:
            self._witness.log(step)
        if self._counts == "log" or not (self._counts or self._probe.is_watching):
            self._counts = "log"
            return self._take(steps, now_s)
        if not self._counts:
            self._waiting += steps
            if (
                len(self._waiting) >= PROBE_STEPS
                and steps[-1].arrived_s - self._waiting[0].arrived_s >= PROBE_S
            ):
                return self._count_by_log(now_s)
        return []

    def see(
        self, reports: Iterable[Mapping[str, Any]], now_s: float, node: int = 0
    ) -> list[StepsReported]:
        """What the probe says of a node; the steps that it has seen."""
        reports = list(reports)
        self._evidence.hear(reports)
        steps = self._probe.hear(reports, node)
        if self._probe.shows_life(reports, node):
            self._heard_s = now_s
        self._refuse_loss()
        if self._probe.ran_out and self._ran_out_at is None:
            self._ran_out_at = len(self._steps)
        self._refuse_going_on()
        if self.request.as_it_is and self._probe.has_own_updates:  # it would train to its end
            self.ending = True
        if self.ending or self._counts == "log" or not steps:
            return []
        self._counts = "probe"
        self._waiting.clear()
        found = self._take([self._witness.seen(step) for step in steps], now_s)
        if not self.ending and len(self._probe.steps) >= SETTLED:
            self._refuse_disagreement()
        return found

    def settle(self, now_s: float) -> list[StepsReported]:
        """The program is gone, or the time for a probe has passed: the log's steps count, where no
        others did."""
        return [] if self.ending or self._counts else self._count_by_log(now_s)

    def _count_by_log(self, now_s: float) -> list[StepsReported]:
        steps, self._waiting = self._waiting, []
        if steps:
            self._counts = "log"
        return self._take(steps, now_s)

    def _take(self, steps: Iterable[LoggedStep], now_s: float) -> list[StepsReported]:
        """Steps that count, until one of them decides the attempt."""
        found = []
        for step in steps:
            if self.ending or self._measured_s is not None:
                break
            found.append(self._end_step(step, now_s))
        return found

    def _note(self, said: StepMetrics, arrived_s: float) -> None:
        """A loss or gradient norm of the log, for a step that the probe times."""
        if said.loss is None and said.grad_norm is None:
            return
        self._witness.hear(said, arrived_s)
        self._refuse_divergence(said)

    def _assign(self) -> None:
        """Losses and gradient norms of the log to the steps of the probe: a line may come before
        the probe's report of the step that it speaks of."""
        if self._counts == "probe":
            for place, said in self._witness.said_of_steps():
                if place < len(self._steps):
                    self._steps[place] = replace(
                        self._steps[place], loss=said.loss, grad_norm=said.grad_norm
                    )

    def _refuse_loss(self) -> None:
        """A program that would change a file of the user's which cannot be put back is ended before
        it does."""
        if self.ending or not (files := self._probe.unkept):
            return
        told = " and ".join(f"{file} ({why})" for file, why in files.items())
        law = (
            f"the program was stopped before changing {told}, which existed and cannot be backed up"
        )
        self._fail(
            FailureKind.INVALID,
            f"{law}; make the program write to {{trial_dir}}, or set `outputs: keep`",
        )

    def _ran_out(self) -> tuple[str, int] | None:
        """(what says that memory ran out, the steps that were done then)."""
        if self._ran_out_at is not None:
            return next(iter(self._probe.ran_out.values()))[0], self._ran_out_at
        return next((cause.ran_out for cause in self._causes if cause.ran_out is not None), None)

    def _refuse_going_on(self) -> None:
        """A program that catches the exception of memory that ran out skips batches, or makes them
        smaller: its steps do not measure the config. A second one of a process, or further steps,
        show that it was caught."""
        found = self._ran_out()
        if found is None or self.ending:
            return
        is_again = any(len(told) > 1 for told in self._probe.ran_out.values())
        if is_again or len(self._steps) - found[1] >= SURVIVED_STEPS:
            self._failure = went_on(found)
            self.ending = True

    def _refuse_disagreement(self) -> None:
        """A config that the program does not train as the spec says has no measurement."""
        if not self.request.as_it_is and (told := self._probe.disagreement()):
            remedy = "fix the batch options in trainer.argv, or the workload; `autotune check` compares the spec with what is observed"
            self._fail(FailureKind.INVALID, f"{told}; {remedy}")

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
        self._refuse_divergence(step)
        self._refuse_going_on()
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
                self._measured_s = now_s
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
        """The most steps that arrived at once."""
        return max((step.together for step in self._steps), default=1)

    def _refuse_divergence(self, step: LoggedStep | StepMetrics) -> None:
        problem = ""
        if not step.skipped and not all(
            math.isfinite(x) for x in (step.loss, step.grad_norm) if x is not None
        ):
            found = {"loss": step.loss, "gradient norm": step.grad_norm}
            told = [f"{name} {value:g}" for name, value in found.items() if value is not None]
            problem = f"{' and '.join(told)} must be finite"
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
        if self._measured_s is not None:
            self.ending = now_s - self._measured_s >= OWN_END_S
            return
        if now_s - self._launched_s >= measure.trial_timeout_s:
            law = f"the trial took longer than trial_timeout_s={measure.trial_timeout_s:g}"
            if done and (silent_s := now_s - self._progress_s) >= measure.step_timeout_s:
                law += f"; the program was still active, but no step came in the last {format_span(silent_s)}"
            self._fail(FailureKind.TIMEOUT, law, step=done or None)
        elif not done and now_s - self._launched_s >= measure.start_timeout_s:
            law = f"the log has no first step within start_timeout_s={measure.start_timeout_s:g}"
            if why := self._still_builds():
                self._fail(FailureKind.TIMEOUT, f"{law}; {why}; raise measure.start_timeout_s")
            else:
                remedy = "if it needs longer to start, raise measure.start_timeout_s"
                self._fail(FailureKind.HANG, f"{law}; {remedy}")
        elif done and now_s - max(self._progress_s, self._heard_s) >= measure.step_timeout_s:
            law = f"the log has no step after step {done - 1}, and nothing else, within step_timeout_s={measure.step_timeout_s:g}"
            self._fail(FailureKind.HANG, law, step=done)

    def _still_builds(self) -> str:
        """Why it may still be preparing its first step; empty where nothing speaks for that. A log
        that has step lines which nobody reads is no compiler's."""
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
        """Ends the attempt before the program ran."""
        self._fail(kind, message, exception=exception)

    def end(self, ends: Sequence[NodeEnd]) -> AttemptEnded:
        """The program and all below it are gone on every node; `ends`: in the order of their
        ending."""
        self._assign()
        if self._cancelled:
            return AttemptEnded(id=self.request.id, cancelled=True)
        failure = self._cause(ends)
        if failure is not None and self._left_out:
            failure = replace(
                failure,
                message=f"{failure.message}; left out of the program's log: {self._left_out.text}",
            )
        if failure is not None and not failure.log_tail:
            # what a program says when it is told to end is no evidence: `SignalException: Process
            # 71 got signal: 15`
            heard = [
                replace(end, log_tail=self._causes[end.node].last_lines) if self.ending else end
                for end in ends
            ]
            failure = replace(failure, log_tail=log_tail(heard))
        stopped = "" if failure else self._stopped
        return AttemptEnded(
            id=self.request.id, failure=failure, measurement=self._measured(ends), stopped=stopped
        )

    def _cause(self, ends: Sequence[NodeEnd]) -> Failure | None:
        """Why it failed: what was decided while it ran, unless it was late because a node was lost;
        else what the ends of the nodes say."""
        done = len(self._steps)
        if (
            self._measured_s is None
            and not self.ending
            and self._probe.steps
            and len(self._probe.steps) < SETTLED
        ):
            self._refuse_disagreement()
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
        if self._measured_s is not None:
            return None
        counted, least = (
            max(0, done - self.request.measure.warmup_steps),
            self.request.measure.min_steps,
        )
        if counted >= least:
            return None
        whose = "the probe observed" if self._counts == "probe" else "the log has"
        told = f" ({counted} after warm-up)" if done else ""
        law = f"the program ended successfully, but {whose} {number_of(done, 'step') if done else 'no step'} with a time{told}, and {least} are needed after warm-up"
        if differs := self._witness.difference():
            law += f"; {differs}"
        if not done and (lines := max(log.arrived_at_once for log in self._logs)) > 1:
            law += f"; the lines of all {lines} steps arrived at once, probably because output is buffered; make the program flush its output (`stdbuf -oL`, `flush=True`), or print step times"
        else:
            law += ". If the program continues what an earlier trial saved, set its output folder to {trial_dir}; if the data is too short, use more data"
        return self._with_exception(
            Failure(kind=FailureKind.METRICS_MISSING, message=law, step=done or None)
        )

    def seen(self) -> ProgramSeen:
        """What the probe saw, at the end."""
        probe, usual = self._probe, self._probe.typical
        total_s = sum(step.time_s for step in probe.steps)
        tokens = usual.tokens if usual else None
        if usual and usual.sequences and probe.lengths_vary:
            tokens = round(usual.sequences[0] * sum(probe.lengths) / len(probe.lengths))
        return ProgramSeen(
            id=self.request.id,
            facts=probe.facts,
            options=probe.options,
            micro_batches=usual.micro_batches if usual else None,
            sequences=usual.sequences[0] if usual and usual.sequences else None,
            other_sequences=usual.sequences[1:] if usual else (),
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
            witness=self._witness.difference() if self._counts == "probe" else "",
            measured=self._counts == "probe",
            together=self._together,
            left_out=self._left_out.text if self._left_out else "",
        )

    @property
    def hangs(self) -> bool:
        """Whether it ends because no step came."""
        return self._failure is not None and self._failure.kind is FailureKind.HANG

    @staticmethod
    def _with_rank(failure: Failure, ends: Sequence[NodeEnd]) -> Failure:
        """A program that fell silent, with the rank that kept the others waiting, where its flight
        recorder told."""
        if failure.kind is not FailureKind.HANG or (found := rank_behind(ends)) is None:
            return failure
        return replace(failure, message=f"{failure.message}; {found[1]}", rank=found[0])

    def _with_exception(self, failure: Failure) -> Failure:
        """A program that fell silent, with the exception that its log speaks of: one of its ranks
        may have raised and not ended."""
        told = weigh(e for cause in self._causes for e in cause.evidence(len(self._steps)))
        if told is None or failure.kind not in (
            FailureKind.HANG,
            FailureKind.TIMEOUT,
            FailureKind.METRICS_MISSING,
        ):
            return failure
        message = f"{failure.message}; before that, {told.message}"
        return replace(
            failure,
            message=message,
            exception=told.exception,
            rank=told.rank,
            log_tail=told.log_tail,
        )

    def _fail(
        self, kind: FailureKind, message: str, *, step: int | None = None, exception: str = ""
    ) -> None:
        self._failure = Failure(kind=kind, message=message, exception=exception, step=step)
        self.ending = True

    def _peak_bytes(self, ends: Sequence[NodeEnd]) -> float | None:
        said = [log.peak_bytes for log in self._logs if log.peak_bytes is not None]
        if self._probe.peak_bytes is not None:
            said.append(self._probe.peak_bytes)
        if said:
            return max(said)
        is_cpu = self.request.workload.cluster.gpu.is_cpu
        seen = [end.peak_bytes if is_cpu else end.gpu_peak_bytes for end in ends]
        return float(max(filter(None, seen), default=0)) or None

    def _limits(self) -> tuple[str, ...]:
        """Conditions that limit what its figures mean, from the probe or the log, whichever counts."""
        asked = self.request
        if asked.as_it_is:
            return ()
        if self._counts == "probe":
            return limits(self._probe, asked.workload, warmup_steps=asked.measure.warmup_steps)
        if asked.workload.rl is not None:  # responses have any length
            return ()
        return logged_limits(self._steps, asked.config.global_batch_size * asked.workload.seq_len)

    def _measured(self, ends: Sequence[NodeEnd]) -> Measurement | None:
        """What was seen after warm-up."""
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
