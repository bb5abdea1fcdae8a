"""The native loop: its request, and what CPU ranks cannot do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from autotune.errors import ExportError
from autotune.spec import ParallelConfig
from autotune.spec.catalog import cluster_of
from autotune.spec.lengths import Lengths
from autotune.spec.post_training import PostTraining, Rollout
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

    @pytest.mark.parametrize(
        ("config", "rl", "words"),
        [
            ({"pp": 2}, {}, "pp=2: a pipeline's stages send tensors of a fixed shape"),
            ({"cp": 2}, {}, "cp=2: sequences are cut into equal chunks"),
            ({"compile": True}, {}, "compile=true: layers are compiled for a fixed shape"),
            ({"precision": "fp8"}, {}, "precision=fp8: matrix products in fp8"),
            ({"extra": {"phase_offload": "all"}}, {}, "phase_offload=all"),
            ({"micro_batch_size": 2}, {}, "an optimizer step of this workload has 8 sequences"),
            ({}, {"phase_offload": "optimizer"}, "phase_offload=optimizer"),
            ({}, {"algorithm": "ppo", "critic": WORKLOAD.model}, "the loop trains only one model"),
        ],
    )
    def test_what_the_trainers_phases_cannot_do_is_refused(
        self, config: dict[str, Any], rl: dict[str, Any], words: str
    ) -> None:
        values: dict[str, Any] = {
            "algorithm": "grpo", "prompts": 4, "responses": 2, "prompt_lengths": Lengths(values=(9.0,)), "response_lengths": Lengths(values=(90.0,)),
            "rollout": Rollout(tokens_per_s_per_gpu=((1, 100.0),)), **rl,
        }  # fmt: skip
        asked = PostTraining(**values)
        workload = replace(WORKLOAD, rl=asked, global_batch_size=8)
        limits = trainer("native").limits(
            workload, ParallelConfig(**{"accumulation_steps": 8, **config})
        )
        assert words in "; ".join(map(str, limits))
        fine = replace(
            workload, rl=replace(asked, algorithm="grpo", critic=None, phase_offload="none")
        )
        assert not trainer("native").limits(
            fine, ParallelConfig(accumulation_steps=8, extra={"micro_batch_tokens": 512})
        )

    def test_a_knob_of_unequal_lengths_needs_them(self) -> None:
        limits = trainer("native").limits(WORKLOAD, ParallelConfig(extra={"balance": "none"}))
        assert "all sequences have seq_len tokens" in "; ".join(map(str, limits))

    def test_cpu_ranks_have_no_fp8(self) -> None:
        laptop = replace(WORKLOAD, cluster=cluster_of("cpu", num_nodes=1, gpus_per_node=4))
        with pytest.raises(ExportError, match="precision=fp8"):
            trainer("native").launch(
                laptop, ParallelConfig(dp=4, micro_batch_size=16, precision="fp8")
            )
        launch = trainer("native").launch(laptop, ParallelConfig(dp=4, micro_batch_size=16))
        assert launch.env == {"OMP_NUM_THREADS": "1"}
