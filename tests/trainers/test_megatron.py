"""Megatron-LM: the flags of a config, what it refuses, and its log."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from autotune.errors import ExportError
from autotune.spec import ParallelConfig
from autotune.testing.knobs import varied_configs
from autotune.testing.trainers import EXPERTS, GPT, MODEL, WORKLOAD, TrainerContract, configs
from autotune.trainers import Launch, StepMetrics, trainer
from autotune.trainers.present_configuration import PresentConfiguration
from tests.trainers.released_names import released_names

ITERATION = (
    " [2026-05-28 22:26:20.123456] iteration      122/  250000 | consumed samples:       124928 | "
    "elapsed time per iteration (ms): 26813.0 | throughput per GPU (TFLOP/s/GPU): 410.2 | learning rate: 9.150E-06 | "
    "global batch size:  1024 | lm loss: 2.504220E+00 | loss scale: 1.0 | grad norm: 0.231 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)
SKIPPED = (
    " iteration       10/ 1000000 | consumed samples:           40 | elapsed time per iteration (ms): 356.2 | "
    "learning rate: 0.000E+00 | global batch size:     4 | loss scale: 8388608.0 | number of skipped iterations:  10 | "
    "number of nan iterations:   0 |"
)
MEMORY = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 5361.1 | max allocated: 9721.7 | reserved: 10240.0 | "
    "max reserved: 10240.0"
)


def flag(launch: Launch, name: str) -> str | bool:
    """The value after a flag, True for a flag alone, False without it."""
    if name not in launch.argv:
        return False
    after = launch.argv[launch.argv.index(name) + 1 :]
    return after[0] if after and not after[0].startswith("--") else True


class TestMegatron(TrainerContract):
    trainer = "megatron"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {
        "tensor-model-parallel-size": 2,
        "no-check-for-nan-in-loss-and-grad": True,
    }
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        ITERATION: StepMetrics(step=122, step_time_s=26.813, loss=2.50422, grad_norm=0.231),
        SKIPPED: StepMetrics(step=10, step_time_s=0.3562, skipped=True),
        MEMORY: StepMetrics(peak_memory_bytes=10240 * 2**20),
        "time (ms) | forward-compute: 193.77 | backward-compute: 72.23": None,
        "using world size: 8, data-parallel size: 4": None,
    }

    def test_degrees_and_batch(self) -> None:
        launch = self.launched(tp=2, pp=2, dp=4, micro_batch_size=2, zero_stage=1, sequence_parallel=True)
        assert launch.argv[:3] == ("torchrun", "--nnodes=2", "--nproc-per-node=8")
        assert {"--node-rank=@node-rank@", "--master-addr=node0", "--master-port=@master-port@"} <= set(launch.argv)
        wanted = {
            "--tensor-model-parallel-size": "2",
            "--pipeline-model-parallel-size": "2",
            "--context-parallel-size": "1",
            "--micro-batch-size": "2",
            "--global-batch-size": "64",
            "--sequence-parallel": True,
            "--use-distributed-optimizer": True,
            "--bf16": True,
            "--fp16": False,
            "--recompute-granularity": False,
            "--num-virtual-stages-per-pipeline-rank": False,
        }
        assert {name: flag(launch, name) for name in wanted} == wanted
        assert launch.env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"

    def test_the_llama_model_is_complete(self) -> None:
        launch = self.launched(dp=8)
        wanted = {
            "--num-layers": "16",
            "--hidden-size": "1024",
            "--ffn-hidden-size": "2816",
            "--num-attention-heads": "16",
            "--kv-channels": "64",
            "--group-query-attention": True,
            "--num-query-groups": "8",
            "--swiglu": True,
            "--normalization": "RMSNorm",
            "--position-embedding-type": "rope",
            "--disable-bias-linear": True,
            "--untie-embeddings-and-output-weights": True,
            "--vocab-size": "31999",  # NullTokenizer adds one
            "--mock-data": True,
        }
        assert {name: flag(launch, name) for name in wanted} == wanted

    def test_the_gpt_model_is_complete(self) -> None:
        launch = trainer("megatron").launch(
            replace(WORKLOAD, model=GPT), ParallelConfig(dp=8, micro_batch_size=8, accumulation_steps=1)
        )
        wanted = {
            "--normalization": "LayerNorm",
            "--position-embedding-type": "learned_absolute",
            "--swiglu": False,
            "--group-query-attention": False,
            "--disable-bias-linear": False,
            "--untie-embeddings-and-output-weights": False,
        }
        assert {name: flag(launch, name) for name in wanted} == wanted

    @pytest.mark.parametrize(("stage", "strategy"), [(2, "optim_grads"), (3, "optim_grads_params")])
    def test_high_zero_stages_are_megatron_fsdp(self, stage: int, strategy: str) -> None:
        launch = self.launched(dp=8, zero_stage=stage)
        assert flag(launch, "--use-megatron-fsdp") is True
        assert flag(launch, "--data-parallel-sharding-strategy") == strategy
        assert flag(launch, "--ckpt-format") == "fsdp_dtensor"
        assert "CUDA_DEVICE_MAX_CONNECTIONS" not in launch.env

    def test_recompute_fp8_and_interleaving(self) -> None:
        launch = self.launched(
            pp=2,
            dp=4,
            micro_batch_size=2,
            precision="fp8",
            recompute="full",
            pp_schedule="interleaved_1f1b",
            virtual_stages=4,
        )
        wanted = {
            "--fp8-format": "hybrid",
            "--bf16": True,
            "--recompute-granularity": "full",
            "--recompute-method": "uniform",
            "--recompute-num-layers": "1",
            "--num-virtual-stages-per-pipeline-rank": "4",
        }
        assert {name: flag(launch, name) for name in wanted} == wanted

    def test_tf32_is_switched_by_the_environment(self) -> None:
        assert self.launched(dp=8, precision="tf32").env == {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}

    def test_experts(self) -> None:
        model = replace(MODEL, num_experts=8, experts_per_token=2)
        launch = trainer("megatron").launch(
            replace(WORKLOAD, model=model), ParallelConfig(dp=8, ep=4, micro_batch_size=8, accumulation_steps=1)
        )
        assert flag(launch, "--num-experts") == "8"
        assert flag(launch, "--moe-router-topk") == "2"
        assert flag(launch, "--expert-model-parallel-size") == "4"
        assert flag(launch, "--moe-grouped-gemm") is True

    @pytest.mark.parametrize(("stage", "name"), [(0, "muon"), (1, "dist_muon")])
    def test_muon_shards_by_whole_matrices_or_not_at_all(self, stage: int, name: str) -> None:
        workload, config = (
            replace(WORKLOAD, optimizer="muon"),
            ParallelConfig(dp=8, micro_batch_size=8, zero_stage=stage),
        )
        launch = trainer("megatron").launch(workload, config)
        assert flag(launch, "--optimizer") == name
        for other in ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"):
            assert not flag(launch, other), "its checks refuse it"
        read = trainer("megatron").read_config(PresentConfiguration(argv=launch.argv))
        assert (read.optimizer, read.knobs["zero_stage"]) == ("muon", stage)

    @pytest.mark.parametrize(
        "knobs",
        [
            {"zero_stage": 3},
            {"zero_stage": 1, "dp_replicas": 2},
            {"zero_stage": 1, "offload": "optimizer"},
            {"precision": "fp16"},
        ],
    )
    def test_what_muon_does_not_train_with_is_refused(self, knobs: dict[str, Any]) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=8, **knobs)
        refused = {limit.knob for limit in trainer("megatron").limits(replace(WORKLOAD, optimizer="muon"), config)}
        assert refused == {list(knobs)[-1]}
        assert not trainer("megatron").limits(WORKLOAD, config)

    def test_a_dataset_needs_its_tokenizer(self) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=8)
        with pytest.raises(ExportError, match="tokenizer_type is not set"):
            trainer("megatron").launch(WORKLOAD, config, {"data_path": "/data/mine"})
        options = {"data_path": "/data/mine", "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "/tok"}
        launch = trainer("megatron").launch(WORKLOAD, config, options)
        assert flag(launch, "--data-path") == "/data/mine"
        assert flag(launch, "--tokenizer-model") == "/tok"
        assert not flag(launch, "--mock-data")

    def test_two_nodes_are_told_where_they_meet_when_they_start(self) -> None:
        launch = trainer("megatron").launch(WORKLOAD, ParallelConfig(dp=16, micro_batch_size=4))
        assert launch.is_spread
        started = launch.on_node(1, master_addr="10.0.0.7", master_port=4000)
        assert {"--node-rank=1", "--master-addr=10.0.0.7", "--master-port=4000"} <= set(started.argv)
        assert not started.is_spread
        assert not trainer("megatron").launch(WORKLOAD, ParallelConfig(dp=8, micro_batch_size=8)).is_spread


def test_every_flag_is_one_that_the_release_knows() -> None:
    known = frozenset().union(*released_names("megatron-core-0.16.1").values())
    # flags of other names than their fields, and those of the configurations of data parallelism and of random numbers
    renamed = {"fp8-format", "fp4-format", "num-experts", "ckpt-format", "lr-decay-style", "te-rng-tracker"}
    renamed |= {"num-distributed-optimizer-instances", "ddp-bucket-size"}
    seen = set()
    for model in (MODEL, GPT, EXPERTS):
        workload = replace(WORKLOAD, model=model)
        for config in itertools.chain(configs(), varied_configs(workload)):
            if not trainer("megatron").limits(workload, config):
                argv = trainer("megatron").launch(workload, config).argv
                seen |= {word[2:] for word in argv[argv.index("pretrain_gpt.py") :] if word.startswith("--")}
    assert seen - renamed <= known, seen - renamed - known
    assert len(seen) > 40
