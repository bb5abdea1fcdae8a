"""A GRPO loop of TRL on a CPU, unmodified, from its review to the launch of its tuned config: real
trainings.

TRL is no dependency of this package: the test runs where the tests' own Python has it (`pip install
trl datasets`), and is left out elsewhere.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import cli

SCRIPT = Path(__file__).parent / "trainers" / "data" / "grpo_tiny.py"
RUN = """#!/usr/bin/env bash
python grpo_tiny.py --output_dir outputs --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --num_generations 4 \\
    --max_completion_length 24 --max_steps 20 --learning_rate 1e-5 --logging_steps 1 --report_to none --save_strategy no --use_cpu true --bf16 false --disable_tqdm true
"""


def command(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    code = cli.run(list(words))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out if "--json" in words else captured.out + captured.err


@pytest.mark.slow
@pytest.mark.thorough
def test_a_grpo_loop_is_tuned_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_STORE", f"sqlite:///{tmp_path / 'results.db'}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copy(SCRIPT, tmp_path)
    before = SCRIPT.read_bytes()
    (tmp_path / "run.sh").write_text(RUN, encoding="utf-8")
    said = command(
        capsys,
        "review",
        "run.sh",
        "--model",
        "nano-llama",
        "--cluster",
        "cpu-1x1",
        "--seq-len",
        "64",
    )
    assert "micro_batch_size=2" in said or "mb2" in said
    assert "recompute=full repeats the forward pass" in said
    command(
        capsys, "init", "run.sh", "--cluster", "local", "--model", "nano-llama", "-o", "spec.yaml"
    )
    document: dict[str, Any] = yaml.safe_load((tmp_path / "spec.yaml").read_text(encoding="utf-8"))
    document["workload"]["seq_len"] = 64
    document["space"] |= {"micro_batch_size": [2, 4, 16], "precision": ["fp32"], "compile": [False]}
    document["trainer"]["python"] = sys.prefix
    document["budget"] = {"max_trials": 2, "max_wall_s": 3000}
    document["measure"] = {
        "warmup_steps": 1, "min_steps": 3, "max_steps": 5, "finalists": 1, "final_rounds": 1, "start_timeout_s": 900, "trial_timeout_s": 1800, "step_timeout_s": 600,
    }  # fmt: skip
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    found = json.loads(command(capsys, "tune", "spec.yaml", "--json"))
    assert found["study"]["status"] == "COMPLETED"
    assert found["baseline"]["config"]["recompute"] == "full"
    assert found["baseline"]["measurement"]["step_times_s"]
    assert found["best"]["measurement"]["losses"]
    assert (
        found["study"]["trials"]["COMPLETED"] + found["study"]["trials"].get("STOPPED", 0) >= 3
    )  # the default and two that were searched
    command(capsys, "export", "run", "--to", "command", "-o", "launch")
    launch = (tmp_path / "launch" / "launch.sh").read_text(encoding="utf-8")
    assert "grpo_tiny.py" in launch
    assert "--num_generations=4" in launch
    assert "--per_device_train_batch_size=" in launch
    assert (tmp_path / "grpo_tiny.py").read_bytes() == before
