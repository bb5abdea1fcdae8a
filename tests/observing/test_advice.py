"""One line in Python: advice on a training by the object that runs it, and a callback that keeps
the run. Errors of ours are warnings."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import nn

import autotune
from autotune.spec import FailureKind, ObservedRun, Outcome
from autotune.store import open_store
from tests.observing import programs

LONG_S = 600.0


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(512, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(64, 512)


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AUTOTUNE_STORE", raising=False)
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path / "home"))


def test_a_module_is_reviewed_by_its_own_parameters(capfd: pytest.CaptureFixture[str]) -> None:
    model = Decoder()
    found = autotune.advise(model, batch=4, seq_len=32)
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert found.study.workload.model.num_parameters == pytest.approx(weights, rel=0.05)
    assert found.study.workload.seq_len == 32
    assert (
        found.config.micro_batch_size,
        found.config.global_batch_size,
        found.config.precision,
    ) == (4, 4, "fp32")
    said = capfd.readouterr()
    assert said.out == ""
    assert 3 <= len(said.err.splitlines()) <= 5
    assert all(line.startswith("autotune: ") for line in said.err.splitlines())


def test_an_accelerator_and_a_mesh_are_reviewed_with_their_model() -> None:
    from accelerate import Accelerator
    from torch.distributed.device_mesh import DeviceMesh

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    found = autotune.advise(accelerator, Decoder(), batch=2, seq_len=32)
    assert (found.config.micro_batch_size, found.config.accumulation_steps) == (2, 4)
    mesh = DeviceMesh(
        "cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"), _init_backend=False, _rank=0
    )
    found = autotune.advise(mesh, Decoder(), batch=2, seq_len=32)
    assert (found.config.dp, found.config.tp) == (2, 2)


def test_what_is_not_known_is_asked_for_and_no_mistake_reaches_the_training(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.warns(RuntimeWarning, match="say seq_len="):
        assert autotune.advise(Decoder(), batch=4) is None
    with warnings.catch_warnings(action="error"):
        assert autotune.advise(Decoder(), batch=4) is None
        assert autotune.advise(object()) is None
        assert autotune.advise(Decoder(), batch=4, seq_len=32, cluster="h100-sxm-1x") is None
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 3
    assert "say seq_len=" in said[0]
    assert all("training is not affected" in line for line in said)


def test_other_ranks_are_silent(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert autotune.advise(object()) is None
    assert capfd.readouterr().err == ""


def test_the_callback_can_be_sent_to_other_processes() -> None:
    sent = pickle.loads(pickle.dumps(autotune.AutotuneCallback(seq_len=8)))
    assert isinstance(sent, autotune.AutotuneCallback)
    assert sent._options["seq_len"] == 8


def trained(
    program: str, folder: Path, *, store: bool = True
) -> tuple[list[ObservedRun], str, int]:
    (folder / "train.py").write_text(program)
    address = folder / "results.db"
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    if store:
        environment["AUTOTUNE_STORE"] = str(address)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=LONG_S, check=False
    )  # fmt: skip
    runs = []
    if address.exists():
        with closing(open_store(address)) as opened:
            runs = opened.observed()
    return runs, done.stderr, done.returncode


def ours(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("autotune: ")]


def with_callback(program: str, before: str) -> str:
    """The stock script with one more argument, and the import."""
    assert before in program
    callback = "callbacks=[__import__('autotune').AutotuneCallback()]"
    return program.replace(before, f"{before[:-1]}, {callback})")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "line"),
    [
        (programs.HF_TRAINER, "Trainer(model=model, args=args, train_dataset=Tokens())"),
        (programs.LIGHTNING, "enable_checkpointing=False)"),
        (programs.LIGHTNING_OF_ITEMS, "enable_checkpointing=False)"),
    ],
    ids=["transformers", "lightning", "lightning, length of the first batch"],
)
def test_one_line_in_a_stock_script_prints_the_review_and_keeps_the_run(
    program: str, line: str, tmp_path: Path
) -> None:
    runs, err, code = trained(with_callback(program, line), tmp_path)
    assert code == 0
    (run,) = runs
    assert (run.program, run.outcome) == ("train.py", Outcome.COMPLETED)
    assert run.config.micro_batch_size == 4
    assert run.step_time_s is not None
    assert run.measurement.tokens_per_step == 4 * 32
    assert run.versions["torch"] == torch.__version__
    said = ours(err)
    assert any("predicted: " in each for each in said)
    assert f"stored as observed run {run.id}" in said[-1]
    (tmp_path / "again").mkdir()
    none, err, code = trained(with_callback(program, line), tmp_path / "again", store=False)
    assert (none, code) == ([], 0)
    assert "measured: " in err
    assert "kept" not in err


@pytest.mark.thorough
def test_lengths_are_those_of_the_batches_and_not_the_models_maximum(tmp_path: Path) -> None:
    whole = programs.HF_TRAINER.replace("n_positions=32", "n_positions=256")
    assert whole != programs.HF_TRAINER
    line = "Trainer(model=model, args=args, train_dataset=Tokens())"
    (run,), err, code = trained(with_callback(whole, line), tmp_path)
    assert code == 0
    assert (run.workload.seq_len, run.measurement.tokens_per_step) == (32, 4 * 32)
    assert not any("assumed: sequences" in each for each in ours(err))


@pytest.mark.thorough
def test_a_run_whose_sequences_are_shorter_than_reviewed_is_compared_with_what_was_trained(
    tmp_path: Path,
) -> None:
    line = "Trainer(model=model, args=args, train_dataset=Tokens())"
    program = with_callback(programs.HF_TRAINER, line).replace("()]", "(seq_len=64)]")
    (run,), err, code = trained(program.replace("n_positions=32", "n_positions=256"), tmp_path)
    assert code == 0
    assert (run.workload.seq_len, run.measurement.tokens_per_step) == (32, 4 * 32)
    # a progress bar may have left its line open
    assert "autotune: sequences had 32 tokens on average, not the 64 that were reviewed" in err


@pytest.mark.thorough
def test_a_training_that_runs_out_of_memory_is_kept_as_such(tmp_path: Path) -> None:
    failing = programs.HF_TRAINER.replace("tokens = torch.randint(0, 128, (32,))", "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')")  # fmt: skip
    runs, err, code = trained(
        with_callback(failing, "Trainer(model=model, args=args, train_dataset=Tokens())"), tmp_path
    )
    assert code == 1
    (run,) = runs
    assert run.outcome is Outcome.FAILED
    assert run.failure.kind is FailureKind.OUT_OF_MEMORY
    assert "Tried to allocate" in run.failure.evidence
    assert json.dumps(run.to_dict())
    assert "out of memory" in ours(err)[-1]
