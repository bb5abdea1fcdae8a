"""Launches of which a part was dropped, or told to the program where it does not look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.onboarding.drafting import Launch, Read, argv, at_path, drafted, loaded
from tests.shortcuts import write

ALONE = (
    "import argparse\nfrom transformers import HfArgumentParser, TrainingArguments\n"
    "from dataclasses import dataclass\n@dataclass\nclass Own:\n    corpus: str\n"
    "p = argparse.ArgumentParser()\np.add_argument('--settings_file')\n"
    "parser = HfArgumentParser((Own, TrainingArguments))\n"
)
OF_FILE = {
    "corpus": "d.txt",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
    "report_to": "wandb",
    "deepspeed": "z3.json",
}
ZERO3 = '{"zero_optimization": {"stage": 3}}'
FROM_FILE = "args = parser.parse_json_file(p.parse_args().settings_file)\n"
STARTS = "torchrun --nproc_per_node 8 t.py --settings_file s.json\n"
CONFIGURES = (
    "import sys, torch\nbatch_size = 12\ngradient_accumulation_steps = 5\nblock_size = 64\ndtype = 'bfloat16'\n"
    "for arg in sys.argv[1:]:\n    if '=' not in arg:\n        exec(open(arg).read())\n    else:\n"
    "        key, value = arg.split('=')\n        globals()[key[2:]] = eval(value)\n"
    "ctx = torch.autocast('cuda', dtype=getattr(torch, dtype))\nloss.backward()\n"
)
PLAIN = (
    "import argparse, torch\np = argparse.ArgumentParser()\n"
    "p.add_argument('--batch_size', type=int, default=4)\n{}loss.backward()\n"
)
LAUNCHES = {
    "what a file alone tells is told there": Launch(
        {
            "run.sh": STARTS,
            "t.py": ALONE + FROM_FILE,
            "s.json": json.dumps(OF_FILE),
            "z3.json": ZERO3,
        },
        Read(
            document={
                "workload/global_batch_size": 64,
                "workload/loop": "deepspeed",
                "trainer/training/s.json/save_strategy": "steps",
                "trainer/training/s.json/report_to": "wandb",
            },
            baseline="micro_batch_size=2,precision=bf16",
            knobs=("zero_stage=3",),
            words=("--settings_file={files}/s.json",),
            without=(
                "--per_device",
                "--max_steps",
                "--bf16",
                "--logging",
                "--report_to",
                "--corpus",
            ),
            settled=("trainer.argv",),
        ),
    ),
    "a file that is not there leaves the batch open": Launch(
        {"run.sh": STARTS, "t.py": ALONE + FROM_FILE},
        Read(
            document={"baseline": None},
            without=("--per_device", "--max_steps", "--bf16", "--logging"),
            notes=("s.json, which alone sets the arguments of t.py and was not found",),
            asked=("workload.global_batch_size", "space.precision", "baseline"),
        ),
    ),
    "a file before the options has defaults": Launch(
        {
            "run.sh": "accelerate launch --num_processes 4 t.py s.yaml --gradient_accumulation_steps=8\n",
            "t.py": "from transformers import HfArgumentParser, TrainingArguments\nclass Own(HfArgumentParser):\n    pass\nargs = Own((TrainingArguments,)).parse()\n",
            "s.yaml": "per_device_train_batch_size: 2\ngradient_checkpointing: true\nbf16: true\nreport_to: wandb\n",
        },
        Read(
            document={"workload/global_batch_size": 64},
            baseline="dp=4,micro_batch_size=2,precision=bf16,recompute=full",
            words=("s.yaml", "--report_to=none"),
        ),
    ),
    "nanoGPT's configurator in the script itself": Launch(
        {
            "run.sh": "torchrun --nproc_per_node=8 t.py small.py --batch_size=16\n",
            "t.py": CONFIGURES,
            "small.py": "gradient_accumulation_steps = 2\n",
        },
        Read(
            document={"workload/global_batch_size": 256, "workload/pure_bf16": None},
            baseline="micro_batch_size=16,precision=bf16",
            words=("small.py", "--batch_size={micro_batch_size}"),
        ),
    ),
    "Accelerator's format counts, and its autocast says no other": Launch(
        {
            "run.sh": "accelerate launch --num_processes 8 t.py\n",
            "t.py": PLAIN.format(
                "accelerator = Accelerator(mixed_precision='bf16')\nwith accelerator.autocast():\n    pass\n"
            ),
        },
        Read(baseline="micro_batch_size=4,precision=bf16"),
    ),
    "of several formats of autocast none is taken": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 t.py\n",
            "t.py": PLAIN.format(
                "fabric = Fabric(precision='bf16-mixed')\nwith torch.cuda.amp.autocast():\n    pass\n"
            ),
        },
        Read(document={"baseline": None}, asked=("space.precision",)),
    ),
    "steps that nobody found have a format that nobody knows": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 t.py\n",
            "t.py": "from library import train\ntrain()\n",
        },
        Read(asked=("space.precision",)),
    ),
    "of a batch that is divided twice the micro-batch is no part": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 t.py --micro_batch_size 2 --train_batch_size 64\n",
            "t.py": PLAIN.format(
                "p.add_argument('--train_batch_size', type=int)\np.add_argument('--micro_batch_size', type=int)\n"
                "steps = args.train_batch_size // args.micro_batch_size // world_size\n"
            ).replace("p.add_argument('--batch_size', type=int, default=4)\n", ""),
        },
        Read(words=("--micro_batch_size={micro_batch_size}",)),
    ),
    "DeepSpeed starts a module by a word of its own": Launch(
        {
            "run.sh": "deepspeed --num_gpus 4 --module pkg.t --batch_size 2\n",
            "pkg/t.py": PLAIN.format(""),
        },
        Read(
            start=(
                "deepspeed",
                "--num_gpus={nproc_per_node}",
                "--master_port={master_port}",
                "--module",
                "pkg.t",
            )
        ),
    ),
    "torchtune's command is torchrun": Launch(
        {
            "run.sh": "python scripts/download_models.py -m big\ntune run --nproc_per_node 4 recipes/full.py --config c.yaml\n",
            "scripts/download_models.py": "import fire\ndef main(m: str = ''):\n    pass\nfire.Fire(main)\n",
            "recipes/full.py": "loss.backward()\n",
            "c.yaml": "batch_size: 4\ngradient_accumulation_steps: 2\nlr: 0.1\nseed: 1\ndtype: bf16\n",
        },
        Read(
            document={"workload/global_batch_size": 32},
            start=("torchrun",),
            words=("recipes/full.py", "--config={files}/c.yaml"),
        ),
    ),
    "what srun gives to a shell is a task for each rank": Launch(
        {
            "run.sh": "#SBATCH --ntasks-per-node=8\nread -r -d '' cmd <<EOF\nA=1 python t.py --batch_size 2\nEOF\nsrun bash -c \"${cmd}\"\n",
            "t.py": PLAIN.format(""),
        },
        Read(
            document={"space/world_sizes": None},
            start=("srun", "--nodes=1", "--ntasks={world_size}"),
        ),
    ),
    "a script that srun starts is followed": Launch(
        {
            "run.sh": "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=8\nsrun --label inner.sh 2\n",
            "inner.sh": "export A=b\npython -u t.py --batch_size=$1\n",
            "t.py": PLAIN.format(""),
        },
        Read(
            document={"trainer/env/A": "b"},
            baseline="micro_batch_size=2",
            start=("srun", "--nodes=1", "--ntasks={world_size}"),
            words=("t.py",),
        ),
    ),
    "a script has its arguments, those above nine, too": Launch(
        {
            "run.sh": "N=4 bash inner.sh 1 2 3 4 5 6 7 8 9 16 --lr 1\n",
            "inner.sh": 'B=${10}\nshift 10\nrest=""\nif [ $# -ne 0 ]; then\n  rest="$*"\nfi\ntorchrun --nproc_per_node=$N t.py --batch_size=$B $rest\n',
            "t.py": PLAIN.format("p.add_argument('--lr', type=float)\n"),
        },
        Read(
            document={"space/world_sizes": [4]},
            baseline="dp=4,micro_batch_size=16",
            words=("--lr=1",),
        ),
    ),
    "FSDP that wraps modules by its class may shard": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 t.py\n",
            "t.py": PLAIN.format("with enable_wrap(wrapper_cls=FSDP):\n    model = build()\n"),
        },
        Read(notes=("sharding under a condition",)),
    ),
    "a line of the first step alone is no line of each step": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 t.py\n",
            "t.py": PLAIN.format(
                "for step in range(9):\n    if step == 1:\n        print('step{}: {}'.format(step, shape))\n    print('step: {}, loss: {}'.format(step, loss.item()))\n"
            ),
        },
        Read(document={"trainer/metrics/step": r"\bstep: ([0-9]+)"}),
    ),
}


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_what_is_read(tmp_path: Path, launch: Launch) -> None:
    launch.check(tmp_path)


def test_a_file_gets_the_settings_that_it_does_not_have(tmp_path: Path) -> None:
    files = {
        "run.sh": STARTS,
        "t.py": ALONE + FROM_FILE,
        "s.json": json.dumps(OF_FILE),
        "z3.json": ZERO3,
    }
    draft = drafted(tmp_path, files)
    told = at_path(draft.document, "trainer/files")["s.json"]
    assert told["max_steps"] == "{steps}"
    assert (told["report_to"], told["save_strategy"], told["logging_steps"]) == ("none", "no", 1)
    assert told["corpus"] == "d.txt"
    assert argv(draft)[-1] == "--settings_file={files}/s.json"
    assert loaded(draft, tmp_path).baseline is not None


def test_a_part_of_a_file_is_told_there(tmp_path: Path) -> None:
    text = "import yaml\nsettings = yaml.safe_load(open(p.parse_args().settings_file))\nargs = parser.parse_dict(settings['training'])\n"
    told = {"model": {"layers": 2}, "training": {"per_device_train_batch_size": 2, "seed": 1}}
    write(tmp_path, {"s.json": json.dumps(told)})
    draft = drafted(tmp_path, {"run.sh": STARTS, "t.py": ALONE + text})
    training = at_path(draft.document, "trainer/files")["s.json"]["training"]
    assert training["per_device_train_batch_size"] == "{micro_batch_size}"
    assert training["max_steps"] == "{steps}"


TASK = """resources:
  accelerators: A100:4
