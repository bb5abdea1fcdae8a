"""The type in which a program of transformers loads its weights is the one that it trains in,
unless a flag of autocast says another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.first_spec import first_draft
from autotune.reviews import Review, review

ARGUMENTS = "TrainingArguments(output_dir='out', per_device_train_batch_size=4, gradient_accumulation_steps=4{more})"
WRITTEN = """import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype={dtype})
args = {arguments}
Trainer(model=model, args=args, train_dataset=data).train()
"""
PARSED = """import torch
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class ModelArguments:
    model_name_or_path: str = ""
    model_max_length: int = 2048
names, args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(names.model_name_or_path, torch_dtype={dtype})
Trainer(model=model, args=args, train_dataset=data).train()
"""
COMMAND = "torchrun --nproc_per_node=8 train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --gradient_accumulation_steps 4 "
BF16, SWITCHED = "torch.bfloat16", "torch.bfloat16 if args.bf16 else None"


def written(folder: Path, dtype: str, more: str = "", peft: str = "") -> Path:
    text = WRITTEN.format(dtype=dtype, arguments=ARGUMENTS.format(more=more))
    (folder / "train.py").write_text(text.replace("args = ", f"{peft}args = ", 1))
    return folder / "train.py"


def parsed(folder: Path, dtype: str, options: str = "") -> Path:
    (folder / "train.py").write_text(PARSED.format(dtype=dtype))
    (folder / "train.sh").write_text(f"{COMMAND}{options}\n")
    return folder / "train.sh"


def reviewed(path: Path) -> Review:
    return review(path, cluster="a100-80gb-1x8", seq_len=1024)


def planned(found: Review) -> tuple[str, bool]:
    assert found.config is not None
    assert found.study is not None
    return found.config.precision, found.study.workload.pure_bf16


@pytest.mark.parametrize(
    ("dtype", "more", "plan"),
    [
        (BF16, "", ("bf16", True)),
        (BF16, ", bf16=True", ("bf16", True)),
        ("torch.float32", ", bf16=True", ("bf16", False)),
        ("torch.float32", "", ("fp32", False)),
    ],
)
def test_a_program_without_options(
    tmp_path: Path, dtype: str, more: str, plan: tuple[str, bool]
) -> None:
    assert planned(reviewed(written(tmp_path, dtype, more))) == plan


def test_adapters_on_weights_in_16_bits(tmp_path: Path) -> None:
    peft = "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(model, LoraConfig(r=8))\n"
    found = reviewed(written(tmp_path, BF16, peft=peft))
    assert planned(found) == ("bf16", False)
    assert not any("precision" in edit.changes for edit in found.edits)


BY_NAME = """from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
config = SFTConfig(output_dir="out", per_device_train_batch_size=2, bf16=True{more})
SFTTrainer("Qwen/Qwen2.5-7B", args=config, train_dataset=data, peft_config=LoraConfig(r=8))
"""
LORA = (
    "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(model, LoraConfig(r=8))\n"
)
OF_TRL = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --use_peft --max_length 1024 --per_device_train_batch_size 2"


@pytest.mark.parametrize(
    ("name", "text", "is_fp32", "said"),
    [
        ("train.py", WRITTEN.replace("args = {", LORA + "args = {").format(dtype="torch.float32", arguments=ARGUMENTS.format(more=", bf16=True")), True, "fp32 next to adapters (as line 3 of train.py"),
        ("train.py", WRITTEN.replace("args = {", LORA + "args = {").replace(", torch_dtype={dtype}", "").format(arguments=ARGUMENTS.format(more=", bf16=True")), False, "bf16 next to adapters (line 3 of train.py loads them without dtype)"),
        ("train.py", BY_NAME.format(more=""), True, "fp32 next to adapters (trl's default"),
        ("train.py", BY_NAME.format(more=", model_init_kwargs={'dtype': 'bfloat16'}"), False, ""),
        ("train.py", BY_NAME.format(more=", deepspeed='zero2.json'"), False, ""),
        ("run.sh", OF_TRL, True, "fp32 next to adapters (trl's default"),
        ("run.sh", f"{OF_TRL} --dtype bfloat16", False, ""),
        ("run.sh", f"{OF_TRL} --load_in_4bit", False, ""),
    ],
)  # fmt: skip
def test_frozen_weights_have_the_type_in_which_they_are_loaded(
    tmp_path: Path, name: str, text: str, is_fp32: bool, said: str
) -> None:
    (tmp_path / "zero2.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / name).write_text(f"{text}\n")
    found = review(tmp_path / name, cluster="a100-80gb-1x8", seq_len=1024)
    assert found.study is not None
    peft = found.study.workload.peft
    assert peft is not None
    assert peft.frozen_fp32 == is_fp32
    notes = [each for each in found.assumed if each.startswith("weights are planned as ")]
    assert len(notes) == bool(said)
    assert said in "".join(notes)


@pytest.mark.parametrize(
    ("dtype", "options", "plan"),
    [
        (BF16, "", ("bf16", True)),
        (BF16, "--bf16 True", ("bf16", True)),
        (SWITCHED, "--bf16 True", ("bf16", True)),
        (SWITCHED, "", ("fp32", False)),
        ("kind(args)", "--bf16 True", ("bf16", False)),
        ("torch.float32", "--bf16 True", ("bf16", False)),
        (BF16, "--deepspeed zero3.json --bf16 True", ("bf16", False)),
    ],
)
def test_a_program_with_options(
    tmp_path: Path, dtype: str, options: str, plan: tuple[str, bool]
) -> None:
    assert planned(reviewed(parsed(tmp_path, dtype, options))) == plan


def test_a_type_that_is_computed_is_said_to_be_assumed(tmp_path: Path) -> None:
    found = reviewed(parsed(tmp_path, "kind(args)", "--bf16 True"))
    assert any(
        "weights are planned as fp32 (line 9 of train.py computes their type)" in each
        for each in found.assumed
    )
    assert not any(
        "weights are planned" in each for each in reviewed(parsed(tmp_path, BF16)).assumed
    )


def test_the_baseline_of_a_study_starts_the_program_as_it_is(tmp_path: Path) -> None:
    """No flag of autocast is added to a program that trains in the type of its weights."""
    draft: dict[str, Any] = first_draft(
        parsed(tmp_path, BF16), cluster="a100-80gb-1x8", folder=tmp_path
    ).document
    assert "precision=bf16" in draft["baseline"]
    assert "fp32" not in draft["space"].get("precision", [])
    precision = draft["trainer"].get("values", {}).get("precision", {})
    assert precision.get("bf16") is None


TRL = """import torch
from trl import SFTConfig, SFTTrainer
config = SFTConfig(output_dir="out", per_device_train_batch_size=2, max_length=1024{more})
SFTTrainer("Qwen/Qwen2.5-7B", args=config, train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("more", "plan"),
    [
        ("", ("bf16", False)),
        (', model_init_kwargs={"torch_dtype": torch.bfloat16}', ("bf16", True)),
    ],
)
def test_a_model_that_a_trainer_of_trl_loads_by_its_name(
    tmp_path: Path, more: str, plan: tuple[str, bool]
) -> None:
    (tmp_path / "train.py").write_text(TRL.replace("{more}", more))
    found = reviewed(tmp_path / "train.py")
    assert planned(found) == plan
    assert found.study is not None
    assert found.study.workload.model.name == "qwen2.5-7b"


@pytest.mark.parametrize("is_on", [True, False])
def test_recomputation_in_the_settings_of_fsdp(tmp_path: Path, is_on: bool) -> None:
    more = f", bf16=True, fsdp='full_shard', fsdp_config={{'activation_checkpointing': {is_on}}}"
    found = reviewed(written(tmp_path, BF16, more))
    assert found.config is not None
    assert found.config.recompute == ("full" if is_on else "none")
