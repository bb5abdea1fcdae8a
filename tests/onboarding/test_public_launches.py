"""Launches in the manner of public programs: what is read of each is what it really starts, or it
is refused by name. Nothing is made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import SpecError
from autotune.onboarding.first_spec import first_draft
from autotune.onboarding.launch.launch_script import started_by
from tests.onboarding.drafting import A100, Launch, Read, argv, drafted, loaded
from tests.shortcuts import file_with

ARGPARSE = "import argparse\np = argparse.ArgumentParser()\n"
HF = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
HF_FLAGS = "--bf16 True --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --gradient_checkpointing True --model_max_length 1024"


ZERO3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
FORK = (
    "deepspeed --num_gpus 8 pretrain_llm.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 2048 --micro-batch-size 2 {batch} --train-iters 100 --bf16 --deepspeed --zero-stage 1\n"
)
SETTINGS = {
    "distributed": {"tp_size": 2, "cp_size": 1, "pp_size": 2, "dp_size": 2},
    "training": {
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "seq_length": 1024,
        "seed": 1,
    },
}
BY_TORCHRUN = (
    "torchrun --nproc_per_node={n} t.py --per_device_batch 2 --grad_accum 8 --seq_len 64\n"
)
BY_ACCELERATE = "accelerate launch t.py --per_device_batch 2 --grad_accum 8 --seq_len 64\n"
BF16_CODE = f'import torch\n{ARGPARSE}p.add_argument("--batch-size", type=int, default=8)\nmodel.to(torch.bfloat16)\n'
DECLARED = {
    "--batch-size": 8,
    "--eval.steps": 50,
    "--eval.batch_size": 64,
    "--num_iterations": -1,
    "--total_batch_size": -1,
    "--max-seq-len": 64,
}
TOTAL = f'import torch.distributed as dist\ndist.init_process_group()\n{ARGPARSE}p.add_argument("--batch_size", type=int, default=64, help="{{}}")\n'
SUBCLASS = (
    "from dataclasses import dataclass, field\nimport transformers\n"
    "@dataclass\nclass Base(transformers.Seq2SeqTrainingArguments):\n"
    "    gradient_checkpointing: bool = field(default=True)\n    gradient_accumulation_steps: int = field(default=16)\n"
    "@dataclass\nclass Own(Base):\n    gradient_accumulation_steps: int = field(default=4)\n"
    "transformers.HfArgumentParser((Own,)).parse_args_into_dataclasses()\n"
)
SHAPED = ARGPARSE + (
    'p.add_argument("--batch-size", type=int, default=1)\np.add_argument("--bf16", action="store_true")\n'
    'p.add_argument("--num-layers", type=int, default=24)\np.add_argument("--hidden-size", type=int, default=1024)\n'
    'p.add_argument("--num-attention-heads", type=int, default=16)\n'
)
LOOP = (
    ARGPARSE
    + 'p.add_argument("--batch-size", type=int, default=4)\np.add_argument("--accum", type=int, default=1)\n'
)
TF32 = (
    LOOP
    + 'p.add_argument("--precision", default="no", choices=["no", "bf16"])\ntorch.backends.cuda.matmul.allow_tf32 = True\n'
)
AMP = (
    LOOP
    + 'p.add_argument("--amp", action="store_true")\nif torch.cuda.is_available():\n    torch.backends.cuda.matmul.allow_tf32 = True\n'
)
TRAIN8 = "torchrun --nproc_per_node 8 train.py\n"
TOKENS = "total_batch_size = 524288\nwith torch.autocast('cuda'):\n    step()\n"
JOB_FILE = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""
TITAN_RUN = "torchrun --nproc_per_node=${NGPU:-8} -m torchtitan.train --job.config_file ${CONFIG_FILE:-./llama3_8b.toml}"
NANOTRON = {
    "general": {"run": "tiny", "seed": 1},
    "model": {
        "dtype": "bfloat16",
        "model_config": {
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "vocab_size": 128256,
            "is_llama_config": True,
            "tie_word_embeddings": True,
        },
    },
    "optimizer": {"zero_stage": 0, "accumulate_grad_in_fp32": True},
    "parallelism": {"dp": 4, "pp": 1, "tp": 2, "pp_engine": "1f1b"},
    "tokens": {
        "batch_accumulation_per_replica": 1,
        "micro_batch_size": 3,
        "sequence_length": 4096,
        "train_steps": 15,
    },
}
BATCH = "workload/global_batch_size"
READ = {
    "DeepSpeed stays the launcher of a program that imports it elsewhere": Launch(
        {
            "run.sh": f"deepspeed train.py --deepspeed z3.json {HF_FLAGS}\n",
            "train.py": "import helpers\nhelpers.main()\n",
            "z3.json": '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}',
        },
        Read(
            start=("deepspeed", "--num_gpus={nproc_per_node}"),
            study={
                "workload.global_batch_sizes": (4 * 2 * 8,),
                "baseline.dp": 8,
                "baseline.zero_stage": 3,
                "baseline.precision": "bf16",
            },
        ),
    ),
    "a parser of an imported module; TF32 beside bf16 stays as it is": Launch(
        {
            "run.sh": f'torchrun --nproc_per_node=4 pkg/fast.py --fsdp "full_shard auto_wrap" --tf32 True {HF_FLAGS}\n',
            "pkg/fast.py": "from pkg.patch import patch\npatch()\nfrom pkg.train import run\nrun()\n",
            "pkg/train.py": "from dataclasses import dataclass\n" + HF,
        },
        Read(
            document={
                "baseline": "micro_batch_size=4,precision=bf16,recompute=full,zero_stage=3",
                BATCH: 4 * 2 * 4,
            },
            words=("--tf32=True",),
        ),
        "a100-80gb-1x4",
    ),
    "a parser behind a relative import says its own lines": Launch(
        {
            "src/run.sh": "torchrun --nproc_per_node 8 -m clipper.main --precision amp_bfloat16 --batch-size 32\n",
            "src/clipper/main.py": "from .params import parse\n",
            "src/clipper/params.py": f'{ARGPARSE}p.add_argument("--batch-size", type=int, default=64)\np.add_argument("--precision", default="fp32")\n',
        },
        Read(
            baseline="micro_batch_size=32,precision=bf16",
            text=("params.py line 3",),
            words=("--precision={precision}",),
        ),
    ),
    "a word that nobody knows leaves no baseline": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 t.py --precision mxfp4 --batch-size 8 --seq-len 64\n"
        },
        Read(document={"baseline": None}, asked=("baseline",), notes=("--precision=mxfp4",)),
    ),
    "degrees of a fork are in the baseline": Launch(
        {"run.sh": FORK.format(batch="--global-batch-size 64")},
        Read(baseline="tp=2,pp=2,dp=2,micro_batch_size=2,precision=bf16"),
    ),
    "degrees of a fork are in the batch": Launch(
        {"run.sh": FORK.format(batch="--grad-accum 4")}, Read(document={BATCH: 2 * 4 * 2})
    ),
    "a degree of a fork that is not known": Launch(
        {"run.sh": FORK.format(batch="--ds-sequence-parallel-size 2")},
        Read(document={"baseline": None}, notes=("--ds-sequence-parallel-size=2",)),
    ),
    "degrees of a file of settings are in the baseline": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 train.py --config c.json\n",
            "train.py": ARGPARSE + 'p.add_argument("--config")\n',
            "c.json": json.dumps(SETTINGS),
        },
        Read(
            document={BATCH: 4 * 8 * 2},
            study={"baseline.tp": 2, "baseline.pp": 2, "baseline.dp": 2},
        ),
    ),
    "ranks are those of the launch, fewer than the cluster has": Launch(
        {"run.sh": BY_TORCHRUN.format(n=4)},
        Read(study={"workload.global_batch_sizes": (2 * 8 * 4,), "baseline.world_size": 4}),
    ),
    "ranks are those of the launch, more than the cluster has": Launch(
        {"run.sh": BY_TORCHRUN.format(n=8)},
        Read(
            study={
                "workload.global_batch_sizes": (2 * 8 * 8,),
                "baseline.dp": 2,
                "baseline.accumulation_steps": 32,
            },
            notes=("8 ranks, but trials have 2",),
        ),
        "a100-80gb-1x2",
    ),
    "ranks that nothing says": Launch(
        {"run.sh": BY_ACCELERATE}, Read(asked=("workload.global_batch_size",)), None
    ),
    "ranks that the cluster says": Launch(
        {"run.sh": BY_ACCELERATE}, Read(settled=("workload.global_batch_size",))
    ),
    "ranks that the visible GPUs say": Launch(
        {"run.sh": f"CUDA_VISIBLE_DEVICES=0,1 {BY_ACCELERATE}"}, Read(document={BATCH: 32}), None
    ),
    "no launcher is added where there was none": Launch(
        {
            "run.sh": "python train.py --batch_size 4 --seq_len 64\n",
            "train.py": "from accelerate import Accelerator\n"
            + ARGPARSE
            + 'p.add_argument("--batch_size", type=int)\n',
        },
        Read(start=("python", "train.py"), notes=("starts one process",)),
    ),
    "words behind two dashes stay": Launch(
        {
            "run.sh": "torchrun --standalone --nproc_per_node=8 -m scripts.base -- --depth=20 --device_batch_size=32 --run=x\n"
        },
        Read(
            document={
                "trainer/argv": [
                    *(
                        "torchrun",
                        "--standalone",
                        "--nproc-per-node={nproc_per_node}",
                        "-m",
                        "scripts.base",
                    ),
                    *("--", "--depth=20", "--run=x", "--device_batch_size={micro_batch_size}"),
                ]
            },
            baseline="micro_batch_size=32",
        ),
    ),
    "names that mean something else": Launch(
        {
            "train.py": ARGPARSE
            + "".join(
                f'p.add_argument("{name}", type=int, default={value})\n'
                for name, value in DECLARED.items()
            )
        },
        Read(words=("--num_iterations={steps}",), without=("eval",), document={BATCH: 8}),
    ),
    **{
        f"a batch over all ranks: {code}": Launch(
            {"train.py": f"{TOTAL.format('per GPU')}{code}\n"}, Read(baseline="micro_batch_size=8")
        )
        for code in (
            "args.batch_size = int(args.batch_size / ngpus_per_node)",
            "n = args.batch_size // dist.get_world_size()",
            "Accelerator(split_batches=True)",
        )
    },
    "a help text says nothing of ranks": Launch(
        {"train.py": TOTAL.format("effective batch is batch_size * # gpus")},
        Read(baseline="micro_batch_size=64"),
    ),
    "a run is not watched by trials": Launch(
        {"run.sh": "torchrun --nproc_per_node 8 t.py --batch-size 4 --grad-accum 1 --wandb\n"},
        Read(without=("--wandb",), notes=("--wandb",)),
    ),
    "a format that the file of DeepSpeed fixes is not searched": Launch(
        {
            "run.sh": f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {HF_FLAGS}\n",
            "train.py": HF,
            "ds.json": ZERO3.replace("3", "2"),
        },
        Read(
            document={"space/precision": ["bf16"]},
            knobs=("precision=bf16",),
            words=("--bf16=True",),
        ),
    ),
    "a format that only the code knows is not called fp32": Launch(
        {"run.sh": "torchrun --nproc_per_node 8 train.py --batch-size 4\n", "train.py": BF16_CODE},
        Read(document={"baseline": None}, asked=("space.precision", "baseline")),
    ),
    "a format that autocast names is that of the program": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 train.py --batch-size 4\n",
            "train.py": BF16_CODE.replace(
                "model.to(torch.bfloat16)", 'torch.autocast("cuda", dtype=torch.bfloat16)'
            ),
        },
        Read(document={"space/precision": ["bf16"]}, knobs=("precision=bf16",)),
    ),
    "on one rank nothing is sharded": Launch(
        {
            "run.sh": f"deepspeed --num_gpus 1 train.py --deepspeed ds.json {HF_FLAGS}\n",
            "train.py": HF,
            "ds.json": ZERO3,
        },
        Read(study={"baseline.world_size": 1, "baseline.zero_stage": 0}),
    ),
    "a path that only the shell knows stays in a draft that loads": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 ${CODE}/train.py --batch-size 4 --grad-accum 2 --seq-len 64 --n-layer -1\n"
        },
        Read(asked=("trainer.argv",), notes=("${CODE}/train.py",), study={"trainer": "command"}),
    ),
    "a micro-batch in tokens of unknown length is asked for": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 t.py --dtype bf16 --train_module.rank_microbatch_size=8192\n",
            "t.py": "import torch\n",
        },
        Read(asked=("workload.seq_len",), document={"baseline": None}),
    ),
    "a default of a subclass is that of the program": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 tune.py --per_device_train_batch_size 2\n",
            "tune.py": SUBCLASS,
        },
        Read(
            document={
                "baseline": "micro_batch_size=2,precision=fp32,recompute=full",
                BATCH: 2 * 4 * 8,
            }
        ),
    ),
    "a substitution stays one word; the ranks are whatever GPUs the machine has": Launch(
        {
            "run.sh": "GPUS=$(python -c 'import torch; print(torch.cuda.device_count())')\n"
            f'ARGS="--nproc_per_node $GPUS --nnodes 1"\ntorchrun $ARGS train.py {HF_FLAGS}\n',
            "train.py": HF,
        },
        Read(
            start=("torchrun", "--standalone", "--nproc-per-node={nproc_per_node}", "train.py"),
            asked=("workload.global_batch_size",),
        ),
        None,
    ),
    "a variable that may hold options leaves the current config unknown": Launch(
        {
            "run.sh": "source $1\ntorchrun --nproc_per_node 8 train.py --bf16 $MODEL_ARGS $LARGE\n",
            "train.py": SHAPED,
        },
        Read(
            asked=("baseline", "model", "workload.global_batch_size"),
            notes=("does not set $MODEL_ARGS, which",),
        ),
    ),
    **{
        f"the accumulation that both families take by default: {program}": Launch(
            {
                "run.sh": f"accelerate launch --num_processes 8 {program} --per_device_train_batch_size 4\n"
            },
            Read(document={BATCH: 4 * 8}),
        )
        for program in ("run_clm_no_trainer.py", "sft.py")
    },
    "a file of DeepSpeed under a dotted name shards": Launch(
        {
            "run.sh": "deepspeed --num_gpus 8 train.py --training_arguments.fp16 true --training_arguments.per_device_train_batch_size 8 "
            "--training_arguments.deepspeed conf/z2-small.json\n"
        },
        Read(
            document={
                "baseline": "micro_batch_size=8,precision=fp16,accumulation_steps=1,zero_stage=2"
            },
            asked=("workload.global_batch_size",),
        ),
    ),
    "a number format that no option here says is asked for": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 train.py --micro-batch-size 4 --global-batch-size 64 --seq-length 1024\n",
            "train.py": "from elsewhere import main\nmain()\n",
        },
        Read(asked=("space.precision",)),
    ),
    "fp32 by an option is tf32 where the code allows it": Launch(
        {"run.sh": TRAIN8, "train.py": TF32},
        Read(
            document={
                "baseline": "micro_batch_size=4,precision=tf32",
                "space/precision": ["tf32", "bf16"],
                "trainer/values/precision/tf32": "no",
            }
        ),
    ),
    "fp32 by an option stays where there are no GPUs": Launch(
        {"run.sh": TRAIN8, "train.py": TF32},
        Read(document={"space/precision": ["fp32", "bf16"]}),
        "cpu-1x8",
    ),
    "flags of other formats leave tf32 where the code allows it": Launch(
        {"run.sh": TRAIN8, "train.py": AMP},
        Read(
            document={
                "baseline": "micro_batch_size=4,precision=tf32",
                "space/precision": ["tf32", "fp16"],
                "trainer/values/precision": {"fp16": "--amp", "tf32": None},
            }
        ),
    ),
    "a batch in the program's own text is its batch, from which the accumulation follows": Launch(
        {
            "run.sh": TRAIN8,
            "train.py": "def setup():\n    pass\nglobal_batch_size = 512\nmicro_batch_size = 8\nwith torch.autocast('cuda'):\n    step()\n",
        },
        Read(document={BATCH: 512, "baseline": "micro_batch_size=8,precision=fp16"}),
    ),
    "a batch in the program's own text may count tokens of sequences whose length is not known": Launch(
        {"run.sh": TRAIN8, "train.py": TOKENS}, Read(asked=("workload.global_batch_size",))
    ),
    "a batch in the program's own text may count tokens": Launch(
        {"run.sh": TRAIN8, "train.py": f"{TOKENS}block_size = 1024\nmicro_batch_size = 64\n"},
        Read(document={BATCH: 512}),
    ),
    "a number format in a variable is asked for": Launch(
        {"train.py": f"{LOOP}fabric = L.Fabric(devices=8, precision=chosen)\n"},
        Read(asked=("space.precision",)),
    ),
    "a length that a loop sets for its samples is not that of the training": Launch(
        {
            "train.py": f"{LOOP}for step in range(9):\n    if step % 5 == 0:\n        max_length = 32\n"
        },
        Read(asked=("workload.seq_len",)),
    ),
    "batches that a setting counts in tokens, as OpenNMT-py's batch_type": Launch(
        {
            "run.sh": "python train.py -config config.yaml\n",
            "train.py": "import configargparse, yaml\np = configargparse.ArgumentParser()\np.add('-config')\nyaml.safe_load(open(p.parse_args().config))\n",
            "config.yaml": "train_steps: 1000\naccum_count: 4\nbatch_size: 4096\nbatch_type: tokens\nlayers: 6\nreport_every: 50\n",
        },
        Read(
            document={
                "trainer/files/config.yaml/batch_size": "{micro_batch_size * seq_len}",
                "trainer/files/config.yaml/accum_count": "{accumulation_steps}",
                "trainer/files/config.yaml/report_every": 1,
                "trainer/training/config.yaml": {"report_every": 50},
            }
        ),
        None,
    ),
    "DeepSpeed's examples call the stage of ZeRO a stage": Launch(
        {
            "run.sh": "deepspeed --num_gpus 2 train.py --stage 2\n",
            "train.py": "import argparse, deepspeed\np = argparse.ArgumentParser()\np.add_argument('--stage', type=int, default=0, choices=[0, 1, 2, 3])\n"
            "p.add_argument('--batch_size', type=int, default=4)\na = p.parse_args()\n",
        },
        Read(words=("--stage={zero_stage}",), document={"space/zero_stage": [2, 0, 1, 3]}),
    ),
    "accelerate on CPUs is started as it was, because one process that is told so gets other threads": Launch(
        {
            "run.sh": "accelerate launch --cpu train.py --batch_size 1\n",
            "train.py": "import argparse\nfrom accelerate import Accelerator\np = argparse.ArgumentParser()\n"
            "p.add_argument('--batch_size', type=int, default=4)\na = p.parse_args()\n",
        },
        Read(start=("accelerate", "launch", "--cpu"), document={"space/world_sizes": [1]}),
        None,
    ),
    "a job file that torchtitan is started with, and the options behind it": Launch(
        {
            "run.sh": f'{TITAN_RUN} --training.local_batch_size 2 --compile.enable --parallelism.tensor_parallel_degree=4 "$@"\n',
            "llama3_8b.toml": JOB_FILE,
        },
        Read(
            study={
                "trainer": "torchtitan",
                "baseline.tp": 4,
                "baseline.dp": 2,
                "baseline.micro_batch_size": 2,
                "baseline.compile": True,
                "baseline.recompute": "full",
                "workload.model.name": "llama-8b",
            }
        ),
    ),
    "the file of nanotron is read where its script is": Launch(
        {
            "examples/run.sh": "torchrun --nproc_per_node 8 ../run_train.py --config-file $(dirname $0)/tiny.yaml\n",
            "examples/tiny.yaml": json.dumps(NANOTRON),
        },
        Read(
            document={
                "trainer/kind": "nanotron",
                "model/ffn_hidden_size": 11008,
                "model/gated_mlp": True,
                "model/tied_embeddings": True,
                BATCH: 3 * 4,
            }
        ),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)


@pytest.mark.parametrize(
    "word", ["amp_bf16", "amp_bfloat16", "bf16-mixed", "pure_bf16", "bfloat16"]
)
def test_words_for_bf16(tmp_path: Path, word: str) -> None:
    run = f"torchrun --nproc_per_node 8 -m trainer.main --precision {word} --batch-size 64 --seq-len 512\n"
    draft = drafted(tmp_path, {"run.sh": run})
    assert draft.document["space"]["precision"][0] == "bf16"
    assert "precision=bf16" in draft.document["baseline"]
    assert "workload.global_batch_size" in draft.fill_in, "nobody knows whether it accumulates"
    loaded(draft, tmp_path)


LAUNCHES = [
    ("torchrun train.py --a 1", "torchrun", "train.py", 1),
    ("python -m torch.distributed.run --nproc-per-node=4 train.py", "torchrun", "train.py", 4),
    ("python3.11 -u -m torch.distributed.launch --use_env --nproc_per_node 4 train.py", "torchrun", "train.py", 4),
    ("deepspeed --include localhost:0,1,2 --master_port 29501 train.py --x", "deepspeed", "train.py", 3),
    ("deepspeed --hostfile hosts --no_ssh --num_gpus=8 --module pkg.train", "deepspeed", "pkg.train", 8),
    ("srun -N 1 -n 8 --label python -u train.py --lr 1", "srun", "train.py", 8),
    ("srun --nodes=1 --ntasks-per-node=4 --cpu-bind=none ./bind.sh python train.py", "srun", "train.py", 4),
    ("#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=8\nsrun python train.py", "srun", "train.py", 8),
    ("#SBATCH -N 1\n#SBATCH -n 4\nsrun singularity exec --nv image.sif python train.py", "srun", "train.py", 4),
    ("srun --ntasks-per-node=1 torchrun --nproc_per_node=8 train.py", "torchrun", "train.py", 8),
    ("mpirun -np 8 --bind-to none -x PATH -x LD_LIBRARY_PATH python train.py", "mpirun", "train.py", 8),
    ("mpirun -n 16 -H a:8,b:8 --allow-run-as-root python train.py", "mpirun", "train.py", 16),
    ("mpiexec -n 4 -ppn 4 python3 -m pkg.train", "mpiexec", "pkg.train", 4),
    ("mpirun -np 1 torchrun --nproc_per_node=2 train.py", "torchrun", "train.py", 2),
    ("horovodrun -np 4 -H localhost:4 python train.py", "horovodrun", "train.py", 4),
    ("flux run -N1 -n8 python train.py", "flux run", "train.py", 8),
    ("colossalai run --nproc_per_node 4 --hostfile h train.py --plugin gemini", "colossalai run", "train.py", 4),
    ("composer -n 8 train.py conf.yaml", "composer", "train.py", 8),
    ("nohup numactl --cpunodebind 0 python train.py --lr 1 > log 2>&1 &", "python", "train.py", None),
    ("uv run train.py --lr 1", "python", "train.py", None),
    ("$(which torchrun) --nproc_per_node 2 train.py", "torchrun", "train.py", 2),
    ("PYTHON=python3\n$PYTHON train.py --lr 1", "python", "train.py", None),
    ("python submit.py --gpus 8 -- accelerate launch --num_processes 4 train.py --lr 1", "accelerate", "train.py", 4),
    ("python train.py --lr 1 -- --data a", "python", "train.py", None),
    (": ${CONFIG_FILE:=examples/a.yaml}\ntorchrun --nproc_per_node 2 train.py", "torchrun", "train.py", 2),
    ("torchrun --nproc_per_node=8 -m scripts.base -- --depth=20", "torchrun", "scripts.base", 8),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "launcher", "program", "ranks"), LAUNCHES, ids=[text for text, *_ in LAUNCHES]
)
def test_launchers(text: str, launcher: str, program: str, ranks: int | None) -> None:
    found = started_by(text)
    asked = found.nodes * found.gpus_per_node if found.gpus_per_node else None
    assert (found.launcher, found.program, asked) == (launcher, program, ranks)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ("srun --nodes=1 --ntasks=4 -o log.txt --label bind.sh", ["srun", "--nodes=1", "--ntasks={world_size}", "--label", "bind.sh"]),
        ("mpirun -np 4 --hostfile hosts -x PATH python", ["mpirun", "-n", "{world_size}", "-x", "PATH", "python"]),
        ("horovodrun -np 4 python -u", ["horovodrun", "-np", "{world_size}", "python", "-u"]),
        ("composer -n 4", ["composer", "-n", "{nproc_per_node}"]),
    ],
)  # fmt: skip
def test_a_launcher_of_tasks_stays_with_the_number_of_ranks_of_a_trial(
    tmp_path: Path, launch: str, words: list[str]
) -> None:
    run = f"{launch} train.py --micro-batch-size 2 --grad-accum 2 --seq-len 64\n"
    study = loaded(draft := drafted(tmp_path, {"run.sh": run}, cluster="a100-80gb-1x4"), tmp_path)
    assert argv(draft)[: len(words) + 1] == [*words, "train.py"]
    assert study.workload.global_batch_sizes == (2 * 2 * 4,)
    assert study.baseline.world_size == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jsrun -n 4 -a 1 -g 1 python train.py --batch-size 4", "with jsrun"),
        ("aprun -n 8 python train.py --batch-size 4", "with aprun"),
        ("mpirun --hostfile hosts python train.py --batch-size 4", "does not give the number of processes"),
        ("srun -N 2 --ntasks-per-node 8 ./bind.sh python train.py --batch-size 4", "across several nodes"),
        ("NPROC_PER_NODE=4 swift rlhf --external_plugins plugins/reward.py --model a/b --max_length 2048", "`swift rlhf`"),
        ("litgpt finetune_lora a/b --train.micro_batch_size 1 --train.global_batch_size 8", "`litgpt finetune_lora`"),
        ("megatron sft --micro_batch_size 1 --global_batch_size 16", "`megatron sft`"),
        ("swift sft conf/sft.yaml", "swift.cli.sft with conf/sft.yaml"),
        ("trl sft --config sft.yaml --per_device_train_batch_size 4", "trl.scripts.sft with sft.yaml"),
        ("bash scripts/train.sh --batch_size 4 --max_steps 10", "scripts/train.sh"),
        ("torchrun --nproc_per_node 8 $SCRIPT --batch-size 4 --seq-len 8", "$SCRIPT"),
        ("make train", "does not start a recognizable Python program"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    cluster = "a100-80gb-2x8" if "-N 2" in text else A100
    with pytest.raises(SpecError) as refused:
        drafted(tmp_path, {"run.sh": text + "\n"}, cluster=cluster)
    assert says in refused.value.message
    assert refused.value.remedy
    assert "autotune init FILE" not in str(refused.value)


@pytest.mark.parametrize(
    "launch",
    [
        "srun -N 2 --ntasks-per-node 8 --cpu_bind=v python -u train.py",
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\nsrun --label train.py",
    ],
)
def test_one_task_for_each_rank_over_several_nodes_is_started_by_torchrun(
    launch: str, tmp_path: Path
) -> None:
    files = {"run.sh": f"{launch} --micro-batch-size 2 --grad-accum 2 --seq-len 64\n"}
    draft = drafted(tmp_path, files, cluster="a100-80gb-2x8")
    assert argv(draft)[:3] == ["torchrun", "--nproc-per-node={nproc_per_node}", "train.py"]
    assert "# instead of one srun task per rank" in draft.text
    assert any("with torchrun on each node" in note and "RANK" in note for note in draft.notes)
    study = loaded(draft, tmp_path)
    assert study.workload.global_batch_sizes == (2 * 2 * 16,)
    assert study.baseline.world_size == 16


FOREIGN = [
    ("composer.yaml", "device_train_microbatch_size: 8\nglobal_train_batch_size: 48\nfsdp_config: {sharding_strategy: FULL_SHARD}\n", "llm-foundry"),
    ("wrapped.yaml", "exp_name: a\nmodules:\n  pre_trainer:\n    overrides: {tensor_model_parallel_size: 1, bf16: true}\n", "Primus"),
    ("nemo.yaml", "trainer: {devices: 8, num_nodes: 1, accumulate_grad_batches: 1}\nexp_manager: {}\nmodel: {tensor_model_parallel_size: 2}\n", "NeMo 1"),
    ("nemo_sft.yaml", "sft: {max_num_epochs: 1}\npolicy: {megatron_cfg: {tensor_model_parallel_size: 2}}\n", "NeMo-RL"),
    ("verl_sft.yaml", "data: {train_batch_size: 8}\ntrainer: {total_epochs: 1}\n", "verl"),
    ("neox.yml", "pipe_parallel_size: 1\nmodel_parallel_size: 2\ntrain_micro_batch_size_per_gpu: 4\nzero_optimization: {stage: 1}\n", "GPT-NeoX"),
    ("tune.yaml", "model: {_component_: torchtune.models.llama3}\nbatch_size: 2\ngradient_accumulation_steps: 8\n", "torchtune"),
    ("lit.yaml", "model_name: a\nout_dir: o\ntrain: {micro_batch_size: 4, global_batch_size: 512, log_interval: 1}\n", "litgpt"),
    ("model_config.yaml", "ENV_VARS: {A: 1}\nTEST_TYPE: regular\nMODEL_ARGS: {--tensor-model-parallel-size: 2, --num-layers: 12}\n", "functional tests"),
    ("recipe.yaml", "model_name_or_path: a/b\nper_device_train_batch_size: 4\noutput_dir: o\nlogging_steps: 1\n", "TrainingArguments"),
    ("swift.json", '{"model": "a/b", "dataset": ["c"], "per_device_train_batch_size": 1}', "ms-swift"),
    ("card.yaml", "title: verification\nevidence:\n  - {test: convert, context_parallel_size: 2}\n", "neither a Python script"),
    ("readme.yaml", "text: set distributed_type and fsdp_config and num_machines\nzero: zero_optimization\n", "neither a Python script"),
    ("matrix.json", '{"cases": [{"train_micro_batch_size_per_gpu": 1}, {"zero_optimization": {}}]}', "neither a Python script"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "says"), FOREIGN, ids=[name for name, *_ in FOREIGN])
def test_files_of_others_are_refused_by_what_they_are(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    with pytest.raises(SpecError) as refused:
        drafted(tmp_path, {name: text})
    assert says in refused.value.message
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("options", "values", "baseline"),
    [
        ('"--amp", action="store_true"|"--amp-dtype", default="float16"', {"fp16": "--amp", "fp32": None}, "fp32"),
        ('"--amp", action="store_true"|"--amp-dtype", default="bfloat16"', {"bf16": "--amp", "fp32": None}, "fp32"),
        ('"--use_amp", action="store_true"|"--autocast_dtype", default="bfloat16"', {"bf16": "--use_amp", "fp32": None}, "fp32"),
        ('"--dtype", default="bfloat16"', {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}, "bf16"),
    ],
)  # fmt: skip
def test_a_format_that_a_flag_switches_on(
    tmp_path: Path, options: str, values: dict[str, Any], baseline: str
) -> None:
    declared = "".join(f"p.add_argument({option})\n" for option in options.split("|"))
    train = f'{ARGPARSE}p.add_argument("--batch-size", type=int, default=128)\n{declared}'
    draft = drafted(tmp_path, {"train.py": train})
    assert draft.document["trainer"]["values"]["precision"] == values
    assert f"precision={baseline}" in draft.document["baseline"]


BATCHES = [
    ({"batch_size": 4, "gradient_accumulate_every": 4}, 16, 4),
    ({"batch_size": 4, "grad_accum_every": 2}, 8, 4),
    ({"train_batch_size": 256, "micro_batch_size_per_gpu": 4}, 256, 4),
    ({"train_batch_size": 128, "micro_train_batch_size": 2}, 128, 2),
    ({"batch_size": 128, "micro_batch_size": 4}, 128, 4),
    ({"device_batch_size": 8, "total_batch_size": 524288, "seq_len": 1024}, 512, 8),
    ({"batch_size_per_gpu": 4, "accum_iter": 2}, 8, 4),
    ({"imgs_per_gpu": 4, "num_accumulation_steps": 3}, 12, 4),
    ({"micro_batch_size": 4, "tokens_per_batch": 8192, "seq_len": 1024}, 8, 4),
]


@pytest.mark.parametrize(
    ("options", "batch", "micro"), BATCHES, ids=[" ".join(options) for options, *_ in BATCHES]
)
def test_names_of_batches(tmp_path: Path, options: dict[str, int], batch: int, micro: int) -> None:
    parameters = ", ".join(f"{name}={value}" for name, value in options.items())
    train = f"import fire\ndef train(num_batches=100, {parameters}):\n    pass\nfire.Fire(train)\n"
    draft = drafted(tmp_path, {"train.py": train})
    assert draft.document["workload"]["global_batch_size"] == batch
    assert f"micro_batch_size={micro}" in draft.document["baseline"]


def test_what_changes_the_batch_by_itself_is_off_in_trials(tmp_path: Path) -> None:
    run = "torchrun --nproc_per_node 4 sft.py --output_dir out --per_device_train_batch_size 64 --auto_find_batch_size True --bf16\n"
    draft = drafted(tmp_path, {"run.sh": run, "sft.py": HF}, cluster="a100-80gb-1x4")
    assert [word for word in argv(draft) if "auto_find" in word] == ["--auto_find_batch_size=False"]
    assert any("--auto_find_batch_size" in note for note in draft.notes)
    draft = drafted(
        tmp_path,
        {
            "run.sh": run.replace("sft.py", "elsewhere.py")
            .replace("--per_device_train_batch_size", "--batch-size")
            .replace("size True", "size")
        },
    )
    assert not any("auto_find" in word for word in argv(draft))
    assert any("--auto_find_batch_size" in note for note in draft.notes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "option", ["--vocab-file", "--data-config", "--tokenizer_file", "--train_file", "--config"]
)
def test_data_is_no_file_of_settings(tmp_path: Path, option: str) -> None:
    words = {
        word: number
        for number, word in enumerate(["the", "of", "batch", "seed", "steps", "depth", "amp", "lr"])
    }
    files = {
        "run.sh": f"torchrun --nproc_per_node=8 train.py {option} v.json --lr 3e-4\n",
        "train.py": f'{ARGPARSE}p.add_argument("{option}")\np.add_argument("--lr", type=float)\n',
        "v.json": json.dumps(words),
    }
    draft = drafted(tmp_path, files)
    assert "files" not in draft.document["trainer"]
    assert f"{option}=v.json" in argv(draft)
    assert {"workload.global_batch_size", "baseline"} <= set(draft.fill_in)
    large = {f"word{number}": number for number in range(50_000)}
    (tmp_path / "v.json").write_text(json.dumps(large))
    assert len(first_draft(tmp_path / "run.sh", cluster=A100, folder=tmp_path).text) < 5000


def test_a_command_that_is_shown_is_not_the_one_that_is_run(tmp_path: Path) -> None:
    text = 'CMD="deepspeed --num_gpus 4 train.py --batch-size 4 --max-steps 9 --seq-len 64"\necho ${CMD}\neval ${CMD}\n'
    found = started_by(text)
    assert (found.launcher, found.program, found.gpus_per_node) == ("deepspeed", "train.py", 4)
    found = started_by(
        "mpirun -n 4 -mca btl ^openib -mca btl_tcp_if_include eth0 python train.py --lr 1\n"
    )
    assert (found.launcher, found.program, found.gpus_per_node) == ("mpirun", "train.py", 4)


@pytest.mark.parametrize(
    "folder", [".", "jobs"], ids=["beside its program", "in a folder below its program"]
)
def test_a_baseline_that_no_study_has_is_left_out(tmp_path: Path, folder: str) -> None:
    run = (
        "torchrun --nproc_per_node 8 t.py --tensor-model-parallel-size 8 --num-layers 4 --hidden-size 96 --num-attention-heads 6 --vocab-size 512 "
        "--micro-batch-size 2 --grad-accum 2 --seq-len 64 --bf16\n"
    )
    (tmp_path / "t.py").write_text("import torch\n")
    (tmp_path / folder).mkdir(exist_ok=True)
    draft = first_draft(
        file_with(tmp_path / folder / "run.sh", run), cluster=A100, folder=tmp_path / folder
    )
    assert "baseline" not in draft.document
    assert any("not valid for a study" in note and "tp" in note for note in draft.notes)
    loaded(draft, tmp_path / folder)


@pytest.mark.parametrize(
    "options",
    [
        "--train_module.rank_microbatch_size=8192 --data_loader.global_batch_size=524288",
        "--micro-batch-tokens 8192 --global-batch-tokens 524288",
        "--tokens-per-gpu 8192 --total-batch-size 524288",
    ],
    ids=["OLMo-core", "named", "nanochat"],
)
def test_batches_in_tokens_are_sequences_where_their_length_is_known(
    tmp_path: Path, options: str
) -> None:
    run = f"torchrun --nproc_per_node 8 t.py --seq-len 2048 --dtype bf16 {options}\n"
    draft = drafted(tmp_path, {"run.sh": run, "t.py": "import torch\n"})
    assert draft.document["workload"] == {"seq_len": 2048, "global_batch_size": 256}
    assert "micro_batch_size=4" in draft.document["baseline"]
    assert any("{micro_batch_size * seq_len}" in word for word in argv(draft))
    assert any("{global_batch_size * seq_len}" in word for word in argv(draft))


@pytest.mark.parametrize(
    ("program", "more", "loop", "asked"),
    [
        ("run_clm.py", "--bf16 --do_train", "hf_trainer", False),
        ("run_clm_no_trainer.py", "", "accelerate", True),
        ("finetune.py", "--num_warmup_steps 10", "accelerate", True),
        ("finetune.py", "--learning_rate 1e-5", "accelerate", True),
    ],
)
def test_whose_loop_it_is_tells_what_only_one_of_them_has(
    program: str, more: str, loop: str, asked: bool, tmp_path: Path
) -> None:
    flags = f"--per_device_train_batch_size 8 --gradient_accumulation_steps 2 {more}"
    draft = drafted(
        tmp_path, {"run.sh": f"accelerate launch --num_processes 8 {program} {flags}\n"}
    )
    assert draft.document["workload"]["loop"] == loop
    assert ("space.precision" in draft.fill_in) == asked, "nothing says its number format"
    assert draft.document["workload"]["global_batch_size"] == 8 * 2 * 8


@pytest.mark.parametrize(
    ("code", "baseline"),
    [
        ("def main():\n    model.gradient_checkpointing_enable()\nmain()\n", "precision=fp32,recompute=full"),
        ("model.activation_checkpointing_enable()\n", "precision=fp32,recompute=full"),
        ("if args.save:\n    model.gradient_checkpointing_enable()\n", "precision=fp32"),
        ("def shrink(model):\n    model.gradient_checkpointing_enable()\nif args.small:\n    shrink(model)\n", "precision=fp32"),
        ("class Run:\n    def go(self):\n        self.model.gradient_checkpointing_enable()\nRun().go()\n", "precision=fp32,recompute=full"),
        ("model = torch.compile(model, dynamic=False)\n", "precision=fp32,compile=true"),
        ("soft_cap = torch.compile(soft_cap)\nif args.c:\n    model = torch.compile(model)\n", "precision=fp32"),
        ("torch.backends.cuda.matmul.allow_tf32 = True\n", "precision=tf32"),
        ("torch.set_float32_matmul_precision('high')\n", "precision=tf32"),
        ("if torch.cuda.is_available():\n    torch.backends.cuda.matmul.allow_tf32 = True\n", "precision=tf32"),
        ("if a:\n    pass\nelse:\n    torch.backends.cuda.matmul.allow_tf32 = True\n", "precision=fp32"),
        ("with torch.cuda.amp.autocast(True):\n    step()\n", "precision=fp16"),
        ("with torch.autocast('cuda', enabled=False):\n    step()\n", "precision=fp32"),
        ("fabric = L.Fabric(devices=8, precision='bf16-mixed')\n", "precision=bf16"),
        ("torch.set_float32_matmul_precision('highest')\ntorch.backends.cudnn.allow_tf32 = True\n", "precision=fp32"),
    ],
)  # fmt: skip
def test_what_the_code_does_whatever_it_is_told_is_in_the_baseline(
    code: str, baseline: str, tmp_path: Path
) -> None:
    files = {
        "run.sh": "torchrun --nproc_per_node 8 train.py --accum 2\n",
        "train.py": f"{LOOP}{code}",
    }
    assert drafted(tmp_path, files).document["baseline"] == f"micro_batch_size=4,{baseline}"


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("read -r -d '' command <<EOF", "EOF"),
        ("command=$(cat <<'END'", "END\n)"),
        ('command="', '"'),
    ],
)
def test_a_command_held_as_lines_in_a_variable_is_read(
    begin: str, end: str, tmp_path: Path
) -> None:
    lines = "pkg.train \\\n   --micro-batch-size 2 \\\n   --global-batch-size 64 --bf16 --max-length 2048"
    launch = f"{begin}\n{lines}\n{end}\nif [[ ${{1}} != slurm ]]; then\n    torchrun --nproc_per_node 8 -m $command\nfi\n"
    draft = drafted(tmp_path, {"run.sh": launch})
    assert "pkg.train" in argv(draft)
    assert draft.document["workload"] == {"seq_len": 2048, "global_batch_size": 64}
    assert draft.document["baseline"] == "micro_batch_size=2,precision=bf16"


def test_a_job_file_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError,
        match=r"llama3_8b\.toml, which sets the model, batch and degrees but was not found",
    ):
        drafted(tmp_path, {"run.sh": f"{TITAN_RUN}\n"})


@pytest.mark.parametrize(
    ("options", "files", "stage"),
    [
        ("--use_deepspeed --deepspeed_config_file conf/ds.conf", {"conf/ds.conf": '{"zero_optimization": {"stage": 2}}'}, 2),
        ("--use_deepspeed --deepspeed_config_file conf/stage3_no_offloading.conf", {}, 3),
        ("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP", {}, 2),
        ("--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward false", {}, 2),
        ("--use_fsdp", {}, 3),
        ("--multi_gpu", {}, 0),
    ],
)  # fmt: skip
def test_options_of_accelerate_shard(
    options: str, files: dict[str, str], stage: int, tmp_path: Path
) -> None:
    run = f"accelerate launch --num_processes 8 --mixed_precision bf16 {options} train.py {HF_FLAGS}\n"
    draft = drafted(tmp_path, {"run.sh": run, **files})
    study = loaded(draft, tmp_path)
    assert study.baseline.zero_stage == stage
    unread = [note for note in draft.notes if note.startswith("not read")]
    assert bool(unread) == ("conf/stage3" in options)