num_nodes: 1
envs: {BATCH: 2}
run: |
  cd src
  torchrun --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE t.py --batch_size $BATCH
"""
POD = """apiVersion: batch/v1
kind: Job
spec: {template: {spec: {containers: [{command: [torchrun, --nproc_per_node=4, src/t.py, --batch_size=2]}]}}}
"""
SERVICE = """services:
  data: {image: store}
  train: {environment: [A=b], command: "uv run --extra gpu -m src.t --batch_size 2"}
"""


@pytest.mark.parametrize(
    ("text", "baseline"),
    [
        (TASK, "dp=4,micro_batch_size=2"),
        (POD, "dp=4,micro_batch_size=2"),
        (SERVICE, "dp=1,micro_batch_size=2"),
    ],
    ids=["SkyPilot", "Kubernetes", "docker compose"],
)
def test_a_manifest_has_a_first_spec(tmp_path: Path, text: str, baseline: str) -> None:
    draft = drafted(tmp_path, {"job.yaml": text, "src/t.py": PLAIN.format("")})
    assert draft.document["baseline"].startswith(baseline)
    assert "--batch_size={micro_batch_size}" in argv(draft)
    assert draft.heading[0].startswith("A first spec for job.yaml")


def test_a_program_of_ray_is_no_single_process(tmp_path: Path) -> None:
    text = "import ray\nray.init()\n" + PLAIN.format("")
    draft = drafted(tmp_path, {"run.sh": "python t.py --batch_size 2\n", "t.py": text})
    assert "world_sizes" not in at_path(draft.document, "space")


@pytest.mark.parametrize(
    ("mode", "peft"),
    [("full", None), ("lora", "lora"), ("qlora", "qlora")],
)
def test_an_option_says_whether_there_are_adapters(
    tmp_path: Path, mode: str, peft: str | None
) -> None:
    text = PLAIN.format(
        "from peft import get_peft_model\np.add_argument('--train_mode')\np.add_argument('--lora_rank', type=int, default=8)\n"
    )
    launch = f"torchrun --nproc_per_node 2 t.py --train_mode {mode}\n"
    draft = drafted(tmp_path, {"run.sh": launch, "t.py": text})
    assert at_path(draft.document, "workload/peft/method") == peft


OFFLOADS = '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, "activation_checkpointing": {}, "train_micro_batch_size_per_gpu": 2}'
BY_FILE = PLAIN.format("p.add_argument('--deepspeed_config')\ndeepspeed.initialize()\n")
OTHERS = {
    "on one GPU DeepSpeed's file keeps the stage that parameters on the host need": Launch(
        {
            "run.sh": "deepspeed --num_gpus 1 t.py --deepspeed_config ds.json\n",
            "t.py": BY_FILE,
            "ds.json": OFFLOADS,
        },
        Read(
            document={"space/zero_stage": [0]},
            notes=("activation checkpointing; ds.json has settings for it",),
            text=("zero_optimization: {stage: 3,",),
        ),
    ),
    "a plugin of ColossalAI's is not understood": Launch(
        {
            "run.sh": "colossalai run --nproc_per_node 8 t.py\n",
            "t.py": PLAIN.format("import colossalai\n"),
        },
        Read(document={"baseline": None}, notes=("does not understand ColossalAI's plugin",)),
    ),
    "an optimizer on the host, and pairs by the name of a program": Launch(
        {
            "run.sh": "torchrun --nproc_per_node 8 train_dpo.py --adam_offload\n",
            "train_dpo.py": PLAIN.format("p.add_argument('--adam_offload', action='store_true')\n"),
        },
        Read(knobs=("offload=optimizer",), notes=("the reference model",)),
    ),
}


@pytest.mark.parametrize("launch", OTHERS.values(), ids=OTHERS)
def test_what_is_said(tmp_path: Path, launch: Launch) -> None:
    launch.check(tmp_path)


def test_one_gpu_shards_nothing_whatever_settings_say(tmp_path: Path) -> None:
    text = "base_model: nano-llama\nsequence_len: 64\nmicro_batch_size: 1\nbf16: true\nfsdp: [full_shard]\n"
    draft = drafted(tmp_path, {"a.yml": text}, "a100-80gb-1x1")
    assert at_path(draft.document, "space/zero_stage") == [0]
    assert "zero_stage=0" in draft.document["baseline"]


def test_a_makefile_has_a_first_spec(tmp_path: Path) -> None:
    text = "RUN := torchrun --nproc_per_node=4\ntrain-small:\n\tpython t.py\ntrain: data\n\t@$(RUN) t.py \\\n\t  --batch_size 2\neval:\n\tpython eval.py\n"
    draft = drafted(tmp_path, {"Makefile": text, "t.py": PLAIN.format("")})
    assert draft.document["baseline"].startswith("dp=4,micro_batch_size=2")


def test_deepspeed_of_accelerate_has_stage_2_by_default(tmp_path: Path) -> None:
    files = {
        "run.sh": "accelerate launch --config_file a.yaml t.py\n",
        "a.yaml": "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\nnum_machines: 1\n",
        "t.py": PLAIN.format("from accelerate import Accelerator\n"),
    }
    assert "zero_stage=2" in drafted(tmp_path, files).document["baseline"]


def test_modules_under_src_are_read(tmp_path: Path) -> None:
    loop = "import torch\ndef step(loss):\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n        loss.backward()\n"
    files = {
        "run.sh": "torchrun --nproc_per_node 8 -m scripts.t\n",
        "scripts/t.py": "from own.loop import step\n"
        + PLAIN.format("").replace("loss.backward()\n", "step()\n"),
        "src/own/loop.py": loop,
    }
    assert "precision=bf16" in drafted(tmp_path, files).document["baseline"]
