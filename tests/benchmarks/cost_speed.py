"""Time of a million estimates: `python -m tests.benchmarks.cost_speed`."""

from __future__ import annotations

import resource
import time

import numpy as np

from autotune.cost import estimate
from autotune.spec import ConfigTable, Workload, catalog

ROWS = 1_000_000


def main() -> None:
    """Prints CPU seconds of one core and the process's peak memory."""
    rng = np.random.default_rng(0)
    knobs = ("tp", "pp", "dp", "micro_batch_size", "accumulation_steps")
    table = ConfigTable({name: 2 ** rng.integers(0, 4, ROWS) for name in knobs})
    workload = Workload(
        model=catalog.model("llama-8b"),
        cluster=catalog.cluster("h100-sxm-512x8"),
        seq_len=4096,
        global_batch_size=256,
        trainer="nanotron",
    )
    best = min(_seconds(workload, table) for _ in range(3))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{ROWS:,} configs: {best:.2f} s of one core, {peak / 2**20:.0f} MiB at the peak of the process")


def _seconds(workload: Workload, table: ConfigTable) -> float:
    start = time.process_time()
    estimate(workload, table)
    return time.process_time() - start


if __name__ == "__main__":
    main()
