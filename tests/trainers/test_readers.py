"""Configurations as people write them, which no export has written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from autotune.errors import SpecError
from autotune.spec import FIELDS, ParallelConfig
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


def test_all_trainers_but_the_users_own_program_read_a_configuration() -> None:
    for name in set(trainer_names()) - FOREIGN:
        assert trainer(name).can_import is not trainer(name).runs_own_program, name


FOREIGN = frozenset(
    name for name in trainer_names() if not type(trainer(name)).__module__.startswith("autotune.")
)
"""trainers that other packages have registered"""


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


@pytest.mark.parametrize("version", ["0.2", "0.3"])
@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_what_torchtitan_quantizes_to_is_read(version: str, precision: str) -> None:
    config = ParallelConfig(
        dp=8,
        zero_stage=2,
        precision=precision,
        micro_batch_size=2,
        accumulation_steps=4,
        compile=True,
    )
    launch = trainer("torchtitan").launch(
        WORKLOAD, config, {"hf_assets_path": "/tok", "version": version}
    )
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


@pytest.mark.parametrize(
    ("name", "file", "text", "said"),
    [
        ("deepspeed", "a.json", "[", "a.json"),
        ("nanotron", "a.yaml", "- 1", "a.yaml"),
        ("torchtitan", "a.toml", "=", "a.toml"),
        ("deepspeed", "notes.txt", "", r"none of the files notes.txt ends in .json"),
        (
            "deepspeed",
            "ds.json",
            '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}',
            r"micro_batch_size=4 \* accumulation_steps=2 must divide the global batch of 10",
        ),
    ],
)
def test_a_file_that_is_not_the_trainers_or_contradicts_itself_is_an_error_that_shows_it(
    name: str, file: str, text: str, said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        trainer(name).read_config(PresentConfiguration(files={file: text}))


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


OLDER_TORCHTITAN = """
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
FLAVOR = '[model]\nname = "llama3"\nflavor = "1B"\n[parallelism]\ntensor_parallel_degree = 2\n[training]\nlocal_batch_size = 2\n'
KEEPS = {
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "logging_steps": 10, "save_strategy": "steps", "save_steps": 20, "eval_strategy": "steps",
    "report_to": "wandb", "deepspeed": "configs/ds_z2_config.json", "warmup_ratio": 0.03,
}  # fmt: skip
FILLED_IN = {
    "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "sub_group_size": 1000},
}  # fmt: skip
LARGE = "--num-layers 80 --hidden-size 8192 --num-attention-heads 64"
SMALL = "python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 2"
OTHER_SIZES = "pretrain_gpt.py --num-layers 27 --hidden-size 2048 --num-attention-heads 16 --num-shared-experts 2 --mamba-state-dim 128 --num-workers 4 --optimizer dion"
NANOTRON = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
FLOAT8 = {"enable_fsdp_float8_all_gather": True, "filter_fqns": ["output", "attention.wo"]}


def gathered(pp: int, policy: str) -> str:
    """A job file of torchtitan with that degree and policy."""
    said = f'fsdp_reshard_after_forward = "{policy}"' if policy else ""
    return (
        f"[parallelism]\npipeline_parallel_degree = {pp}\ndata_parallel_shard_degree = 2\n{said}\n"
    )


def nanotron(**config: Any) -> str:
    """A configuration of nanotron with that model."""
    return yaml.safe_dump(
        {"model": {"model_config": {**NANOTRON, **config}}, "tokens": {"sequence_length": 128}}
    )


def lightning(devices: Any, strategy: str, precision: str = "bf16-mixed") -> str:
    """The trainer's section."""
    return yaml.safe_dump(
        {"trainer": {"devices": devices, "strategy": strategy, "precision": precision}}
    )


