"""A file of settings of LLaMA-Factory or axolotl becomes a spec whose command overrides some of
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import SpecError
from autotune.onboarding.first_spec import first_draft
from autotune.spec import ParallelConfig, Study
from autotune.trainers import trainer
from tests.onboarding.drafting import Launch, Read, drafted, loaded
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


BATCH = "workload/global_batch_size"
MEGATRON_CORE = {
    **{key: value for key, value in FACTORY.items() if key != "deepspeed"},
    "pipeline_model_parallel_size": 4,
    "expert_model_parallel_size": 2,
    "use_distributed_optimizer": True,
    "model_name_or_path": "mistralai/Mixtral-8x7B-v0.1",
    "gradient_accumulation_steps": 4,
    "recompute_granularity": "full",
}
NEXT_VERSION = {
    "model": "Qwen/Qwen3-0.6B",
    "model_class": "llm",
    "peft_config": {"name": "lora", "r": 32},
    "dist_config": {"name": "fsdp2", "cp_size": 2},
    "micro_batch_size": 1,
    "cutoff_len": 4096,
    "enable_activation_checkpointing": False,
}


def settings(said: dict[str, Any], cluster: str | None = "h100-sxm-2x8", **read: Any) -> Launch:
    return Launch({"sft.yml": yaml.safe_dump(said)}, Read(**read), cluster)


def beyond(stage: str, words: str) -> Launch:
    """What a step does beyond plain training."""
    return settings({**FACTORY, "stage": stage}, notes=(f"a step is predicted without {words}",))


READ = {
    **{
        f"the sharding is read by name: {changes}": settings(
            {**AXOLOTL, "adapter": None, **changes},
            study={"baseline.zero_stage": stage, "workload.peft": None},
        )
        for changes, stage in (
            ({"deepspeed": "deepspeed_configs/zero2.json"}, 2),
            ({"fsdp": ["full_shard", "auto_wrap"]}, 3),
            ({"fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, 2),
            ({}, 0),
        )
    },
    "a model that nobody knows is to be filled in": settings(
        {**FACTORY, "model_name_or_path": "someone/else"},
        None,
        asked=("model",),
        settled=("cluster", "workload.seq_len", "workload.global_batch_size", "trainer.argv"),
        text=("fill in: someone/else", "--standalone"),
    ),
    **{
        f"degrees and number format of axolotl are fixed: {changes}": settings(
            {**AXOLOTL, **changes},
            document={
                **{f"trainer/fixed/{knob}": value for knob, value in fixed.items()},
                BATCH: batch,
            },
        )
        for changes, fixed, batch in (
            (
                {"tensor_parallel_size": 2, "context_parallel_size": 2},
                {"tp": 2, "cp": 2},
                2 * 4 * 4,
            ),
            ({"sequence_parallel_degree": 8}, {"cp": 8}, 2 * 4 * 2),
            (
                {"dp_replicate_size": 2, "fsdp_config": {"reshard_after_forward": True}},
                {"dp_replicas": 2},
                128,
            ),
            ({"expert_parallel_size": 2}, {"ep": 2}, 128),
            (
                {"deepspeed": "configs/zero3_bf16_cpuoffload_all.json"},
                {"zero_stage": 3, "offload": "optimizer"},
                128,
            ),
            ({"fsdp_config": {"reshard_after_forward": False}}, {"zero_stage": 2}, 128),
            ({"bf16": None}, {"precision": "bf16"}, 128),
            ({"bf16": False, "tf32": True}, {"precision": "tf32"}, 128),
            ({"fp8": True}, {"precision": "fp8"}, 128),
        )
    },
    **{
        f"optimizer and kind of training are counted or named: {changes}": settings(
            {**FACTORY, **changes},
            document={"workload/optimizer": None, "workload/pure_bf16": None, **workload},
            notes=(note,),
        )
        for changes, workload, note in (
            (
                {"optim": "paged_adamw_8bit", "pure_bf16": True},
                {"workload/optimizer": "adamw_8bit", "workload/pure_bf16": True},
                "",
            ),
            ({"optim": "adamw_torch_fused"}, {}, ""),
            ({"use_muon": True}, {"workload/optimizer": "muon"}, ""),
            ({"use_galore": True}, {}, "optimizer galore; planned as AdamW"),
            (
                {"finetuning_type": "freeze"},
                {},
                "finetuning_type=freeze; planned as if every weight were trained",
            ),
            (
                {"finetuning_type": "lora", "quantization_bit": 4},
                {"workload/peft/upcast": False},
                "",
            ),
            (
                {"finetuning_type": "lora", "quantization_bit": 8},
                {},
                "8-bit weights, which plans count as 16-bit",
            ),
        )
    },
    **{
        f"axolotl trains weights in the type in which it loads them: {changes}": settings(
            {**AXOLOTL, **changes}, document={"workload/pure_bf16": is_pure}
        )
        for changes, is_pure in (
            ({"adapter": None}, True),
            ({}, None),
            ({"adapter": None, "bf16": False}, None),
            ({"adapter": None, "deepspeed": "zero2.json"}, None),
        )
    },
    **{
        f"Liger's loss is fixed: {added}": settings(
            {**document, **added}, document={"trainer/fixed/loss": loss}
        )
        for document, added, loss in (
            (FACTORY, {"enable_liger_kernel": True}, "fused"),
            (FACTORY, {}, None),
            (AXOLOTL, {"liger_fused_linear_cross_entropy": True}, "fused"),
            (AXOLOTL, {"liger_fused_linear_cross_entropy": False}, None),
        )
    },
    "beyond plain training: kto": beyond("kto", "the reference model (stage: kto)"),
    **{
        f"pairs of sequences: {stage}, {changes}": settings(
            {**FACTORY, "stage": stage, "per_device_train_batch_size": 2, **changes},
            document={"rl": rl, "space/micro_batch_size": [2, 4, 8, 16]},
            words=("per_device_train_batch_size={micro_batch_size // 2}",),
            unsaid=("a step is predicted without",),
            study={"baseline.micro_batch_size": 4, "workload.rl.reference": "reference" not in rl},
        )
        for stage, changes, rl in (
            ("dpo", {}, {"algorithm": "dpo"}),
            ("dpo", {"pref_loss": "sigmoid"}, {"algorithm": "dpo"}),
            ("dpo", {"pref_loss": "simpo"}, {"algorithm": "dpo", "reference": False}),
            ("rm", {}, {"algorithm": "dpo", "reference": False}),
        )
    },
    "beyond plain training: new": beyond(
        "new", "the work that this method adds to plain training (stage: new)"
    ),
    **{
        f"plain training: {stage}": settings(
            {**FACTORY, "stage": stage}, unsaid=("a step is predicted without",)
        )
        for stage in ("sft", "pt")
    },
    "weights beside BAdam keep the type of the checkpoint": settings(
        {"use_badam": True, **{key: value for key, value in FACTORY.items() if key != "bf16"}},
        document={"space/precision": ["bf16"], "workload/pure_bf16": True},
        notes=("the checkpoint's precision",),
    ),
    "the sharding of a launcher counts for a program that it gives its settings": Launch(
        {
            "run.sh": "accelerate launch --config_file fsdp.yaml src/train.py sft.yaml\n",
            "sft.yaml": yaml.safe_dump(
                {key: value for key, value in FACTORY.items() if key != "deepspeed"}
            ),
            "src/train.py": "from llamafactory.train.tuner import run_exp\nrun_exp()\n",
            "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n",
        },
        Read(
            start=(
                *(
                    "accelerate",
                    "launch",
                    "--num_processes={world_size}",
                    "--config_file=fsdp.yaml",
                ),
                *("src/train.py", "sft.yaml"),
            ),
            document={BATCH: 2 * 1 * 2},
            baseline="micro_batch_size=1,",
            knobs=("zero_stage=3",),
        ),
        None,
    ),
    "settings of Megatron Core have its degrees and its recomputation": settings(
        MEGATRON_CORE,
        document={
            "trainer/fixed": {"pp": 4, "ep": 2, "precision": "bf16", "zero_stage": 1},
            "trainer/env": {"USE_MCA": "1"},
            BATCH: 1 * 4 * 4,
        },
        words=("recompute_granularity={recompute}",),
        knobs=("recompute=full",),
    ),
    "settings of the next version are read by its names": settings(
        NEXT_VERSION,
        study={
            "workload.model.name": "qwen3-0.6b",
            "workload.peft.rank": 32,
            "workload.global_batch_sizes": (8,),
            "baseline.zero_stage": 3,
            "baseline.cp": 2,
            "baseline.precision": "bf16",
            "baseline.recompute": "none",
        },
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)


def studied(document: dict[str, Any], folder: Path) -> Study:
    return loaded(drafted(folder, {"sft.yml": yaml.safe_dump(document)}, "h100-sxm-2x8"), folder)


@pytest.mark.parametrize(
    ("document", "batch", "seq_len", "stage", "words"),
    [
        (
            FACTORY,
            32,
            1024,
            3,
            [
                "llamafactory.launcher",
                "sft.yml",
                "per_device_train_batch_size=2",
                "gradient_accumulation_steps=1",
            ],
        ),
        (
            AXOLOTL,
            128,
            4096,
            0,
            [
                "axolotl.cli.train",
                "sft.yml",
                "--micro_batch_size=2",
                "--gradient_accumulation_steps=4",
            ],
        ),
    ],
    ids=["llamafactory", "axolotl"],
)
def test_the_file_is_started_on_several_nodes_with_the_knobs_in_its_place(
    document: dict[str, Any], batch: int, seq_len: int, stage: int, words: list[str], tmp_path: Path
) -> None:
    draft = drafted(tmp_path, {"sft.yml": yaml.safe_dump(document)}, "h100-sxm-2x8")
    study = loaded(draft, tmp_path)
    assert draft.fill_in == ()
    assert study.workload.model.name == "llama-8b"
    assert (study.workload.global_batch_sizes, study.workload.seq_len) == ((batch,), seq_len)
    assert (study.baseline.zero_stage, study.baseline.precision, study.baseline.recompute) == (
        stage,
        "bf16",
        "full",
    )
    config = ParallelConfig(
        dp=16, micro_batch_size=2, accumulation_steps=batch // 32, zero_stage=stage
    )
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
    study = studied(AXOLOTL, tmp_path)
    assert (study.workload.peft.method, study.workload.peft.rank, study.workload.peft.library) == (
        "qlora",
        32,
        "peft",
    )
    (refused,) = trainer("command").limits(
        study.workload,
        ParallelConfig(dp=16, micro_batch_size=2, accumulation_steps=4, zero_stage=2),
        study.trainer_options,
    )
    assert (refused.knob, refused.nearest) == ("zero_stage", 0)


def test_settings_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    run = file_with(
        tmp_path / "run.sh", "torchrun --nproc_per_node=8 -m axolotl.cli.train train.yaml\n"
    )
    with pytest.raises(
        SpecError, match=r"train\.yaml, which sets the model, batch and precision but was not found"
    ):
        first_draft(run, cluster="h100-sxm-1x8", folder=tmp_path)


@pytest.mark.parametrize("task", ["do_predict", "export_dir", "infer_backend"])
def test_settings_that_train_nothing_are_refused(task: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"but not for training, because it has {task}"):
        studied({**FACTORY, task: "x"}, tmp_path)


def test_a_trial_of_the_next_version_is_started_by_its_names(tmp_path: Path) -> None:
    study = studied(NEXT_VERSION, tmp_path)
    launch = trainer("command").launch(study.workload, study.baseline, study.trainer_options)
    assert launch.argv[3:7] == (
        "llamafactory.v1.launcher",
        "sft.yml",
        "micro_batch_size=1",
        "global_batch_size=8",
    )
    assert launch.env["USE_V1"] == "1"
