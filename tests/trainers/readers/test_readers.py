"""Configurations as people write them, which no export has written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from autotune.errors import SpecError
from autotune.spec import ParallelConfig
from autotune.testing.trainers import WORKLOAD
from autotune.trainers import trainer, trainer_names
from autotune.trainers.present_configuration import PresentConfiguration

MEGATRON = """#!/bin/bash
GPUS=8; NODES=2
NODES=2
GPUS=8
LAUNCH=(--nproc_per_node $GPUS
        --nnodes ${NODES})
MODEL="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu"  # 7B
MODEL_ARGS="$MODEL --ffn-hidden-size 11008 --seq-length 4096 --vocab-size 32000 --untie-embeddings-and-output-weights"
torchrun ${LAUNCH[@]} pretrain_gpt.py \\
    $MODEL_ARGS --position-embedding-type rope --micro-batch-size 1 --global-batch-size 256 \\
    --tensor-model-parallel-size=4 --pipeline-model-parallel-size 2 --sequence-parallel --bf16 \\
    --use-distributed-optimizer --recompute-activations \\
    --data-path 0.3 /data/a 0.7 /data/b --save ${SAVE_TO} --distributed-timeout-minutes 60
"""


@pytest.mark.parametrize(
    ("pp", "policy", "stage"), [(1, "default", 3), (4, "default", 2), (4, "always", 3), (1, "never", 2), (4, "", 2)]
)
def test_by_default_torchtitan_keeps_weights_gathered_in_a_pipeline(pp: int, policy: str, stage: int) -> None:
    said = f'fsdp_reshard_after_forward = "{policy}"' if policy else ""
    text = f"[parallelism]\npipeline_parallel_degree = {pp}\ndata_parallel_shard_degree = 2\n{said}\n"
    assert (
        trainer("torchtitan").read_config(PresentConfiguration(files={"job.toml": text})).knobs["zero_stage"] == stage
    )


def test_all_trainers_but_the_users_own_program_read_a_configuration() -> None:
    assert {name for name in trainer_names() if not trainer(name).can_import} <= {"command", "ray_train", *FOREIGN}


FOREIGN = frozenset(name for name in trainer_names() if not type(trainer(name)).__module__.startswith("autotune."))
"""trainers that other packages have registered"""


def test_a_megatron_script_is_read_without_being_run() -> None:
    reading = trainer("megatron").read_config(PresentConfiguration(files={"run.sh": MEGATRON}))
    assert reading.knobs == {
        "tp": 4,
        "pp": 2,
        "cp": 1,
        "ep": 1,
        "dp": 2,
        "micro_batch_size": 1,
        "accumulation_steps": 128,
        "precision": "bf16",
        "recompute": "selective",
        "zero_stage": 1,
        "sequence_parallel": True,
        "pp_schedule": "1f1b",
        "virtual_stages": 1,
    }
    assert (reading.model["num_layers"], reading.model["gated_mlp"], reading.seq_len) == (32, True, 4096)
    assert reading.options["data_path"] == "0.3 /data/a 0.7 /data/b"
    assert reading.settings == {"normalization": "LayerNorm", "distributed-timeout-minutes": 60}
    assert reading.remarks == (
        "run.sh does not set $SAVE_TO: write its value into the spec",
        "the command: --save would make trials read or write checkpoints: pass them to the exported launch.sh",
    )


@pytest.mark.parametrize(
    ("flags", "width"), [("--swiglu", 21824), ("--swiglu --ffn-hidden-size 28672", 28672), ("", None)]
)
def test_a_gated_mlp_of_megatron_is_two_thirds_of_four_times_as_wide_as_the_model(
    flags: str, width: int | None
) -> None:
    shape = f"torchrun pretrain_gpt.py --num-layers 80 --hidden-size 8192 --num-attention-heads 64 {flags}"
    reading = trainer("megatron").read_config(PresentConfiguration(files={"run.sh": shape}))
    assert reading.model.get("ffn_hidden_size") == width


CONDITIONAL = """
DTYPE=${1:-"fp8"}
NNODES=2
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu   # a Llama
    --normalization RMSNorm
)
TRAIN="--micro-batch-size 1 --global-batch-size 128 --train-samples 12800 --lr-warmup-samples 1280 --lr-decay-samples 12800"
TRAIN="$TRAIN --bf16"
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-param-gather"
    )
