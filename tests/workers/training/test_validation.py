"""What the native loop refuses of workload and config together, its trainer refuses before a trial
is made, and by the same knob."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.errors import ConfigError
from autotune.trainers import trainer
from autotune_workers.training.parallel.mesh import RankContext
from autotune_workers.training.step import validate
from tests.workers.trial_ranks import request

ADAPTERS = {"peft": {"method": "lora", "rank": 4}}


@pytest.mark.parametrize(
    ("model", "workload", "config", "knob"),
    [
        ("llama", {"document_len": 8}, "cp=2,precision=fp32", "cp_style"),
        ("llama", {"optimizer": "muon"}, "tp=2,precision=fp32", "tp"),
        ("llama", {"optimizer": "adafactor"}, "dp=2,precision=fp32,zero_stage=1", "zero_stage"),
        ("llama", {"optimizer": "adamw_8bit"}, "dp=2,precision=fp32", "optimizer"),
        ("llama", {"peft": {"method": "qlora"}}, "dp=2,precision=fp32", "peft"),
        ("uneven", ADAPTERS, "pp=4,accumulation_steps=4,precision=fp32,pp_split=edges", "pp_split"),
        ("moe", {}, "dp=4,ep=4,dp_replicas=2,precision=fp32,zero_stage=1", "dp_replicas"),
        ("llama", {}, "dp=2,precision=fp32,loss=fused", "loss"),
        ("llama", {}, "dp=2,precision=fp32,offload=optimizer", "offload"),
        ("llama", {}, "pp=2,accumulation_steps=2,precision=fp32,pp_schedule=interleaved_zero_bubble,recompute=mlp", "recompute"),
    ],
)  # fmt: skip
def test_what_the_loop_refuses_its_trainer_refuses_too(
    model: str, workload: dict[str, Any], config: str, knob: str
) -> None:
    trial = request(model, config, workload=workload)
    ranks = RankContext(rank=0, world_size=trial.config.world_size, device=torch.device("cpu"))
    with pytest.raises(ConfigError) as refused:
        validate(trial, ranks)
    assert refused.value.field == knob
    limits = trainer("native").limits(trial.workload, trial.config)
    assert [limit.knob.removeprefix("workload.") for limit in limits] == [knob]


@pytest.mark.parametrize(
    ("model", "workload", "config"),
    [
        ("llama", {"document_len": 8}, "cp=2,precision=fp32,cp_style=heads"),
        ("llama", {"optimizer": "muon"}, "dp=2,precision=fp32"),
        ("uneven", ADAPTERS, "pp=4,accumulation_steps=4,precision=fp32"),
        ("moe", {}, "dp=4,ep=2,dp_replicas=2,precision=fp32,zero_stage=1"),
    ],
)
def test_what_the_loop_trains_its_trainer_launches(
    model: str, workload: dict[str, Any], config: str
) -> None:
    trial = request(model, config, workload=workload)
    validate(
        trial, RankContext(rank=0, world_size=trial.config.world_size, device=torch.device("cpu"))
    )
    assert not trainer("native").limits(trial.workload, trial.config)


def test_copies_of_shards_need_shards() -> None:
    trial = request("llama", "dp=4,precision=fp32,zero_stage=1,dp_replicas=2")
    for changes, law in (
        ({"zero_stage": 0}, "dp_replicas replicates ZeRO's shards, so it needs zero_stage >= 1"),
        ({"dp_replicas": 3}, "dp_replicas must divide dp"),
    ):
        broken = replace(trial, config=replace(trial.config, **changes))
        with pytest.raises(ConfigError, match=law):
            validate(broken, RankContext(rank=0, world_size=4, device=torch.device("cpu")))