CASES: dict[str, tuple[str, dict[str, str], dict[str, Any], tuple[str, ...] | None]] = {
    "megatron: a script is read without being run": (
        "megatron",
        {"run.sh": MEGATRON},
        {
            "knobs": {
                **dict.fromkeys(FIELDS), "tp": 4, "pp": 2, "cp": 1, "ep": 1, "dp": 2, "micro_batch_size": 1, "accumulation_steps": 128, "precision": "bf16", "recompute": "selective",
                "zero_stage": 1, "sequence_parallel": True, "pp_schedule": "1f1b", "virtual_stages": 1,
            },
            "model": {"num_layers": 32, "gated_mlp": True},
            "seq_len": 4096,
            "options": {"data_path": "0.3 /data/a 0.7 /data/b"},
            "settings": {"normalization": "LayerNorm", "distributed-timeout-minutes": 60},
            "remarks": (
                "run.sh does not set $SAVE_TO; add its value to the spec",
                "the command: --save would make trials read or write checkpoints; pass these options to the exported launch.sh instead",
            ),
        },
        None,
    ),
    **{
        f"megatron: the width of a gated MLP {flags}": ("megatron", {"run.sh": f"torchrun pretrain_gpt.py {LARGE} {flags}"}, {"model": {"ffn_hidden_size": width}}, None)
        for flags, width in {"--swiglu": 21824, "--swiglu --ffn-hidden-size 28672": 28672, "": None}.items()
    },
    "megatron: what a script appends on a condition": (
        "megatron",
        {"run.sh": CONDITIONAL},
        {
            "knobs": {"dp": 16, "precision": "fp8", "recompute": "none", "zero_stage": 1},
            "settings": {"fp8-param-gather": True, "lr-warmup-iters": 10, "lr-decay-iters": 100},
            "options": {"steps": 100},
        },
        None,
    ),
    "megatron: a condition that does not hold, of two formats the first": (
        "megatron", {"run.sh": CONDITIONAL.replace('${1:-"fp8"}', "fp16").replace("NNODES=2", "NNODES=1")}, {"knobs": {"precision": "bf16", "zero_stage": 0}}, None,
    ),
    "megatron: the branch of none of the conditions": (
        "megatron", {"run.sh": CONDITIONAL.replace('${1:-"fp8"}', "plain")}, {"knobs": {"precision": "bf16", "recompute": "full"}}, None,
    ),
    "megatron: defaults and arithmetic are put in, and what is left empty is empty": (
        "megatron",
        {"run.sh": DEFAULTS},
        {
            "knobs": {"dp": 32, "zero_stage": 1, "virtual_stages": 1},
            "seq_len": 4096,
            "global_batch_size": 128,
            "model": {"num_experts": 64, "experts_per_token": 6, "shared_ffn_hidden_size": 2816, "q_lora_rank": None},
            "settings": {},
        },
        (),
    ),
    "megatron: blocks of recomputed layers are named": (
        "megatron",
        {"args.txt": "--num-layers 8 --recompute-granularity full --recompute-method block --recompute-num-layers 2\n"},
        {"knobs": {"recompute": "full"}, "settings": {}},
        ("recomputes 2 layers per stage",),
    ),
    "megatron: a text file of flags": (
        "megatron",
        {"args.txt": "--tensor-model-parallel-size 2\n--micro-batch-size 4\n--fp16\n"},
        {"knobs": {"tp": 2, "micro_batch_size": 4, "precision": "fp16", "dp": None}},
        None,
    ),
    "megatron: attention that stores its scores": (
        "megatron", {"args.txt": f"{SMALL} --attention-backend unfused\n"}, {"unfused_attention": True, "settings": {}}, None,
    ),
    "megatron: another backend stays a setting": (
        "megatron", {"args.txt": f"{SMALL} --attention-backend flash\n"}, {"unfused_attention": False, "settings": {"attention-backend": "flash"}}, None,
    ),
    "megatron: sizes that are not known are named": (
        "megatron",
        {"run.sh": OTHER_SIZES},
        {"settings": {"num-shared-experts": 2, "mamba-state-dim": 128, "num-workers": 4, "optimizer": "dion"}},
        ("--optimizer dion is kept, but counted as AdamW", "--num-shared-experts, --mamba-state-dim may be model sizes"),
    ),
    **{
        f"megatron: recomputation of older releases {flags}": ("megatron", {"run.sh": f"{SMALL} {flags}"}, {"knobs": {"recompute": recompute}, "settings": {}}, None)
        for flags, recompute in {
            "--checkpoint-activations --checkpoint-num-layers 1": "full",
            "--activations-checkpoint-method uniform": "full",
            "--activations-checkpoint-granularity selective": "selective",
            "": "none",
        }.items()
    },
    **{
        f"torchtitan: weights of a pipeline pp={pp} {policy}": ("torchtitan", {"job.toml": gathered(pp, policy)}, {"knobs": {"zero_stage": stage}}, None)
        for pp, policy, stage in ((1, "default", 3), (4, "default", 2), (4, "always", 3), (1, "never", 2), (4, "", 2))
    },
    "torchtitan: an older job file by the names of today": (
        "torchtitan",
        {"job.toml": OLDER_TORCHTITAN},
        {
            "knobs": {"micro_batch_size": 2, "compile": True, "precision": "fp8", "tp": 8, "zero_stage": 3},
            "model": {"num_layers": 80, "vocab_size": 128256},
            "options": {"hf_assets_path": "./assets/original"},
            "settings": {"checkpoint": {"enable": False}, "quantize": {"linear": {"float8": FLOAT8}}},
        },
        ("names from releases before 0.2 are read as their 0.2 equivalents (training.batch_size",),
    ),
    "torchtitan: a flavor is not carried": (
        "torchtitan", {"job.toml": FLAVOR}, {"knobs": {"tp": 2, "zero_stage": 3, "micro_batch_size": 2}}, ("flavor='1B'",),
    ),
    "torchtitan: the function that the command names, with its own flavor": (
        "torchtitan",
        {"config_registry.py": REGISTRY, "argv": "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_70b"},
        {"knobs": {"precision": "bf16", "tp": 8}, "seq_len": 8192, "model": {"num_layers": 80}},
        (),
    ),
    "torchtitan: the first function of several": (
        "torchtitan", {"config_registry.py": REGISTRY}, {"knobs": {"precision": "fp8", "tp": 1}}, ("has 2 configurations; only the first, llama3_debug, is read",),
    ),
    "deepspeed: values that the program fills in are named": (
        "deepspeed",
        {"ds.json": '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}'},
        {
            "knobs": {"zero_stage": 3, "micro_batch_size": None, "offload": "optimizer"},
            "settings": {},
            "remarks": ("ds.json: train_micro_batch_size_per_gpu='auto' is filled in by the program",),
        },
        None,
    ),
    # DeepSpeed itself refuses the word in the place of a number
    "deepspeed: what Hugging Face's Trainer would fill in is no setting": (
        "deepspeed",
        {"ds.json": json.dumps(FILLED_IN)},
        {"settings": {"zero_optimization": {"sub_group_size": 1000}}},
        ("gradient_clipping, zero_optimization.reduce_bucket_size",),
    ),
    **{
        f"accelerate: {strategy} of FSDP1": (
            "accelerate",
            {"acc.yaml": f"distributed_type: FSDP\nnum_processes: 16\nmixed_precision: no\nfsdp_config: {{fsdp_sharding_strategy: {strategy}}}\n"},
            {"knobs": {"zero_stage": stage, "dp": 16, "precision": "fp32"}},
            None,
        )
        for strategy, stage in {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0}.items()
    },
    **{
        f"lightning: {strategy} in bf16-true": (
            "lightning", {"lightning.yaml": lightning(8, strategy, "bf16-true")}, {"pure_bf16": pure, "knobs": {"precision": "bf16"}}, None,
        )
        for strategy, pure in {"fsdp": True, "ddp": True, "deepspeed_stage_2": False}.items()
    },
    "lightning: a list of devices": (
        "lightning", {"lightning.yaml": lightning([0, 1, 2, 3], "ddp_find_unused_parameters_false")}, {"knobs": {"dp": 4, "zero_stage": 0}}, (),
    ),
    "lightning: devices as text, and what is on the host": (
        "lightning", {"lightning.yaml": lightning("0,1", "deepspeed_stage_3_offload")}, {"knobs": {"dp": 2, "zero_stage": 3}}, ("host memory",),
    ),
    "lightning: all devices": ("lightning", {"lightning.yaml": lightning(-1, "ddp")}, {"knobs": {"dp": None, "zero_stage": 0}}, ()),
    "hf_trainer: a file of deepspeed that is not read is named": (
        "hf_trainer",
        {"args.json": '{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": true, "deepspeed": "ds.json", "warmup_steps": 10}'},
        {"knobs": {"micro_batch_size": 4, "precision": "bf16"}, "settings": {"warmup_steps": 10}},
        ("ds.json",),
    ),
    "hf_trainer: what a run keeps and reports is no setting": (
        "hf_trainer",
        {"args.json": json.dumps(KEEPS)},
        {"knobs": {"zero_stage": 2}, "settings": {"warmup_ratio": 0.03}},
        ("save_strategy, save_steps, eval_strategy, report_to are left out", "zero_stage=2 is taken from the name of this file"),
    ),
    **{
        f"nanotron: sizes of {other or 'a Llama'} {config}": (
            "nanotron",
            {"config.yaml": nanotron(**config)},
            {"model": {"num_layers": None if other else 2}},
            (f"the sizes in model_config are not read, because model_config has {other}",) if other else None,
        )
        for config, other in (
            ({"is_starcoder2_config": True}, "is_starcoder2_config"),
            ({"is_moe": True, "moe_num_experts": 8}, "is_moe, moe_num_experts"),
            ({"is_llama_config": True}, ""),
            ({}, ""),
        )
    },
}  # fmt: skip
"""of each: trainer, files (`argv`: the command), what is read (of mappings some keys, None: no such
key; all settings), and what its remarks say (none: no remark)"""


