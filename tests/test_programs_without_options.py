"""Programs that set everything in their own text, from the file to the launch of the tuned config:
real processes. Their files stay as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import cli

PLAIN = """
import time
import numpy as np

BATCH_SIZE = 4
ACCUMULATION_STEPS = 2
max_steps = 100000
weights = np.eye(64)
for step in range(max_steps):
    start = time.perf_counter()
    for _ in range(ACCUMULATION_STEPS):
        batch = np.ones((64 * BATCH_SIZE, 64))
        error = batch - np.tanh(batch @ weights)
        weights = weights + 1e-9 * batch.T @ error
    print(f"step {step} loss {np.mean(error**2):.4f} time {time.perf_counter() - start:.5f} s", flush=True)
"""
HUGGING_FACE = """
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        ids = torch.randint(0, 256, (64,))
        return {"input_ids": ids, "labels": ids}


model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4))
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=100, use_cpu=True, report_to="none"
)
Trainer(model=model, args=args, train_dataset=Tokens()).train()
"""
LIGHTNING = """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]).flatten(0, 1), batch[0].flatten())
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = TensorDataset(torch.randint(0, 256, (4096, 64)))
train = DataLoader(data, batch_size=4, shuffle=True)
test = DataLoader(data, batch_size=64)
L.Trainer(accelerator="cpu", devices=2, max_epochs=100, accumulate_grad_batches=2).fit(Net(), train)
"""


def _said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    code = cli.run(list(words))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "cluster", "places"),
    [
        pytest.param(PLAIN, "cpu-1x1", {"BATCH_SIZE", "ACCUMULATION_STEPS"}, id="constants"),
        pytest.param(
            HUGGING_FACE,
            "cpu-1x2",
            {
                "TrainingArguments.per_device_train_batch_size",
                "TrainingArguments.gradient_accumulation_steps",
            },
            id="transformers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            LIGHTNING,
            "cpu-1x2",
            {"DataLoader:23.batch_size", "Trainer.accumulate_grad_batches", "Trainer.devices"},
            id="Lightning",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_program_is_tuned_as_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    cluster: str,
    places: set[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_STORE", f"sqlite:///{tmp_path / 'results.db'}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "train.py").write_text(text)
    _said(
        capsys, "init", "train.py", "--cluster", cluster, "--model", "nano-gpt", "-o", "study.yaml"
    )
    document: dict[str, Any] = yaml.safe_load((tmp_path / "study.yaml").read_text())
    assert places <= document["trainer"]["overrides"]["train.py"].keys()
    document["workload"]["seq_len"] = 64
    document["space"] |= {
        "micro_batch_size": [4, 8],
        "precision": ["fp32"],
        "recompute": ["none"],
        "compile": [False],
    }
    document["trainer"]["python"] = sys.prefix
    document["budget"] = {"max_trials": 1, "min_gain": 0}
    document["measure"] = {
        "warmup_steps": 1,
        "min_steps": 3,
        "max_steps": 5,
        "finalists": 1,
        "final_rounds": 1,
        "start_timeout_s": 900,
        "trial_timeout_s": 1800,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    found = json.loads(_said(capsys, "tune", "study.yaml", "--json"))
    assert found["study"]["status"] == "COMPLETED"
    assert sum(found["study"]["trials"].values()) >= 3, (
        "the baseline, a config that was searched, a final"
    )
    assert not {"FAILED", "OOM"} & found["study"]["trials"].keys()
    assert found["best"]["measurement"]["step_times_s"]
    assert (tmp_path / "train.py").read_text() == text
    left = {path.name for path in tmp_path.iterdir()} - {"train.py", "study.yaml", "home"}
    assert not [name for name in left if not name.startswith("results.db")], (
        "trials write into their own folders"
    )
    _said(capsys, "export", "train", "--to", "command", "-o", "launch")
    script = (tmp_path / "launch" / "launch.sh").read_text()
    assert 'train.py "$@"' in script
    assert all(place in (tmp_path / "launch" / "train.py").read_text() for place in places)
    if text is LIGHTNING:
        return  # what it prints is a bar, which shows nothing in a pipe
    first = subprocess.Popen(
        ["bash", "launch/launch.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with first:
        assert first.stdout is not None
        try:
            assert any(word in line for line in first.stdout for word in ("loss", "Epoch 0:")), (
                "the exported launch trains"
            )
        finally:
            subprocess.run(["pkill", "-f", str(tmp_path / "launch")], check=False)
            first.kill()
