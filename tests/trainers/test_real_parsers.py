"""What is exported is read by the libraries themselves: accelerate's loader and launcher,
transformers' argument parser, DeepSpeed's configuration.

On a CPU they parse and check; none of them trains. torchtitan and Lightning are asked in the tests
of their trainers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autotune.spec import ParallelConfig
from autotune.testing.trainers import WORKLOAD, configs
from autotune.trainers import trainer, write_launch
from autotune.trainers.base.workload_limits import MACHINES

pytestmark = pytest.mark.slow


def config(**knobs: Any) -> ParallelConfig:
    """A config of a batch of 64."""
    made = ParallelConfig(**knobs)
    return replace(made, accumulation_steps=64 // (made.dp * made.micro_batch_size))


@pytest.mark.parametrize("forms", [True, False])
def test_accelerate_forms_ranks_of_nodes_with_one_gpu_where_it_is_told_to(forms: bool) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    words = [word for word in MACHINES if forms or word != "--multi_gpu"]
    filled = [
        word.format(nnodes=4, node_rank=1, master_addr="node0", master_port=29500) for word in words
    ]
    given = launch_command_parser().parse_args(["--num_processes=4", *filled, "train.py"])
    read, *_ = _validate_launch_command(given)
    assert (read.num_machines, read.machine_rank, read.multi_gpu) == (4, 1, forms)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (config(dp=8), {"multi_gpu": True, "use_fsdp": False, "num_processes": 8}),
        (
            config(dp=8, zero_stage=1),
            {"use_deepspeed": True, "zero_stage": 1, "gradient_accumulation_steps": 8},
        ),
        (
            config(dp=8, zero_stage=2),
            {"use_fsdp": True, "fsdp_version": 2, "fsdp_reshard_after_forward": False},
        ),
        (
            config(dp=8, zero_stage=3, recompute="full", compile=True),
            {
                "fsdp_reshard_after_forward": True,
                "fsdp_activation_checkpointing": True,
                "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
                "dynamo_backend": "INDUCTOR",
            },
        ),
        (
            config(dp=16, zero_stage=3),
            {"num_machines": 2, "machine_rank": 1, "main_process_ip": "node0"},
        ),
    ],
    ids=str,
)
def test_accelerate_reads_its_file_and_its_command(
    asked: ParallelConfig, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    launch = (
        trainer("accelerate")
        .launch(WORKLOAD, asked)
        .on_node(1, master_addr="node0", master_port=29500)
    )
    write_launch(launch, tmp_path)
    monkeypatch.chdir(tmp_path)
    read = load_config_from_file("accelerate.yaml")
    assert (read.num_machines, read.num_processes) == (asked.world_size // 8, asked.world_size)
    arguments, *_ = _validate_launch_command(launch_command_parser().parse_args(launch.argv[2:]))
    assert arguments.mixed_precision == "bf16"
    told = {name: getattr(arguments, name) for name in expected}
    assert told == expected


def test_transformers_knows_every_argument() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    known = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    for asked in configs():
        if not trainer("hf_trainer").limits(WORKLOAD, asked):
            written = json.loads(
                trainer("hf_trainer").launch(WORKLOAD, asked).files["training_args.json"]
            )
            assert written.keys() <= known, f"TrainingArguments has no {written.keys() - known}"


@pytest.mark.parametrize(
    "asked", [config(precision="bf16", recompute="full"), config(micro_batch_size=4)], ids=str
)
def test_transformers_parses_the_file_without_a_warning(
    asked: ParallelConfig, tmp_path: Path
) -> None:
    """Warnings are errors here, so a name that is deprecated would fail too. `tf32` asks for a GPU,
    which is not here."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    written = json.loads(trainer("hf_trainer").launch(WORKLOAD, asked).files["training_args.json"])
    del written["tf32"]
    (tmp_path / "training_args.json").write_text(
        json.dumps({**written, "use_cpu": True}), encoding="utf-8"
    )
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (read,) = parser.parse_json_file(str(tmp_path / "training_args.json"))
    assert read.per_device_train_batch_size * read.gradient_accumulation_steps == 64
    assert read.bf16 is (asked.precision == "bf16")
    assert read.activation_checkpointing is (asked.recompute == "full")


READ_BY_DEEPSPEED = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
settings = json.load(open(sys.argv[1]))
settings["train_batch_size"] //= int(sys.argv[2])  # one process reads it, whose world is itself alone
read = DeepSpeedConfig(settings)
print(json.dumps([read.zero_optimization_stage, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps,
                  read.bfloat16_config.enabled, read.float16_config.enabled]))
"""


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_reads_its_file(stage: int, precision: str, tmp_path: Path) -> None:
    asked = config(dp=8, micro_batch_size=2, zero_stage=stage, precision=precision)
    write_launch(trainer("deepspeed").launch(WORKLOAD, asked), tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            READ_BY_DEEPSPEED,
            str(tmp_path / "ds_config.json"),
            "8",
        ],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [
        stage,
        2,
        4,
        precision == "bf16",
        precision == "fp16",
    ]
