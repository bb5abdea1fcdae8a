"""An edit is a line of the command that is reviewed, in each pod that runs it; a key that a file
lacks is written in its section, so that its patch is whole."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.onboarding.launch.launch_script import started_by
from autotune.reviews import review
from autotune.reviews.lines import (
    CONNECTIONS,
    Change,
    _added,
    _applied,
    _apply,
    changed_lines,
    edited,
    keys_of,
    other_trainings,
    patch,
)
from autotune.reviews.new_keys import text_of, with_key, with_values
from tests.shortcuts import file_with

CLM = "run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --block_size 4096 --bf16 True --fsdp full_shard"
TWO = f"""#!/bin/bash
#SBATCH --nodes=2
srun python prepare.py --out data
srun torchrun --nnodes=2 --nproc_per_node=8 {CLM} --per_device_train_batch_size 1 --gradient_accumulation_steps 8 \\
  --gradient_checkpointing --output_dir a
srun torchrun --nnodes=2 --nproc_per_node=8 {CLM} --per_device_train_batch_size 1 --output_dir b
srun python evaluate.py --ckpt a
"""


def test_only_the_command_that_is_reviewed_changes_and_the_others_are_named(tmp_path: Path) -> None:
    path = file_with(tmp_path / "two.slurm", TWO)
    found = review(path, cluster="h200-sxm")
    assert found.config.accumulation_steps == 8
    changed = found.lines or tuple(line for edit in found.trials for line in edit.lines)
    assert changed
    assert {line.line for line in changed} <= {4, 5}
    assert any("not line 6" in each for each in found.assumed)
    assert other_trainings(TWO, started_by(TWO)) == [6]


def test_a_bare_flag_is_switched_off_where_it_stands(tmp_path: Path) -> None:
    path = file_with(tmp_path / "two.slurm", TWO)
    found = review(path, cluster="h200-sxm")
    (edit,) = [each for each in found.edits if each.knob == "recompute"]
    assert [line.after.strip() for line in edit.lines] == [
        "--gradient_checkpointing=False --output_dir a"
    ]
    assert not edit.unplaced


def test_a_file_that_is_the_only_argument_holds_what_would_be_options(tmp_path: Path) -> None:
    settings = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "gradient_checkpointing": True,
    }
    (tmp_path / "conf.json").write_text(json.dumps({"output_dir": "out", **settings}, indent=2))
    program = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
    (tmp_path / "sft.py").write_text(program)
    path = file_with(tmp_path / "run.sh", "python sft.py conf.json\n")
    found = review(path, cluster="h100-sxm-1x1", model="gpt2-small", seq_len=512)
    lines = tuple(line for edit in found.edits for line in edit.lines)
    assert {line.file for line in lines} == {"conf.json"}
    after = json.loads(edited(found.texts, lines)["conf.json"])
    assert (after["bf16"], after["gradient_checkpointing"], after["output_dir"]) == (
        True,
        False,
        "out",
    )
    assert after["per_device_train_batch_size"] * after["gradient_accumulation_steps"] == 16
    assert after["per_device_train_batch_size"] > 1


POD = """          containers:
            - name: pytorch
              command: [torchrun, --nproc_per_node=8, t.py]
              args:
                - --gradient_checkpointing
                - --batch=1
