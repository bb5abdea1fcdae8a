"""A proxy keeps what decides the speed of one rank, is legal where it runs, and says what it cannot
tell."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from autotune.cost import Calibration
from autotune.cost.estimator import sensitivity
from autotune.cost.learn.refit import uncertain
from autotune.errors import ConfigError, SpecError
from autotune.space import SearchSpace, why_not
from autotune.space.proxy import ONE_STAGE, Proxy, fullest_stage, proxy_of, stage_model
from autotune.spec import (
    FIELDS,
    ClusterSpec,
    ConfigTable,
    ModelCode,
    ModelSpec,
    ParallelConfig,
    SpaceSpec,
    Workload,
    catalog,
)
from tests.matrix import examples

DENSE_FIRST = ModelSpec(
    name="dense-first", num_layers=61, hidden_size=7168, num_attention_heads=128, vocab_size=129280, num_experts=64,
    experts_per_token=8, ffn_hidden_size=2048, num_dense_layers=3, dense_ffn_hidden_size=18432, gated_mlp=True, mtp_layers=1,
)  # fmt: skip
MODELS = {
    **{name: catalog.model(name) for name in ("gpt2-medium", "llama-8b", "mixtral-8x7b")},
    "dense-first": DENSE_FIRST,
}
KNOBS: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4, 8), "pp": (1, 2, 4, 8), "micro_batch_size": (1, 2, 4), "zero_stage": (0, 1, 3), "recompute": ("none", "full"),
    "sequence_parallel": (False, True), "cp": (1, 2), "pp_schedule": ("1f1b", "interleaved_1f1b"), "virtual_stages": (1, 2),
    "dp_replicas": (1, 4), "pp_split": ("layers", "edges"),
}  # fmt: skip


def target(name: str, trainer: str = "native", cluster: str = "h100-sxm-16x8") -> Workload:
    return Workload(
        model=MODELS[name],
        cluster=catalog.cluster(cluster),
        seq_len=4096,
        global_batch_size=256,
        trainer=trainer,
    )


def space_of(workload: Workload) -> SearchSpace:
    experts = {"ep": (1, 2, 8), "ep_overlap": (False, True)} if workload.model.num_experts else {}
    return SearchSpace.build(workload, SpaceSpec(knobs={**KNOBS, **experts}))


SPACES = {
    (name, trainer): space_of(target(name, trainer))
    for name in MODELS
    for trainer in ("nanotron", "megatron")
}


HELD = ("h100-sxm-1x8", "h100-sxm-2x8", "h100-sxm-1x4")


@st.composite
def asked(draw: st.DrawFn) -> tuple[Workload, ParallelConfig, ClusterSpec]:
    """A config of a space on 128 GPUs, and what is held."""
    space = SPACES[draw(st.sampled_from(sorted(SPACES)))]
    config = space[draw(st.integers(0, len(space) - 1))]
    return space.workload, config, catalog.cluster(draw(st.sampled_from(HELD)))


@st.composite
def proxied(draw: st.DrawFn) -> tuple[Workload, ParallelConfig, Proxy]:
    """One that has a proxy."""
    meant, config, held = draw(asked())
    try:
        return meant, config, proxy_of(meant, config, held)
    except (ConfigError, SpecError):
        reject()


@settings(max_examples=examples(100), deadline=None)
@given(asked())
def test_only_what_needs_more_ranks_than_are_held_is_refused(
    found: tuple[Workload, ParallelConfig, ClusterSpec],
) -> None:
    meant, config, held = found
    expert_ranks = (
        config.ep if meant.trainer == "megatron" else config.ep * config.tp
    )  # megatron lends its tensor-parallel ranks
    fits = (
        max(config.tp * config.cp, expert_ranks) <= held.num_gpus
        and config.tp <= held.gpus_per_node
    )
    with contextlib.nullcontext() if fits else pytest.raises((ConfigError, SpecError)):
        assert proxy_of(meant, config, held).config.tp == config.tp


@settings(max_examples=examples(150), deadline=None)
@given(proxied())
def test_a_proxy_is_legal_and_keeps_all_that_decides_the_speed_of_one_rank(
    found: tuple[Workload, ParallelConfig, Proxy],
) -> None:
    meant, config, proxy = found
    ours, mine = proxy.workload, proxy.config
    whole = mine.pp == config.pp
    ranks = (
        max(config.tp * config.cp, config.ep * (1 if meant.trainer == "megatron" else config.tp))
        * config.pp
    )
    assert whole == (
        config.pp == 1 or (ours.cluster.num_nodes > 1 and ranks <= ours.cluster.num_gpus)
    )
    assert why_not(ours, mine) is None
    assert mine.global_batch_size == ours.global_batch_size
    assert mine.world_size <= ours.cluster.num_gpus
    assert 1 <= mine.dp <= config.dp
    derived = {"dp", "dp_replicas", "zero_stage", *(() if whole else ONE_STAGE)}
    assert {n: mine.value(n) for n in FIELDS if n not in derived} == {
        n: config.value(n) for n in FIELDS if n not in derived
    }
    assert mine.zero_stage in (
        config.zero_stage,
        0 if mine.dp * mine.cp == 1 else config.zero_stage,
    )
    assert (
        replace(
            ours,
            model=meant.model,
            cluster=meant.cluster,
            global_batch_size=meant.global_batch_size,
        )
        == meant
    )
    if whole or config.pp == 1:
        assert ours.model == meant.model
    else:
        assert mine.pp == 1
        least = meant.model.num_layers / config.pp
        assert least - 2 <= ours.model.num_layers + ours.model.mtp_layers <= meant.model.num_layers
        assert replace(ours.model, **{n: getattr(meant.model, n) for n in CUT}) == meant.model


CUT = ("name", "num_layers", "num_dense_layers", "dense_ffn_hidden_size", "mtp_layers")
ALL_READ = Calibration(tensor_hop_s=5e-6, cast_bytes=1.0, time_sigma=0.05)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(proxied())
def test_the_blind_constants_are_those_that_change_the_target_and_not_the_proxy(
    found: tuple[Workload, ParallelConfig, Proxy],
) -> None:
    """Against the cost model's own derivatives."""
    meant, config, proxy = found
    names = uncertain(ALL_READ).names
    there = sensitivity(meant, ConfigTable.of([config]), ALL_READ, names).jacobian[0, :-1]
    here = sensitivity(proxy.workload, ConfigTable.of([proxy.config]), ALL_READ, names).jacobian[
        0, :-1
    ]
    changes, says = (
        dict(zip(names, np.abs(there) > 1e-9, strict=True)),
        dict(zip(names, np.abs(here) > 1e-9, strict=True)),
    )
    for name in names:
        if name in proxy.blind:
            assert not says[name], f"{name} changes {proxy.config}"
        elif changes[name] and not says[name]:
            raise AssertionError(
                f"{name} changes {config}, and its proxy {proxy.config} says nothing of it"
            )


