"""A program that somebody started, as its log shows it: steps, memory and the cause of its end.
Lines in, measurement and failure out; it is never ended.

It is read as a trial's program is (`program.log`, `failure.cause`). Of a program whose batch is not
known, times of steps count, and rates do not.
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
from autotune.diagnosis.log_words import Hints
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
"""steps that are kept; of more every second one, then every fourth, ..."""
WARMUP_STEPS = MeasureSpec().warmup_steps


@final
class ObservedProgram:
    """What has been seen of one run."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        workload: Workload | None,
        config: ParallelConfig | None,
    ) -> None:
        """`name`, `options`: of the trainer by which its log is read; `workload`, `config`: what it
        trains, where that is known."""
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
        self._every, self._count = 1, 0
        self._first_s: float | None = None
        self._began_s = 0.0
        self._kills = oom_kills()
        self._gpus = GpuMemory()
        self._reports: Reports | None = None
        self._evidence = Evidences()
        self._hints = Hints()

    def watch(self, folder: str) -> None:
        """The probe of its ranks reports into this folder."""
        self._reports = Reports(Path(folder))

    def begin(self, now_s: float, visible: str | None) -> None:
        """The program starts; `visible`: its CUDA_VISIBLE_DEVICES."""
        self._began_s, self._kills = now_s, oom_kills()
        self._gpus.begin(visible)

    def look(self, pids: Collection[int]) -> None:
        """Reads the memory of the GPUs, of these processes, and what the probe says."""
        self._gpus.look(pids)
        self._read()

    def _read(self) -> bool:
        found = self._reports.read() if self._reports else []
        self._evidence.hear(found)
        return bool(found)

    @staticmethod
    def versions(command: Sequence[str]) -> dict[str, str]:
        """Of this machine, and the commit of the first of these words that is a file."""
        program = next(
            (word for word in command if word.endswith((".py", ".sh")) and os.path.isfile(word)), ""
        )
        commit = commit_of(os.path.dirname(os.path.abspath(program))) if program else ""
        of_machine = {
            name: value for name, value in versions().items() if name in ("kernel", "driver")
        }
        return {**of_machine, **({"commit": commit} if commit else {})}

    def evidence(self, **known: Any) -> Evidence | None:
        """What the probe saw, at the end; `known`: what else there is of it. None where it saw no
        step."""
        while self._read():
            pass
        return self._evidence.evidence(hints=self.hints, **known)

    @property
    def hints(self) -> tuple[tuple[str, str], ...]:
        """What its output says of what holds it back: the class and the line."""
        return self._hints.found

    def hear(self, line: str, arrived_s: float) -> None:
        """A line of its output."""
        line = line[:MAX_LINE]
        self._add(self._log.hear(line, arrived_s))
        self._cause.hear(line, self._count)
        if self._reports is not None:
            self._hints.hear(line)

    def ended(
        self, code: int, *, resident_bytes: int, is_interrupted: bool
    ) -> tuple[Measurement | None, Failure | None]:
        """What it showed, and why it failed, or that it ran out of memory and continued.
        `resident_bytes`: the most that one of its processes held."""
        self._add(self._log.pause())
        end = NodeEnd(
            node=0,
            code=code,
            kernel_oom=oom_kills() > self._kills,
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
            if self._count % self._every == 0:
                self._steps.append(step)
            self._count += 1
        if len(self._steps) > MOST_STEPS:
            self._steps, self._every = self._steps[::2], 2 * self._every

    def _measured(self, end: NodeEnd) -> Measurement | None:
        steps = self._steps
        steps = steps[_warmup_steps(steps) :]
        is_cpu = self._workload is None or self._workload.cluster.gpu.is_cpu
        seen = end.gpu_peak_bytes or (end.peak_bytes if is_cpu else None)
        peak = self._log.peak_bytes or (float(seen) if seen else None)
        if not steps and peak is None:
            return None
        found = Measurement(
            step_times_s=tuple(step.time_s for step in steps),
            peak_memory_bytes=peak,
            losses=as_series(step.loss for step in steps),
            grad_norms=as_series(step.grad_norm for step in steps),
            skipped_steps=sum(step.skipped for step in steps),
            setup_s=max(0.0, self._first_s - self._began_s) if self._first_s is not None else 0.0,
            time_from=steps[-1].time_from if steps else "",
            time_resolution_s=max((step.resolution_s for step in steps), default=0.0),
            steps_together=max((step.together for step in steps), default=1),
        )
        if self._workload is None or self._config is None:
            return found
        gpu = self._workload.cluster.gpu
        return replace(
            found,
            tokens_per_step=round(
                self._config.global_batch_size * self._workload.tokens_per_sequence
            ),
            num_ranks=self._config.world_size,
            flops_per_token=training_flops_per_token(self._workload),
            peak_flops_per_s=gpu.peak_flops_per_s.get(self._config.precision),
            memory_capacity_bytes=gpu.memory_bytes,
        )


def _warmup_steps(steps: Sequence[LoggedStep]) -> int:
    """How many of these steps are warm-up: none in a log that begins later, and at most the first
    one of a short log."""
    if not steps or (steps[0].number or 0) > WARMUP_STEPS:
        return 0
    return WARMUP_STEPS if len(steps) > 2 * WARMUP_STEPS else min(1, len(steps) - 1)


def _without_rates(read: LineReader) -> LineReader:
    """Reads no rate of tokens or samples, which tell no time without a batch."""

    def reader(line: str) -> StepMetrics | None:
        found = read(line)
        return found and replace(
            found, tokens_per_s=None, tokens_per_s_per_gpu=None, samples_per_s=None
        )

    return reader
