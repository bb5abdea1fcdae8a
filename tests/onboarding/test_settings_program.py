"""A file of settings of LLaMA-Factory or axolotl becomes a spec whose command overrides some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import api
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.spec import ParallelConfig, Study
from autotune.trainers import trainer

FACTORY: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B-Instruct",
    "stage": "sft",
    "finetuning_type": "full",
    "deepspeed": "examples/deepspeed/ds_z3_config.json",
    "cutoff_len": 1024,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "bf16": True,
}
AXOLOTL: dict[str, Any] = {
    "base_model": "NousResearch/Meta-Llama-3.1-8B",
    "sequence_len": 4096,
    "sample_packing": True,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": "auto",
    "gradient_checkpointing": True,
    "adapter": "qlora",
    "lora_r": 32,
}


def drafted(document: dict[str, Any], folder: Path, cluster: str | None = "h100-sxm-2x8") -> Draft:
    (folder / "sft.yml").write_text(yaml.safe_dump(document))
    return first_draft(folder / "sft.yml", cluster=cluster, folder=folder)


def loaded(draft: Draft, folder: Path) -> Study:
    (folder / "spec.yaml").write_text(draft.text)
    return api.load_study(str(folder / "spec.yaml"))


@pytest.mark.parametrize(
    ("document", "batch", "seq_len", "stage", "words"),
    [
        (
            FACTORY,
            32,
            1024,
            3,
            ["llamafactory.launcher", "sft.yml", "per_device_train_batch_size=2", "gradient_accumulation_steps=1"],
        ),
        (
            AXOLOTL,
            128,
            4096,
            0,
            ["axolotl.cli.train", "sft.yml", "--micro_batch_size=2", "--gradient_accumulation_steps=4"],
        ),
    ],
    ids=["llamafactory", "axolotl"],
)
def test_the_file_is_started_on_several_nodes_with_the_knobs_in_its_place(
    document: dict[str, Any], batch: int, seq_len: int, stage: int, words: list[str], tmp_path: Path
) -> None:
    draft = drafted(document, tmp_path)
    study = loaded(draft, tmp_path)
    assert draft.fill_in == ()
    assert study.workload.model.name == "llama-8b"
    assert (study.workload.global_batch_sizes, study.workload.seq_len) == ((batch,), seq_len)
    assert study.baseline is not None
    assert (study.baseline.zero_stage, study.baseline.precision, study.baseline.recompute) == (stage, "bf16", "full")
    config = ParallelConfig(dp=16, micro_batch_size=2, accumulation_steps=batch // 32, zero_stage=stage)
    launch = trainer("command").launch(study.workload, config, study.trainer_options)
    assert list(launch.argv[:3]) == ["torchrun", "--nproc-per-node=8", "-m"]
    assert list(launch.argv[3 : 3 + len(words)]) == words
    off = {
        "llamafactory.launcher": "disable_gradient_checkpointing=true",
        "axolotl.cli.train": "--gradient_checkpointing=False",
    }
    assert off[words[0]] in launch.argv
    assert launch.env["PET_NNODES"] == "2"


def test_what_the_file_alone_decides_is_fixed(tmp_path: Path) -> None:
    study = loaded(drafted(AXOLOTL, tmp_path), tmp_path)
    assert study.workload.peft is not None
    assert (study.workload.peft.method, study.workload.peft.rank, study.workload.peft.library) == ("qlora", 32, "peft")
    (refused,) = trainer("command").limits(
        study.workload,
        ParallelConfig(dp=16, micro_batch_size=2, accumulation_steps=4, zero_stage=2),
        study.trainer_options,
    )
    assert (refused.knob, refused.nearest) == ("zero_stage", 0)


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"deepspeed": "deepspeed_configs/zero2.json"}, 2),
        ({"fsdp": ["full_shard", "auto_wrap"]}, 3),
        ({"fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, 2),
        ({}, 0),
    ],
)
def test_the_sharding_is_read_by_name(changes: dict[str, Any], stage: int, tmp_path: Path) -> None:
    study = loaded(drafted({**AXOLOTL, "adapter": None, **changes}, tmp_path), tmp_path)
    assert study.baseline is not None
    assert study.baseline.zero_stage == stage
    assert study.workload.peft is None


def test_a_model_that_nobody_knows_is_to_be_filled_in(tmp_path: Path) -> None:
    draft = drafted({**FACTORY, "model_name_or_path": "someone/else"}, tmp_path, cluster=None)
    assert draft.fill_in == ("model",)
    assert "fill in: someone/else" in draft.text
    assert "--standalone" in draft.text
