"""A file of settings of LLaMA-Factory or axolotl becomes a spec whose command overrides some of them."""

from __future__ import annotations

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
from tests.shortcuts import file_with

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
    return first_draft(file_with(folder / "sft.yml", yaml.safe_dump(document)), cluster=cluster, folder=folder)


def loaded(draft: Draft, folder: Path) -> Study:
    return api.load_study(str(file_with(folder / "spec.yaml", draft.text)))


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
    assert study.baseline.zero_stage == stage
    assert study.workload.peft is None


def test_a_model_that_nobody_knows_is_to_be_filled_in(tmp_path: Path) -> None:
    draft = drafted({**FACTORY, "model_name_or_path": "someone/else"}, tmp_path, cluster=None)
    assert draft.fill_in == ("model",)
    assert "fill in: someone/else" in draft.text
    assert "--standalone" in draft.text


@pytest.mark.parametrize(
    ("changes", "fixed", "batch"),
    [
        ({"tensor_parallel_size": 2, "context_parallel_size": 2}, {"tp": 2, "cp": 2}, 2 * 4 * 4),
        ({"sequence_parallel_degree": 8}, {"cp": 8}, 2 * 4 * 2),
        ({"dp_replicate_size": 2, "fsdp_config": {"reshard_after_forward": True}}, {"dp_replicas": 2}, 128),
        ({"expert_parallel_size": 2}, {"ep": 2}, 128),
        ({"deepspeed": "configs/zero3_bf16_cpuoffload_all.json"}, {"zero_stage": 3, "offload": "optimizer"}, 128),
        ({"fsdp_config": {"reshard_after_forward": False}}, {"zero_stage": 2}, 128),
        ({"bf16": None}, {"precision": "bf16"}, 128),
        ({"bf16": False, "tf32": True}, {"precision": "tf32"}, 128),
        ({"fp8": True}, {"precision": "fp8"}, 128),
    ],
)
def test_degrees_and_number_format_of_axolotl_are_fixed(
    changes: dict[str, Any], fixed: dict[str, Any], batch: int, tmp_path: Path
) -> None:
    document = drafted({**AXOLOTL, **changes}, tmp_path).document
    assert {name: document["trainer"]["fixed"].get(name) for name in fixed} == fixed
    assert document["workload"]["global_batch_size"] == batch


@pytest.mark.parametrize(
    ("changes", "workload", "note"),
    [
        ({"optim": "paged_adamw_8bit", "pure_bf16": True}, {"optimizer": "adamw_8bit", "pure_bf16": True}, ""),
        ({"optim": "adamw_torch_fused"}, {}, ""),
        ({"use_muon": True}, {"optimizer": "muon"}, ""),
        ({"use_galore": True}, {}, "optimizer galore, planned as AdamW"),
        ({"finetuning_type": "freeze"}, {}, "finetuning_type=freeze, planned as if every weight were trained"),
        ({"finetuning_type": "lora", "quantization_bit": 8}, {}, "8-bit weights, planned as 16-bit"),
    ],
)
def test_optimizer_and_kind_of_training_are_counted_or_named(
    changes: dict[str, Any], workload: dict[str, Any], note: str, tmp_path: Path
) -> None:
    draft = drafted({**FACTORY, **changes}, tmp_path)
    found = {k: v for k, v in draft.document["workload"].items() if k in ("optimizer", "pure_bf16")}
    assert found == workload
    assert note in " ".join(draft.notes)


@pytest.mark.parametrize(
    ("changes", "is_pure"),
    [({"adapter": None}, True), ({}, False), ({"adapter": None, "bf16": False}, False), ({"adapter": None, "deepspeed": "zero2.json"}, False)],
)  # fmt: skip
def test_axolotl_trains_weights_in_the_type_in_which_it_loads_them(
    changes: dict[str, Any], is_pure: bool, tmp_path: Path
) -> None:
    assert drafted({**AXOLOTL, **changes}, tmp_path).document["workload"].get("pure_bf16", False) is is_pure


@pytest.mark.parametrize(
    ("document", "key"), [(FACTORY, "enable_liger_kernel"), (AXOLOTL, "liger_fused_linear_cross_entropy")]
)
def test_ligers_loss_is_fixed(document: dict[str, Any], key: str, tmp_path: Path) -> None:
    assert drafted({**document, key: True}, tmp_path).document["trainer"]["fixed"]["loss"] == "fused"
    assert "loss" not in drafted(document, tmp_path).document["trainer"]["fixed"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stage": "dpo"}, "the reference model and the other sequence of each pair (stage: dpo)"),
        ({"stage": "rm"}, "the other sequence of each pair (stage: rm)"),
        ({"stage": "new"}, "what it adds to plain training (stage: new)"),
        ({"stage": "sft"}, ""),
        ({"stage": "pt"}, ""),
    ],
)
def test_what_a_step_does_beyond_plain_training_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    notes = drafted(FACTORY | changes, tmp_path).notes
    assert [note for note in notes if note.startswith("a step is predicted without")] == (
        [f"a step is predicted without {words}"] if words else []
    )


