"""A trainer's present configuration becomes a spec that loads, and whose export carries the same
configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.errors import SpecError
from autotune.onboarding.configuration_files import importing_trainers, read_present, recognized
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.onboarding.imported_spec import import_draft
from autotune.spec import ClusterSpec, ParallelConfig, Workload, catalog
from autotune.trainers import trainer, write_launch
from autotune.trainers.base.effective import effective
from tests.shortcuts import file_with

CLUSTER = "h100-sxm-2x8"
WORKLOAD = Workload(
    model=catalog.model("llama-1b"),
    cluster=ClusterSpec.of("h100-sxm", num_nodes=2, gpus_per_node=8),
    seq_len=2048,
    global_batch_size=64,
)
CONFIG = ParallelConfig(
    dp=16, micro_batch_size=2, accumulation_steps=2, zero_stage=2, recompute="full"
)
NEEDS: dict[str, dict[str, Any]] = {
    "torchtitan": {"hf_assets_path": "assets"},
    "nanotron": {"entrypoint": "run_train.py"},
}
TRAINERS = tuple(
    name
    for name in importing_trainers()
    if type(trainer(name)).__module__.startswith("autotune.")
    and not trainer(name).trains_rl  # those are in test_post_trainers.py
)


def drafted(path: Path, name: str, **known: Any) -> Draft:
    return import_draft(read_present(path), name, path, folder=path.parent, **known)


def exported(name: str, folder: Path, **settings: Any) -> ParallelConfig:
    """Writes a launch into the folder; returns what was launched."""
    subject = trainer(name)
    given = {"nearest": True, "learning_rate": 1e-5, **NEEDS.get(name, {}), **settings}
    limits = subject.limits(WORKLOAD, CONFIG, given)
    launched = ParallelConfig.from_dict(
        {**CONFIG.to_dict(), **{limit.knob: limit.nearest for limit in limits}}
    )
    write_launch(subject.launch(WORKLOAD, launched, given), folder)
    return launched


@pytest.mark.parametrize("name", TRAINERS)
def test_an_exported_folder_becomes_a_spec_with_that_baseline(name: str, tmp_path: Path) -> None:
    launched = exported(name, tmp_path / "launch")
    draft = drafted(tmp_path / "launch", name, cluster=CLUSTER)
    assert draft.fill_in == ()
    study = api.load_study(draft.document, base=tmp_path)
    assert study.baseline is not None
    assert effective(study.baseline) == effective(launched)
    assert study.workload.seq_len == 2048
    assert study.trainer_options["learning_rate"] == 1e-5
    assert "settings" not in study.trainer_options  # what a launch writes anyway is not repeated


@pytest.mark.parametrize("name", TRAINERS)
def test_the_text_is_the_document(name: str, tmp_path: Path) -> None:
    import yaml

    exported(name, tmp_path / "launch")
    draft = drafted(tmp_path / "launch", name)
    assert yaml.safe_load(draft.text) == draft.document


@pytest.mark.parametrize("name", TRAINERS)
def test_a_folder_is_recognized_by_its_contents(name: str, tmp_path: Path) -> None:
    exported(name, tmp_path / "launch")
    assert recognized(read_present(tmp_path / "launch")) == name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("megatron", {"optimizer": "muon", "unfused_attention": True}),
        ("torchtitan", {"pure_bf16": True}),
        ("lightning", {"pure_bf16": True}),
    ],
)
def test_what_a_launch_says_of_the_workload_is_kept(
    name: str, told: dict[str, Any], tmp_path: Path
) -> None:
    config = replace(CONFIG, zero_stage=0) if name == "megatron" else CONFIG
    launch = trainer(name).launch(
        replace(WORKLOAD, **told), config, {"nearest": True, **NEEDS.get(name, {})}
    )
    write_launch(launch, tmp_path / "launch")
    draft = drafted(tmp_path / "launch", name, cluster=CLUSTER)
    found = api.load_study(draft.document, base=tmp_path).workload
    assert {key: getattr(found, key) for key in told} == told
    assert not [note for note in draft.notes if "refused" in note or "changes" in note]


def test_a_setting_that_somebody_changed_is_kept_and_written_again(tmp_path: Path) -> None:
    exported("deepspeed", tmp_path / "launch")
    path = tmp_path / "launch" / "ds_config.json"
    document = json.loads(path.read_text())
    path.write_text(
        json.dumps(document | {"gradient_clipping": 0.25, "communication_data_type": "fp32"})
    )
    draft = drafted(tmp_path / "launch", "deepspeed", cluster=CLUSTER)
    kept = {"gradient_clipping": 0.25, "communication_data_type": "fp32"}
    assert draft.document["trainer"]["settings"] == kept
    assert (
        "settings kept unchanged and written to every export: gradient_clipping, communication_data_type"
        in draft.notes
    )
    study = api.load_study(draft.document, base=tmp_path)
    assert study.baseline is not None
    launch = trainer("deepspeed").launch(study.workload, study.baseline, study.trainer_options)
    again = json.loads(launch.files["ds_config.json"])
    assert {key: again[key] for key in kept} == kept
    assert again["train_batch_size"] == 64


def test_what_a_single_file_cannot_tell_is_to_be_filled_in(tmp_path: Path) -> None:
    draft = drafted(
        file_with(
            tmp_path / "ds.json", '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}}'
        ),
        "deepspeed",
    )
    assert draft.fill_in == ("model", "cluster", "workload.seq_len", "workload.global_batch_size")
    assert draft.text.count("fill in:") == 3
    assert "dp" not in draft.document["baseline"].split("=")


def test_options_fill_in_what_the_file_does_not_tell(tmp_path: Path) -> None:
    text = '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3}}'
    draft = drafted(
        file_with(tmp_path / "ds.json", text), "deepspeed", model="llama-8b", cluster="h100-sxm-1x8"
    )
    assert draft.fill_in == ("workload.seq_len",)
    study = api.load_study(draft.document, base=tmp_path)
    assert (study.workload.global_batch_size, study.baseline and study.baseline.dp) == (64, 8)


def test_a_shape_of_the_catalog_is_named(tmp_path: Path) -> None:
    exported("megatron", tmp_path / "launch")
    assert drafted(tmp_path / "launch", "megatron").document["model"] == "llama-1b"


def test_what_a_deepspeed_file_leaves_to_the_program_is_not_guessed_and_the_spec_loads(
    tmp_path: Path,
) -> None:
    open_values = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": "auto"},
    }
    file = file_with(
        tmp_path / "ds.json", json.dumps({**open_values, "zero_optimization": {"stage": 3}})
    )
    draft = import_draft(
        read_present(file),
        "deepspeed",
        file,
        model="gpt2-medium",
        cluster="h100-sxm-1x8",
        folder=tmp_path,
    )
    assert "precision" not in draft.document["baseline"]
    study = api.load_study(draft.document)
    assert (study.baseline.dp, study.baseline.zero_stage) == (8, 3)


def test_a_script_without_a_vocabulary_has_its_sizes_and_knobs_without_effect_are_left_out(
    tmp_path: Path,
) -> None:
    draft = drafted(
        file_with(
            tmp_path / "run.sh",
            "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 2 --swiglu --normalization RMSNorm "
            "--seq-length 256 --micro-batch-size 1 --global-batch-size 16 --num-experts 2 --tensor-model-parallel-size 1 --sequence-parallel --bf16\n",
        ),
        "megatron",
        cluster=CLUSTER,
    )
    assert draft.fill_in == ("model",)
    assert (draft.document["model"]["num_layers"], draft.document["model"]["num_experts"]) == (2, 2)
    assert "vocab_size, from the tokenizer" in draft.text
    study = api.load_study(draft.document, base=tmp_path)
    assert (study.baseline.sequence_parallel, study.baseline.dp) == (False, 8)
    assert not [note for note in draft.notes if "an export changes" in note]


def test_a_folder_of_torchtitan_0_2_with_a_models_own_rotary_scaling_is_read(
    tmp_path: Path,
) -> None:
    workload = replace(WORKLOAD, model=catalog.model("llama-8b"))
    given = {**NEEDS["torchtitan"], "version": "0.2"}
    write_launch(trainer("torchtitan").launch(workload, CONFIG, given), tmp_path / "launch")
    assert "RoPEScalingArgs" in (tmp_path / "launch" / "autotune_model.py").read_text()
    assert (
        drafted(tmp_path / "launch", "torchtitan", cluster=CLUSTER).document["model"] == "llama-8b"
    )


def test_a_batch_that_nothing_tells_is_one_that_the_cluster_can_share(tmp_path: Path) -> None:
    draft = drafted(
        file_with(
            tmp_path / "zero.yaml",
            "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\n"
            "deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 4}\n",
        ),
        "accelerate",
        model="llama-1b",
        cluster="h100-sxm-4x8",
    )
    # 16 ranks, 4 times each, which 32 can share
    assert draft.document["workload"]["global_batch_size"] == 64
    assert api.plan_of(api.load_study(draft.document, base=tmp_path)).rows


def test_a_configuration_that_breaks_a_law_is_named_and_the_spec_loads_without_it(
    tmp_path: Path,
) -> None:
    config = ParallelConfig(pp=2, dp=8, micro_batch_size=2, accumulation_steps=4)
    launch = trainer("nanotron").launch(WORKLOAD, config, NEEDS["nanotron"])
    text = launch.files["config.yaml"].replace(
        "batch_accumulation_per_replica: 4", "batch_accumulation_per_replica: 1"
    )
    draft = drafted(file_with(tmp_path / "config.yaml", text), "nanotron", cluster=CLUSTER)
    assert "baseline" not in draft.document
    (said,) = (note for note in draft.notes if "is not the baseline" in note)
    assert "a pipeline needs at least one micro-batch per rank" in said
    assert api.load_study(draft.document, base=tmp_path).baseline is None


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8-sig")
    reading = trainer("deepspeed").read_config(read_present(tmp_path / "ds.json"))
    assert reading.knobs["zero_stage"] == 2


def test_a_file_that_is_not_yaml_says_where_and_why(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("parallelism:\n\tdp: 2\n")
    with pytest.raises(
        SpecError, match=r"run\.yaml is not YAML: line 2: found character '.t' that cannot start"
    ):
        trainer("nanotron").read_config(read_present(tmp_path / "run.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: &a [" + "1, " * 99 + "]\nb: &b [" + "*a, " * 99 + "]\nc: [" + "*b, " * 99 + "]",
    ],
)
def test_a_file_whose_aliases_grow_without_end_is_no_configuration(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(SpecError, match=r"run\.yaml contains itself, or more than 100,000 values"):
        trainer("nanotron").read_config(read_present(tmp_path / "run.yaml"))


def test_what_is_kept_in_host_memory_is_named(tmp_path: Path) -> None:
    draft = first_draft(
        file_with(
            tmp_path / "fsdp.yaml",
            "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true, fsdp_version: 2}\nmixed_precision: bf16\nnum_processes: 8\n",
        ),
        folder=tmp_path,
    )
    assert any("plans ignore fsdp_config.fsdp_offload_params" in note for note in draft.notes)
    (tmp_path / "fsdp.yaml").write_text(
        (tmp_path / "fsdp.yaml").read_text().replace("params: true", "params: false")
    )
    assert not any(
        "not counted" in note for note in first_draft(tmp_path / "fsdp.yaml", folder=tmp_path).notes
    )
