"""What accelerate's launcher decides beside the ZeRO stage: DeepSpeed's engine, and what waits on
the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.reviews import review

FILE = """distributed_type: {kind}
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
DEEPSPEED = FILE.format(kind="DEEPSPEED") + "deepspeed_config:\n  zero_stage: 3\n"
FSDP = FILE.format(kind="FSDP") + "fsdp_config:\n  fsdp_version: 2\n"
COMMAND = "accelerate launch {options} run_clm_no_trainer.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --block_size 2048\n"


@pytest.mark.parametrize(
    ("options", "file", "loop", "offload", "said"),
    [
        ("--config_file a.yaml", DEEPSPEED, "deepspeed", "none", ""),
        (
            "--config_file a.yaml",
            f"{DEEPSPEED}  offload_optimizer_device: cpu\n",
            "deepspeed",
            "optimizer",
            "",
        ),
        (
            "--config_file a.yaml",
            f"{DEEPSPEED}  offload_param_device: cpu\n",
            "deepspeed",
            "none",
            "offload_param",
        ),
        ("--config_file a.yaml", FSDP, "accelerate", "none", ""),
        (
            "--config_file a.yaml",
            f"{FSDP}  fsdp_offload_params: true\n",
            "accelerate",
            "none",
            "fsdp_offload_params",
        ),
        (
            "--num_processes 8 --mixed_precision bf16 --use_fsdp --fsdp_offload_params true",
            "",
            "accelerate",
            "none",
            "fsdp_offload_params",
        ),
        (
            "--num_processes 8 --mixed_precision bf16 --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu",
            "",
            "deepspeed",
            "optimizer",
            "",
        ),
    ],
)
def test_what_the_launcher_decides(
    tmp_path: Path, options: str, file: str, loop: str, offload: str, said: str
) -> None:
    (tmp_path / "a.yaml").write_text(file)
    (tmp_path / "a.sh").write_text(COMMAND.format(options=options))
    found = review(tmp_path / "a.sh", cluster="h100-sxm-1x8")
    assert found.config is not None
    assert found.study is not None
    assert (found.study.workload.loop, found.config.zero_stage, found.config.offload) == (
        loop,
        3,
        offload,
    )
    on_host = [each for each in found.assumed if "weights on the host" in each]
    assert [said in each for each in on_host] == ([True] if said else [])
    assert found.is_upper_bound == bool(said)