elif [ "$DTYPE" = "fp16" ]; then
    DTYPE_ARGS+=("--fp16")
else
    TRAIN="$TRAIN --recompute-granularity full"
fi
if [ -n "${WANDB_API_KEY}" ]; then DTYPE_ARGS+=(--wandb-project mine); fi
if [ "$NNODES" -gt 1 ] && [ ! -z "$DTYPE" ]; then
    TRAIN="${TRAIN} --use-distributed-optimizer"
fi
if [ ! -f pretrain_gpt.py ]; then
    DTYPE_ARGS+=(--exit-on-missing-file)
fi
PARALLEL=(--tensor-model-parallel-size 1 --sequence-parallel)
PARALLEL+=("${DTYPE_ARGS[@]}")
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py ${MODEL_ARGS[@]} $TRAIN ${PARALLEL[@]} --seq-length 4096
"""


def test_what_a_script_appends_and_on_what_condition_is_read() -> None:
    reading = trainer("megatron").read_config(PresentConfiguration(files={"run.sh": CONDITIONAL}))
    assert {name: reading.knobs[name] for name in ("dp", "precision", "recompute", "zero_stage")} == {
        "dp": 16,
        "precision": "fp8",
        "recompute": "none",
        "zero_stage": 1,
    }
    assert reading.settings == {"fp8-param-gather": True, "lr-warmup-iters": 10, "lr-decay-iters": 100}
    assert reading.options["steps"] == 100
    other = CONDITIONAL.replace('${1:-"fp8"}', "fp16").replace("NNODES=2", "NNODES=1")
    reading = trainer("megatron").read_config(PresentConfiguration(files={"run.sh": other}))
    assert (reading.knobs["precision"], reading.knobs["zero_stage"]) == ("bf16", 0)  # --bf16 comes first
    other = CONDITIONAL.replace('${1:-"fp8"}', "plain")
    reading = trainer("megatron").read_config(PresentConfiguration(files={"run.sh": other}))
    assert (reading.knobs["precision"], reading.knobs["recompute"]) == ("bf16", "full")


DEFAULTS = """
NNODES=${NNODES:-4}
GPUS="${GPUS:=8}"
EXPERTS=64
SIZE=${SIZE:-16B}
SHARED=2
WIDTH=1408
LENGTH=${LENGTH:-${SEQ_LEN:-4096}}
if [ $SIZE = 671B ]; then
    EXPERTS=256
    more="--q-lora-rank 1536"
elif [ $SIZE = 16B ]; then
    OPTIONS=" \\
        --moe-router-topk 6 \\
    "
fi
OPTIONS="${OPTIONS} --num-experts ${EXPERTS} --moe-shared-expert-intermediate-size $((${SHARED} * WIDTH)) --moe-layer-freq '1'"
if [ -z ${VIRTUAL} ]; then stages=""; else stages="--num-virtual-stages-per-pipeline-rank ${VIRTUAL}"; fi
run="torchrun --nnodes $NNODES --nproc_per_node $GPUS pretrain_gpt.py --num-layers 27 --hidden-size 2048 --num-attention-heads 16 --swiglu \\
    --normalization RMSNorm --seq-length $LENGTH --micro-batch-size 1 --global-batch-size $((NNODES * 8 + 96)) --use-distributed-optimizer $more $OPTIONS $stages"
