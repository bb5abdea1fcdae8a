"""A pattern and a line that would keep a backtracking matcher busy for years: the study ends, and
Ctrl-C ends it while it reads them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.thorough

PATTERN = "a?" * 40 + "a" * 40 + "(b)"
PROGRAM = """
import sys, time
for step in range(6):
    print("a" * 400, flush=True)
    print("t 0.1", flush=True)
    time.sleep(0.02)
open("printed", "w").close()
time.sleep(600 if "wait" in sys.argv[1] else 0)
"""


def study_of(folder: Path, *, then: str) -> Path:
    """A spec whose program logs crafted lines, and then ends or waits."""
    spec: dict[str, Any] = {
        "name": "crafted",
        "model": "nano-gpt",
        "cluster": "cpu-1x1",
        "workload": {"seq_len": 64, "global_batch_size": 8},
        "space": {"world_sizes": [1], "micro_batch_size": [8], "precision": ["fp32"]},
        "runner": "local",
        "budget": {"max_trials": 1, "max_wall_s": 300},
        "measure": {
            "warmup_steps": 1,
            "min_steps": 3,
            "max_steps": 6 if then == "end" else 50,
            "final_rounds": 1,
        },
        "searcher": "random",
        "check": False,
        "calibrate": False,
        "trainer": {
            "kind": "command",
            "argv": [
                sys.executable,
                "program.py",
                then,
                "{micro_batch_size}",
                "{accumulation_steps}",
            ],
            "metrics": {"step": PATTERN, "step_time_s": "t ([0-9.]+)"},
        },
    }
    folder.joinpath("program.py").write_text(PROGRAM)
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def tune(spec: Path) -> subprocess.Popen[str]:
    """`autotune tune` in a process of its own."""
    autotune = str(Path(sys.executable).with_name("autotune"))
    command = [autotune, "tune", str(spec), "--json", f"--store={spec.with_name('store.db')}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_study_with_a_crafted_line_in_its_log_ends(tmp_path: Path) -> None:
    out, errors = tune(study_of(tmp_path, then="end")).communicate(timeout=900)
    document = json.loads(out)
    assert document["study"]["status"] == "COMPLETED", errors
    assert document["best"]["measurement"]


def test_ctrl_c_ends_a_study_whose_log_has_a_crafted_line(tmp_path: Path) -> None:
    process = tune(study_of(tmp_path, then="wait"))
    try:
        until = time.monotonic() + 900
        while not (tmp_path / "printed").exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=900)
    finally:
        process.kill()
    assert json.loads(out)["study"]["status"] == "PAUSED"
