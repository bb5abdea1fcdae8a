"""Real trials on one GPU and their estimates: step time, peak memory, out-of-memory errors, the
effect of precision, compile and batch, and the spread.

    python -m research.single_gpu [--models gpt2-medium llama-1b] [--configs 24] [--device cuda]

Per model: the fp32 default at a micro-batch of 1, then configs spread over micro-batch, precision,
recomputation and compile, including the largest batches, which do not fit. Everything runs through
the `local` runner. `--device cpu --models nano-gpt --seq-len 64 --largest 2` tests the command on
the CPU.

    memory    peak of the allocator, GiB            left      GPU memory in use after the trial minus that before the first trial, GiB (cuda)
    step      median step time, ms                  inside    whether the measured step time lies in the predicted 90% interval
    P(OOM)    predicted probability                 verdict   how the trial ended
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.cost import estimate
from autotune.detect import local_cluster
from autotune.ports import AttemptEnded, TrialRequest
from autotune.space import SearchSpace
from autotune.spec import ConfigTable, MeasureSpec, ParallelConfig, SpaceSpec, Workload
from autotune.spec.catalog import model
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.runners.local import LocalRunner
from autotune_workers.runners.machine_limits import visible_gpus
from research.calibrated import chosen
from tests.workers.training.test_gpu_memory import used_bytes

GIB = float(1 << 30)
MEASURE = MeasureSpec(
    warmup_steps=3, min_steps=10, max_steps=30, precision=0.02, trial_timeout_s=300.0
)
REPEATS = 5


def workload_of(name: str, seq_len: int, largest: int) -> tuple[Workload, SpaceSpec]:
    """One GPU of this machine, every power of two as the batch."""
    batches = [1 << i for i in range(largest.bit_length())]
    here = local_cluster()
    cluster = replace(here, name=f"{here.gpu.name}-1x1", num_nodes=1, gpus_per_node=1)
    knobs: dict[str, Any] = {
        "micro_batch_size": batches,
        "precision": ["fp32", "tf32", "bf16", "fp16"]
        if here.gpu.name != "cpu"
        else ["fp32", "bf16"],
        "recompute": ["none", "selective", "full"],
        "compile": [False, True] if here.gpu.name != "cpu" else [False],
    }
    shape = Workload(
        model=model(name), cluster=cluster, seq_len=seq_len, global_batch_size=tuple(batches)
    )
    return shape, SpaceSpec(knobs=knobs)


def picked(workload: Workload, space: SpaceSpec, count: int) -> list[ParallelConfig]:
    """The fp32 default first, the rest as different from one another as they can be."""
    built = SearchSpace.build(workload, space)
    default = ParallelConfig(precision="fp32")
    return [default, *(c for c in chosen(built, count) if c != default)][:count]


def run(
    runner: LocalRunner, workload: Workload, config: ParallelConfig, number: int
) -> AttemptEnded:
    """One trial."""
    asked = TrialRequest(
        study="single-gpu",
        number=number,
        attempt=1,
        workload=workload,
        config=config,
        measure=MEASURE,
    )
    runner.start(asked)
    return ended(events_until_ended(runner, [asked.id], deadline_s=900.0))


def measure_model(
    runner: LocalRunner, workload: Workload, configs: Sequence[ParallelConfig]
) -> None:
    """The table of one model, the speedup over its fp32 default, and the spread of its best
    config."""
    predicted = estimate(workload, ConfigTable.of(list(configs)))
    start_bytes = used_bytes() if visible_gpus() else math.nan
    print(f"\n{workload.model.name}, {workload.seq_len} tokens, on {workload.cluster.gpu.name}\n")
    print(
        "| config | step: estimate | measured | inside | memory: estimate | measured | P(OOM) | verdict | left |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    speeds: dict[ParallelConfig, float] = {}
    errors: list[tuple[float, float]] = []
    for i, config in enumerate(configs):
        end = run(runner, workload, config, i)
        guess_s, guess_bytes = (
            float(predicted.step_time_s[i]),
            float(predicted.peak_memory_bytes[i]),
        )
        risk = float(predicted.oom_probability[i])
        left = math.nan if math.isnan(start_bytes) else (used_bytes() - start_bytes) / GIB
        cells = [
            str(config),
            f"{1e3 * guess_s:.1f}",
            "",
            "",
            f"{guess_bytes / GIB:.1f}",
            "",
            f"{risk:.0%}",
        ]
        if end.failure is None and end.measurement is not None:
            step_s = statistics.median(end.measurement.step_times_s)
            peak = float(end.measurement.peak_memory_bytes or float("nan"))
            inside = (
                float(predicted.step_time_low_s[i])
                <= step_s
                <= float(predicted.step_time_high_s[i])
            )
            cells[2], cells[3], cells[5] = (
                f"{1e3 * step_s:.1f}",
                "yes" if inside else "no",
                f"{peak / GIB:.1f}",
            )
            speeds[config] = end.measurement.tokens_per_step / step_s
            errors.append((abs(guess_s / step_s - 1), abs(guess_bytes / peak - 1)))
        verdict = "measured" if end.failure is None else str(end.failure.kind)
        print(
            "| " + " | ".join([*cells, verdict, "-" if math.isnan(left) else f"{left:.2f}"]) + " |",
            flush=True,
        )
    if not speeds:
        return
    time_error, memory_error = np.median(np.asarray(errors), axis=0)
    print(
        f"\nmedian error: step time {time_error:.1%}, memory {memory_error:.1%}, {len(errors)} configs"
    )
    best = max(speeds, key=speeds.__getitem__)
    if configs[0] in speeds:
        print(
            f"best {best}: {speeds[best]:.0f} tokens/s, {speeds[best] / speeds[configs[0]]:.2f} times the fp32 default"
        )
    again = [run(runner, workload, best, 1000 + r).measurement for r in range(REPEATS)]
    steps = [1e3 * statistics.median(m.step_times_s) for m in again if m is not None]
    spread = (max(steps) - min(steps)) / statistics.median(steps)
    print(
        f"{REPEATS} repetitions of it: {', '.join(f'{s:.2f}' for s in steps)} ms, spread {spread:.1%} of the median"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["gpt2-medium", "llama-1b"])
    parser.add_argument("--configs", type=int, default=24)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--largest", type=int, default=128, help="micro-batch")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args(arguments)
    began_s = time.monotonic()
    with LocalRunner(max_ranks=1, device=args.device) as runner:
        for name in args.models:
            workload, space = workload_of(name, args.seq_len, args.largest)
            measure_model(runner, workload, picked(workload, space, args.configs))
    print(f"\n{time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
