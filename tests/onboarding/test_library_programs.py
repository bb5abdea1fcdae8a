"""Console commands of TRL and ms-swift: what they start, with the defaults of their own options; and what options of transformers say of the workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.onboarding.launch.launch_script import started_by
from tests.shortcuts import file_with

MODEL = "--model_name_or_path Qwen/Qwen2.5-7B"
SWIFT = "swift sft --model Qwen/Qwen2.5-7B --torch_dtype bfloat16 --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --max_length 2048"


def drafted(folder: Path, text: str) -> Draft:
    return first_draft(file_with(folder / "run.sh", text + "\n"), cluster="a100-80gb-1x8", folder=folder)


def workload(folder: Path, text: str) -> dict[str, Any]:
    found: dict[str, Any] = drafted(folder, text).document["workload"]
    return found


@pytest.mark.parametrize(
    ("text", "launcher", "program", "ranks"),
    [
        ("trl sft --num_processes 4 --learning_rate 1e-5", "accelerate", "trl.scripts.sft", 4),
        ("trl dpo --accelerate_config single_gpu --bf16 True", "accelerate", "trl.scripts.dpo", 1),
        ("trl sft --accelerate_config zero3", "accelerate", "trl.scripts.sft", 8),
        ("trl sft --num_processes 2 --accelerate_config zero3", "accelerate", "trl.scripts.sft", 2),
        ("NPROC_PER_NODE=4 swift sft --model a/b", "torchrun", "swift.cli.sft", 4),
        ("export NPROC_PER_NODE=2\nswift pt --model a/b", "torchrun", "swift.cli.pt", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 swift sft --model a/b", "torchrun", "swift.cli.sft", 1),
    ],
)
def test_a_console_command_is_the_launch_of_its_module(text: str, launcher: str, program: str, ranks: int) -> None:
    found = started_by(text)
    assert (found.launcher, found.program, found.is_module, found.gpus_per_node) == (launcher, program, True, ranks)
    assert not {"num_processes", "accelerate_config"} & {argument.name for argument in found.arguments}


def test_what_the_command_leaves_out_has_the_defaults_of_its_own_program(tmp_path: Path) -> None:
    """TRL 1.16: bf16, recomputation, 1,024 tokens; ms-swift 4: adapters of rank 8 on all linear layers, recomputation."""
    trl = drafted(tmp_path, f"trl sft --num_processes 8 {MODEL} --per_device_train_batch_size 4").document
    assert trl["baseline"] == "micro_batch_size=4,precision=bf16,recompute=full"
    assert trl["workload"]["seq_len"] == 1024
    assert "pure_bf16" not in trl["workload"], "its dtype is float32"
    swift = drafted(tmp_path, f"NPROC_PER_NODE=8 {SWIFT}").document
    assert "recompute=full" in swift["baseline"]
    assert swift["workload"]["peft"] == {"method": "lora", "rank": 8, "targets": "all", "library": "peft"}


def test_trl_shards_by_the_configuration_that_it_ships(tmp_path: Path) -> None:
    for name, stage in (("zero2", 2), ("fsdp2", 3)):
        text = f"trl sft --accelerate_config {name} --num_processes 8 {MODEL} --per_device_train_batch_size 4"
        assert drafted(tmp_path, text).document["baseline"].endswith(f"zero_stage={stage}")


@pytest.mark.parametrize(
    ("options", "peft"),
    [
        ("--tuner_type lora --lora_rank 16 --target_modules q_proj v_proj", ("lora", 16, "attention")),
        ("--train_type lora --quant_bits 4", ("qlora", 8, "all")),
        ("--sft_type full --lora_rank 8", None),
    ],
)
def test_adapters_of_swift(options: str, peft: tuple[str, int, str] | None, tmp_path: Path) -> None:
    found = workload(tmp_path, f"{SWIFT} {options}").get("peft")
    assert (found and (found["method"], found["rank"], found["targets"])) == peft


def test_a_method_of_swift_that_no_plan_has_is_named(tmp_path: Path) -> None:
    notes = " ".join(drafted(tmp_path, f"{SWIFT} --tuner_type adalora").notes)
    assert "not modelled: adalora (tuner_type), planned as if every weight were trained" in notes


def test_arithmetic_by_expr_is_computed(tmp_path: Path) -> None:
    script = "n=2\nNPROC_PER_NODE=$n " + SWIFT.replace("steps 16", "steps $(expr 16 / $n)")
    found = drafted(tmp_path, script).document
    assert found["workload"]["global_batch_size"] == 2 * 8, "of two ranks that accumulate eight micro-batches of one"


HF = f"torchrun --nproc_per_node 8 run_clm.py {MODEL} --block_size 1024 --per_device_train_batch_size 1 --bf16 --max_grad_norm 1"


@pytest.mark.parametrize("option", ["--torch_dtype bfloat16", "--dtype=bfloat16"])
def test_weights_that_are_loaded_in_bf16_stay_in_bf16(option: str, tmp_path: Path) -> None:
    assert workload(tmp_path, f"{HF} {option}")["pure_bf16"] is True
    assert "pure_bf16" not in workload(tmp_path, f"{HF} {option} --deepspeed zero2.json"), "it keeps masters in fp32"
    assert "pure_bf16" not in workload(tmp_path, f"{HF} {option} --use_peft"), "adapters are trained, in fp32"


@pytest.mark.parametrize(("option", "why"), [("", "run_clm.py was not found"), ("--dtype auto", "dtype is auto")])
def test_weights_of_unknown_type_are_said_to_be_assumed(option: str, why: str, tmp_path: Path) -> None:
    draft = drafted(tmp_path, f"{HF} {option}")
    assert f"weights are planned as fp32 ({why})" in " ".join(draft.notes)
    assert "precision=bf16" in draft.document["baseline"]
    assert "planned as fp32" not in " ".join(drafted(tmp_path, f"{HF} --dtype float32").notes)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--optim adafactor", {"optimizer": "adafactor"}),
        ("--optim=paged_adamw_8bit", {"optimizer": "adamw_8bit"}),
        ("--optim adamw_torch_fused", {}),
        ("--attn_implementation eager", {"unfused_attention": True}),
        ("--attn_implementation flash_attention_2", {}),
    ],
)
def test_options_of_transformers_say_optimizer_and_attention(option: str, said: dict[str, Any], tmp_path: Path) -> None:
    found = workload(tmp_path, f"{HF} {option}")
    assert {name: found[name] for name in ("optimizer", "unfused_attention") if name in found} == said


def test_an_optimizer_that_no_plan_has_is_named(tmp_path: Path) -> None:
    notes = drafted(tmp_path, f"{HF} --optim lion_8bit").notes
    assert any(note.startswith("not modelled: the optimizer lion_8bit, planned as AdamW") for note in notes)


@pytest.mark.parametrize("option", ["--use_liger_kernel", "--use_liger_kernel True"])
def test_ligers_kernels_fuse_the_loss(option: str, tmp_path: Path) -> None:
    assert "loss=fused" in drafted(tmp_path, f"{HF} {option}").document["baseline"]
    assert "loss" not in drafted(tmp_path, f"{HF} --use_liger_kernel False").document["baseline"]
