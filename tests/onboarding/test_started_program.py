"""A launch script becomes the spec of the program that it starts: what the script says of knobs is
the baseline, and all else stays in the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune import api
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.onboarding.launch.launch_script import Started, started_by
from autotune.spec import ParallelConfig, Study
from autotune.trainers import trainer
from tests.onboarding.drafting import Launch, Read
from tests.shortcuts import file_with, write

TRAIN = """
import argparse
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
parser.add_argument("--train_file", required=True)
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--block_size", type=int, default=128)
parser.add_argument("--max_train_steps", type=int, default=100)
print(f"step {step}: loss {loss:.3f}")
"""
FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_activation_checkpointing: true}
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
ACCELERATE = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
export HF_HOME=/data/hf WANDB_API_KEY=abc123 LAUNCHER="accelerate launch --config_file configs/fsdp.yaml \\
  --num_processes $((SLURM_NNODES * 8)) --num_machines $SLURM_NNODES --main_process_ip $(scontrol show hostnames | head -n 1)"
srun $LAUNCHER src/train.py --model_name_or_path meta-llama/Llama-3.1-8B-Instruct --train_file '{data}.json' \\
  --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --block_size 2048 --output_dir $OUT/run
"""
TRAINER = """
from transformers import HfArgumentParser, TrainingArguments
args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""
DEEPSPEED = """deepspeed --num_gpus 4 train.py --deepspeed ds.json --output_dir out --bf16 --gradient_checkpointing True \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --logging_steps 10 --report_to wandb --save_strategy steps
"""
ZERO = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "tensorboard": {"enabled": False, "job_name": "{run}"},
}
FACTORY = """OUT=saves/qwen
FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 llamafactory-cli train --model_name_or_path Qwen/Qwen2.5-7B --stage sft --do_train \\
  --finetuning_type lora --lora_rank 16 --cutoff_len 1024 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
  --fp16 --output_dir $OUT --plot_loss
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("code/src", "code/scripts", "code/configs"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path, {"code/src/train.py": TRAIN, "code/configs/fsdp.yaml": FSDP})
    return tmp_path


def drafted(
    folder: Path, text: str, cluster: str | None = None, name: str = "scripts/run.sh"
) -> Draft:
    return first_draft(file_with(folder / "code" / name, text), cluster=cluster, folder=folder)


def loaded(draft: Draft, folder: Path) -> Study:
    return api.load_study(file_with(folder / "spec.yaml", draft.text))


def argv(study: Study, config: ParallelConfig) -> tuple[str, ...]:
    return (
        trainer("command")
        .launch(study.workload, config, {**study.trainer_options, "steps": 7})
        .argv
    )


def test_a_script_of_accelerate_with_a_configuration_from_its_repository(folder: Path) -> None:
    draft = drafted(folder, ACCELERATE, "h100-sxm-2x8")
    study = loaded(draft, folder)
    assert (study.workload.model.name, study.workload.seq_len) == ("llama-8b", 2048)
    assert study.workload.global_batch_sizes == (4 * 8 * 16,)
    assert study.baseline is not None
    told = {
        name: getattr(study.baseline, name)
        for name in ("micro_batch_size", "precision", "zero_stage", "recompute")
    }
    assert told == {
        "micro_batch_size": 4,
        "precision": "bf16",
        "zero_stage": 2,
        "recompute": "full",
    }
    config = ParallelConfig(
        dp=16, micro_batch_size=8, accumulation_steps=4, zero_stage=2, recompute="full"
    )
    words = argv(study, config)
    assert words[:3] == ("accelerate", "launch", "--num_processes=16")
    assert words[words.index("--config_file=configs/fsdp.yaml") + 1 :] == (
        *(
            "src/train.py",
            "--model_name_or_path=meta-llama/Llama-3.1-8B-Instruct",
            "--train_file={data}.json",
        ),
        *(
            "--output_dir=$OUT/run",
            "--per_device_train_batch_size=8",
            "--gradient_accumulation_steps=4",
        ),
        *("--block_size=2048", "--max_train_steps=7"),
    )
    assert Path(study.trainer_options["cwd"]) == (folder / "code").resolve(), (
        "paths begin where its program is found"
    )
    assert study.trainer_options["env"] == {
        "HF_HOME": "/data/hf",
        "WANDB_API_KEY": "from-environment",
    }
    assert draft.fill_in == ("trainer.argv",)
    assert "only the shell can compute $OUT/run; write the values into argv" in draft.notes
    assert (
        "run.sh also exports WANDB_API_KEY; export the same variables where you start autotune"
        in draft.notes
    )
    assert "abc123" not in draft.text


