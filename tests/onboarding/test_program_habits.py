"""Habits of public training programs: what an option, a call or a launch of these means is what the
draft says, or the draft asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.onboarding.first_spec import command_draft
from tests.onboarding.drafting import Launch, Read, argv, drafted
from tests.shortcuts import write

ARGPARSE = "import argparse, torch\np = argparse.ArgumentParser()\n"
BATCH = 'p.add_argument("--batch-size", type=int, default=8)\n'
OF_TOKENS = (
    f'{ARGPARSE}p.add_argument("--device-batch-size", type=int, default=8)\np.add_argument("--max-seq-len", type=int, default=1024)\n'
    'p.add_argument("--total-batch-size", type=int, default=-1)\nargs = p.parse_args()\n'
    "tokens_per_pass = args.device_batch_size * args.max_seq_len\ntotal_batch_size = args.total_batch_size\n"
    "steps = total_batch_size // (tokens_per_pass * world_size)\n"
)
ON_8 = "torchrun --nproc_per_node 8 train.py"
SPAWNS = (
    f"{ARGPARSE}{BATCH}"
    'p.add_argument("--world-size", type=int, default=-1)\np.add_argument("--distributed", action="store_true")\nargs = p.parse_args()\n'
    "if torch.cuda.is_available():\n    ngpus_per_node = torch.cuda.device_count()\nelse:\n    ngpus_per_node = 1\n"
    "if args.distributed:\n    args.world_size = ngpus_per_node * args.world_size\n"
    "    torch.multiprocessing.spawn(worker, nprocs=ngpus_per_node, args=(args,))\nelse:\n    worker(0, args)\n"
)
MEGATRON_RUN = f"{ON_8} --micro-batch-size 2 --global-batch-size 64 --bf16 --use-distributed-optimizer --overlap-param-gather\n"
MEGATRON = (
    f'{ARGPARSE}p.add_argument("--micro-batch-size", type=int)\np.add_argument("--global-batch-size", type=int)\np.add_argument("--bf16", action="store_true")\n'
    'p.add_argument("--use-distributed-optimizer", action="store_true")\np.add_argument("--recompute-activations", action="store_true")\n'
)
WITH_DEEPSPEED = (
    f'{ARGPARSE}{BATCH}p.add_argument("--enable_deepspeed", action="store_true")\np.add_argument("--zero_stage", type=int, default=0)\nargs = p.parse_args()\n'
    "if args.enable_deepspeed:\n    import deepspeed\n"
)
OFFLOADS = (
    f'{ARGPARSE}{BATCH}p.add_argument("--offload", action="store_true")\nargs = p.parse_args()\nkwargs = {{}}\n'
    "if args.offload:\n    kwargs['policy'] = CPUOffloadPolicy()\n"
)
PRINTS = (
    f"{ARGPARSE}{BATCH}"
    "def save_checkpoint(model):\n    start = time.perf_counter()\n    gather(model)\n    print(f'the state took {time.perf_counter() - start:.2f} secs')\n"
    "for step in range(9):\n    train()\n    save_checkpoint(model)\n"
)


def row(program: str, read: Read, run: str = f"{ON_8}\n") -> Launch:
    """A launch of `train.py`."""
    return Launch({"run.sh": run, "train.py": program}, read)


READ = {
    "a batch that is divided by tokens counts tokens": row(
        OF_TOKENS,
        Read(
            document={"workload/global_batch_size": 512},
            words=("--total-batch-size={global_batch_size * seq_len}",),
        ),
        f"{ON_8} --total-batch-size 524288\n",
    ),
    "a batch that the program chooses is asked for": row(
        OF_TOKENS,
        Read(asked=("workload.global_batch_size",), text=("--total-batch-size=-1 lets the",)),
    ),
    "an autocast that a value of elsewhere switches leaves the format open": row(
        f"{ARGPARSE}{BATCH}with torch.autocast('cuda', enabled=config.AMP_ENABLE):\n    step()\n",
        Read(notes=("mentions fp16",), asked=("space.precision", "baseline")),
    ),
    "so does one that is set to this and to that": row(
        f"{ARGPARSE}{BATCH}c.AMP = True\nif old:\n    c.AMP = False\nwith torch.cuda.amp.autocast(enabled=c.AMP):\n    step()\n",
        Read(notes=("mentions fp16",), asked=("space.precision",)),
    ),
    "an autocast that is always off is none": row(
        f"{ARGPARSE}{BATCH}AMP = False\nwith torch.cuda.amp.autocast(enabled=AMP):\n    step()\n",
        Read(baseline="micro_batch_size=8,precision=fp32"),
    ),
    "a flag of mixed precision means the type of FSDP's policy": row(
        f'{ARGPARSE}{BATCH}p.add_argument("--mixed-precision", action="store_true")\nargs = p.parse_args()\nkwargs = {{}}\n'
        "if args.mixed_precision:\n    kwargs['mp_policy'] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)\n",
        Read(document={"trainer/values/precision": {"bf16": "--mixed-precision", "fp32": None}}),
    ),
    "a number of nodes is no number of ranks": row(
        SPAWNS,
        Read(
            document={"space/world_sizes": [8]},
            words=("--world-size=1",),
            notes=("starts its own ranks",),
        ),
        "python train.py --distributed --world-size 1\n",
    ),
    "without its switch it starts no ranks": row(
        SPAWNS, Read(document={"space/world_sizes": [1]}, baseline="dp=1"), "python train.py\n"
    ),
    "a precision in the family of bf16 is off as fp32": row(
        f'{ARGPARSE}{BATCH}p.add_argument("--precision", default="fp16", type=str)\n',
        Read(document={"trainer/values": None}, words=("--precision={precision}",)),
        f"{ON_8} --precision bf16\n",
    ),
    "accelerate's is off as no": row(
        f'{ARGPARSE}{BATCH}p.add_argument("--mixed_precision", default="fp16", type=str)\n',
        Read(document={"trainer/values/precision": {"fp32": "no"}}),
        f"{ON_8} --mixed_precision bf16\n",
    ),
    "Megatron-LM's flags mean its optimizer and its selective recomputation": row(
        MEGATRON,
        Read(
            document={
                "space/zero_stage": [1],
                "space/recompute": ["none", "selective"],
                "trainer/values/recompute": {"selective": "--recompute-activations", "none": None},
            },
            words=("--use-distributed-optimizer",),
            knobs=("zero_stage=1",),
        ),
        MEGATRON_RUN,
    ),
    "what a checkpoint takes is no step's time": row(PRINTS, Read(document={"trainer/metrics": None})),
    "two values of a variable are each that of its command": row(
        f"{ARGPARSE}{BATCH}",
        Read(baseline="micro_batch_size=16"),
        f"B=16\n{ON_8} --batch-size $B\nB=64\npython evaluate.py --batch-size $B\n",
    ),
    "what sets a variable for a command of the shell is not exported": row(
        f"{ARGPARSE}{BATCH}",
        Read(document={"trainer/env": {"KEEP": "1"}}),
        f"IFS=, read -ra NAMES <<< \"$LIST\"\nKEEP=1 {ON_8}\n",
    ),
    "a script's option that must be given is left to the shell": row(
        f"{ARGPARSE}{BATCH}",
        Read(words=("--data=$DATA",), notes=("only the shell can compute --data=$DATA",)),
        f'DATA=""\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    --data)\n      DATA="$2"\n      shift 2\n      ;;\n  esac\ndone\n{ON_8} --data=$DATA\n',
    ),
    "a program that prepares is not the one that trains": Launch(
        {
            "run.sh": "python train.py\npython scripts/prepare_data.py --source a --target b --split train\n",
            "train.py": f"{ARGPARSE}{BATCH}",
            "scripts/prepare_data.py": f'{ARGPARSE}p.add_argument("--source")\n',
        },
        Read(start=("python", "train.py"), baseline="dp=1,micro_batch_size=8"),
    ),
    "settings that OmegaConf names by a key are read, and no default beside them": Launch(
        {
            "run.sh": f"{ON_8} config=conf/small.yaml data.batch_size=16\n",
            "train.py": "from dataclasses import dataclass\nfrom omegaconf import OmegaConf\n"
            "@dataclass\nclass Args:\n    seed: int = 42\n    grad_acc_steps: int = 1\n    steps: int = 9\n"
            "cli = OmegaConf.from_cli()\nargs = OmegaConf.merge(Args(), OmegaConf.load(cli.config), cli)\n",
            "conf/small.yaml": "steps: 1000\nseed: 7\ndistributed:\n  model_dtype: bf16\ndata:\n  seed: 1\n  batch_size: 32\n  seq_len: 2048\n",
        },
        Read(
            document={
                "trainer/overrides": None,
                "space/precision": ["bf16"],
                "trainer/files/small.yaml": {
                    "steps": "{steps}",
                    "seed": "{seed}",
                    "distributed": {"model_dtype": "{precision}"},
                    "data": {"seed": 1, "batch_size": "{micro_batch_size}", "seq_len": "{seq_len}"},
                },
            },
            words=("config={files}/small.yaml",),
            baseline="micro_batch_size=16,precision=bf16",
        ),
    ),
    "a trial uploads no model, whoever is told to": Launch(
        {
            "run.sh": f"{ON_8} --config c.yaml\n",
            "train.py": "from trl import SFTConfig, TrlParser\nTrlParser((SFTConfig,)).parse_args_and_config()\n",
            "c.yaml": "per_device_train_batch_size: 2\nlearning_rate: 0.1\npush_to_hub: true\nreport_to: [wandb]\n",
        },
        Read(
            words=("--push_to_hub=False", "--report_to=none", "--save_strategy=no"),
            without=("--eval_strategy=no",),
        ),
    ),
    "nor does one of a loop of its own": row(
        f'{ARGPARSE}{BATCH}p.add_argument("--push_to_hub", action="store_true")\n',
        Read(without=("--push_to_hub",), document={"trainer/training/append": ["--push_to_hub"]}),
        f"{ON_8} --push_to_hub\n",
    ),
    "a rank of adapters that no option names is said": row(
        'import fire\ndef main(**kwargs):\n    train(kwargs)\nfire.Fire(main)\n',
        Read(
            document={"workload/peft/rank": 8},
            notes=("planned with rank 8, because no option sets their rank",),
        ),
        f"{ON_8} --use_peft --peft_method lora\n",
    ),
    "the type of the weights is that of the module that trains": Launch(
        {
            "run.sh": f"{ON_8} --per_device_train_batch_size 2 --bf16 True\n",
            "train.py": "from own import main\nmain()\n",
            "own.py": "import transformers\nfrom serve import template\ntransformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses()\n"
            "model = transformers.AutoModelForCausalLM.from_pretrained(args.model, config=config)\n",
            "serve.py": "def load(path):\n    return AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.bfloat16)\n",
        },
        Read(document={"workload/pure_bf16": None}),
    ),
    "what jsonargparse reads are options, and the rest constants": Launch(
        {
            "run.sh": "python train.py --devices 4 --resume true\n",
            "train.py": "import lightning as L\nglobal_batch_size = 64\nmicro_batch_size = 4\n"
            "def setup(devices: int = 8, precision: str = 'bf16-mixed', resume: bool = False, tpu: bool = False):\n"
            "    if tpu:\n        devices = 'auto'\n    fabric = L.Fabric(devices=devices, precision=precision)\n"
            "if __name__ == '__main__':\n    from jsonargparse import CLI\n    CLI(setup)\n",
        },
        Read(
            start=("python", "train.py", "--resume=true", "--devices={nproc_per_node}"),
            document={
                "space/world_sizes": [4],
                "workload/global_batch_size": 64,
                "trainer/overrides": {
                    "train.py": {
                        "global_batch_size": "{global_batch_size}",
                        "micro_batch_size": "{micro_batch_size}",
                    }
                },
            },
            baseline="dp=4,micro_batch_size=4,precision=bf16",
            unsaid=("one process",),
        ),
    ),
    "a stage of a DeepSpeed that is off is no stage": row(
        WITH_DEEPSPEED, Read(document={"space/zero_stage": None, "workload/loop": None})
    ),
    "that of one that is on is": row(
        WITH_DEEPSPEED,
        Read(document={"space/zero_stage": [1, 0, 2, 3], "workload/loop": "deepspeed"}),
        f"{ON_8} --enable_deepspeed --zero_stage 1\n",
    ),
    "weights on the host under a switch that is off are not there": row(
        OFFLOADS, Read(unsaid=("weights on the host",))
    ),
    "under one that is on they are": row(
        OFFLOADS, Read(notes=("weights on the host",)), f"{ON_8} --offload\n"
    ),
    "adapters under a condition are no certainty": row(
        f"{ARGPARSE}{BATCH}if config is not None:\n    model = get_peft_model(model, config)\n",
        Read(notes=("planned as if every weight were trained; if train.py trains adapters,",)),
    ),
    "an autocast that its flags do not decide leaves the format open": row(
        f'{ARGPARSE}{BATCH}p.add_argument("--bf16", action="store_true")\nif scaler is None:\n    step()\nelse:\n    with torch.cuda.amp.autocast():\n        step()\n',
        Read(asked=("baseline",), notes=("does not understand the autocast in line 8, which does not depend on --bf16",)),
    ),
    "a feed-forward that is counted with its gate is half as wide": Launch(
        {
            "run.sh": f"{ON_8} c.yaml\n",
            "train.py": "import sys, yaml\nmain(yaml.safe_load(open(sys.argv[1])))\n",
            "c.yaml": "device_train_microbatch_size: 2\nlearning_rate: 0.1\nmodel:\n  d_model: 4096\n  n_heads: 32\n  n_layers: 32\n"
            "  mlp_hidden_size: 22016\n  activation_type: swiglu\n  vocab_size: 100278\n",
        },
        Read(document={"model/ffn_hidden_size": 11008, "model/gated_mlp": True}),
    ),
    "a policy under a condition says no format by itself": row(
        f"{ARGPARSE}{BATCH}if args.plugin == 'fsdp':\n    policy = MixedPrecision(param_dtype=torch.float16)\nplugin = Plugin(precision='bf16')\n",
        Read(asked=("space.precision", "baseline")),
    ),
    "weights on the host under a condition are no certainty": row(
        f"{ARGPARSE}{BATCH}if cfg.cpu:\n    policy = CPUOffloadPolicy()\n",
        Read(notes=("under a condition); planned on the GPU; if train.py keeps them on the host,",)),
    ),
    "adapters that are switched off are none": row(
        f'import peft\n{ARGPARSE}{BATCH}p.add_argument("--peft_enable", type=bool, default=True)\np.add_argument("--lora_rank", type=int, default=64)\n',
        Read(document={"workload/peft": None}),
        f"{ON_8} --peft_enable False\n",
    ),
    "an enabled checkpointing recomputes": row(
        f'{ARGPARSE}{BATCH}p.add_argument("--model.gradient_checkpointing_enable", action="store_true")\n',
        Read(knobs=("recompute=full",)),
        f"{ON_8} --model.gradient_checkpointing_enable\n",
    ),
    "Lightning's strategy shards": row(
        f'import lightning\n{ARGPARSE}p.add_argument("--micro_bsz", type=int, default=8)\np.add_argument("--strategy", default="auto", type=str)\n',
        Read(knobs=("micro_batch_size=8", "zero_stage=2"), words=("--strategy=deepspeed_stage_2",)),
        f"{ON_8} --strategy deepspeed_stage_2\n",
    ),
    "a folder above the script's own is found": Launch(
        {
            "run/all.sh": 'HERE=$(cd -- "$(dirname "$0")" >/dev/null 2>&1 ; pwd -P)\nABOVE=$(dirname $HERE)\n'
            "torchrun --nproc_per_node 8 $ABOVE/train.py\n",
            "train.py": f"{ARGPARSE}{BATCH}",
        },
        Read(baseline="micro_batch_size=8", unsaid=("only the shell", "not found")),
    ),
    "a program of a package is found far above its script": Launch(
        {
            "scripts/train/debug/dpo/local.sh": "torchrun --nproc_per_node 8 pkg/train.py\n",
            "pkg/train.py": f"{ARGPARSE}{BATCH}",
        },
        Read(baseline="micro_batch_size=8", document={"trainer/cwd": "."}),
    ),
    "settings are started where the files are that they name": Launch(
        {
            "examples/full/sft.yaml": "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\ntemplate: qwen\ncutoff_len: 512\n"
            "per_device_train_batch_size: 1\nbf16: true\ndeepspeed: examples/deepspeed/z2.json\n",
            "examples/deepspeed/z2.json": '{"zero_optimization": {"stage": 2}}',
        },
        Read(document={"trainer/cwd": "."}, words=("examples/full/sft.yaml",), knobs=("zero_stage=2",)),
    ),
    "arguments that another file declares are read": Launch(
        {
            "run.sh": f"{ON_8} --per_device_train_batch_size 2 --bf16 True --push_to_hub True\n",
            "train.py": "import transformers\nfrom own.arguments import Own, Trained\nparser = transformers.HfArgumentParser((Own, Trained))\n",
            "own/arguments.py": "from dataclasses import dataclass\nimport transformers\n@dataclass\nclass Own:\n    data: str = ''\n"
            "@dataclass\nclass Trained(transformers.TrainingArguments):\n    model_max_length: int = 4096\n    gradient_checkpointing: bool = True\n",
        },
        Read(
            document={"workload/seq_len": 4096, "workload/loop": "hf_trainer"},
            words=("--model_max_length={seq_len}", "--push_to_hub=False"),
            text=("arguments.py line",),
            knobs=("recompute=full",),
            unsaid=("trials omit",),
        ),
    ),
    "trl's own classes have the defaults that trl works out": Launch(
        {
            "run.sh": f"{ON_8} --per_device_train_batch_size 2\n",
            "train.py": "from trl import SFTConfig, TrlParser\nTrlParser((SFTConfig,)).parse_args_and_config()\n",
            "trl/__init__.py": "import transformers\nclass SFTConfig(transformers.TrainingArguments):\n    bf16: bool | None = None\n    max_length: int = 1024\n",
        },
        Read(baseline="micro_batch_size=2,precision=bf16,recompute=full"),
    ),
    "a parser of own dataclasses is none of transformers' Trainer": Launch(
        {
            "run.sh": f"{ON_8} --per_device_train_batch_size 2 --lr_scheduler_type linear --use_wandb\n",
            "train.py": "from own import ParserPlus\nfrom dataclasses import dataclass\n@dataclass\nclass DPOConfig:\n    beta: float = 0.1\n"
            "@dataclass\nclass Args(DPOConfig):\n    per_device_train_batch_size: int = 8\n    gradient_accumulation_steps: int = 4\n    use_wandb: bool = False\n"
            "parser = ParserPlus((Args,))\n",
            "own.py": "from transformers import HfArgumentParser\nclass ParserPlus(HfArgumentParser):\n    pass\n",
        },
        Read(
            document={"workload/loop": None, "workload/global_batch_size": 64, "trainer/training/append": ["--use_wandb"]},
            words=("--gradient_accumulation_steps={accumulation_steps}",),
            without=("--save_strategy", "--logging_steps", "--torch_compile", "use_wandb", "precision"),
        ),
    ),
    "nor is an unknown one of a text that names none of it": row(
        "from own import parse\nargs = parse()\n",
        Read(without=("--save_strategy", "--logging_steps=1"), words=("--per_device_train_batch_size={micro_batch_size}",)),
        f"{ON_8} --per_device_train_batch_size 2 --lr_scheduler_type linear --warmup_ratio 0.1 --save_steps 9\n",
    ),
    "a tracker of a file stays there": Launch(
        {
            "run.sh": f"{ON_8} c.yaml\n",
            "train.py": "import sys, yaml\nmain(yaml.safe_load(open(sys.argv[1])))\n",
            "c.yaml": "micro_batch_size: 2\nlearning_rate: 0.1\nuse_wandb: true\n",
        },
        Read(unsaid=("trials omit",)),
    ),
    "composer starts a rank on each GPU": row(
        f"{ARGPARSE}{BATCH}", Read(start=("composer", "-n", "{nproc_per_node}")), "composer train.py\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)


def test_an_overriding_value_of_settings_leaves_nothing_of_its_word(tmp_path: Path) -> None:
    files = {
        "run.sh": f"{ON_8} conf.yaml --run_name=mine --save_overwrite\n",
        "train.py": "import sys, yaml\nmain(yaml.safe_load(open(sys.argv[1])), sys.argv[2:])\n",
        "conf.yaml": "run_name: old\nmicro_batch_size: 2\ngradient_accumulation_steps: 1\nlearning_rate: 0.1\nseq_len: 512\n",
    }
    draft = drafted(tmp_path, files)
    assert argv(draft)[-2:] == ["{files}/conf.yaml", "--save_overwrite"]
    assert draft.document["trainer"]["files"]["conf.yaml"]["run_name"] == "mine"


@pytest.mark.parametrize("place", ["train.py", "pkg/submit.py"])
def test_what_only_submits_its_training_is_refused(place: str, tmp_path: Path) -> None:
    submits = "import submitit\ndef submit(args):\n    executor = submitit.AutoExecutor(folder='x')\n    executor.submit(main, args)\n"
    files = {"train.py": f"{ARGPARSE}{BATCH}", "pkg/__init__.py": ""}
    files[place] = submits + files.get(place, "")
    if place != "train.py":
        files["train.py"] += "from pkg.submit import submit\nsubmit(p.parse_args())\n"
    with pytest.raises(SpecError, match="submits the training to a scheduler with submitit"):
        drafted(tmp_path, files)


OF_OPTIONS = (
    'N=8\nwhile [[ $# -gt 0 ]]; do\n  case "$1" in\n    -g|--gpus)\n      N="$2"\n      shift 2\n      ;;\n    --lr) LR=$2; shift 2 ;;\n  esac\ndone\n'
    "torchrun --nproc_per_node=$N train.py --lr $LR\n"
)


@pytest.mark.parametrize(
    ("script", "given", "words"),
    [
        ('N=$1\nshift\ntorchrun --nproc_per_node=$N train.py "$@"\n', "2 --batch-size 4 --lr 1", ["--lr=1", "--batch-size={micro_batch_size}"]),
        ("torchrun --nproc_per_node=${2:-2} train.py --lr $1 --name '$1'\n", "1", ["--lr=1", "--name=$1", "--batch-size={micro_batch_size}"]),
        (OF_OPTIONS, "--lr 1 --gpus 2", ["--lr=1", "--batch-size={micro_batch_size}"]),
    ],
)  # fmt: skip
def test_a_script_has_the_arguments_of_its_command(
    script: str, given: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"run.sh": script, "train.py": f"{ARGPARSE}{BATCH}"})
    monkeypatch.chdir(tmp_path)
    for start in (["bash", "run.sh"], ["./run.sh"]):
        draft = command_draft([*start, *given.split()], cluster="a100-80gb-1x8", folder=tmp_path)
        begin = argv(draft).index("train.py") + 1
        assert argv(draft)[begin:] == words
        assert draft.document["space"]["world_sizes"] == [2]


def test_buckets_of_positions_are_no_choice_of_speed(tmp_path: Path) -> None:
    buckets = (
        f'p.add_argument("--{name}", type=int, default=32)\n'
        for name in ("bucket-mb", "relative-attention-num-buckets")
    )
    text = drafted(tmp_path, {"train.py": f"{ARGPARSE}{BATCH}{''.join(buckets)}"}).text
    assert "{bucket_mb: [32, 64]}" in text
    assert "relative_attention" not in text