@pytest.mark.parametrize(("name", "files", "expected", "remarks"), CASES.values(), ids=CASES)
def test_a_configuration_that_people_wrote_is_read(
    name: str, files: dict[str, str], expected: dict[str, Any], remarks: tuple[str, ...] | None
) -> None:
    texts = {file: text for file, text in files.items() if file != "argv"}
    reading = trainer(name).read_config(
        PresentConfiguration(files=texts, argv=tuple(files.get("argv", "").split()))
    )
    found = {field: getattr(reading, field) for field in expected}
    for field in expected.keys() & {"knobs", "model", "options"}:
        found[field] = {key: found[field].get(key) for key in expected[field]}
    assert found == expected
    assert remarks is None or all(words in " ".join(reading.remarks) for words in remarks)
    assert remarks != () or not reading.remarks


def test_data_of_an_imported_megatron_launch_take_the_place_of_mock_data() -> None:
    own = {
        "train-data-path": "data/train",
        "tokenizer-type": "HuggingFaceTokenizer",
        "tokenizer-model": "gpt2",
    }
    config = ParallelConfig(dp=8, micro_batch_size=1, accumulation_steps=8)
    launches = [
        trainer("megatron").launch(WORKLOAD, config, {"settings": told})
        for told in ({}, {"lr-decay-style": "WSD"}, own)
    ]
    assert ["--mock-data" in launch.argv for launch in launches] == [True, True, False]
    assert launches[2].argv.count("--tokenizer-type") == 1
    assert any("mock data" in note for note in launches[1].notes)
    assert not any("mock data" in note for note in launches[2].notes)
