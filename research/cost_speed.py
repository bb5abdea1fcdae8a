"""Time of a million estimates: `python -m research.cost_speed`, and with values drawn for every
knob: `--all-knobs`."""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from autotune.cost import estimate
from autotune.spec import KNOBS, ConfigTable, Workload, catalog

ROWS = 1_000_000


def main() -> None:
    """Prints CPU seconds of one core and the process's peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--all-knobs",
        action="store_true",
        help="draw values of every knob, not only of degrees and counts",
    )
    every = parser.parse_args().all_knobs
    rng = np.random.default_rng(0)
    knobs = ("tp", "pp", "dp", "micro_batch_size", "accumulation_steps")
    columns = {name: 2 ** rng.integers(0, 4, ROWS) for name in knobs}
    if every:
        columns |= {n: rng.integers(0, len(k.values), ROWS) for n, k in KNOBS.items() if k.values}
        columns |= {"cp": 2 ** rng.integers(0, 2, ROWS), "virtual_stages": rng.integers(1, 3, ROWS)}
    table = ConfigTable(columns)
    workload = Workload(
        model=catalog.model("llama-8b"),
        cluster=catalog.cluster("h100-sxm-512x8"),
        seq_len=4096,
        global_batch_size=256,
        trainer="nanotron",
    )
    best = min(_seconds(workload, table) for _ in range(3))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{ROWS:,} configs: {best:.2f} s of one core, {peak / 2**20:.0f} MiB at the peak of the process"
    )


def _seconds(workload: Workload, table: ConfigTable) -> float:
    start = time.process_time()
    estimate(workload, table)
    return time.process_time() - start


if __name__ == "__main__":
    main()
