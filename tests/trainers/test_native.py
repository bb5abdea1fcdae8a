"""The native loop: its request, and what CPU ranks cannot do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import pytest

from autotune.errors import ExportError
from autotune.spec import ParallelConfig
from autotune.spec.catalog import cluster_of
from autotune.testing.trainers import WORKLOAD, TrainerContract
from autotune.trainers import StepMetrics, trainer


class TestNative(TrainerContract):
    trainer = "native"
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        '{"step": 3, "step_time_s": 0.41, "loss": 2.31, "grad_norm": 0.8}': StepMetrics(
            step=3, step_time_s=0.41, loss=2.31, grad_norm=0.8
        ),
        "hello": None,
    }

    def test_the_request_says_everything(self) -> None:
        launch = self.launched(dp=8, micro_batch_size=2, zero_stage=2)
        request = json.loads(launch.files["request.json"])
        assert ParallelConfig.from_dict(request["config"]).zero_stage == 2
        assert request["workload"]["model"]["ffn_hidden_size"] == 2816
        assert request["measure"]["max_steps"] == 50
        assert launch.argv[-3:] == ("-m", "autotune_workers.launch", "request.json")

    def test_cpu_ranks_have_no_fp8(self) -> None:
        laptop = replace(WORKLOAD, cluster=cluster_of("cpu", num_nodes=1, gpus_per_node=4))
        with pytest.raises(ExportError, match="precision=fp8"):
            trainer("native").launch(laptop, ParallelConfig(dp=4, micro_batch_size=16, precision="fp8"))
        launch = trainer("native").launch(laptop, ParallelConfig(dp=4, micro_batch_size=16))
        assert launch.env == {"OMP_NUM_THREADS": "1"}
