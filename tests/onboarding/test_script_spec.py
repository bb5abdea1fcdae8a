"""A first spec of a script loads, and what it launches is what the script's own parser accepts and
understands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import api
from autotune.errors import SpecError
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.spec import ParallelConfig, Study
from autotune.trainers import trainer
from tests.onboarding.drafting import Launch, Read, loaded
from tests.shortcuts import file_with

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = ("nanogpt", "torchrun_ddp", "run_clm", "lightning_args", "accelerate_nlp", "mingpt")
WITH_OPTIONS = NAMES[:-1]
CLUSTER = "a100-80gb-1x8"
Drafted = Callable[[str], Draft]


@pytest.fixture
def drafted(tmp_path: Path) -> Drafted:
    """The draft of a script that lies in a folder beside the spec."""

    def draft(name: str) -> Draft:
        folder = tmp_path / "code"
        folder.mkdir(exist_ok=True)
        for script in (name, "configurator"):
            (folder / f"{script}.py").write_text((SCRIPTS / f"{script}.py.txt").read_text())
        return first_draft(folder / f"{name}.py", cluster=CLUSTER, folder=tmp_path)

    return draft


def arguments(study: Study, config: ParallelConfig) -> list[str]:
    """What the script gets on its command line."""
    options = {**study.trainer_options, "steps": 7, "seed": 3}
    argv = trainer("command").launch(study.workload, config, options).argv
    at = next(i for i, word in enumerate(argv) if word.endswith(".py"))
    return list(argv[at + 1 :])


def parsed(
    name: str, words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What the script's own parser makes of these words. Raises `SystemExit` where it refuses
    them."""
    text = (SCRIPTS / f"{name}.py.txt").read_text()
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    monkeypatch.chdir(folder / "code")
    module: dict[str, Any] = {"__name__": name, "__file__": f"{name}.py"}
    monkeypatch.setitem(sys.modules, name, type(sys)(name))
    sys.modules[name].__dict__.update(module)
    space = sys.modules[name].__dict__
    if name == "nanogpt":  # options are the module's own names; what follows them trains
        exec(text.partition("config = {k:")[0], space)
        return space
    exec(text, space)
    found = space["parse_args"]()
    return {
        key: value
        for part in (found if isinstance(found, tuple) else (found,))
        for key, value in vars(part).items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_is_planned(name: str, drafted: Drafted, tmp_path: Path) -> None:
    draft = drafted(name)
    assert yaml.safe_load(draft.text) == draft.document
    assert len(draft.text.splitlines()) <= 45
    study = loaded(draft, tmp_path)
    assert api.plan_of(study, top=1).rows


@pytest.mark.slow  # imports transformers and lightning
# in 5; the only name in 4
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["run_clm", "lightning_args", "accelerate_nlp"])
def test_programs_of_large_libraries_understand_every_config(
    name: str, drafted: Drafted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_every_config(name, drafted, tmp_path, monkeypatch)


# nanoGPT leaves configurator.py open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["nanogpt", "torchrun_ddp"])
def test_the_script_understands_every_config(
    name: str, drafted: Drafted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_every_config(name, drafted, tmp_path, monkeypatch)


MICRO = ("batch_size", "per_device_train_batch_size")
ACCUMULATION = ("gradient_accumulation_steps", "grad_accum", "accumulate_grad_batches")
STEPS = ("max_steps", "max_iters", "max_train_steps")


def check_every_config(
    name: str, drafted: Drafted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = loaded(drafted(name), tmp_path)
    configs = [row.config for row in api.plan_of(study, top=1000).rows]
    for config in configs[:: max(1, len(configs) // 12)]:
        # TrainingArguments refuse bf16 on a CPU otherwise
        here = ["--use_cpu=True"] if name == "run_clm" else []
        values = parsed(name, [*arguments(study, config), *here], tmp_path, monkeypatch)

        def told(names: tuple[str, ...], values: dict[str, Any] = values) -> Any:
            return next(values[key] for key in names if key in values)

        assert told(MICRO) == config.micro_batch_size
        per_rank = told(ACCUMULATION) // (config.dp if name == "nanogpt" else 1)
        assert per_rank == config.accumulation_steps
        assert told(STEPS) == 7
        for switch in ("compile", "torch_compile"):
            assert values.get(switch, config.compile) == config.compile


def test_globals_of_a_configurator_are_options_of_their_own_types(
    drafted: Drafted, tmp_path: Path
) -> None:
    draft = drafted("nanogpt")
    study = loaded(draft, tmp_path)
    words = arguments(
        study, ParallelConfig(dp=8, micro_batch_size=12, accumulation_steps=5, precision="fp16")
    )
    assert words == [
        *(
            "--gradient_accumulation_steps=40",
            "--batch_size=12",
            "--block_size=1024",
            "--max_iters=7",
        ),
        *("--dtype=float16", "--compile=False", "--out_dir=out"),
    ]
    assert study.workload.model.num_layers == 12
    assert study.trainer_options["metrics"]["step_time_ms"] == r"\btime ([0-9.]+)ms"
    assert "line 24, default 12" in draft.text


@pytest.mark.parametrize(
    ("file", "batch", "fill_in"),
    [
        ("batch_size = 64\ngradient_accumulation_steps = 2\n", 24, ()),
        (
            "import os\ngradient_accumulation_steps = 5 * int(os.environ['N'])\n",
            12,
            ("workload.global_batch_size",),
        ),
        (None, 12, ("workload.global_batch_size",)),
    ],
    ids=["said", "computed", "absent"],
)
def test_a_file_that_a_configurator_is_started_with_says_what_its_options_are(
    drafted: Drafted, tmp_path: Path, file: str | None, batch: int, fill_in: tuple[str, ...]
) -> None:
    drafted("nanogpt")
    code = tmp_path / "code"
    if file is not None:
        (code / "small.py").write_text(file)
    draft = first_draft(
        file_with(
            code / "launch.sh", "python nanogpt.py small.py --batch_size=12 --block_size=64\n"
        ),
        cluster=CLUSTER,
        folder=tmp_path,
    )
    assert draft.document["workload"]["global_batch_size"] == batch
    assert set(fill_in) == {one for one in draft.fill_in if one.startswith("workload")}


def test_print_statements_become_patterns_that_read_their_lines(
    drafted: Drafted, tmp_path: Path
) -> None:
    study = loaded(drafted("torchrun_ddp"), tmp_path)
    read = trainer("command").reader(study.trainer_options)
    found = read("step 12/1000 | loss 3.1250 | grad norm 0.812 | step time 0.250 s | 131072 tok/s")
    assert (found.step, found.loss, found.grad_norm, found.step_time_s) == (12, 3.125, 0.812, 0.25)


def test_performance_options_are_suggested_with_their_lines(
    drafted: Drafted, tmp_path: Path
) -> None:
    text = drafted("torchrun_ddp").text
    assert (
        'could be tuned (line 24) with knobs: {num_workers: [4, 8]}, here "--num-workers={num_workers}"'
        in text
    )
    assert "local_rank" not in text


def test_a_script_without_options_is_set_otherwise_by_each_trial(
    drafted: Drafted, tmp_path: Path
) -> None:
    draft = drafted("mingpt")
    (places,) = draft.document["trainer"]["overrides"].values()
    assert places == {
        "C.system.seed": "{seed}",
        "C.trainer.batch_size": "{micro_batch_size}",
        "C.trainer.block_size": "{seq_len}",
    }
    assert any("seed (line 11), batch_size (line 16)" in note for note in draft.notes)
    study = loaded(draft, tmp_path)
    assert len(api.plan_of(study, top=10).rows) > 1


def test_a_script_without_options_and_batch_is_told_what_to_do(tmp_path: Path) -> None:
    draft = first_draft(
        file_with(tmp_path / "train.py", "import torch\nseed = 7\nsizes = [4, 8]\n"),
        cluster="cpu-1x1",
        folder=tmp_path,
    )
    assert "trainer.argv" in draft.fill_in
    assert any(
        note.startswith("nothing can be tuned yet, because the script sets seed=7 (line 2)")
        for note in draft.notes
    )
    lines = draft.text.splitlines()
    at = lines.index("# fill in: seq_len, tokens per sequence")
    assert (
        lines[at + 1]
        == "# fill in: global_batch_size, sequences per optimizer step (not found in the script)"
    )
    assert lines[at + 2].startswith("workload: ")
    (argv,) = (line for line in lines if line.startswith("  argv:"))
    assert argv.endswith(
        "# fill in: an argument for each knob, e.g. '--batch-size={micro_batch_size}'"
    )


@pytest.mark.parametrize(
    ("text", "options", "parser"),
    [
        (
            "import click\n@click.command()\n@click.option('--bs', default=4)\n@click.option('--amp/--no-amp', default=False)\ndef main(bs, amp): ...",
            ["--bs", "--amp"],
            "click",
        ),
        (
            "import typer\ndef main(batch_size: int = 4, compile: bool = False): ...\ntyper.run(main)",
            ["--batch-size", "--compile"],
            "typer",
        ),
        (
            "from absl import flags\nflags.DEFINE_integer('batch_size', 4, 'b')\nflags.DEFINE_bool('compile', False, 'c')",
            ["--batch_size", "--compile"],
            "absl",
        ),
        (
            "import fire\ndef train(batch_size=4, use_bf16=False): ...\nfire.Fire(train)",
            ["--batch_size", "--use_bf16"],
            "fire",
        ),
        (
            "import tyro\nfrom dataclasses import dataclass\n@dataclass\nclass Optim:\n    lr: float = 0.1\n@dataclass\nclass Args:\n    optim: Optim\n    batch_size: int = 4\n    compile: bool = False\ntyro.cli(Args)",
            ["--optim.lr", "--batch_size", "--compile"],
            "dataclass",
        ),
    ],
)
def test_other_parsers_are_read(text: str, options: list[str], parser: str) -> None:
    from autotune.onboarding.script.reading import read_script

    script = read_script("train.py", text)
    assert (script.parser, [option.shown for option in script.options]) == (parser, options)


def test_nothing_of_the_script_is_run(tmp_path: Path) -> None:
    first_draft(
        file_with(
            tmp_path / "train.py",
            "import pathlib\npathlib.Path('ran').touch()\nraise SystemExit(1)\n",
        ),
        folder=tmp_path,
    )
    assert not (tmp_path / "ran").exists()
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torchrun_ddp", ["torchrun", "--nproc-per-node=8"]),
        (
            "accelerate_nlp",
            [
                "accelerate",
                "launch",
                "--num_processes=16",
                "--multi_gpu",
                "--num_machines=2",
                "--machine_rank=@node-rank@",
            ],
        ),
    ],
)
def test_on_several_nodes_each_is_told_where_all_meet(
    name: str, words: list[str], tmp_path: Path
) -> None:
    draft = first_draft(
        file_with(tmp_path / f"{name}.py", (SCRIPTS / f"{name}.py.txt").read_text()),
        cluster="a100-80gb-2x8",
        folder=tmp_path,
    )
    study = loaded(draft, tmp_path)
    assert study.runner == "ray"
    config = ParallelConfig(
        dp=16, micro_batch_size=4, accumulation_steps=study.workload.global_batch_sizes[0] // 64
    )
    launch = trainer("command").launch(study.workload, config, study.trainer_options)
    assert list(launch.argv[: len(words)]) == words
    assert launch.env["PET_NNODES"] == "2"


@pytest.mark.parametrize(
    ("name", "told"), [("accelerate_nlp", True), ("run_clm", True), ("torchrun_ddp", False)]
)
def test_on_cpus_ranks_of_accelerate_are_started_by_torchrun_and_told_to_meet(
    name: str, told: bool, tmp_path: Path
) -> None:
    study = loaded(
        first_draft(
            file_with(tmp_path / "train.py", (SCRIPTS / f"{name}.py.txt").read_text()),
            cluster="cpu-1x2",
            folder=tmp_path,
        ),
        tmp_path,
    )
    assert study.trainer_options["argv"][:3] == [
        "torchrun",
        "--standalone",
        "--nproc-per-node={nproc_per_node}",
    ]
    assert study.trainer_options.get("env") == ({"ACCELERATE_USE_CPU": "true"} if told else None)
    on_gpus = loaded(
        first_draft(tmp_path / "train.py", cluster="a100-80gb-1x8", folder=tmp_path), tmp_path
    )
    assert "env" not in on_gpus.trainer_options


@pytest.mark.parametrize(
    ("option", "cluster", "words"),
    [
        (
            "'--local_rank', type=int, default=-1",
            "a100-80gb-1x8",
            ["deepspeed", "--num_gpus={nproc_per_node}"],
        ),
        (
            "'--local_rank', type=int, default=-1",
            "a100-80gb-2x8",
            ["deepspeed", "--hostfile=hostfile", "--no_ssh"],
        ),
        (
            "'--lr', type=float, default=0.1",
            "a100-80gb-2x8",
            ["torchrun", "--nproc-per-node={nproc_per_node}"],
        ),
    ],
)
def test_a_script_of_deepspeed_trains_on_all_ranks(
    option: str, cluster: str, words: list[str], tmp_path: Path
) -> None:
    study = loaded(
        first_draft(
            file_with(
                tmp_path / "train.py",
                "import argparse\nimport deepspeed\nparser = argparse.ArgumentParser()\n"
                f"parser.add_argument('--batch_size', type=int, default=8)\nparser.add_argument({option})\n",
            ),
            cluster=cluster,
            folder=tmp_path,
        ),
        tmp_path,
    )
    assert study.trainer_options["argv"][: len(words)] == words
    ranks = study.workload.cluster.num_gpus
    assert {row.config.dp for row in api.plan_of(study, top=100).rows} == {ranks}


def test_a_script_that_cannot_accumulate_has_its_batch_as_a_knob(tmp_path: Path) -> None:
    study = loaded(
        first_draft(
            file_with(
                tmp_path / "train.py",
                "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--batch_size', type=int, default=8)\n",
            ),
            cluster=CLUSTER,
            folder=tmp_path,
        ),
        tmp_path,
    )
    assert study.workload.global_batch_sizes == (2, 4, 8, 16, 32)
    assert {row.config.accumulation_steps for row in api.plan_of(study, top=100).rows} == {1}
    assert study.baseline == ParallelConfig(micro_batch_size=8, precision="fp32")


FINE_TUNING = """
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser

def main(arguments, training, model):
    SFTTrainer(model=model.model_name_or_path, args=training).train()

def make_parser():
    types = (ScriptArguments, SFTConfig, ModelConfig)
    return TrlParser(types)

if __name__ == "__main__":
    main(*make_parser().parse_args_and_config())
"""


def test_the_parsers_dataclasses_may_be_named_by_a_variable(tmp_path: Path) -> None:
    draft = first_draft(
        file_with(tmp_path / "sft.py", FINE_TUNING), cluster=CLUSTER, folder=tmp_path
    )
    argv = draft.document["trainer"]["argv"]
    assert "--per_device_train_batch_size={micro_batch_size}" in argv
    assert "--max_length={seq_len}" in argv
    # trl's own defaults
    assert draft.document["baseline"].endswith("precision=bf16,recompute=full")
    assert any("add the options that you use today" in note for note in draft.notes)
    study = loaded(draft, tmp_path)
    default = ParallelConfig(dp=8, micro_batch_size=8, precision="bf16", recompute="full")
    assert "--gradient_checkpointing=True" in arguments(study, default)


EPOCHS = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--emsize", type=int, default=200, help="size of word embeddings")
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--nhead", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=20)
parser.add_argument("--bptt", type=int, default=35, help="sequence length")
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--log-interval", type=int, default=200)
args = parser.parse_args()
for epoch in range(args.epochs):
    for batch in range(1000):
        if batch % args.log_interval == 0:
            print("| epoch {:3d} | {:5d}/{:5d} batches | ms/batch {:5.2f} | loss {:5.2f}".format(epoch, batch, total, ms, loss))
    print("| end of epoch {:3d} | time: {:5.2f}s | valid loss {:5.2f}".format(epoch, elapsed, val_loss))
"""


def test_a_script_that_counts_batches_of_an_epoch_prints_a_line_for_each_of_them(
    tmp_path: Path,
) -> None:
    draft = first_draft(file_with(tmp_path / "lstm.py", EPOCHS), cluster="cpu-1x1", folder=tmp_path)
    argv = draft.document["trainer"]["argv"]
    assert argv[-2:] == ["--bptt={seq_len}", "--log-interval=1"]
    assert draft.document["workload"]["seq_len"] == 35
    assert draft.document["model"]["hidden_size"] == 200
    found = trainer("command").reader(loaded(draft, tmp_path).trainer_options)(
        "| epoch   1 |    40/  171 batches | ms/batch 38.20 | loss  6.77"
    )
    assert (found.step, found.step_time_s, found.loss) == (40, pytest.approx(0.0382), 6.77)


TOTAL = """
import argparse, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32, help="whatever this says of GPUs")
parser.add_argument("--ga", type=int, default=2)
parser.add_argument("--seq-len", type=int, default=128)
parser.add_argument("--amp", action="store_true")
args.batch_size = int(args.batch_size / ngpus_per_node)
with torch.autocast("cuda", torch.bfloat16, enabled=args.amp):
    pass
"""


def test_a_batch_over_all_ranks_is_divided_by_them(tmp_path: Path) -> None:
    draft = first_draft(file_with(tmp_path / "train.py", TOTAL), cluster=CLUSTER, folder=tmp_path)
    study = loaded(draft, tmp_path)
    assert study.workload.global_batch_sizes == (64,)
    assert (
        study.baseline.micro_batch_size,
        study.baseline.accumulation_steps,
        study.baseline.dp,
    ) == (4, 2, 8)
    assert "--batch-size=32" in arguments(study, study.baseline)


def bundled(name: str) -> dict[str, str]:
    return {f"{name}.py": (SCRIPTS / f"{name}.py.txt").read_text()}


LINE = 'print(f"step {step} loss {loss:.4f}")'
COUNTING = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--grad-accum", type=int, default=8)
parser.add_argument("--max-steps", type=int, default=100)
args = parser.parse_args()
accumulation = args.grad_accum
for step in range(args.max_steps):
    for _ in range(ACCUMULATION):
        loss = train(args.batch_size)
        INSIDE
    BEHIND
"""


def counting(accumulation: str, inside: str, behind: str, counts: str | None) -> Launch:
    """What a line of the log counts, by the loop over the micro-batches."""
    program = (
        COUNTING.replace("ACCUMULATION", accumulation)
        .replace("INSIDE", inside)
        .replace("BEHIND", behind)
    )
    text = ("the loop over grad_accum on line 10",) if counts else ()
    return Launch(
        {"train.py": program},
        Read(document={"trainer/counts": counts}, text=text, study={"trainer": "command"}),
    )


READ = {
    **{
        f"the loop that a program runs: {name}": Launch(
            bundled(name), Read(document={"workload/loop": loop})
        )
        for name, loop in (
            ("nanogpt", None),
            ("run_clm", "hf_trainer"),
            ("lightning_args", "lightning"),
            ("accelerate_nlp", "accelerate"),
        )
    },
    "a hub id in the script is the model": Launch(
        bundled("run_clm"),
        Read(
            document={"model": "Qwen/Qwen2.5-0.5B"},
            asked=("trainer.argv",),
            settled=(
                "model",
                "workload.seq_len",
                "workload.global_batch_size",
                "cluster",
                "baseline",
            ),
            text=("--train_file=FILL-IN",),
        ),
    ),
    "a configuration of a trainer is imported": Launch(
        {"ds.json": '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}'},
        Read(
            notes=("ds.json is a deepspeed configuration, so it is imported",),
            document={"trainer": "deepspeed"},
        ),
        None,
    ),
    "a script that names a trainer's keys is still a script": Launch(
        {
            "train.py": "config = {'train_micro_batch_size_per_gpu': 4, 'zero_optimization': {'stage': 2}}\n"
        },
        Read(document={"trainer/kind": "command"}),
        None,
    ),
    **{
        f"precision is told in the script's own words: {option}": Launch(
            {
                "train.py": f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument({option})\n"
            },
            Read(
                document={"space/precision": precisions},
                words=(word,),
                study={"trainer": "command"},
            ),
        )
        for option, word, precisions in (
            (
                "'--dtype', default='float16', choices=['float16', 'bfloat16']",
                "--dtype={precision}",
                ["fp16", "bf16"],
            ),
            ("'--fp16', action='store_true'", "{precision}", ["fp32", "fp16"]),
            (
                "'--amp', action=argparse.BooleanOptionalAction, default=True",
                "{precision}",
                ["fp16"],
            ),
        )
    },
    "mixed precision is that of the script's autocast": Launch(
        {"train.py": TOTAL},
        Read(document={"trainer/values/precision": {"bf16": "--amp", "fp32": None}}),
    ),
    "mixed precision of an autocast that a variable tells": Launch(
        {"train.py": TOTAL.replace("torch.bfloat16", "dtype")},
        Read(document={"trainer/values/precision": {"fp16": "--amp", "fp32": None}}),
    ),
    "lines behind the loop count steps": counting("args.grad_accum", "pass", LINE, "steps"),
    "lines within the loop count micro-batches": counting(
        "args.grad_accum", LINE, "pass", "micro-batches"
    ),
    "lines of another loop": counting("accumulation", "pass", LINE, None),
}


@pytest.mark.parametrize(
    ("name", "text", "message", "remedy"),
    [
        ("train.py", "x = 1\ndef broken(:\n", r"train.py:2 is not Python", ""),
        (
            "notes.txt",
            "hello",
            "neither a Python script nor a configuration of accelerate, deepspeed",
            "",
        ),
        (
            "job.sh",
            "make train\n",
            r"job\.sh does not start a recognizable Python program",
            "pass the script that starts the training",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_ways_on(
    name: str, text: str, message: str, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        first_draft(file_with(tmp_path / name, text), folder=tmp_path)
    assert remedy in refused.value.remedy


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)