"""
JOB = f"""apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master:
{POD}    Worker:
{POD}"""


def test_every_pod_of_a_job_changes() -> None:
    lines = JOB.splitlines()
    assert (
        len(_applied(lines, "job.yaml", Change("--gradient_checkpointing", "True", "False"))) == 2
    )
    assert len(_applied(lines, "job.yaml", Change("--batch", "1", "2"))) == 2
    assert len(_added({"job.yaml": lines}, Change("--torch_compile", None, "True"))) == 2
    pods = yaml.safe_load("\n".join(lines))["spec"]["pytorchReplicaSpecs"]
    for pod in pods.values():
        assert pod["containers"][0]["args"] == [
            "--gradient_checkpointing=False",
            "--batch=2",
            "--torch_compile=True",
        ]


def test_a_declared_flag_is_no_flag_that_is_on() -> None:
    lines = ['p.add_argument("--gradient_checkpointing", action="store_true")']
    assert _applied(lines, "t.py", Change("--gradient_checkpointing", "True", "False")) == []


@pytest.mark.parametrize(
    ("name", "text", "path", "section"),
    [
        ("a.toml", "[model]\nx = 1\n", "compile.enable", "compile"),
        ("a.toml", "[compile]  # whole\nmodel = 1\n\n[b]\ny = 2\n", "compile.enable", "compile"),
        ("a.yaml", "optimizer:\n    lr: 1\nmodel:\n    x: 1\n", "optimizer.enable", "optimizer"),
        ("a.yaml", "model:\n  x: 1\n", "compile.enable", "compile"),
        (
            "a.json",
            '{\n  "compile": {\n    "model": 1\n  },\n  "x": 1\n}\n',
            "compile.enable",
            "compile",
        ),
        ("a.json", '{\n  "x": 1\n}\n', "compile.enable", "compile"),
    ],
)
def test_a_key_that_a_file_lacks_is_written_in_its_section(
    name: str, text: str, path: str, section: str
) -> None:
    readers: dict[str, Callable[[str], Any]] = {
        "toml": tomllib.loads,
        "yaml": yaml.safe_load,
        "json": json.loads,
    }
    read = readers[name.rpartition(".")[2]]
    lines = {name: text.splitlines()}
    assert len(with_key(lines, path, "true")) == 1
    before, after = read(text), read("\n".join(lines[name]))
    assert after[section].pop("enable") is True
    assert after == {section: {}, **before}
    assert with_key(lines, path, "true") == []


def test_a_flat_file_without_lines_of_its_own_is_left_alone() -> None:
    lines = {"a.json": ['{"model": {"x": 1}}'], "b.yaml": ["model: {x: 1}"]}
    kept = {name: list(text) for name, text in lines.items()}
    assert with_key(lines, "model.enable", "true") == []
    assert lines == kept


def test_several_new_keys_of_a_section_that_a_file_lacks_are_written_together() -> None:
    lines = {"grpo.yaml": ["steps: 4", "batch: 8"]}
    for path in ("fsdp", "fsdp_config.version", "fsdp_config.offload", "fsdp_config.wrap.policy"):
        assert with_key(lines, path, "true") == [("grpo.yaml", 1)]
    text = "\n".join(lines["grpo.yaml"])
    section = {"version": True, "offload": True, "wrap": {"policy": True}}
    assert yaml.safe_load(text) == {"steps": 4, "batch": 8, "fsdp": True, "fsdp_config": section}


def test_a_key_that_no_place_can_take_leaves_the_lines_as_they_are() -> None:
    lines = {"a.yaml": ["steps: 4\nbatch: 8", "inline: {a: 1}"]}
    assert with_key(lines, "inline.b", "true") == []
    assert lines["a.yaml"] == ["steps: 4\nbatch: 8", "inline: {a: 1}"]


def test_a_patch_with_new_keys_applies(tmp_path: Path) -> None:
    path = file_with(
        tmp_path / "sft.yaml",
        "model_name_or_path: Qwen/Qwen3-4B\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 2\nbf16: true\nfsdp: full_shard\n",
    )
    found = review(path, cluster="h100-sxm-1x8")
    assert "recompute" in [each.knob for each in found.edits]
    assert not found.unplaced
    assert (
        yaml.safe_load(edited(found.texts, found.lines)["sft.yaml"])[
            "disable_gradient_checkpointing"
        ]
        is True
    )
    assert "+disable_gradient_checkpointing: true\n" in patch(found.texts, found.lines)


MEGATRON = """export CUDA_DEVICE_MAX_CONNECTIONS={value}
ARGS=(--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8
  --swiglu --ffn-hidden-size 14336 --normalization RMSNorm --untie-embeddings-and-output-weights --vocab-size 128256
  --position-embedding-type rope --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1
  --global-batch-size 128 --bf16 --use-distributed-optimizer --save out --ckpt-format torch_dist)
torchrun --nproc_per_node 8 pretrain_gpt.py ${{ARGS[@]}}
"""


@pytest.mark.parametrize("value", ["1", "${CUDA_DEVICE_MAX_CONNECTIONS:-1}"])
def test_megatron_fsdp_comes_with_what_it_refuses_to_start_without(
    value: str, tmp_path: Path
) -> None:
    path = file_with(tmp_path / "run.sh", MEGATRON.format(value=value))
    found = review(path, cluster="h100-sxm")
    assert found.config is not None
    assert found.study is not None
    after = replace(found.config, zero_stage=3)
    lines, unplaced = changed_lines(found.texts, found.study, found.config, after)
    text = edited(found.texts, lines)["run.sh"]
    assert not unplaced
    assert text.splitlines()[0] == f"export CUDA_DEVICE_MAX_CONNECTIONS={value.replace('1', '8')}"
    assert text.rstrip().endswith("--ckpt-format fsdp_dtensor")
    assert "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params" in text


def test_a_variable_of_a_pod_changes_in_its_manifest() -> None:
    text = """            env:
            - name: NCCL_DEBUG
              value: "1"
            - name: CUDA_DEVICE_MAX_CONNECTIONS
              value: "1"
