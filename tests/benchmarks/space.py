"""Time and memory to enumerate a space: `python -m tests.benchmarks.space`.

Each row runs in a process of its own, so that the peak memory is its own. The time is the best of
three.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

from autotune.schema import parse_space
from autotune.space import SearchSpace
from autotune.space.enumeration import choices_of
from autotune.spec import SpaceSpec, Workload, catalog

POWERS = tuple(1 << i for i in range(12))
WIDE = SpaceSpec(
    name="wide",
    knobs={
        "tp": POWERS[:4],
        "pp": POWERS[:7],
        "cp": POWERS[:4],
        "micro_batch_size": POWERS[:8],
        "precision": ("bf16", "fp8"),
        "recompute": ("none", "selective", "full"),
        "zero_stage": (0, 1, 2, 3),
        "sequence_parallel": (False, True),
        "pp_schedule": ("gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble"),
        "virtual_stages": (1, 2, 3, 4),
        "compile": (False, True),
    },
    world_sizes=(128, 256, 512, 1024),
)
CASES: dict[str, tuple[str, str, int, tuple[int, ...], SpaceSpec | None]] = {
    "laptop": ("nano-gpt", "cpu-1x4", 64, (16,), None),
    "dense-single-node": ("gpt2-medium", "h100-sxm-1x8", 1024, (512,), None),
    "dense-multi-node": ("llama-405b", "h100-sxm-2048x8", 8192, (2048,), None),
    "wide": ("llama-70b", "h100-sxm-128x8", 8192, (1024, 2048), WIDE),
}


def measure(name: str) -> dict[str, float]:
    """Lists the space three times; configs, combinations, seconds, peak memory in bytes, and
    seconds of one look-up."""
    import resource

    model, cluster, seq_len, batch, given = CASES[name]
    work = Workload(
        model=catalog.model(model),
        cluster=catalog.cluster(cluster),
        seq_len=seq_len,
        global_batch_size=batch,
    )
    spec = given or parse_space(name)
    seconds = math.inf
    for _ in range(3):
        start = time.perf_counter()
        space = SearchSpace.build(work, spec)
        seconds = min(seconds, time.perf_counter() - start)
    config = space[len(space) // 2]
    start = time.perf_counter()
    assert space.index_of(config) == len(space) // 2
    found_s = time.perf_counter() - start
    return {
        "configs": len(space),
        "combinations": math.prod(len(values) for values in choices_of(work, spec).values()),
        "seconds": seconds,
        "found_s": found_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Prints one row per space."""
    print("| space | configs | of combinations | listed in | peak memory | one look-up |")
    print("|---|---|---|---|---|---|")
    for name in CASES:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, name], capture_output=True, text=True, check=True
        )
        row = json.loads(done.stdout)
        print(
            f"| {name} | {row['configs']:,} | {row['combinations']:,} | {row['seconds'] * 1e3:,.1f} ms "
            f"| {row['peak_bytes'] / 2**20:,.0f} MiB | {row['found_s'] * 1e3:.2f} ms |"
        )


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1]))) if len(sys.argv) > 1 else main()