eval $run
"""


def test_defaults_and_arithmetic_of_a_script_are_put_in_and_what_it_leaves_empty_is_empty() -> None:
    reading = trainer("megatron").read_config(PresentConfiguration(files={"run.sh": DEFAULTS}))
    assert (reading.knobs["dp"], reading.knobs["zero_stage"], reading.knobs["virtual_stages"]) == (32, 1, 1)
    assert (reading.seq_len, reading.global_batch_size) == (4096, 128)
    told = ("num_experts", "experts_per_token", "shared_ffn_hidden_size")
    assert [reading.model[name] for name in told] == [64, 6, 2816]
    assert reading.settings == {}
    assert reading.remarks == ()
    assert "q_lora_rank" not in reading.model


def test_blocks_of_recomputed_layers_are_named() -> None:
    text = "--num-layers 8 --recompute-granularity full --recompute-method block --recompute-num-layers 2\n"
    reading = trainer("megatron").read_config(PresentConfiguration(files={"args.txt": text}))
    assert reading.knobs["recompute"] == "full"
    assert "recomputes 2 layers of each stage" in reading.remarks[0]
    assert reading.settings == {}


def test_a_job_file_of_an_older_torchtitan_is_read_by_the_names_of_today() -> None:
    text = """
        [model]
        name = "llama3"
        flavor = "70B"
        tokenizer_path = "./assets/original/tokenizer.model"
        converters = "float8"
        [training]
        batch_size = 2
        compile = true
        seq_len = 8192
        [parallelism]
        tensor_parallel_degree = 8
        [checkpoint]
        enable_checkpoint = false
        [metrics]
        log_freq = 10
        [float8]
        enable_fsdp_float8_all_gather = true
        filter_fqns = "output,attention.wo"
    """
    reading = trainer("torchtitan").read_config(PresentConfiguration(files={"job.toml": text}))
    told = ("micro_batch_size", "compile", "precision", "tp", "zero_stage")
    assert [reading.knobs[name] for name in told] == [2, True, "fp8", 8, 3]
    assert (reading.model["num_layers"], reading.model["vocab_size"]) == (80, 128256)
    assert reading.options["hf_assets_path"] == "./assets/original"
    float8 = {"enable_fsdp_float8_all_gather": True, "filter_fqns": ["output", "attention.wo"]}
    assert reading.settings == {"checkpoint": {"enable": False}, "quantize": {"linear": {"float8": float8}}}
    (remark,) = reading.remarks
    assert "names of releases before 0.2 are read as those of 0.2: training.batch_size" in remark


def test_a_text_file_of_flags_is_a_configuration_of_megatron() -> None:
    text = "--tensor-model-parallel-size 2\n--micro-batch-size 4\n--fp16\n"
    reading = trainer("megatron").read_config(PresentConfiguration(files={"args.txt": text}))
    assert (reading.knobs["tp"], reading.knobs["micro_batch_size"], reading.knobs["precision"]) == (2, 4, "fp16")
    assert "dp" not in reading.knobs


@pytest.mark.parametrize(("backend", "unfused"), [("unfused", True), ("flash", False)])
def test_attention_that_stores_its_scores_is_read_and_other_backends_stay_settings(backend: str, unfused: bool) -> None:
    text = f"--tensor-model-parallel-size 2\n--micro-batch-size 4\n--attention-backend {backend}\n"
    reading = trainer("megatron").read_config(PresentConfiguration(files={"args.txt": text}))
    assert reading.unfused_attention == unfused
    assert ("attention-backend" in reading.settings) != unfused


def test_several_datasets_and_settings_go_back_onto_the_command() -> None:
    subject = trainer("megatron")
    launch = subject.with_settings(
        trainer_launch("megatron", data_path="0.3 /data/a 0.7 /data/b"),
        {"split": "98,1,1", "no-flag": True, "two": [1, 2]},
    )
    assert "--data-path 0.3 /data/a 0.7 /data/b" in " ".join(launch.argv)
    assert " ".join(launch.argv).endswith("--split 98,1,1 --no-flag --two 1 2")


def trainer_launch(name: str, **options: str):  # type: ignore[no-untyped-def]
    from autotune.spec import ParallelConfig
    from autotune.testing.trainers import WORKLOAD

    config = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)
    given = {"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "t.model", **options}
    return trainer(name).launch(WORKLOAD, config, given)


def test_deepspeed_values_that_the_program_fills_in_are_named() -> None:
    text = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}'
    reading = trainer("deepspeed").read_config(PresentConfiguration(files={"ds.json": text}))
    assert reading.knobs["zero_stage"] == 3
    assert "micro_batch_size" not in reading.knobs
    assert reading.remarks == ("ds.json: train_micro_batch_size_per_gpu='auto': the program fills it in",)
    assert reading.knobs["offload"] == "optimizer"
    assert reading.settings == {}


def test_a_contradictory_batch_is_an_error_that_shows_it() -> None:
    text = '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}'
    with pytest.raises(
        SpecError, match=r"micro_batch_size=4 \* accumulation_steps=2 must divide the global batch of 10"
    ):
        trainer("deepspeed").read_config(PresentConfiguration(files={"ds.json": text}))


@pytest.mark.parametrize(("strategy", "stage"), [("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("2", 2), ("NO_SHARD", 0)])
def test_fsdp1_strategies_of_accelerate_are_zero_stages(strategy: str, stage: int) -> None:
    text = f"distributed_type: FSDP\nnum_processes: 16\nmixed_precision: no\nfsdp_config: {{fsdp_sharding_strategy: {strategy}}}\n"
    reading = trainer("accelerate").read_config(PresentConfiguration(files={"acc.yaml": text}))
    assert (reading.knobs["zero_stage"], reading.knobs["dp"], reading.knobs["precision"]) == (stage, 16, "fp32")


@pytest.mark.parametrize("version", ["0.2", "0.3"])
@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_what_torchtitan_quantizes_to_is_read(version: str, precision: str) -> None:
    config = ParallelConfig(
        dp=8, zero_stage=2, precision=precision, micro_batch_size=2, accumulation_steps=4, compile=True
    )
    launch = trainer("torchtitan").launch(WORKLOAD, config, {"hf_assets_path": "/tok", "version": version})
    present = PresentConfiguration(files=launch.files, argv=launch.argv)
    assert trainer("torchtitan").read_config(present).knobs["precision"] == precision


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("torchtitan", {"hf_assets_path": "/tok", "version": "0.2"}),
        ("torchtitan", {"hf_assets_path": "/tok", "version": "0.3"}),
        ("lightning", {}),
    ],
)
@pytest.mark.parametrize("pure", [False, True])
def test_programs_that_keep_everything_in_bf16_are_launched_and_read_as_such(
    name: str, options: dict[str, str], pure: bool
) -> None:
    config = ParallelConfig(dp=8, zero_stage=2, micro_batch_size=2, accumulation_steps=4)
    launch = trainer(name).launch(replace(WORKLOAD, pure_bf16=pure), config, options)
    reading = trainer(name).read_config(PresentConfiguration.of_launch(launch))
    assert (reading.pure_bf16, reading.knobs["precision"]) == (pure, "bf16")
    assert "dtype" not in reading.settings.get("training", {})


@pytest.mark.parametrize(("strategy", "pure"), [("fsdp", True), ("ddp", True), ("deepspeed_stage_2", False)])
def test_lightning_under_deepspeed_keeps_weights_in_fp32_whatever_its_precision_is_called(
    strategy: str, pure: bool
) -> None:
    text = f"trainer: {{precision: bf16-true, strategy: {strategy}, devices: 8}}\n"
    reading = trainer("lightning").read_config(PresentConfiguration(files={"lightning.yaml": text}))
    assert (reading.pure_bf16, reading.knobs["precision"]) == (pure, "bf16")


def test_torchtitan_says_that_a_flavor_is_not_carried() -> None:
    text = '[model]\nname = "llama3"\nflavor = "1B"\n[parallelism]\ntensor_parallel_degree = 2\n[training]\nlocal_batch_size = 2\n'
    reading = trainer("torchtitan").read_config(PresentConfiguration(files={"job.toml": text}))
    assert (reading.knobs["tp"], reading.knobs["zero_stage"], reading.knobs["micro_batch_size"]) == (2, 3, 2)
    assert "flavor='1B'" in reading.remarks[0]


def test_training_arguments_name_a_deepspeed_file_that_is_not_read() -> None:
    text = '{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": true, "deepspeed": "ds.json", "warmup_steps": 10}'
    reading = trainer("hf_trainer").read_config(PresentConfiguration(files={"args.json": text}))
    assert (reading.knobs["micro_batch_size"], reading.knobs["precision"]) == (4, "bf16")
    assert "ds.json" in reading.remarks[0]
    assert reading.settings["warmup_steps"] == 10


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [("deepspeed", "a.json", "["), ("nanotron", "a.yaml", "- 1"), ("torchtitan", "a.toml", "=")],
)
def test_a_file_that_is_not_the_trainers_is_an_error_that_names_it(name: str, file: str, text: str) -> None:
    with pytest.raises(SpecError, match=file):
        trainer(name).read_config(PresentConfiguration(files={file: text}))


def test_a_file_with_another_ending_is_named() -> None:
    with pytest.raises(SpecError, match=r"none of the files notes.txt ends in .json"):
        trainer("deepspeed").read_config(PresentConfiguration(files={"notes.txt": ""}))


REGISTRY = """
def llama3_debug() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("debug", converters=[Float8LinearConverter.Config(recipe_name="rowwise")]),
        training=TrainingConfig(local_batch_size=8, seq_len=2048),
    )

