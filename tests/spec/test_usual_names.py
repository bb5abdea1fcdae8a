"""A name that people bring from their trainer is answered with the name that it has here."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import AutotuneError, CatalogError
from autotune.schema import parse_study
from autotune.spec import catalog
from autotune.spec.checks import nearest
from autotune.spec.texts.usual_names import meanings_of

SPEC: dict[str, Any] = {
    "model": "gpt2-small",
    "cluster": "a100-40gb-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 64},
    "space": {"tp": [1, 2]},
}


@pytest.mark.parametrize(
    ("name", "knob"),
    [
        ("tensor_parallel", "tp"),
        ("tensor_model_parallel_size", "tp"),
        ("tensor-parallel-size", "tp"),
        ("--tensor-model-parallel-size", "tp"),
        ("parallelism.tensor_parallel_degree", "tp"),
        ("pipeline_parallel", "pp"),
        ("data_parallel_size", "dp"),
        ("context_parallel", "cp"),
        ("gradient_accumulation_steps", "accumulation_steps"),
        ("per_device_train_batch_size", "micro_batch_size"),
        ("mbs", "micro_batch_size"),
        ("activation_checkpointing", "recompute"),
        ("gradient_checkpointing", "recompute"),
        ("bf16", "precision"),
        ("torch_dtype", "precision"),
        ("sharding_strategy", "zero_stage"),
        ("torch_compile", "compile"),
    ],
)
def test_a_trainers_name_of_a_knob_suggests_the_knob(name: str, knob: str) -> None:
    for where, change in (("space", {"space": {name: [1]}}), ("", {name: 1})):
        with pytest.raises(AutotuneError) as refused:
            parse_study({**SPEC, **change})
        remedy = refused.value.remedy
        assert (
            remedy == f"did you mean {knob}?"
            if where
            else remedy.startswith(f"did you mean the knob {knob}?")
        )
    with pytest.raises(AutotuneError, match=f"did you mean {knob}"):
        parse_study({**SPEC, "baseline": f"{name}=1"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"space": {"precision": ["bfloat16"]}}, "did you mean bf16?"),
        ({"space": {"precision": ["half"]}}, "did you mean fp16?"),
        ({"sequence_length": 1024}, "seq_len is a key of workload"),
        ({"gbs": 64}, "global_batch_size is a key of workload"),
        ({"workload": {**SPEC["workload"], "adapters": {}}}, "did you mean peft?"),
        ({"lora": {"rank": 8}}, "peft is a key of workload"),
        ({"cluster": {"gpu": "a100-40gb", "nodes": 2}}, "did you mean num_nodes?"),
    ],
)
def test_trainers_names_of_other_settings_are_recognized(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(AutotuneError) as refused:
        parse_study({**SPEC, **change})
    assert words in str(refused.value)


def test_a_word_without_a_meaning_has_none() -> None:
    assert not meanings_of("color")


@pytest.mark.parametrize(
    ("word", "known", "suggested"),
    [
        ("warmup", ["warmup_steps", "min_steps"], "did you mean warmup_steps?"),
        ("max_trails", ["max_trials", "max_wall_s"], "did you mean max_trials?"),
        ("fp9", ["fp8", "bf16"], "did you mean fp8?"),
        ("nope", ["noise", "none_of_these"], ""),
        ("max_time", ["max_trials", "max_wall_s"], ""),
        ("batch", ["seq_len", "global_batch_size"], "did you mean global_batch_size?"),
        ("time", ["warmup_time_limit", "setup_time_limit"], ""),
        ("step", ["step_timeout_s", "max_steps"], "did you mean max_steps?"),
        ("step", ["step_timeout_s", "max_steps", "steps"], "did you mean steps?"),
    ],
)
def test_only_similar_names_are_suggested(word: str, known: list[str], suggested: str) -> None:
    assert nearest(word, known) == suggested


@pytest.mark.parametrize(
    ("word", "gpu"),
    [
        ("4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("RTX_4070_Ti_SUPER", "rtx-4070-ti-super"),
        ("3090ti", "rtx-3090-ti"),
        ("a6000", "rtx-a6000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("7900xtx", "rx-7900-xtx"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("h100-80gb", "h100-sxm"),
        ("H100_SXM", "h100-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("dgx-spark", "gb10"),
        ("gh200-96gb", "gh200"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI350X", "mi350x"),
    ],
)
def test_another_name_of_a_gpu_suggests_the_catalogs_name(word: str, gpu: str) -> None:
    for look, size in ((catalog.gpu, ""), (catalog.cluster, "-2x4")):
        with pytest.raises(CatalogError) as refused:
            look(f"{word}{size}")
        assert refused.value.remedy == f"did you mean {gpu}{size}?"