def test_zero_stages_of_a_script_of_deepspeed_are_tuned_by_its_own_file(folder: Path) -> None:
    write(folder, {"code/train.py": TRAINER, "code/ds.json": json.dumps(ZERO)})
    study = loaded(drafted(folder, DEEPSPEED, "a100-80gb-1x4", "run.sh"), folder)
    assert (study.baseline.zero_stage, study.baseline.precision, study.baseline.recompute) == (
        2,
        "bf16",
        "full",
    )
    assert {row.config.zero_stage for row in api.plan_of(study, top=1000).rows} == {1, 2, 3}
    config = ParallelConfig(
        dp=4,
        micro_batch_size=8,
        accumulation_steps=1,
        zero_stage=3,
        precision="fp16",
        offload="optimizer",
    )
    launch = trainer("command").launch(study.workload, config, study.trainer_options)
    assert json.loads(launch.files["ds.json"]) == {
        **ZERO,
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    }
    named = [word for word in launch.argv if word.startswith("--deepspeed=")]
    assert [word.endswith("/ds.json") for word in named] == [True]
    assert {
        "--per_device_train_batch_size=8",
        "--fp16=True",
        "--gradient_checkpointing=False",
    } < set(launch.argv)
    assert {"--logging_steps=1", "--report_to=none", "--save_strategy=no"} < set(launch.argv)
    assert not {"--bf16", "--report_to=wandb", "--logging_steps=10"} & set(launch.argv)


def test_a_script_of_llamafactory_has_its_settings_in_its_command(folder: Path) -> None:
    draft = drafted(folder, FACTORY, "a100-80gb-2x8")
    study = loaded(draft, folder)
    assert (study.workload.model.name, study.workload.seq_len) == ("qwen2.5-7b", 1024)
    assert study.workload.global_batch_sizes == (2 * 4 * 16,)
    assert study.workload.peft.rank == 16
    words = argv(
        study, ParallelConfig(dp=16, micro_batch_size=4, accumulation_steps=2, precision="fp16")
    )
    assert words[2:4] == ("-m", "llamafactory.launcher")
    assert words.count("--output_dir=saves/qwen") == 1
    given = [
        word
        for word in words
        if word.startswith(("--per_device_train", "--gradient_acc", "--plot_loss"))
    ]
    assert given == [
        "--per_device_train_batch_size=4",
        "--gradient_accumulation_steps=2",
        "--plot_loss=false",
    ]


def test_a_file_of_settings_that_a_script_starts_is_read(folder: Path) -> None:
    (folder / "code/sft.yaml").write_text(
        "base_model: Qwen/Qwen3-8B\nsequence_len: 512\nmicro_batch_size: 2\nbf16: true\n"
    )
    draft = drafted(
        folder,
        "axolotl train sft.yaml --micro-batch-size 4 --launcher torchrun -- --nproc_per_node=4\n",
    )
    study = loaded(draft, folder)
    assert study.workload.global_batch_sizes == (4 * 1 * 4,)
    words = argv(study, ParallelConfig(dp=1, micro_batch_size=1, accumulation_steps=16))
    assert words[3:7] == ("-m", "axolotl.cli.train", "sft.yaml", "--micro_batch_size=1")


