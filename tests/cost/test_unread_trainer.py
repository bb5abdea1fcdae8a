"""The level of trainers that were never fitted: a factor on all times, with which no config changes
its rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.cost import calibration_for, estimate
from autotune.cost.calibration import known_constants
from autotune.cost.traits import loop_of, loop_traits
from autotune.spec import ConfigTable, ParallelConfig, Workload, catalog
from autotune.trainers.base.whole_experts import keeps_experts_whole

CONFIGS = ConfigTable.of(
    [
        ParallelConfig.parse(text)
        for text in ("tp=2,dp=4", "tp=8", "tp=4,dp=2,accumulation_steps=4", "dp=8,zero_stage=3")
    ]
)


def workload(trainer: str) -> Workload:
    return Workload(
        model=catalog.model("llama-8b"),
        cluster=catalog.cluster("h100-sxm-1x8"),
        trainer=trainer,
        seq_len=4096,
        global_batch_size=32,
    )


@pytest.mark.parametrize(
    ("gpu", "trainer", "has_level"),
    [("h100-sxm", "accelerate", True), ("h100-sxm", "nanotron", False), ("a100-80gb", "nanotron", True), ("rtx-4090", "accelerate", False), ("cpu", "native", False)],
)  # fmt: skip
def test_a_fitted_gpu_with_an_unread_trainer_has_the_level_of_such_clusters(
    gpu: str, trainer: str, has_level: bool
) -> None:
    """A fitted pair's constants carry its level, and of GPU families that were never fitted no
    level is known."""
    assert (known_constants(gpu, trainer).level > 1.0) == has_level


def test_a_gpu_family_that_was_never_fitted_has_wider_error_bars() -> None:
    """Published runs on them lie from a third faster than predicted to three times as slow."""
    never, fitted = (
        known_constants(gpu, "command").level_sigma for gpu in ("rtx-4090", "h100-sxm")
    )
    assert never > 1.5 * fitted
    assert known_constants("mi300x", "megatron").level_sigma == never


def test_a_plain_loop_under_fsdp_loses_less_than_programs_that_cut_layers() -> None:
    sharded = {
        known_constants("h100-sxm", trainer).level
        for trainer in ("accelerate", "hf_trainer", "command")
    }
    cut = {
        known_constants("h100-sxm", "deepspeed").level,
        known_constants("a100-80gb", "nanotron").level,
    }
    assert len(sharded) == len(cut) == 1
    assert 1.0 < sharded.pop() < cut.pop()


@pytest.mark.parametrize("gpu", ["h100-sxm", "rtx-4090", "cpu"])
def test_constants_of_a_trainer_without_facts_of_its_own_say_whose_they_are(gpu: str) -> None:
    said = "memory and overlap of native, because those of toy are unknown"
    assert said in known_constants(gpu, "toy").source
    assert not any(
        "because" in known_constants(gpu, trainer).source
        for trainer in ("native", "command", "megatron")
    )


def test_a_trainer_that_declares_its_loop_is_counted_as_that_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_trainers.py").write_text(
        "class Toy:\n    loop = 'megatron'\n\n\nclass Unknown:\n    loop = ''\n"
    )
    info = tmp_path / "toys-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[autotune.trainers]\ntoy = toy_trainers:Toy\nunknown = toy_trainers:Unknown\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    told, untold, megatron = (workload(name) for name in ("toy", "unknown", "megatron"))
    assert loop_traits(told) == loop_traits(megatron)
    assert calibration_for(told).source == calibration_for(megatron).source
    assert loop_of(untold) == "unknown"
    assert "those of unknown are unknown" in calibration_for(untold).source
    experts = replace(told, model=catalog.model("mixtral-8x7b"))
    assert keeps_experts_whole(experts)
    assert not keeps_experts_whole(replace(experts, trainer="unknown"))


def test_a_level_multiplies_all_times_and_keeps_the_order() -> None:
    asked = workload("accelerate")
    constants = calibration_for(asked)
    without = estimate(asked, CONFIGS, calibration=replace(constants, level=1.0))
    found = estimate(asked, CONFIGS, calibration=constants)
    assert found.step_time_s == pytest.approx(constants.level * np.asarray(without.step_time_s))
    assert found.tokens_per_s == pytest.approx(np.asarray(without.tokens_per_s) / constants.level)
    for name, part in without.time_parts_s.to_dict().items():
        assert found.time_parts_s.to_dict()[name] == pytest.approx(
            constants.level * np.asarray(part)
        ), name
    assert list(np.argsort(found.step_time_s)) == list(np.argsort(without.step_time_s))
