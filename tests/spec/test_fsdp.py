"""Settings of FSDP mean one ZeRO stage, however they are written."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from autotune.spec.texts.fsdp import fsdp_of, stage_of


class ShardingStrategy(Enum):
    """As torch has it."""

    FULL_SHARD = 1
    SHARD_GRAD_OP = 2
    NO_SHARD = 3
    _HYBRID_SHARD_ZERO2 = 5


class FSDPOption(Enum):
    """As transformers has it."""

    SHARD_GRAD_OP = "shard_grad_op"
    OFFLOAD = "offload"


@pytest.mark.parametrize(
    ("value", "stage"),
    [
        *(("FULL_SHARD", 3), ("shard_grad_op", 2), ("NO_SHARD", 0), ("HYBRID_SHARD_ZERO2", 2)),
        *((1, 3), ("2", 2), (3, 0), (4, 3), ("5", 2)),
        *((True, 3), (False, 2), ("true", 3), ("False", 2)),
        *(zip(ShardingStrategy, (3, 2, 0, 2), strict=True)),
        *(("ShardingStrategy.SHARD_GRAD_OP", 2), ("torch.distributed.fsdp.ShardingStrategy.NO_SHARD", 0)),
        *((None, None), ("", None), ("zero3", None), (7, None), ("args.strategy", None)),
    ],
)  # fmt: skip
def test_a_strategy_is_a_zero_stage(value: Any, stage: int | None) -> None:
    assert stage_of(value) == stage


@pytest.mark.parametrize(
    ("fsdp", "config", "stage"),
    [
        ("full_shard auto_wrap", None, 3),
        ("shard_grad_op auto_wrap", None, 2),
        (["no_shard"], {}, 0),
        ([FSDPOption.SHARD_GRAD_OP], {}, 2),
        (True, {}, 3),
        ("true", {"reshard_after_forward": False}, 2),
        (True, {"fsdp_reshard_after_forward": "false"}, 2),
        # transformers 5 lets the section override the words
        ("full_shard", {"reshard_after_forward": False}, 2),
        # FSDP1 has the strategy under this key
        (True, {"version": 1, "reshard_after_forward": "SHARD_GRAD_OP"}, 2),
        (True, {"fsdp_sharding_strategy": "HYBRID_SHARD_ZERO2"}, 2),
        (True, {"fsdp_reshard_after_forward": True, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}, 3),
        (True, "fsdp.json", 3),
    ],
)
def test_the_stage_of_transformers_settings(fsdp: Any, config: Any, stage: int) -> None:
    found = fsdp_of(fsdp, config)
    assert found is not None
    assert found.zero_stage == stage


@pytest.mark.parametrize("fsdp", [None, False, "", [], "false"])
def test_fsdp_config_without_fsdp_has_no_effect(fsdp: Any) -> None:
    assert fsdp_of(fsdp, {"reshard_after_forward": False}) is None


@pytest.mark.parametrize(
    ("fsdp", "config", "setting"),
    [
        ("full_shard offload", {}, "fsdp=full_shard offload"),
        (True, {"cpu_offload": "true"}, "fsdp_config.cpu_offload"),
        (True, {"fsdp_offload_params": True}, "fsdp_config.offload_params"),
        (True, {"cpu_offload": False}, ""),
    ],
)
def test_the_setting_that_offloads_weights_is_named(fsdp: Any, config: Any, setting: str) -> None:
    found = fsdp_of(fsdp, config)
    assert found is not None
    assert found.weights_on_host == setting


@pytest.mark.parametrize("key", ["activation_checkpointing", "fsdp_activation_checkpointing"])
def test_recomputation_is_read_with_either_name(key: str) -> None:
    found = fsdp_of("full_shard", {key: "true"})
    assert found is not None
    assert found.recomputes
