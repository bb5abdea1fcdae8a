"""How soon a study goes on after SIGKILL of its controller: from the start of `tune` on the same spec to the next trial's start.

    python -m tests.benchmarks.recovery [REPEATS]

The killed controller is a process of its own on this machine, with its study in an SQLite file and the simulated runner.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autotune import wiring
from autotune.progress import LoopEvent, StudyOpened, TrialStarted

SPEC = {
    "name": "recovery",
    "model": "gpt2-medium",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 64},
    "space": {"tp": [1, 2, 4], "pp": [1, 2], "micro_batch_size": [1, 2, 4, 8], "precision": ["fp32", "bf16"]},
    "budget": {"max_trials": 10, "min_gain": 0},
    "searcher": "bayesian",
    "runner": {"kind": "simulated", "time_scale": 0.05},
}
CHILD = """
import json, sys
from autotune import wiring
wiring.tune(json.loads(sys.argv[1]), store=sys.argv[2], on_event=lambda e: print(type(e).__name__, flush=True))
"""


def once(folder: Path) -> tuple[float, float]:
    """Kills a controller in its fifth trial; seconds to (the study being open again, the next trial's start)."""
    url, spec = str(folder / "results.db"), json.dumps(SPEC)
    child = subprocess.Popen([sys.executable, "-c", CHILD, spec, url], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        started = 0
        while started < 5:
            started += child.stdout.readline().startswith("TrialStarted")
    finally:
        child.kill()
        child.wait()
    began, seen = time.monotonic(), dict[type, float]()

    def hear(event: LoopEvent) -> None:
        seen.setdefault(type(event), time.monotonic() - began)

    wiring.tune(SPEC, store=url, on_event=hear)
    return seen[StudyOpened], seen[TrialStarted]


def main() -> None:
    """Prints the table."""
    rows = []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(once(Path(folder)))
    opened, started = zip(*rows, strict=True)
    print("| from `tune` to | median | worst |\n|---|---|---|")
    print(f"| study claimed, read and replayed | {statistics.median(opened):.2f} s | {max(opened):.2f} s |")
    print(f"| next trial started | {statistics.median(started):.2f} s | {max(started):.2f} s |")


if __name__ == "__main__":
    main()
