"""Overhead of a trial beside its training steps: warm ranks against processes started by torchrun,
and memory over many trials.

    python -m tests.benchmarks.trial_overhead [--ranks 2] [--trials 100] [--cold 3]

overhead  wall time from `start` to the end of the attempt, minus the step times (warm-up included), s
cold      the same trial by `torchrun`: wall time of the command, minus the step times
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from autotune.ports import StepsReported
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.process.machine import status_bytes
from autotune_workers.runners.local import LocalRunner
from tests.workers.rank_pids import rank_pids
from tests.workers.requests import request

COLD = """
import json, os, torch, torch.distributed as dist
from autotune_workers.training.parallel.mesh import RankContext
from autotune_workers.training.run_trial import run_trial
from tests.workers.requests import request
dist.init_process_group("gloo")
times = []
size = dist.get_world_size()
run_trial(request(0, dp=size), RankContext(rank=dist.get_rank(), world_size=size, device=torch.device("cpu")),
          lambda step: times.append(step.time_s) or True)
if dist.get_rank() == 0:
    print(json.dumps(sum(times)))
dist.destroy_process_group()
"""


def warm_overheads(ranks: int, trials: int) -> tuple[list[float], list[list[int]]]:
    """Overhead of each trial, and the resident bytes of every rank and of this process after
    each."""
    overheads, memory = [], []
    with LocalRunner(max_ranks=ranks, device="cpu") as runner:
        for number in range(trials):
            asked = request(number, dp=ranks)
            began = time.perf_counter()
            runner.start(asked)
            events = events_until_ended(runner, [asked.id])
            wall = time.perf_counter() - began
            assert ended(events).failure is None, ended(events).failure
            steps = sum(t for e in events if isinstance(e, StepsReported) for t in e.step_times_s)
            overheads.append(wall - steps)
            memory.append(
                [status_bytes("VmRSS", pid) or 0 for pid in (*rank_pids(runner), os.getpid())]
            )
    return overheads, memory


def cold_overhead(ranks: int) -> float:
    """Overhead of the same trial under torchrun."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(root / "workers")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    script = root / "tests" / "benchmarks" / ".cold_trial.py"
    script.write_text(COLD)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        str(script),
    ]
    try:
        began = time.perf_counter()
        out = subprocess.run(
            command,
            env=environment,
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        return time.perf_counter() - began - float(json.loads(out.stdout.splitlines()[-1]))
    finally:
        script.unlink()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--cold", type=int, default=3)
    arguments = parser.parse_args()
    warm, memory = warm_overheads(arguments.ranks, arguments.trials)
    cold = [cold_overhead(arguments.ranks) for _ in range(arguments.cold)]
    middle, torchrun = statistics.median(warm[1:]), statistics.median(cold)
    print(
        f"ranks {arguments.ranks}, trials {arguments.trials}, load average {os.getloadavg()[0]:.1f}"
    )
    print(f"first trial (imports, forks)    {warm[0]:8.3f} s")
    print(f"warm trial, median              {middle:8.3f} s   (worst {max(warm[1:]):.3f})")
    print(
        f"torchrun, median of {arguments.cold}           {torchrun:8.3f} s   ratio {torchrun / middle:.0f}"
    )
    early = [sum(m[:-1]) for m in memory[: len(memory) // 4 + 1]][-1]
    print(
        f"resident memory of all ranks    {early / 2**20:8.1f} MiB after {len(memory) // 4 + 1} trials"
    )
    print(
        f"                                {sum(memory[-1][:-1]) / 2**20:8.1f} MiB after {len(memory)}"
    )
    print(
        f"resident memory of the runner   {memory[0][-1] / 2**20:8.1f} MiB -> {memory[-1][-1] / 2**20:.1f} MiB"
    )


if __name__ == "__main__":
    main()
