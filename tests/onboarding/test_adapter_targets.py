"""Which matrices have adapters, what is trained beside them, and what a launch needs more or less
than its plan: by the options of public programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.first_spec import first_draft
from autotune.reviews import lines_of, review
from autotune.trainers.post_training.adapters import read_adapters, targets_of

HF = "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --model_max_length 2048 --bf16 True "
COMPUTED = """from dataclasses import dataclass
from peft import LoraConfig
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class LoraArguments:
    lora_enable: bool = False
    lora_r: int = 64
    bits: int = 16
args, lora = HfArgumentParser((TrainingArguments, LoraArguments)).parse_args_into_dataclasses()
config = LoraConfig(r=lora.lora_r, target_modules=find_all_linear_names(model))
"""
WRITTEN = COMPUTED.replace("find_all_linear_names(model)", '["q_proj", "down_proj"]')
DECLARED = """from dataclasses import dataclass, field
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class LoraArguments:
    use_lora: bool = False
    lora_target_modules: list[str] = field(default_factory=lambda: ["c_attn", "c_proj", "w1", "w2"])
HfArgumentParser((TrainingArguments, LoraArguments)).parse_args_into_dataclasses()
"""


def launch(folder: Path, options: str, program: str = "") -> Path:
    (folder / "train.sh").write_text(f"torchrun --nproc_per_node=8 train.py {HF}{options}\n")
    if program:
        (folder / "train.py").write_text(program)
    return folder / "train.sh"


def drafted(script: Path) -> dict[str, Any]:
    return first_draft(script, cluster="a100-80gb-1x8", folder=script.parent).document


@pytest.mark.parametrize(
    ("modules", "targets"),
    [
        (["q_proj", "v_proj"], "attention"),
        (["query_key_value", "dense"], "attention"),
        (["query_key_value", "dense", "dense_h_to_4h"], "all"),
        (["c_attn", "c_proj", "w1", "w2"], "all"),
        (["wqkv", "wo", "w1", "w3"], "all"),
        (["all_linear"], "all"),
        (["all-linear"], "all"),
        (["q_proj", "my_gate"], ""),
        ([], ""),
    ],
)
def test_the_matrices_of_public_models(modules: list[str], targets: str) -> None:
    assert targets_of(modules) == targets
    assert read_adapters(8, modules)["targets"] == (targets or "all")


@pytest.mark.parametrize(
    ("options", "program", "peft"),
    [
        ("--use_lora True", DECLARED, ("lora", 8, "all")),
        ("--use_lora True --lora_target_modules q_proj v_proj", DECLARED, ("lora", 8, "attention")),
        ("--lora_enable True", COMPUTED, ("lora", 64, "all")),
        ("--lora_enable True --bits 4", COMPUTED, ("qlora", 64, "all")),
        ("--lora_enable True", WRITTEN, ("lora", 64, "all")),
        ("--lora_rank 64 --trainable q_proj,gate_proj --load_in_kbits 4", "", ("qlora", 64, "all")),
        ("--use_llm_lora 16 --freeze_llm True", "", ("lora", 16, "attention")),
    ],
)
def test_adapters_are_read_as_the_program_sets_them(
    tmp_path: Path, options: str, program: str, peft: tuple[str, int, str]
) -> None:
    found = drafted(launch(tmp_path, options, program))["workload"]["peft"]
    assert (found["method"], found["rank"], found["targets"]) == peft


@pytest.mark.parametrize(
    ("options", "program", "said"),
    [
        (
            "--lora_r 8 --lora_target_modules my_gate",
            "",
            "adapters on my_gate; planned on all matrices in the layers",
        ),
        ("--lora_enable True", COMPUTED, "the matrices that train.py chooses for its adapters"),
        (
            "--lora_r 8",
            "",
            "adapters are planned on attention alone, which is PEFT's default, because no option names",
        ),
        (
            "--lora_r 8 --lora_target_modules q_proj --use_dora True",
            "",
            "use_dora; planned as plain LoRA",
        ),
    ],
)
def test_what_is_assumed_of_adapters_is_said(
    tmp_path: Path, options: str, program: str, said: str
) -> None:
    text = " ".join(
        " ".join(
            lines_of(review(launch(tmp_path, options, program), cluster="a100-80gb-1x8"))
        ).split()
    )
    assert said in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--lora_r 8 --modules_to_save embed_tokens lm_head",
            "embed_tokens, lm_head (modules_to_save); planned as",
        ),
        (
            "--train_group_size 8",
            "predicted without the other sequences of each sample (train_group_size=8)",
        ),
    ],
)
def test_a_launch_that_needs_more_than_is_predicted_is_not_said_to_fit(
    tmp_path: Path, options: str, said: str
) -> None:
    found = review(
        launch(tmp_path, f"--gradient_checkpointing True --fsdp full_shard {options}"),
        cluster="h200-sxm",
    )
    text = " ".join(" ".join(lines_of(found)).split())
    assert said in text
    assert found.fits is None
    assert "may fit: at least" in text
    assert "and the launch needs more than predicted" in text
    raising = [edit for edit in found.edits if edit.memory_bytes > 0]
    assert raising
    assert all("try this edit first" in edit.remark for edit in raising)
    assert not any("switch recomputation off" in each.text for each in found.warnings)


def test_a_launch_that_needs_less_is_not_said_to_be_too_large(tmp_path: Path) -> None:
    command = "swift sft --model Qwen/Qwen2.5-7B --tuner_type full --max_length 8192 --per_device_train_batch_size 8 --gradient_accumulation_steps 1 "
    (tmp_path / "a.sh").write_text(f"{command} --task_type seq_cls\n")
    found = review(tmp_path / "a.sh", cluster="a100-40gb-1x1")
    text = " ".join(lines_of(found))
    assert "task_type=seq_cls; planned with a loss over the vocabulary" in " ".join(text.split())
    assert found.fits is None
    assert "may not fit" in text


def test_ms_swift_trains_in_the_type_of_the_checkpoint(tmp_path: Path) -> None:
    command = "swift sft --model Qwen/Qwen2.5-7B --max_length 2048 --gradient_accumulation_steps 1 --target_modules all-linear"
    (tmp_path / "a.sh").write_text(f"{command}\n")
    (tmp_path / "b.sh").write_text(f"{command} --torch_dtype float16\n")
    found = review(tmp_path / "a.sh", cluster="a100-80gb-1x1")
    assert found.config is not None
    assert found.config.precision == "bf16"
    assert "weights are planned as bfloat16, the type of most checkpoints" in " ".join(
        " ".join(lines_of(found)).split()
    )
    other = review(tmp_path / "b.sh", cluster="a100-80gb-1x1")
    assert other.config is not None
    assert other.config.precision == "fp16"
    assert "planned as" not in " ".join(lines_of(other))


def test_ms_swift_is_known_within_its_own_checkout(tmp_path: Path) -> None:
    (tmp_path / "swift/cli").mkdir(parents=True)
    (tmp_path / "swift/cli/sft.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--tuner_backend')\nparser.parse_known_args()\n"
    )
    (tmp_path / "a.sh").write_text(
        "swift sft --model Qwen/Qwen2.5-7B --tuner_type full --torch_dtype bfloat16 --max_length 2048 --gradient_accumulation_steps 1\n"
    )
    found = review(tmp_path / "a.sh", cluster="a100-80gb-1x1")
    assert found.config is not None
    assert found.config.recompute == "full"
    assert found.study is not None
    assert found.study.workload.loop == "hf_trainer"
    assert found.study.workload.pure_bf16


def test_no_limit_on_the_steps_is_no_number_of_steps(tmp_path: Path) -> None:
    assert drafted(launch(tmp_path, "--max_steps -1"))["trainer"]["training"]["steps"] is None


def test_an_empty_default_of_a_variable_is_no_word(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(
        f'SRUN_ARGS=${{SRUN_ARGS:-""}}\nsrun -p gpu --ntasks=8 --ntasks-per-node=8 ${{SRUN_ARGS}} \\\n  python -u train.py {HF}\n'
    )
    found = review(tmp_path / "a.sh", cluster="a100-80gb-1x8", batch=8)
    assert found.config is not None