@pytest.mark.parametrize(
    ("text", "launcher", "program", "nodes", "per_node"),
    [
        ("torchrun --standalone --nproc-per-node=8 -m pkg.train --lr 1", "torchrun", "pkg.train", 1, 8),
        ("python3 -m torch.distributed.launch --nproc_per_node 4 --nnodes 2 run.py", "torchrun", "run.py", 2, 4),
        ("N=${1:-2}\nsrun apptainer exec --nv x.sif torchrun --nproc_per_node=$N a/train.py", "torchrun", "a/train.py", 1, 2),
        ("accelerate launch --num_processes 16 --num_machines 2 -m axolotl.cli.train x.yml", "accelerate", "axolotl.cli.train", 2, 8),
        ("CUDA_VISIBLE_DEVICES=0 python -u train.py --lr 1", "python", "train.py", 1, None),
        ("deepspeed --num_accelerators 2 train.py --batch 4", "deepspeed", "train.py", 1, 2),
        ("accelerate launch --cpu --num_processes 2 train.py --batch 4", "accelerate", "train.py", 1, 1),
    ],
)  # fmt: skip
def test_what_a_script_starts(
    text: str, launcher: str, program: str, nodes: int, per_node: int | None
) -> None:
    found = started_by(text)
    assert isinstance(found, Started)
    assert (found.launcher, found.program, found.nodes, found.gpus_per_node) == (
        launcher,
        program,
        nodes,
        per_node,
    )
    assert found.env == {}


def test_a_script_that_starts_no_program() -> None:
    assert started_by("make train\nfor i in 1 2; do echo $i; done\n") is None


def test_trials_of_transformers_save_nothing_and_the_exported_launch_says_so(folder: Path) -> None:
    (folder / "code/train.py").write_text(TRAINER)
    study = loaded(
        drafted(
            folder, "torchrun --nproc_per_node 2 train.py --max_steps 100\n", "cpu-1x2", "run.sh"
        ),
        folder,
    )
    assert "--save_strategy=no" in argv(
        study, ParallelConfig(dp=2, micro_batch_size=8, accumulation_steps=1)
    )


BY_FILE = "accelerate launch --config_file configs/fsdp.yaml src/train.py\n"
LIGHTNING_CLI = """
import lightning as L
from lightning.pytorch.cli import LightningCLI
class Data(L.LightningDataModule):
    def __init__(self, batch_size: int = 8):
        super().__init__()
class Net(L.LightningModule):
    def __init__(self, dim: int = 8):
        super().__init__()
LightningCLI(Net, Data)
"""
DIVIDES = """
import argparse, torch.distributed as dist
p = argparse.ArgumentParser()
p.add_argument("--total_batch", type=int, default=32)
p.add_argument("--accum", type=int, default=1)
a = p.parse_args()
per_gpu = a.total_batch // dist.get_world_size() // a.accum
"""


