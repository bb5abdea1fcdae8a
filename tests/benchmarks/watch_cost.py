"""What watching a rank costs it, in processor time, which does not depend on what else the machine
does.

python -m tests.benchmarks.watch_cost

borders    of phases: two for each of data, forward, backward and optimizer in a step of one micro-batch, and the sums at its end
beside     the thread that looks, reads counters and reports, per second of training
"""

from __future__ import annotations

import tempfile
import time

import torch

from autotune_workers.probe.injected.channel import Channel
from autotune_workers.probe.injected.phases import BACKWARD, DATA, FORWARD, OPTIMIZER, Phases
from autotune_workers.probe.injected.watch import Watch

STEPS, SECONDS = 2000, 10.0


def main() -> None:
    """Prints both."""
    phases = Phases()
    phases.begin()
    began_s = time.thread_time()
    for _ in range(STEPS):
        for phase in (DATA, FORWARD, BACKWARD, OPTIMIZER):
            phases.enter(phase)
            phases.leave(phase)
        phases.take()
    border_s = (time.thread_time() - began_s) / STEPS
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(phases, Channel(folder), torch)
        began_s = time.process_time()
        watch.start()
        time.sleep(SECONDS)
        beside = (time.process_time() - began_s) / SECONDS
        watch.end()
    print(f"borders: {border_s * 1e6:.0f} us a step; beside: {beside:.2%} of a core")


if __name__ == "__main__":
    main()
