"""The programs that accelerate starts train together on CPU ranks: the gradient of a step is that
of all their batches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from autotune.spec import ModelSpec, ParallelConfig, Workload, catalog
from autotune.trainers import trainer, write_launch

pytestmark = pytest.mark.slow

MODEL = ModelSpec(
    name="tiny",
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    vocab_size=256,
    ffn_hidden_size=128,
)
WORKLOAD = Workload(
    model=MODEL, cluster=catalog.cluster("cpu-1x2"), seq_len=32, global_batch_size=8
)
CONFIG = ParallelConfig(dp=2, micro_batch_size=2, accumulation_steps=2, precision="fp32")


def test_ranks_of_accelerate_exchange_their_gradients(tmp_path: Path) -> None:
    steps = [
        json.loads(line) for line in output_of("accelerate", tmp_path) if line.startswith('{"step"')
    ]
    assert [step["step"] for step in steps] == [0, 1]
    assert steps[0]["grad_norm"] == pytest.approx(gradient_norm(tmp_path, seed=7), rel=1e-4)


def test_ranks_of_transformers_share_the_data(tmp_path: Path) -> None:
    """The data are as many sequences as all ranks train on: alone, a rank would see half of
    them."""
    epochs = re.findall(r"'epoch': '?([0-9.]+)", "".join(output_of("hf_trainer", tmp_path)))
    assert [float(epoch) for epoch in epochs][-1] == 1.0


def output_of(name: str, folder: Path) -> list[str]:
    """What two ranks print of two steps, by line."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    write_launch(trainer(name).launch(WORKLOAD, CONFIG, {"steps": 2, "seed": 7}), folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "launch.sh"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(keepends=True)


def gradient_norm(folder: Path, *, seed: int) -> float:
    """That of the first step, of all ranks' batches in one process."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    set_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    for rank in range(CONFIG.dp):
        batches = _module(folder / "batches.py").Batches(
            "", vocab_size=256, seq_len=32, batch_size=CONFIG.micro_batch_size, rank=rank, seed=seed
        )
        for _ in range(CONFIG.accumulation_steps):
            ids = batches.next("cpu")
            (
                model(input_ids=ids, labels=ids).loss / (CONFIG.dp * CONFIG.accumulation_steps)
            ).backward()
    return float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def _module(path: Path) -> Any:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
