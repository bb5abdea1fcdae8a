"""Specs of studies whose program is a few lines of Python, on the `local` runner's CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

PROGRAM = """\
import sys, time
steps = int(sys.argv[1].partition("=")[2])
print("loading data", flush=True)
for step in range(steps):
    time.sleep(0.01)
    print(f"iter {step}: loss {10 - step / 10:.2f}, time 10.{step:02}ms", flush=True)
"""
PATTERNS = {"step": "iter ([0-9]+)", "step_time_ms": "time ([0-9.]+)ms", "loss": "loss ([0-9.]+)"}
SHORT = {
    "warmup_steps": 1,
    "first_look": 0,
    "min_steps": 3,
    "max_steps": 3,
    "finalists": 0,
    "final_rounds": 0,
}


def program_spec(folder: Path, program: str = PROGRAM, **trainer: Any) -> dict[str, Any]:
    """The spec, as a mapping; the program is written into the folder."""
    script = folder / "train.py"
    script.write_text(program)
    argv = [
        sys.executable,
        str(script),
        "--steps={steps}",
        "--batch={micro_batch_size}",
        "--accum={accumulation_steps}",
    ]
    return {
        "name": "program",
        "model": "nano-gpt",
        "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 1},
        "workload": {"seq_len": 64, "global_batch_size": 4},
        "space": {"micro_batch_size": [1, 2], "precision": ["fp32"]},
        "budget": {"max_trials": 1, "min_gain": 0},
        "measure": SHORT,
        "searcher": "grid",
        "runner": {"kind": "local", "device": "cpu"},
        "trainer": {"kind": "command", "argv": argv, "metrics": PATTERNS, "counts": "steps"}
        | trainer,
    }
