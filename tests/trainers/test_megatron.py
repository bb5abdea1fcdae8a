"""Megatron-LM: the flags of a config, what it refuses, and its log."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

from autotune.errors import ExportError
from autotune.spec import ModelSpec, ParallelConfig, Workload, catalog
from autotune.spec.catalog import published_config
from autotune.spec.hugging_face.reading import fields_of
from autotune.testing.knobs import varied_configs
from autotune.testing.trainers import EXPERTS, GPT, MODEL, WORKLOAD, TrainerContract, configs
from autotune.trainers import Launch, StepMetrics, trainer
from autotune.trainers.megatron.knobs import stage_layout
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


ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
LAUNCHED: list[tuple[Workload, dict[str, Any], dict[str, str | bool], dict[str, str]]] = [
    (
        WORKLOAD,
        {
            "tp": 2,
            "pp": 2,
            "dp": 4,
            "micro_batch_size": 2,
            "accumulation_steps": 8,
            "zero_stage": 1,
            "sequence_parallel": True,
        },
        {
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
            "--nnodes=2": True,
            "--nproc-per-node=8": True,
            "--node-rank=@node-rank@": True,
        },
        ONE_CONNECTION,
    ),
    (replace(WORKLOAD, unfused_attention=True), {}, {"--attention-backend": "unfused"}, {}),
    (
        WORKLOAD,
        {},
        {
            "--attention-backend": False,
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
        },
        {},
    ),
    (
        replace(WORKLOAD, model=GPT),
        {},
        {
            "--normalization": "LayerNorm",
            "--position-embedding-type": "learned_absolute",
            "--swiglu": False,
            "--group-query-attention": False,
            "--disable-bias-linear": False,
            "--untie-embeddings-and-output-weights": False,
        },
        {},
    ),
    *(
        (
            WORKLOAD,
            {"zero_stage": stage},
            {
                "--use-megatron-fsdp": True,
                "--data-parallel-sharding-strategy": strategy,
                "--ckpt-format": "fsdp_dtensor",
            },
            {},
        )
        for stage, strategy in ((2, "optim_grads"), (3, "optim_grads_params"))
    ),
    (
        WORKLOAD,
        {
            "pp": 2,
            "dp": 4,
            "micro_batch_size": 2,
            "accumulation_steps": 8,
            "precision": "fp8",
            "recompute": "full",
            "pp_schedule": "interleaved_1f1b",
            "virtual_stages": 4,
        },
        {
            "--fp8-format": "hybrid",
            "--bf16": True,
            "--recompute-granularity": "full",
            "--recompute-method": "uniform",
            "--recompute-num-layers": "1",
            "--num-virtual-stages-per-pipeline-rank": "4",
        },
        {},
    ),
    (WORKLOAD, {"precision": "tf32"}, {"--bf16": False}, {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}),
    (
        replace(WORKLOAD, model=replace(MODEL, num_experts=8, experts_per_token=2)),
        {"ep": 4},
        {
            "--num-experts": "8",
            "--moe-router-topk": "2",
            "--expert-model-parallel-size": "4",
            "--moe-grouped-gemm": True,
        },
        {},
    ),
]
"""a workload and knobs, with flags and environment of their launch"""


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

    @pytest.mark.parametrize(("workload", "knobs", "wanted", "env"), LAUNCHED)
    def test_a_launch_has_the_flags_of_its_model_and_config(
        self,
        workload: Workload,
        knobs: dict[str, Any],
        wanted: dict[str, str | bool],
        env: dict[str, str],
    ) -> None:
        config = ParallelConfig(**{"dp": 8, "micro_batch_size": 8, **knobs})
        launch = trainer("megatron").launch(workload, config)
        assert {name: flag(launch, name) for name in wanted} == wanted
        assert launch.env == env

    @pytest.mark.parametrize(("stage", "name"), [(0, "muon"), (1, "dist_muon")])
    def test_muon_shards_by_whole_matrices_or_not_at_all(self, stage: int, name: str) -> None:
        workload, config = (
            replace(WORKLOAD, optimizer="muon"),
            ParallelConfig(dp=8, micro_batch_size=8, zero_stage=stage),
        )
        launch = trainer("megatron").launch(workload, config)
        assert flag(launch, "--optimizer") == name
        for other in (
            "--use-distributed-optimizer",
            "--overlap-grad-reduce",
            "--overlap-param-gather",
        ):
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
        refused = {
            limit.knob
            for limit in trainer("megatron").limits(replace(WORKLOAD, optimizer="muon"), config)
        }
        assert refused == {list(knobs)[-1]}
        assert not trainer("megatron").limits(WORKLOAD, config)

    def test_what_the_releases_assert_of_knobs_of_scale(self) -> None:
        workload = replace(WORKLOAD, model=EXPERTS)
        common = {"dp": 8, "ep": 2, "micro_batch_size": 8}
        for precision, modules in (("bf16", ["layernorm", "moe_act"]), ("fp32", ["layernorm"])):
            config = ParallelConfig(**common, recompute="norm", precision=precision)
            argv = trainer("megatron").launch(workload, config).argv
            start = argv.index("--recompute-modules") + 1
            assert list(argv[start : start + 1 + ("moe_act" in argv)]) == modules
            assert ("--moe-grouped-gemm" in argv) is ("moe_act" in argv)
        away = ParallelConfig(**common, offload="activations")
        assert trainer("megatron").launch(workload, away).env["NVTE_CPU_OFFLOAD_V1"] == "1"
        refused = {
            limit.knob
            for limit in trainer("megatron").limits(workload, away, {"transformer_impl": "local"})
        }
        assert "offload" in refused
        graphed = trainer("megatron").launch(
            workload, ParallelConfig(**common, cuda_graph="step", precision="bf16")
        )
        assert any("Megatron-LM 0.17" in note for note in graphed.notes)

    def test_layers_that_predict_further_tokens_stand_with_the_loss(self) -> None:
        model = replace(catalog.model("deepseek-v3"), mtp_layers=1)
        workload = replace(WORKLOAD, model=model)
        config = ParallelConfig(
            pp=4,
            dp=4,
            ep=4,
            micro_batch_size=1,
            accumulation_steps=16,
            pp_split="edges",
            zero_stage=1,
        )
        launch = trainer("megatron").launch(workload, config)
        assert flag(launch, "--mtp-num-layers") == "1"
        layout = str(flag(launch, "--pipeline-model-parallel-layout"))
        assert [len(stage) for stage in layout.split("|")] == [16, 17, 16, 15]
        assert (layout[0], layout[-3:], layout.count("t")) == ("E", "tmL", 61)
        read = trainer("megatron").read_config(PresentConfiguration(argv=launch.argv))
        assert read.model["mtp_layers"] == 1
        many = stage_layout(model, ParallelConfig(pp=32))
        assert (many.count("t"), many.count("|"), many.rpartition("|")[2]) == (61, 31, "mL")

    def test_what_multi_token_prediction_cannot_be_combined_with_is_refused(self) -> None:
        model = replace(catalog.model("deepseek-v3"), mtp_layers=1)
        config = ParallelConfig(dp=8, ep=8, micro_batch_size=8, ep_overlap=True)
        (limit,) = trainer("megatron").limits(replace(WORKLOAD, model=model), config)
        assert (limit.knob, limit.nearest) == ("ep_overlap", False)
        assert not trainer("megatron").limits(
            replace(WORKLOAD, model=replace(model, mtp_layers=0)), config
        )
        (limit,) = trainer("megatron").limits(
            replace(WORKLOAD, model=replace(GPT, mtp_layers=1)),
            ParallelConfig(dp=8, micro_batch_size=8),
        )
        assert (limit.knob, limit.nearest) == ("model.mtp_layers", 0)

    def test_a_dataset_needs_its_tokenizer(self) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=8)
        with pytest.raises(ExportError, match="tokenizer_type is not set"):
            trainer("megatron").launch(WORKLOAD, config, {"data_path": "/data/mine"})
        options = {
            "data_path": "/data/mine",
            "tokenizer_type": "HuggingFaceTokenizer",
            "tokenizer_model": "/tok",
        }
        launch = trainer("megatron").launch(WORKLOAD, config, options)
        assert flag(launch, "--data-path") == "/data/mine"
        assert flag(launch, "--tokenizer-model") == "/tok"
        assert not flag(launch, "--mock-data")

    def test_two_nodes_are_told_where_they_meet_when_they_start(self) -> None:
        launch = trainer("megatron").launch(WORKLOAD, ParallelConfig(dp=16, micro_batch_size=4))
        assert launch.is_spread
        started = launch.on_node(1, master_addr="10.0.0.7", master_port=4000)
        assert {"--node-rank=1", "--master-addr=10.0.0.7", "--master-port=4000"} <= set(
            started.argv
        )
        assert not started.is_spread
        assert (
            not trainer("megatron")
            .launch(WORKLOAD, ParallelConfig(dp=8, micro_batch_size=8))
            .is_spread
        )


PUBLISHED = (
    "deepseek-v3",
    "deepseek-v2-lite",
    "glm-4.5-air",
    "qwen1.5-moe-a2.7b",
    "phi-3-mini",
    "phi-4",
)


def launch_of(name: str, seq_len: int = 4096) -> Launch:
    """The launch of a model of the catalog, with its published config.json."""
    workload = replace(WORKLOAD, model=catalog.model(name), seq_len=seq_len)
    return trainer("megatron").launch(workload, ParallelConfig(dp=8, micro_batch_size=8))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_of_a_published_model_is_read_back_from_its_launch(name: str) -> None:
    model = catalog.model(name)
    read = trainer("megatron").read_config(PresentConfiguration(argv=launch_of(name).argv))
    assert replace(ModelSpec(name=name, **read.model), source=model.source) == model
    assert not read.remarks


def test_latent_attention_and_a_router_with_a_bias_are_launched_as_deepseek_trains_them() -> None:
    launch = launch_of("deepseek-v3")
    wanted = {
        "--ffn-hidden-size": "18432",
        "--moe-ffn-hidden-size": "2048",
        "--moe-shared-expert-intermediate-size": "2048",
        "--moe-layer-freq": "([0]*3+[1]*58)",
        "--multi-latent-attention": True,
        "--q-lora-rank": "1536",
        "--kv-lora-rank": "512",
        "--qk-head-dim": "128",
        "--qk-pos-emb-head-dim": "64",
        "--v-head-dim": "128",
        "--qk-layernorm": True,
        "--group-query-attention": False,
        "--rope-type": "yarn",
        "--rotary-scaling-factor": "40.0",
        "--mscale": "1.0",
        "--mscale-all-dim": "1.0",
        "--moe-router-score-function": "sigmoid",
        "--moe-router-enable-expert-bias": True,
        "--moe-router-pre-softmax": False,
        "--moe-router-topk-scaling-factor": "2.5",
        "--moe-router-num-groups": "8",
        "--moe-router-group-topk": "4",
        "--moe-router-dtype": "fp32",
    }
    assert {name: flag(launch, name) for name in wanted} == wanted
    assert not [note for note in launch.notes if "carried over" in note or "shape" in note]


def test_what_sets_other_published_families_apart_is_launched() -> None:
    lite, glm, qwen = (
        launch_of(name) for name in ("deepseek-v2-lite", "glm-4.5-air", "qwen1.5-moe-a2.7b")
    )
    assert not flag(lite, "--q-lora-rank")
    assert flag(lite, "--moe-router-pre-softmax") is True
    assert flag(lite, "--moe-router-score-function") is False
    assert (flag(glm, "--rotary-percent"), flag(glm, "--add-qkv-bias")) == ("0.5", True)
    assert (flag(qwen, "--moe-shared-expert-gate"), flag(qwen, "--moe-layer-freq")) == (True, False)
    assert flag(launch_of("phi-3-mini"), "--window-size") == "2046,0"
    assert not flag(launch_of("phi-3-mini", seq_len=2046), "--window-size")


def test_a_window_over_the_ranks_of_a_sequence_is_not_attended_to_in_a_ring() -> None:
    workload = replace(WORKLOAD, model=catalog.model("phi-3-mini"), seq_len=4096)
    ring = ParallelConfig(cp=2, dp=4, micro_batch_size=8, accumulation_steps=2)
    with pytest.raises(
        ExportError, match=r"cp_style=ring: .*last 2047 tokens.*; nearest: cp_style=gather"
    ):
        trainer("megatron").launch(workload, ring)
    assert (
        flag(
            trainer("megatron").launch(workload, replace(ring, cp_style="gather")), "--window-size"
        )
        == "2046,0"
    )
    # no window is shorter than these
    trainer("megatron").launch(replace(workload, seq_len=2044), ring)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("([0]*3+[1]*5)", 3),
        ("[0]*1+[1]*7", 1),
        ("[0,1,1,1,1,1,1,1]", 1),
        ("([1]*3+[0]*1)*2", 2),
        ("2", 4),
        ("([0]*3+[1]*6)", 0),
        ("[0]*9**9", 0),
    ],
)
def test_layers_without_experts_are_counted_and_a_pattern_of_ones_own_is_kept(
    text: str, layers: int
) -> None:
    command = f"pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 4 --vocab-size 99 --swiglu --num-experts 4 --ffn-hidden-size 128 --moe-ffn-hidden-size 32 --moe-layer-freq {text}"
    read = trainer("megatron").read_config(PresentConfiguration(argv=tuple(command.split())))
    assert read.model.get("num_dense_layers", 0) == layers
    first = text in ("([0]*3+[1]*5)", "[0]*1+[1]*7", "[0,1,1,1,1,1,1,1]")
    assert ("moe-layer-freq" in read.settings) is not first


def test_dense_layers_that_a_file_places_freely_are_refused_with_a_remedy() -> None:
    document = {
        "model_type": "qwen2_moe",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    document |= {
        "num_key_value_heads": 4,
        "vocab_size": 99,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
    }
    document |= {"num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2}
    model = ModelSpec(name="mine", **fields_of(document), source=json.dumps(document))
    (limit,) = trainer("megatron").limits(
        replace(WORKLOAD, model=model), ParallelConfig(dp=8, micro_batch_size=8)
    )
    assert (limit.knob, limit.value) == ("model.num_dense_layers", 2)
    assert "use megatron_bridge, which reads the config.json itself" in limit.remedy


def test_yarn_that_differs_from_deepseeks_is_named() -> None:
    document = {**(published_config(catalog.model("deepseek-v3")) or {})}
    document["rope_scaling"] = {"type": "yarn", "factor": 32.0, "beta_fast": 1.0}
    model = ModelSpec(name="mine", **fields_of(document), source=json.dumps(document))
    launch = trainer("megatron").launch(
        replace(WORKLOAD, model=model), ParallelConfig(dp=8, micro_batch_size=8)
    )
    assert flag(launch, "--rotary-scaling-factor") == "32.0"
    assert [
        note
        for note in launch.notes
        if "Megatron-LM has no flag for beta_fast=1 in the model's YaRN scaling, and uses 32"
        in note
    ]


@pytest.mark.thorough
def test_every_flag_is_one_that_the_release_knows() -> None:
    known = frozenset().union(*released_names("megatron-core-0.16.1").values())
    # flags of other names than their fields, and those of the configurations of data parallelism
    # and of random numbers
    renamed = {
        "fp8-format",
        "fp4-format",
        "num-experts",
        "ckpt-format",
        "lr-decay-style",
        "te-rng-tracker",
    }
    renamed |= {"num-distributed-optimizer-instances", "ddp-bucket-size"}
    seen = set()
    for model in (MODEL, GPT, EXPERTS):
        workload = replace(WORKLOAD, model=model)
        for config in itertools.chain(configs(), varied_configs(workload)):
            if not trainer("megatron").limits(workload, config):
                argv = trainer("megatron").launch(workload, config).argv
                seen |= {
                    word[2:]
                    for word in argv[argv.index("pretrain_gpt.py") :]
                    if word.startswith("--")
                }
    for name in PUBLISHED:
        argv = launch_of(name).argv
        seen |= {
            word[2:] for word in argv[argv.index("pretrain_gpt.py") :] if word.startswith("--")
        }
    assert seen - renamed <= known, seen - renamed - known
    assert len(seen) > 40


PARSED = """
import argparse, json, sys
from megatron.training.arguments import add_megatron_arguments
parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
print(json.dumps(sorted({word for argv in json.load(sys.stdin) for word in parser.parse_known_args(argv)[1]})))
"""
"""Prints the words that Megatron-LM's own parser does not know; a value that it refuses ends it."""


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("megatron") is None,
    reason="a megatron-core with megatron.training (from 0.17 on) is not installed",
)
def test_megatrons_own_parser_knows_every_word() -> None:
    predicting = replace(catalog.model("deepseek-v3"), mtp_layers=1)
    asked = []
    for model in (MODEL, GPT, EXPERTS, predicting, *map(catalog.model, PUBLISHED)):
        workload = replace(WORKLOAD, model=model)
        for config in itertools.chain(configs(), varied_configs(workload)):
            if not trainer("megatron").limits(workload, config):
                argv = trainer("megatron").launch(workload, config).argv
                asked.append(argv[argv.index("pretrain_gpt.py") + 1 :])
    command = [sys.executable, "-W", "ignore", "-c", PARSED]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
    assert len(asked) > 1000