def test_weights_beside_badam_keep_the_type_of_the_checkpoint(tmp_path: Path) -> None:
    told = {key: value for key, value in FACTORY.items() if key not in ("bf16", "fp16", "pure_bf16")}
    draft = drafted(told | {"use_badam": True}, tmp_path)
    assert draft.document["space"]["precision"] == ["bf16"]
    assert draft.document["workload"]["pure_bf16"] is True
    assert any("the checkpoint's precision" in note for note in draft.notes)


def test_a_program_that_is_given_its_settings_by_a_launcher_has_the_sharding_of_the_launcher(tmp_path: Path) -> None:
    told = {key: value for key, value in FACTORY.items() if key != "deepspeed"}
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(told))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("from llamafactory.train.tuner import run_exp\nrun_exp()\n")
    fsdp: dict[str, Any] = {
        "distributed_type": "FSDP",
        "num_processes": 2,
        "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"},
    }
    (tmp_path / "fsdp.yaml").write_text(yaml.safe_dump(fsdp))
    run = file_with(tmp_path / "run.sh", "accelerate launch --config_file fsdp.yaml src/train.py sft.yaml\n")
    document = first_draft(run, folder=tmp_path).document
    assert document["trainer"]["argv"][:2] == ["accelerate", "launch"]
    words = document["trainer"]["argv"]
    assert words[words.index("src/train.py") :][:2] == ["src/train.py", "sft.yaml"]
    assert document["workload"]["global_batch_size"] == 2 * 1 * 2
    assert document["baseline"].startswith("micro_batch_size=1,")
    assert "zero_stage=3" in document["baseline"]


def test_settings_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    run = file_with(tmp_path / "run.sh", "torchrun --nproc_per_node=8 -m axolotl.cli.train train.yaml\n")
    with pytest.raises(SpecError, match=r"train\.yaml, which sets model, batch and precision but was not found"):
        first_draft(run, cluster="h100-sxm-1x8", folder=tmp_path)


def test_settings_of_megatron_core_have_its_degrees_and_its_recomputation(tmp_path: Path) -> None:
    core = {"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 2, "use_distributed_optimizer": True}
    core |= {"model_name_or_path": "mistralai/Mixtral-8x7B-v0.1", "gradient_accumulation_steps": 4}
    factory = {key: value for key, value in FACTORY.items() if key != "deepspeed"}
    document = drafted({**factory, **core, "recompute_granularity": "full"}, tmp_path).document
    assert document["trainer"]["fixed"] == {"pp": 4, "ep": 2, "precision": "bf16", "zero_stage": 1}
    assert document["trainer"]["env"] == {"USE_MCA": "1"}
    assert "recompute_granularity={recompute}" in document["trainer"]["argv"]
    assert "recompute=full" in document["baseline"]
    assert document["workload"]["global_batch_size"] == 1 * 4 * 4


def test_settings_of_the_next_version_are_read_by_its_names(tmp_path: Path) -> None:
    settings = {
        "model": "Qwen/Qwen3-0.6B",
        "model_class": "llm",
        "peft_config": {"name": "lora", "r": 32},
        "dist_config": {"name": "fsdp2", "cp_size": 2},
        "micro_batch_size": 1,
        "cutoff_len": 4096,
        "enable_activation_checkpointing": False,
    }
    study = loaded(drafted(settings, tmp_path), tmp_path)
    assert study.workload.model.name == "qwen3-0.6b"
    assert (study.workload.peft.rank, study.workload.global_batch_sizes) == (32, (8,))
    told = (study.baseline.zero_stage, study.baseline.cp, study.baseline.precision, study.baseline.recompute)
    assert told == (3, 2, "bf16", "none")
    launch = trainer("command").launch(study.workload, study.baseline, study.trainer_options)
    assert launch.argv[3:7] == ("llamafactory.v1.launcher", "sft.yml", "micro_batch_size=1", "global_batch_size=8")
    assert launch.env["USE_V1"] == "1"


@pytest.mark.parametrize("task", ["do_predict", "export_dir", "infer_backend"])
def test_settings_that_train_nothing_are_refused(task: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"but not for training: it has {task}"):
        drafted({**FACTORY, task: "x"}, tmp_path)
