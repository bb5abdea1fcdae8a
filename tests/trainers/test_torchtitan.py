"""torchtitan: the job file and the model's module, what it refuses, and its log."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from autotune.errors import ExportError
from autotune.spec import ParallelConfig
from autotune.testing.trainers import GPT, MODEL, WORKLOAD, TrainerContract
from autotune.trainers import Launch, StepMetrics, trainer

OPTIONS = {"hf_assets_path": "/tok"}
LINE = (
    "[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  "
    "memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
)
COLOURED = (
    "[titan] 2026-02-24 19:46:17,508 - root - INFO - \x1b[31mstep:  4  \x1b[32mloss:  7.62585  \x1b[38;2;180;60;0mgrad_norm: 26.6250  "
    "\x1b[36mmemory: 66.91GiB(37.51%)  \x1b[34mtps: 10,050  \x1b[36mtflops: 314.71  \x1b[35mmfu: 13.99%\x1b[39m"
)


def job(launch: Launch) -> dict[str, Any]:
    """The job file, read as torchtitan reads it."""
    return tomllib.loads(launch.files["torchtitan.toml"])


class TestTorchtitan(TrainerContract):
    trainer = "torchtitan"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"parallelism": {"tensor_parallel_degree": 2}}
    options: ClassVar[dict[str, Any]] = OPTIONS
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        LINE: StepMetrics(
            step=14, loss=3.24405, grad_norm=0.8319, peak_memory_bytes=9.46 * 2**30, tokens_per_s_per_gpu=7282.0
        ),
        COLOURED: StepMetrics(
            step=4, loss=7.62585, grad_norm=26.625, peak_memory_bytes=66.91 * 2**30, tokens_per_s_per_gpu=10050.0
        ),
        "[titan] - root - INFO - validate step: 10  loss:  3.1  memory:  9.46GiB(64.99%)  tps: 7,282": None,
        "[titan] 2026-05-18 16:04:40,000 - root - INFO - Applied FSDP to the model": None,
    }

    def test_a_pipeline_takes_the_whole_batch_as_local(self) -> None:
        launch = self.launched(tp=2, pp=2, dp=2, micro_batch_size=2, zero_stage=3, sequence_parallel=True)
        document = job(launch)
        assert document["training"]["local_batch_size"] == 32
        assert document["training"]["global_batch_size"] == 64
        assert document["parallelism"]["pipeline_parallel_microbatch_size"] == 2
        assert document["parallelism"]["pipeline_parallel_schedule"] == "1F1B"
        assert document["parallelism"]["fsdp_reshard_after_forward"] == "always"
        assert document["parallelism"]["data_parallel_shard_degree"] == 2

    def test_without_a_pipeline_accumulation_follows(self) -> None:
        document = job(self.launched(dp=8, micro_batch_size=2, zero_stage=2, recompute="full", compile=True))
        assert document["training"]["local_batch_size"] == 2
        assert document["training"]["global_batch_size"] == 64
        assert document["parallelism"]["fsdp_reshard_after_forward"] == "never"
        assert document["activation_checkpoint"]["mode"] == "full"
        assert document["compile"]["enable"] is True
        assert document["training"]["mixed_precision_param"] == "bfloat16"

    def test_plain_data_parallelism_is_ddp(self) -> None:
        parallelism = job(self.launched(dp=8))["parallelism"]
        assert (parallelism["data_parallel_replicate_degree"], parallelism["data_parallel_shard_degree"]) == (8, 1)

    def test_fp8_converts_the_linear_layers(self) -> None:
        document = job(self.launched(dp=8, zero_stage=2, precision="fp8"))
        assert document["model"]["converters"] == ["quantize.linear.float8"]
        assert document["quantize"]["linear"]["float8"]["recipe_name"] == "tensorwise"

    @pytest.mark.parametrize(("stages", "layers"), [(2, None), (4, 2), (8, 1)])
    def test_virtual_stages_cut_the_layers(self, stages: int, layers: int | None) -> None:
        launch = self.launched(
            pp=2, dp=4, micro_batch_size=2, zero_stage=2, pp_schedule="interleaved_1f1b", virtual_stages=stages
        )
        assert job(launch)["parallelism"].get("pipeline_parallel_layers_per_stage") == layers

    @pytest.mark.parametrize("ffn", [2816, 14336, 64, 4097, 11008, 5461, 53248])
    @pytest.mark.parametrize("hidden", [1024, 4096, 5120, 96])
    def test_the_feed_forward_width_is_exact(self, hidden: int, ffn: int) -> None:
        model = replace(MODEL, hidden_size=hidden, ffn_hidden_size=ffn, num_attention_heads=16)
        launch = trainer("torchtitan").launch(
            replace(WORKLOAD, model=model), ParallelConfig(dp=8, micro_batch_size=8), OPTIONS
        )
        given: dict[str, Any] = {}
        source = launch.files["autotune_model.py"]
        body = source[source.index("TransformerModelArgs(\n") :].split("\n)")[0].split("\n")[1:]
        for line in body:
            name, value = line.strip().rstrip(",").split("=")
            given[name] = float(value) if "." in value or "e" in value else int(value)
        width = int(given["ffn_dim_multiplier"] * int(2 * (4 * hidden) / 3))
        assert given["multiple_of"] * ((width + given["multiple_of"] - 1) // given["multiple_of"]) == ffn

    def test_mixed_precision_needs_something_to_shard(self) -> None:
        with pytest.raises(ExportError, match="precision=bf16: mixed precision with tp or pp needs FSDP"):
            self.launched(tp=8, sequence_parallel=True)

    def test_gpt_is_refused(self) -> None:
        with pytest.raises(ExportError, match="gated_mlp=false"):
            trainer("torchtitan").launch(
                replace(WORKLOAD, model=GPT), ParallelConfig(dp=8, micro_batch_size=8), OPTIONS
            )

    def test_a_missing_tokenizer_is_refused(self) -> None:
        with pytest.raises(ExportError, match="hf_assets_path is not set"):
            trainer("torchtitan").launch(WORKLOAD, ParallelConfig(dp=8, micro_batch_size=8))

    def test_a_model_name_cannot_inject_code(self) -> None:
        model = replace(MODEL, name='x"""\nimport os\n')
        launch = trainer("torchtitan").launch(
            replace(WORKLOAD, model=model), ParallelConfig(dp=8, micro_batch_size=8), OPTIONS
        )
        assert "import os" not in launch.files["autotune_model.py"].splitlines()
        assert job(launch)["job"]["description"].startswith('x"""\nimport os')