"""
    lines = text.splitlines()
    assert _applied(lines, "job.yaml", CONNECTIONS) == [("job.yaml", 4)]
    assert lines[2].strip() == 'value: "1"'
    assert lines[4].strip() == 'value: "8"'


@pytest.mark.parametrize(
    ("script", "after"),
    [
        ("torchrun t.py \\\n  --a 1 \\\n  --ckpt\necho done\n", "torchrun t.py \\\n  --a 1\necho done\n"),
        ("torchrun t.py \\\n  --ckpt \\\n  --off\necho done\n", "torchrun t.py\necho done\n"),
    ],
)  # fmt: skip
def test_a_command_ends_where_its_last_option_went(script: str, after: str) -> None:
    lines = script.splitlines()
    for name in ("--off", "--ckpt"):
        _apply(lines, "a.sh", Change(name, "", None))
    assert text_of(lines) + "\n" == after


def test_an_option_is_added_behind_the_command_and_not_within_it() -> None:
    lines = "torchrun t.py \\\n  --ckpt \\\n  --b 2\necho done".splitlines()
    _apply(lines, "a.sh", Change("--ckpt", "", None))
    _added({"a.sh": lines}, Change("--new", None, "3"))
    assert text_of(lines) == "torchrun t.py \\\n  --b 2 --new 3\necho done"


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("torchrun t.py --a 1", ""),
        ("torchrun t.py --a 1", " # why"),
        ("torchrun t.py --a b#c", "; echo done"),
        ("cd x && python t.py --a '1; 2'", " && echo ok || exit 1"),
        ("(torchrun t.py --a $(nproc --all)", ")"),
        ("torchrun t.py --a ${B:-3}", " >log 2>&1 &"),
        ("torchrun t.py \\\n  --a 1", " \\\n  2>&1 \\\n  | tee \\\n  log\necho done"),
        ('torchrun t.py \\\n  "$@"', " \\\n  # more\necho done"),
        ("torchrun --nnodes $((NODES * 2)) t.py", " | tee log"),
        ("srun bash -c 'accelerate launch \\\n  t.py --a 1", "'"),
        ('srun bash -c "cd x; torchrun t.py --a \\"1\\"', '" && echo ok'),
        ('srun --jobid $ID bash -lc "$LAUNCHER $PROGRAM', '" 2>&1'),
    ],
)
def test_an_option_is_added_to_the_words_of_the_command(before: str, behind: str) -> None:
    lines = f"{before}{behind}".splitlines()
    _added({"a.sh": lines}, Change("--new", None, "3"))
    assert text_of(lines) == f"{before} --new 3{behind}"


def test_a_batch_that_a_file_of_deepspeed_leaves_to_the_trainer_is_not_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "zero.json").write_text(
        '{"zero_optimization": {"stage": 2}, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}'
    )
    (tmp_path / "train.py").write_text(
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-1.5B')\n"
        "args = TrainingArguments('out', per_device_train_batch_size=1, gradient_accumulation_steps=8,\n"
        "    bf16=True, deepspeed='zero.json')\n"
        "Trainer(model=model, args=args, train_dataset=data).train()\n"
    )
    launch = file_with(tmp_path / "run.sh", "deepspeed --num_gpus 8 train.py\n")
    found = review(launch, cluster="h100-sxm-1x8", seq_len=1024)
    assert any("micro_batch_size" in edit.changes for edit in found.edits)
    assert not any(edit.unplaced for edit in found.edits)


def test_a_value_ends_where_the_command_ends() -> None:
    lines = ["(torchrun t.py --b 2); python t.py --c 3; echo"]
    for change in (Change("--b", "2", "4"), Change("--c", "3", "6")):
        assert _apply(lines, "a.sh", change) == ("a.sh", 0)
    assert lines == ["(torchrun t.py --b 4); python t.py --c 6; echo"]


@pytest.mark.parametrize(
    ("script", "after"),
    [
        ('A="--b 2 --ckpt"\ntorchrun t.py $A', 'A="--b 2"\ntorchrun t.py $A'),
        ('A="$A --ckpt" # why\ntorchrun t.py $A', 'A="$A" # why\ntorchrun t.py $A'),
        ('A="--ckpt"\ntorchrun t.py $A', 'A=""\ntorchrun t.py $A'),
        ("A=(--ckpt)\ntorchrun t.py ${A[@]}", "A=()\ntorchrun t.py ${A[@]}"),
        ("torchrun t.py --ckpt; echo", "torchrun t.py; echo"),
        ('A=("--ckpt" "--b")', 'A=("--ckpt" "--b")'),
    ],
)
def test_an_option_goes_from_the_variable_that_holds_it(script: str, after: str) -> None:
    lines = script.splitlines()
    _apply(lines, "a.sh", Change("--ckpt", "", None))
    assert text_of(lines) == after


@pytest.mark.parametrize(
    "manifest",
    [
        "apiVersion: v1\nargs:\n- |\n  torchrun t.py --b 2\n",
        'apiVersion: v1\nargs: ["torchrun t.py --b 2"]\n',
    ],
)
def test_the_script_of_a_shell_in_a_manifest_takes_no_further_word(manifest: str) -> None:
    lines = manifest.splitlines()
    assert _added({"job.yaml": lines}, Change("--new", None, "3")) == []
    assert lines == manifest.splitlines()


def test_a_key_changes_in_its_own_section_only() -> None:
    lines = "a:\n  enabled: true\nb:\n  enabled: true\n".splitlines()
    assert _apply(lines, "c.yaml", Change("b.enabled", "true", "false")) == ("c.yaml", 3)
    assert lines == ["a:", "  enabled: true", "b:", "  enabled: false"]


def test_a_value_that_is_nothing_is_null_in_yaml() -> None:
    assert keys_of("a.yaml", "x: null\ny: [1, 2]\n") == {"x": "null", "y": "[1, 2]"}


def test_json_is_written_anew_with_its_commas_and_sections() -> None:
    document = {"a": {"x": 1}, "b": {"y": True, "z": "one"}, "keep": [1]}
    lines = json.dumps(document, indent=2).splitlines()
    assert with_values(lines, {"a.x": None, "b.y": None, "b.z": "two", "c.d": "[1]"})
    assert json.loads(text_of(lines)) == {"b": {"z": "two"}, "keep": [1], "c": {"d": [1]}}


def test_a_key_is_added_behind_the_bracket_that_opens_json() -> None:
    lines = ['{"a": 1,', ' "b": {"c": 2}}']
    assert with_key({"c.json": lines}, "new", "3") == [("c.json", 0)]
    assert lines == ['{"new": 3, "a": 1,', ' "b": {"c": 2}}']


def test_a_default_stays_where_the_command_computes_the_value(tmp_path: Path) -> None:
    options = "".join(
        f'p.add_argument("--{name}", type=int, default={value})\n'
        for name, value in {"n-layer": 2, "n-embd": 64, "n-head": 4, "vocab-size": 1000, "batch-size": 1, "grad-accum": 16, "seq-len": 128}.items()
    )  # fmt: skip
    program = (
        f"import argparse, torch\np = argparse.ArgumentParser()\n{options}a = p.parse_args()\n"
    )
    file_with(tmp_path / "train.py", program)
    run = file_with(
        tmp_path / "run.sh",
        ': "${BS:=1}"\nACC=$((16 / BS))\n'
        "torchrun --nproc-per-node 8 train.py --batch-size $BS --grad-accum $ACC\n",
    )
    found = review(run, cluster="h200-sxm-1x8", precision="bf16")
    assert found.together is not None
    assert {(line.file, line.line) for line in found.lines} == {("run.sh", 1)}
    (unplaced,) = found.unplaced
    assert unplaced.startswith("--grad-accum=")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a":  1}', {"a": "2"}),
        (json.dumps({"a.b": 1}, indent=2), {"a.b": "2"}),
        (json.dumps({"a": 1}, indent=2), {"a": "null"}),
        ("[]", {"a": "1"}),
    ],
    ids=["otherwise indented", "a dot of a key", "null", "no mapping"],
)
def test_other_json_is_left_to_its_lines(text: str, values: dict[str, str | None]) -> None:
    lines = text.splitlines()
    assert not with_values(lines, values)
    assert lines == text.splitlines()


def test_a_section_takes_the_place_of_a_plain_value() -> None:
    lines = json.dumps({"fsdp_config": "fsdp.json", "x": 1}, indent=2).splitlines()
    assert with_values(lines, {"fsdp_config.version": "2"})
    assert json.loads(text_of(lines)) == {"fsdp_config": {"version": 2}, "x": 1}


def test_an_option_that_the_command_has_by_its_short_name_changes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = 'p.add_argument("-b", "--batch-size", type=int, default=512)\np.add_argument("--accum", type=int, default=1)\n'
    file_with(tmp_path / "train.py", f"import argparse\np = argparse.ArgumentParser()\n{parser}")
    file_with(tmp_path / "all.sh", 'torchrun --nproc_per_node 8 train.py "$@"\n')
    monkeypatch.chdir(tmp_path)
    launch = "torchrun --nproc_per_node 8 train.py -b 512"
    for command in (launch, "bash all.sh -b 512"):
        found = review(command.split(), model="gpt2-small", cluster="h100-sxm-1x8", seq_len=1024)
        changed = [line for line in found.lines if "-b " in line.before]
        assert [(line.file, line.before) for line in changed] == [("command", command)]
        assert all("512" not in line.after for line in changed)
        assert not [line for line in found.lines if '"-b"' in line.before]