def config(**knobs: Any) -> ParallelConfig:
    """A config of 128 GPUs with a global batch of 256."""
    asked = ParallelConfig(**{"precision": "bf16", **knobs})
    dp = 128 // (asked.tp * asked.pp * asked.cp)
    return replace(asked, dp=dp, accumulation_steps=256 // (dp * asked.micro_batch_size))


def test_one_stage_of_a_pipeline_runs_on_one_node_with_the_data_parallel_ranks_that_fit() -> None:
    proxy = proxy_of(
        target("llama-8b"), config(tp=2, pp=4, zero_stage=1), catalog.cluster("h100-sxm-1x8")
    )
    assert (
        str(proxy.config)
        == "tp=2,pp=1,dp=4,micro_batch_size=1,accumulation_steps=16,precision=bf16,zero_stage=1"
    )
    assert (proxy.workload.model.num_layers, proxy.workload.global_batch_size) == (8, 64)
    assert proxy.workload.model.name == "llama-8b-8-layers"
    assert set(proxy.blind) == {
        "inter_efficiency", "rails", "inter_decay", "hop_s", "send_host_s", "pipelined_tensor_host_s", "straggler",
    }  # fmt: skip


def test_more_nodes_tell_more() -> None:
    asked, meant = config(tp=2, zero_stage=1), target("llama-8b")
    blind = [
        set(proxy_of(meant, asked, catalog.cluster(f"h100-sxm-{nodes}x8")).blind)
        for nodes in (1, 2, 4)
    ]
    assert blind == [
        {"inter_efficiency", "rails", "inter_decay", "hop_s", "straggler"},
        {"inter_decay"},
        set(),
    ]


@pytest.mark.parametrize(
    ("asked", "held", "said"),
    [
        ({"tp": 8}, "h100-sxm-1x4", "but tp=8 and a fast link of h100-sxm-1x4 has only 4 GPUs; use a node with 8 GPUs"),
        ({"tp": 4, "cp": 4}, "h100-sxm-1x8", "tp=4, cp=4 and ep=1 need 16 ranks and h100-sxm-1x8 has only 8 GPUs; use 16 GPUs"),
        ({"tp": 2}, "a100-80gb-1x8", "the target has h100-sxm and your cluster has a100-80gb; run proxies on h100-sxm"),
        ({"pp": 2, "zero_stage": 3}, "h100-sxm-1x8", "represent a valid config of llama-8b on h100-sxm-16x8: under a pipeline"),
    ],
)  # fmt: skip
def test_what_has_no_proxy_is_refused_with_law_values_and_remedy(
    asked: dict[str, Any], held: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        proxy_of(target("llama-8b"), config(**asked), catalog.cluster(held))
    assert said in str(refused.value)


def test_several_nodes_with_ranks_for_all_stages_run_the_whole_pipeline() -> None:
    meant, held = target("llama-8b"), catalog.cluster("h100-sxm-2x8")
    proxy = proxy_of(meant, config(tp=2, pp=4), held)
    assert (proxy.config.pp, proxy.config.dp, proxy.workload.model) == (4, 2, meant.model)
    assert "send_host_s" not in proxy.blind
    assert proxy_of(meant, config(tp=8, pp=4), held).config.pp == 1
    assert proxy_of(meant, config(tp=2, pp=4), catalog.cluster("h100-sxm-1x8")).config.pp == 1


def test_zero_shards_as_it_did_where_a_copy_fits_and_not_at_all_on_one_rank() -> None:
    held = catalog.cluster("h100-sxm-2x8")
    copied = proxy_of(target("llama-8b"), config(zero_stage=3, dp_replicas=16), held).config
    assert (copied.dp, copied.dp_replicas, copied.zero_stage) == (16, 2, 3)
    alone = proxy_of(
        target("llama-8b"), config(tp=8, zero_stage=1), catalog.cluster("h100-sxm-1x8")
    ).config
    assert (alone.dp, alone.zero_stage) == (1, 0)


def test_the_fullest_stage_has_most_weights() -> None:
    """The first stage has the layers without experts, the last one those of multi-token
    prediction."""
    stage = fullest_stage(DENSE_FIRST, ParallelConfig(pp=8), "megatron")
    # 61 layers: five stages of 8, then three of 7
    assert (stage.layers, stage.dense, stage.mtp) == (
        8,
        0,
        0,
    )
    stage = fullest_stage(DENSE_FIRST, ParallelConfig(pp=61), "megatron")
    assert (stage.layers, stage.dense, stage.mtp) == (1, 0, 1)
    cut = stage_model(DENSE_FIRST, stage)
    assert (cut.num_dense_layers, cut.dense_ffn_hidden_size, cut.mtp_layers) == (0, 0, 1)


def test_a_model_read_from_a_config_json_is_cut_there_too() -> None:
    document = {
        "model_type": "llama", "num_hidden_layers": 16, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 128, "vocab_size": 100, "layer_types": ["full_attention"] * 16,
    }  # fmt: skip
    model = replace(ModelSpec.from_hf(document), source=json.dumps(document))
    cut = stage_model(model, fullest_stage(model, ParallelConfig(pp=4), "native"))
    assert json.loads(cut.source) == {
        **document,
        "num_hidden_layers": 4,
        "layer_types": ["full_attention"] * 4,
    }


def test_a_model_that_code_builds_is_not_cut() -> None:
    model = replace(MODELS["llama-8b"], code=ModelCode(module="m:build"))
    stage = fullest_stage(model, ParallelConfig(pp=2), "native")
    with pytest.raises(
        SpecError, match="needs a model with 16 layers, but the code of llama-8b always builds 32"
    ):
        stage_model(model, stage)
