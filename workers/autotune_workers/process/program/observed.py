"""Observes a program that the user started, by its output: steps, memory and the cause of its end.
Takes lines, returns measurement and failure; never ends the program.

The output is read like a trial's (`program.log`, `failure.cause`). If the program's batch is
unknown, only logged times are used, not rates.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from autotune.cost import training_flops_per_token
from autotune.diagnosis import Evidence
from autotune.diagnosis.collect import Reports as Evidences
from autotune.diagnosis.log_hints import Hints
from autotune.ports import TrialRequest
from autotune.spec import Failure, Measurement, MeasureSpec, ParallelConfig, Workload, catalog
from autotune.trainers import StepMetrics, trainer
from autotune.trainers.base.trainer import MAX_LINE, LineReader
from autotune_workers.probe.injected.versions import commit_of, versions
from autotune_workers.probe.probe_folder import Reports
from autotune_workers.process.failure.cause import CauseReader
from autotune_workers.process.machine import GpuMemory, oom_kills
from autotune_workers.process.program.evidence import NodeEnd, explain, went_on
from autotune_workers.process.program.log import LoggedStep, ProgramLog, as_series

MOST_STEPS = 4096
"""largest number of kept steps; beyond it every second step is dropped, repeatedly"""
WARMUP_STEPS = MeasureSpec().warmup_steps


@final
class ObservedProgram:
    """Collects what one run shows."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        workload: Workload | None,
        config: ParallelConfig | None,
    ) -> None:
        """`name`, `options`: trainer whose reader reads the log. `workload`, `config`: what the
        program trains; None if unknown."""
        self._workload, self._config = workload, config
        reader = trainer(name).reader(options)
        is_known = workload is not None and config is not None
        self._request = TrialRequest(
            study="observed",
            number=0,
            attempt=0,
            workload=workload
            or Workload(model=catalog.model("nano-gpt"), cluster=catalog.cluster("cpu-1x1"), seq_len=1, global_batch_size=1),
            config=config or ParallelConfig(),
            measure=MeasureSpec(),
            trainer_options=options,
        )  # fmt: skip
        self._log = ProgramLog(self._request, reader if is_known else _without_rates(reader))
        self._cause = CauseReader()
        self._steps: list[LoggedStep] = []
        self._keep_every, self._count = 1, 0
        self._first_s: float | None = None
        self._started_s = 0.0
        self._kills_before = oom_kills()
        self._gpus = GpuMemory()
        self._reports: Reports | None = None
        self._evidence = Evidences()
        self._hints = Hints()

    def watch(self, folder: str) -> None:
        """Also reads the reports that the probe of its ranks writes into this folder."""
        self._reports = Reports(Path(folder))

    def begin(self, now_s: float, visible: str | None) -> None:
        """Call when the program starts. `visible`: its CUDA_VISIBLE_DEVICES; None for all GPUs."""
        self._started_s, self._kills_before = now_s, oom_kills()
        self._gpus.begin(visible)

    def look(self, pids: Collection[int]) -> None:
        """Reads these processes' GPU memory, and the probe's reports."""
        self._gpus.look(pids)
        self._read()

    def _read(self) -> bool:
        reports = self._reports.read() if self._reports else []
        self._evidence.hear(reports)
        return bool(reports)

    @staticmethod
    def versions(command: Sequence[str]) -> dict[str, str]:
        """Versions of this machine's kernel and driver, and the git commit of the first script in
        the command."""
        program = next(
            (word for word in command if word.endswith((".py", ".sh")) and os.path.isfile(word)), ""
        )
        commit = commit_of(os.path.dirname(os.path.abspath(program))) if program else ""
        of_machine = {
            name: value for name, value in versions().items() if name in ("kernel", "driver")
        }
        return {**of_machine, **({"commit": commit} if commit else {})}

    def evidence(self, **known: Any) -> Evidence | None:
        """The probe's evidence at the end of the run; None if it observed no step. `known`: further
        values for `Reports.evidence`."""
        while self._read():
            pass
        return self._evidence.evidence(hints=self.hints, **known)

    @property
    def hints(self) -> tuple[tuple[str, str], ...]:
        """Hints at bottlenecks in its output, as (class, line)."""
        return self._hints.found

    def hear(self, line: str, arrived_s: float) -> None:
        """Reads a line of its output."""
        line = line[:MAX_LINE]
        self._add(self._log.hear(line, arrived_s))
        self._cause.hear(line, self._count)
        if self._reports is not None:
            self._hints.hear(line)

    def ended(
        self, code: int, *, resident_bytes: int, is_interrupted: bool
    ) -> tuple[Measurement | None, Failure | None]:
        """(measurement, failure) of a run that ended with exit status `code`; each may be None. It
        is a failure too if it ran out of memory and continued. `resident_bytes`: largest resident
        memory of one of its processes."""
        self._add(self._log.pause())
        end = NodeEnd(
            node=0,
            code=code,
            kernel_oom=oom_kills() > self._kills_before,
            peak_bytes=resident_bytes,
            gpu_peak_bytes=self._gpus.peak_bytes,
            log_tail=self._cause.last_lines,
        )
        cause = None if code == 0 or is_interrupted else explain([end], [self._cause], self._count)
        failure = cause.failure() if cause is not None else None
        if failure is None and self._cause.ran_out is not None:
            failure = went_on(self._cause.ran_out)
        return self._measured(end), failure

    def _add(self, steps: list[LoggedStep]) -> None:
        for step in steps:
            if self._first_s is None:
                self._first_s = step.arrived_s - step.time_s
            if self._count % self._keep_every == 0:
                self._steps.append(step)
            self._count += 1
        if len(self._steps) > MOST_STEPS:
            self._steps, self._keep_every = self._steps[::2], 2 * self._keep_every

    def _measured(self, end: NodeEnd) -> Measurement | None:
        steps = self._steps
        steps = steps[_warmup_steps(steps) :]
        is_cpu = self._workload is None or self._workload.cluster.gpu.is_cpu
        observed_bytes = end.gpu_peak_bytes or (end.peak_bytes if is_cpu else None)
        peak = self._log.peak_bytes or (float(observed_bytes) if observed_bytes else None)
        if not steps and peak is None:
            return None
        measurement = Measurement(
            step_times_s=tuple(step.time_s for step in steps),
            peak_memory_bytes=peak,
            losses=as_series(step.loss for step in steps),
            grad_norms=as_series(step.grad_norm for step in steps),
            skipped_steps=sum(step.skipped for step in steps),
            setup_s=max(0.0, self._first_s - self._started_s) if self._first_s is not None else 0.0,
            time_from=steps[-1].time_from if steps else "",
            time_resolution_s=max((step.resolution_s for step in steps), default=0.0),
            steps_together=max((step.together for step in steps), default=1),
        )
        if self._workload is None or self._config is None:
            return measurement
        gpu = self._workload.cluster.gpu
        return replace(
            measurement,
            tokens_per_step=round(
                self._config.global_batch_size * self._workload.tokens_per_sequence
            ),
            num_ranks=self._config.world_size,
            flops_per_token=training_flops_per_token(self._workload),
            peak_flops_per_s=gpu.peak_flops_per_s.get(self._config.precision),
            memory_capacity_bytes=gpu.memory_bytes,
        )


def _warmup_steps(steps: Sequence[LoggedStep]) -> int:
    """Number of warm-up steps among these: none if the log begins later, at most one in a short
    log."""
    if not steps or (steps[0].number or 0) > WARMUP_STEPS:
        return 0
    return WARMUP_STEPS if len(steps) > 2 * WARMUP_STEPS else min(1, len(steps) - 1)


def _without_rates(read: LineReader) -> LineReader:
    """The reader without rates of tokens or samples, which give no step time if the batch is
    unknown."""

    def reader(line: str) -> StepMetrics | None:
        metrics = read(line)
        return metrics and replace(
            metrics, tokens_per_s=None, tokens_per_s_per_gpu=None, samples_per_s=None
        )

    return reader