def llama3_70b() -> Trainer.Config:
    model_spec = model_registry("70B", attn_backend="flex")
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(local_batch_size=2, seq_len=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
    )
"""


def test_a_function_of_a_registry_is_read_alone_with_its_own_flavor() -> None:
    command = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_70b"
    files = {"config_registry.py": REGISTRY}
    named = trainer("torchtitan").read_config(PresentConfiguration(files=files, argv=tuple(command.split())))
    assert (named.knobs["precision"], named.knobs["tp"], named.seq_len) == ("bf16", 8, 8192)
    assert named.model["num_layers"] == 80
    assert named.remarks == ()
    first = trainer("torchtitan").read_config(PresentConfiguration(files=files))
    assert (first.knobs["precision"], first.knobs["tp"]) == ("fp8", 1)
    assert "has 2 configurations; the first, llama3_debug, is read" in first.remarks[0]


def test_what_hugging_faces_trainer_would_fill_in_is_no_setting_of_deepspeed() -> None:
    """DeepSpeed itself refuses the word in the place of a number."""
    document = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "sub_group_size": 1000},
    }
    reading = trainer("deepspeed").read_config(PresentConfiguration(files={"ds.json": json.dumps(document)}))
    assert reading.settings == {"zero_optimization": {"sub_group_size": 1000}}
    assert "gradient_clipping, zero_optimization.reduce_bucket_size" in reading.remarks[-1]


def test_what_a_run_keeps_and_reports_is_no_setting_of_a_trial() -> None:
    document = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "logging_steps": 10,
        "save_strategy": "steps",
        "save_steps": 20,
        "eval_strategy": "steps",
        "report_to": "wandb",
        "deepspeed": "configs/ds_z2_config.json",
        "warmup_ratio": 0.03,
    }
    reading = trainer("hf_trainer").read_config(PresentConfiguration(files={"args.json": json.dumps(document)}))
    assert reading.settings == {"warmup_ratio": 0.03}
    assert reading.knobs["zero_stage"] == 2
    said = " ".join(reading.remarks)
    assert "save_strategy, save_steps, eval_strategy, report_to are left out" in said
    assert "read as zero_stage=2 from its name" in said


def test_sizes_that_the_reader_of_megatron_does_not_know_are_named() -> None:
    flags = "--num-layers 27 --hidden-size 2048 --num-attention-heads 16 --num-shared-experts 2 --mamba-state-dim 128 --num-workers 4"
    reading = trainer("megatron").read_config(
        PresentConfiguration(argv=("pretrain_gpt.py", *flags.split(), "--optimizer", "dion"))
    )
    assert reading.settings["optimizer"] == "dion"
    said = " ".join(reading.remarks)
    assert "--optimizer dion is kept, but counted as AdamW" in said
    assert "--num-shared-experts, --mamba-state-dim may be model sizes" in said


@pytest.mark.parametrize(
    ("config", "other"),
    [
        ({"is_starcoder2_config": True}, "is_starcoder2_config"),
        ({"is_moe": True, "moe_num_experts": 8}, "is_moe, moe_num_experts"),
        ({"is_llama_config": True}, ""),
        ({}, ""),
    ],
)
def test_models_of_nanotron_that_are_not_llamas_are_not_read_as_one(config: dict[str, Any], other: str) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    text = yaml.safe_dump({"model": {"model_config": {**sizes, **config}}, "tokens": {"sequence_length": 128}})
    reading = trainer("nanotron").read_config(PresentConfiguration(files={"config.yaml": text}))
    assert bool(reading.model) is not bool(other)
    assert f"model_config has {other}: " in " ".join(reading.remarks) or not other


@pytest.mark.parametrize(
    ("devices", "strategy", "dp"),
    [
        ([0, 1, 2, 3], "ddp_find_unused_parameters_false", 4),
        ("0,1", "deepspeed_stage_3_offload", 2),
        (-1, "ddp", None),
    ],
)
def test_lightning_counts_the_devices_that_it_is_told(devices: Any, strategy: str, dp: int | None) -> None:
    text = yaml.safe_dump({"trainer": {"devices": devices, "strategy": strategy, "precision": "bf16-mixed"}})
    reading = trainer("lightning").read_config(PresentConfiguration(files={"lightning.yaml": text}))
    assert reading.knobs.get("dp") == dp
    assert reading.knobs["zero_stage"] == (3 if "stage_3" in strategy else 0)
    assert any("host memory" in remark for remark in reading.remarks) is strategy.endswith("_offload")


def test_data_of_an_imported_megatron_launch_take_the_place_of_mock_data() -> None:
    own = {"train-data-path": "data/train", "tokenizer-type": "HuggingFaceTokenizer", "tokenizer-model": "gpt2"}
    config = ParallelConfig(dp=8, micro_batch_size=1, accumulation_steps=8)
    launches = [
        trainer("megatron").launch(WORKLOAD, config, {"settings": told})
        for told in ({}, {"lr-decay-style": "WSD"}, own)
    ]
    assert ["--mock-data" in launch.argv for launch in launches] == [True, True, False]
    assert launches[2].argv.count("--tokenizer-type") == 1
    assert any("mock data" in note for note in launches[1].notes)
    assert not any("mock data" in note for note in launches[2].notes)


@pytest.mark.parametrize(
    ("flags", "recompute"),
    [
        ("--checkpoint-activations --checkpoint-num-layers 1", "full"),
        ("--activations-checkpoint-method uniform", "full"),
        ("--activations-checkpoint-granularity selective", "selective"),
        ("", "none"),
    ],
)
def test_recomputation_by_the_flags_of_older_releases_is_read(flags: str, recompute: str) -> None:
    command = (
        f"python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 2 {flags}"
    )
    reading = trainer("megatron").read_config(PresentConfiguration(argv=tuple(command.split())))
    assert reading.knobs["recompute"] == recompute
    assert not any("checkpoint" in name for name in reading.settings), "a launch writes it in the words of its release"
