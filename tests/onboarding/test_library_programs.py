"""Console commands of TRL and ms-swift: what they start, with the defaults of their own options;
and what options of transformers say of the workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.launch.launch_script import started_by
from tests.onboarding.drafting import Launch, Read

MODEL = "--model_name_or_path Qwen/Qwen2.5-7B"
SWIFT = "swift sft --model Qwen/Qwen2.5-7B --torch_dtype bfloat16 --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --max_length 2048"


HF = f"torchrun --nproc_per_node 8 run_clm.py {MODEL} --block_size 1024 --per_device_train_batch_size 1 --bf16 --max_grad_norm 1"
BF16 = ("--torch_dtype bfloat16", "--dtype=bfloat16")


def launch(text: str, **read: Any) -> Launch:
    return Launch({"run.sh": f"{text}\n"}, Read(**read))


def lora(rank: int, targets: str, method: str = "lora") -> dict[str, Any]:
    return {"method": method, "rank": rank, "targets": targets, "library": "peft"}


READ = {
    "TRL's own defaults (1.16): bf16, recomputation, 1,024 tokens; its dtype is float32": launch(
        f"trl sft --num_processes 8 {MODEL} --per_device_train_batch_size 4",
        document={
            "baseline": "micro_batch_size=4,precision=bf16,recompute=full",
            "workload/seq_len": 1024,
            "workload/pure_bf16": None,
        },
    ),
    "ms-swift's own defaults (4): adapters of rank 8 on all linear layers, recomputation": launch(
        f"NPROC_PER_NODE=8 {SWIFT}",
        knobs=("recompute=full",),
        document={"workload/peft": lora(8, "all")},
    ),
    **{
        f"TRL shards by the configuration that it ships: {name}": launch(
            f"trl sft --accelerate_config {name} --num_processes 8 {MODEL} --per_device_train_batch_size 4",
            knobs=(f"zero_stage={stage}",),
        )
        for name, stage in (("zero2", 2), ("fsdp2", 3))
    },
    **{
        f"adapters of ms-swift: {options}": launch(
            f"{SWIFT} {options}", document={"workload/peft": peft}
        )
        for options, peft in (
            (
                "--tuner_type lora --lora_rank 16 --target_modules q_proj v_proj",
                lora(16, "attention"),
            ),
            ("--train_type lora --quant_bits 4", lora(8, "all", "qlora")),
            ("--sft_type full --lora_rank 8", None),
        )
    },
    "a method of ms-swift that no plan has is named": launch(
        f"{SWIFT} --tuner_type adalora",
        notes=("not modeled: adalora (tuner_type); planned as if every weight were trained",),
    ),
    "arithmetic by expr is computed: two ranks that accumulate eight micro-batches of one": launch(
        "n=2\nNPROC_PER_NODE=$n " + SWIFT.replace("steps 16", "steps $(expr 16 / $n)"),
        document={"workload/global_batch_size": 2 * 8},
    ),
    **{
        f"weights that are loaded in bf16 stay in bf16: {option}": launch(
            f"{HF} {option}", document={"workload/pure_bf16": True}
        )
        for option in BF16
    },
    **{
        f"masters of DeepSpeed and adapters are in fp32: {option}": launch(
            f"{HF} {option}", document={"workload/pure_bf16": None}
        )
        for option in (
            *(f"{each} --deepspeed zero2.json" for each in BF16),
            *(f"{each} --use_peft" for each in BF16),
        )
    },
    **{
        f"the type of weights that is assumed is said: {why}": launch(
            f"{HF} {option}",
            notes=(f"weights are planned as fp32 ({why})",),
            knobs=("precision=bf16",),
        )
        for option, why in (("", "run_clm.py was not found"), ("--dtype auto", "dtype is auto"))
    },
    "the type of weights that the launch gives is not assumed": launch(
        f"{HF} --dtype float32", unsaid=("planned as fp32",)
    ),
    **{
        f"transformers' options say optimizer and attention: {option}": launch(
            f"{HF} {option}",
            document={"workload/optimizer": None, "workload/unfused_attention": None, **said},
        )
        for option, said in (
            ("--optim adafactor", {"workload/optimizer": "adafactor"}),
            ("--optim=paged_adamw_8bit", {"workload/optimizer": "adamw_8bit"}),
            ("--optim adamw_torch_fused", {}),
            ("--attn_implementation eager", {"workload/unfused_attention": True}),
            ("--attn_implementation flash_attention_2", {}),
        )
    },
    "an optimizer that no plan has is named": launch(
        f"{HF} --optim lion_8bit",
        notes=("not modeled: the optimizer lion_8bit; planned as AdamW",),
    ),
    **{
        f"Liger's kernels fuse the loss: {option}": launch(f"{HF} {option}", knobs=("loss=fused",))
        for option in ("--use_liger_kernel", "--use_liger_kernel True")
    },
    "Liger's kernels are off": launch(
        f"{HF} --use_liger_kernel False", document={"baseline": "micro_batch_size=1,precision=bf16"}
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)


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
def test_a_console_command_is_the_launch_of_its_module(
    text: str, launcher: str, program: str, ranks: int
) -> None:
    found = started_by(text)
    assert (found.launcher, found.program, found.is_module, found.gpus_per_node) == (
        launcher,
        program,
        True,
        ranks,
    )
    assert not {"num_processes", "accelerate_config"} & {
        argument.name for argument in found.arguments
    }