READ = {
    "a cluster of several nodes is to be filled in": Launch(
        {"scripts/run.sh": ACCELERATE, "src/train.py": TRAIN, "configs/fsdp.yaml": FSDP},
        Read(
            asked=("cluster",),
            text=("fill in the cluster, e.g. h100-sxm-2x8, because the script requests 2 nodes",),
            document={"workload/global_batch_size": 4 * 8 * 16},
        ),
        None,
    ),
    "a program that is not there is known by its arguments; of more GPUs the launch uses two": Launch(
        {
            "run.sh": "python prepare.py --a --b --c --d\ntorchrun --nproc_per_node=2 elsewhere/sft.py --batch-size 4 --grad-accum=2 --flash\n"
        },
        Read(
            document={
                "baseline": "dp=2,micro_batch_size=4,precision=fp32",
                "space/world_sizes": [2],
                "workload/global_batch_size": 16,
                "trainer/argv": [
                    *(
                        "torchrun",
                        "--standalone",
                        "--nproc-per-node={nproc_per_node}",
                        "elsewhere/sft.py",
                        "--flash",
                    ),
                    *("--batch-size={micro_batch_size}", "--grad-accum={accumulation_steps}"),
                ],
            },
            notes=("elsewhere/sft.py was not found",),
        ),
        None,
    ),
    **{
        f"ranks are those of the file of accelerate: {ranks}": Launch(
            {
                "run.sh": BY_FILE,
                "src/train.py": TRAIN,
                "configs/fsdp.yaml": FSDP.replace("num_processes: 8", f"num_processes: {ranks}"),
            },
            Read(document={"workload/global_batch_size": 8 * 1 * ranks}),
            None,
        )
        for ranks in (8, 2)
    },
    "only names of secrets are kept back": Launch(
        {
            "run.sh": "export TOKENIZERS_PARALLELISM=false HF_TOKEN=hf_abc API_KEYS=a,b\npython src/train.py\n",
            "src/train.py": TRAIN,
        },
        Read(
            document={
                "trainer/env": {
                    "TOKENIZERS_PARALLELISM": "false",
                    "HF_TOKEN": "from-environment",
                    "API_KEYS": "from-environment",
                }
            },
            notes=(
                "run.sh also exports HF_TOKEN, API_KEYS; export the same variables where you start autotune",
            ),
        ),
        None,
    ),
    "what only the shell can compute is taken from the environment": Launch(
        {
            "run.sh": "export OUT_DIR=$SCRATCH/run MODE=fast\npython src/train.py\n",
            "src/train.py": TRAIN,
        },
        Read(
            document={"trainer/env": {"OUT_DIR": "from-environment", "MODE": "fast"}},
            notes=(
                "run.sh also exports OUT_DIR; export the same variables where you start autotune",
            ),
        ),
        None,
    ),
    "a file alone, beside which HfArgumentParser takes no option, becomes options": Launch(
        {
            "run.sh": "python sft.py conf.json\n",
            "sft.py": "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n",
            "conf.json": '{"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": true, '
            '"resume_from_checkpoint": null, "lr_scheduler_kwargs": {"a": 1}, "label_names": ["x", "y"], "save_strategy": "epoch"}',
        },
        Read(
            document={
                "workload/global_batch_size": 8,
                "trainer/training/--save_strategy=no": "--save_strategy=epoch",
            },
            knobs=("micro_batch_size=4,precision=bf16",),
            words=(
                *(
                    "--output_dir=out",
                    '--lr_scheduler_kwargs={{"a": 1}}',
                    "--label_names",
                    "x",
                    "y",
                ),
                *(
                    "--per_device_train_batch_size={micro_batch_size}",
                    "--gradient_accumulation_steps={accumulation_steps}",
                ),
            ),
            without=("conf.json", "resume_from_checkpoint"),
            notes=("the settings in conf.json are passed as options",),
        ),
        "h100-sxm-1x1",
    ),
    "a launch of LightningCLI has its own subcommand": Launch(
        {
            "run.sh": "python train.py fit --data.batch_size 16\n",
            "train.py": LIGHTNING_CLI,
        },
        Read(
            start=("python", "train.py", "fit", "--data.batch_size={micro_batch_size}"),
        ),
        "h100-sxm-1x1",
    ),
    **{
        f"the micro-batch is what is left of the batch of all ranks: {batch}": Launch(
            {
                "run.sh": f"torchrun --nproc_per_node=2 train.py --total_batch {batch} --accum 2\n",
                "train.py": DIVIDES,
            },
            Read(document={"baseline": baseline, "space/micro_batch_size": offered}),
            "h100-sxm-1x2",
        )
        for batch, baseline, offered in (
            (32, "micro_batch_size=8,precision=fp32", [2, 4, 8, 16, 32]),
            (30, None, None),
        )
    },
    "Megatron under DeepSpeed stays the program that it is": Launch(
        {
            "run.sh": 'ds="--deepspeed --zero-stage=3 --deepspeed_config=ds.json"\n'
            "deepspeed --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
            "--micro-batch-size 2 --global-batch-size 16 --seq-length 128 --train-iters 10 --fp16 --checkpoint-activations $ds\n"
        },
        Read(
            document={"trainer/kind": "command"},
            knobs=("precision=fp16,recompute=full,zero_stage=3",),
            words=("--deepspeed_config=ds.json",),
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)
