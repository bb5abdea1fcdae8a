"""An exported native launch really trains, with torchrun on two CPU ranks, and its log is read
back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.spec import Measurement, ModelSpec, ParallelConfig, Workload
from autotune.spec.catalog import cluster_of
from autotune.trainers import trainer, write_launch
from autotune_workers.launch import main
from tests.workers.processes import CHECKOUT_PATH

pytestmark = pytest.mark.alone

WORKLOAD = Workload(
    model=ModelSpec(
        name="tiny",
        num_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        vocab_size=256,
        gated_mlp=True,
    ),
    cluster=cluster_of("cpu", num_nodes=1, gpus_per_node=2),
    seq_len=32,
    global_batch_size=4,
)
WORKERS = Path(__file__).resolve().parents[2]


def test_it_trains_with_torchrun(tmp_path: Path) -> None:
    config = ParallelConfig(tp=2, micro_batch_size=2, accumulation_steps=2, precision="fp32")
    native = trainer("native")
    launch = native.launch(WORKLOAD, config, {"steps": 3})
    write_launch(launch, tmp_path)
    assert launch.argv[0] == "torchrun"
    environment = {
        **os.environ,
        **launch.env,
        "PYTHONPATH": os.pathsep.join([CHECKOUT_PATH, os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *launch.argv[1:]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [metrics for line in done.stdout.splitlines() if (metrics := native.parse_line(line))]
    assert [metrics.step for metrics in steps] == [0, 1, 2, 3, 4]  # two of them warm up
    assert all(metrics.loss is not None and 0 < metrics.loss < 8 for metrics in steps)
    assert native.parse_line(done.stdout.splitlines()[-1]) is None
    result = json.loads(done.stdout.splitlines()[-1])["result"]
    measurement = Measurement.from_dict(json.loads((tmp_path / "measurement.json").read_text()))
    assert (measurement.num_ranks, len(measurement.step_times_s)) == (2, 3)
    assert (result["steps"], result["tokens_per_s"]) == (3, measurement.tokens_per_s)
    assert len(json.dumps(result)) < 400


def test_wrong_requests_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json")]) == 2
    (tmp_path / "bad.json").write_text('{"workload": 3}')
    assert main([str(tmp_path / "bad.json")]) == 2
    assert "is not an exported request" in capsys.readouterr().err


def test_wrong_ranks_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = trainer("native").launch(WORKLOAD, ParallelConfig(dp=2, micro_batch_size=2))
    write_launch(launch, tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert main([str(tmp_path / "request.json")]) == 2
    assert (
        "the config needs tp * pp * dp * cp = 2 ranks, but torchrun started 3"
        in capsys.readouterr().err
    )
