"""Proxies: a training on the few GPUs at hand that stands for a training on the many that are
meant.

    target    workload and config that are meant            held    the cluster at hand, of the same GPUs
    proxy     workload and config on what is held; an ordinary training of a workload of its own

A proxy keeps what decides how fast one rank works, and gives up what needs many ranks:

    kept        tensor, context and expert degrees, micro-batch, accumulation, sequence length, precision, recomputation, and every other knob
    pipeline    one stage, with the layers of the fullest one (`stage_model`); where several nodes are held and have ranks for all stages, all of them
    dp          as many ranks as are held, at most the target's
    batch       global batch = micro_batch_size * accumulation_steps * dp
    sharding    ZeRO over the ranks that there are, none where there is one; shards of the target's size wherever one copy of them fits (HSDP)

What it cannot tell:

    constants       those that the target's step depends on and the proxy's does not: `Proxy.blind`
    pipeline        its bubble and its micro-batches in flight; a single stage also holds embedding and loss together, which first and last stage share
    memory          fewer ranks shard a copy, so each holds more of it

So neither time nor memory of a proxy is the target's. The cost model predicts both trainings, and
what a proxy teaches about its constants carries over.

The model of one pipeline stage: the same shape with the layers of one stage alone, between an
embedding and a loss of its own.

The stage is the fullest one: that with most weights in its layers, which
`autotune.trainers.base.layer_split` deals to the stages. Layers without experts are a model's first
ones, and layers of multi-token prediction are on the last stage.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from autotune.errors import ConfigError, SpecError
from autotune.space.constraint import why_not
from autotune.spec import ClusterSpec, ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face.reading import fields_of
from autotune.trainers.base.layer_split import cut_layers, layer_split
from autotune.trainers.base.training_loop import training_loop
from autotune.trainers.base.whole_experts import keeps_experts_whole

ONE_STAGE: Mapping[str, Any] = {
    "pp": 1,
    "pp_schedule": "1f1b",
    "virtual_stages": 1,
    "pp_split": "layers",
}
"""knobs of a config without a pipeline"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A training that stands for another one."""

    workload: Workload
    """the model, or a stage of it, on the cluster at hand, with the global batch of `config`"""
    config: ParallelConfig
    """what is run"""
    blind: tuple[str, ...]
    """names of the constants of the cost model that the target's step time depends on and the
    proxy's does not: they stay as uncertain as they were"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLaw:
    """What must hold for a config to have a proxy on the cluster at hand."""

    name: str
    """short and stable"""
    holds: Callable[[Workload, ParallelConfig, ClusterSpec], bool]
    """of target workload, target config and cluster at hand"""
    reason: Callable[[Workload, ParallelConfig, ClusterSpec], str]
    """law and values"""
    remedy: Callable[[Workload, ParallelConfig, ClusterSpec], str]
    field: str
    """the knob or key of the spec that stands against it"""


PROXY_LAWS: tuple[ProxyLaw, ...] = (
    ProxyLaw(
        name="gpu",
        holds=lambda target, config, held: target.cluster.gpu.name == held.gpu.name,
        reason=lambda target, config, held: (
            f"a proxy must run on the target's GPU type, because the cost model's constants depend on it, but the target has {target.cluster.gpu.name} and your cluster has {held.gpu.name}"
        ),
        remedy=lambda target, config, held: f"run proxies on {target.cluster.gpu.name}",
        field="cluster",
    ),
    ProxyLaw(
        name="tensor_degree",
        holds=lambda target, config, held: config.tp <= held.domain_gpus,
        reason=lambda target, config, held: (
            f"a proxy keeps its target's tensor degree, and its tensor-parallel group must stay on one fast link, but tp={config.tp} and only {held.domain_gpus} GPUs of {held.name} share a fast link"
        ),
        remedy=lambda target, config, held: f"use a node with {config.tp} GPUs, or accept tp={config.tp} without proxies",
        field="tp",
    ),
    ProxyLaw(
        name="ranks",
        holds=lambda target, config, held: _least_ranks(target, config) <= held.num_gpus,
        reason=lambda target, config, held: (
            f"a proxy keeps its target's tensor, context and expert degrees, but tp={config.tp}, cp={config.cp} and ep={config.ep} need {_least_ranks(target, config)} ranks and only {held.num_gpus} GPUs are available"
        ),
        remedy=lambda target, config, held: f"use {_least_ranks(target, config)} GPUs, or accept such configs without proxies",
        field="cluster",
    ),
)  # fmt: skip
"""All of them, the most general first."""


def proxy_of(target: Workload, config: ParallelConfig, held: ClusterSpec) -> Proxy:
    """The training on the cluster `held` that stands for `config` of `target`.

    On several nodes that have tp * cp * pp ranks it keeps all stages and the whole model: that also
    tells what a pipeline over nodes costs, which no single stage does. Raises `ConfigError` with
    law, values and remedy where there is no proxy, or where the config is not legal on the target;
    `SpecError` where the model cannot be cut.
    """
    broken = why_not(target, config)
    if broken:
        raise ConfigError(
            f"a proxy must represent a valid config of {target.model.name} on {target.cluster.name}: {broken}"
        )
    for law in PROXY_LAWS:
        if not law.holds(target, config, held):
            raise ConfigError(
                law.reason(target, config, held),
                remedy=law.remedy(target, config, held),
                field=law.field,
            )
    model = target.model
    if config.pp > 1:
        found = _legal(target, config, model, config, held) if held.num_nodes > 1 else ""
        if isinstance(found, Proxy):
            return found
        model = stage_model(model, fullest_stage(model, config, training_loop(target)))
    found = _legal(target, config, model, replace(config, **ONE_STAGE), held)
    if isinstance(found, Proxy):
        return found
    raise ConfigError(
        f"a proxy must be valid on {held.name}, but no number of data-parallel ranks is valid with tp={config.tp}, cp={config.cp}, ep={config.ep}"
        + (f": {found}" if found else ""),
        remedy="use more GPUs",
        field="cluster",
    )


def _legal(
    target: Workload,
    config: ParallelConfig,
    model: ModelSpec,
    kept: ParallelConfig,
    held: ClusterSpec,
) -> Proxy | str:
    """The proxy of `config` with the other degrees of `kept` and as many data-parallel ranks as may
    be; why there is none, empty where the ranks do not suffice."""
    reason = ""
    for dp in _data_ranks(kept, held):
        asked = _with_data_ranks(kept, dp)
        workload = replace(
            target, model=model, cluster=held, global_batch_size=asked.global_batch_size
        )
        broken = why_not(workload, asked)
        if not broken:
            return Proxy(
                workload=workload, config=asked, blind=_blind(target, config, workload, asked)
            )
        reason = reason or broken
    return reason


def _least_ranks(target: Workload, config: ParallelConfig) -> int:
    """Ranks that tensor, context and expert degrees need together; experts are spread over ranks
    that the data-parallel degree adds."""
    lends = config.tp * config.cp if keeps_experts_whole(target) else config.cp
    return config.tp * config.cp * (math.lcm(config.ep, lends) // lends)


def _data_ranks(config: ParallelConfig, held: ClusterSpec) -> Iterator[int]:
    """Data-parallel degrees that fit on what is held, the largest first: on one node or on whole
    nodes."""
    inner = config.tp * config.cp * config.pp
    for dp in range(min(config.dp, held.num_gpus // inner), 0, -1):
        if inner * dp <= held.gpus_per_node or inner * dp % held.gpus_per_node == 0:
            yield dp


def _with_data_ranks(config: ParallelConfig, dp: int) -> ParallelConfig:
    """The config with so many data-parallel ranks: shards as large as they were where a copy of
    them fits, no ZeRO where nothing can be sharded."""
    of_copy = config.dp // config.dp_replicas
    copies = dp // of_copy if dp % of_copy == 0 else 1
    alone = dp * config.cp == 1
    copied = config.zero_stage > 0 and dp * config.cp > copies
    return replace(
        config, dp=dp, dp_replicas=copies if copied else 1, zero_stage=0 if alone else config.zero_stage
    )  # fmt: skip


def _blind(
    target: Workload, config: ParallelConfig, ours: Workload, proxy: ParallelConfig
) -> tuple[str, ...]:
    told = _read(ours, proxy)
    return tuple(name for name in _read(target, config) if name not in told)


def _read(workload: Workload, config: ParallelConfig) -> tuple[str, ...]:
    """Constants of communication that the step time of a config depends on; those of compute and
    host are read by every step.

    A group of n ranks, of which g share a domain, reads the constants of the fast link if g > 1 and
    those of the network if g < n.
    """
    domain = float(workload.cluster.domain_ranks(np.array(float(config.world_size))))
    shards = config.dp * config.cp // config.dp_replicas
    expert_tp = 1 if keeps_experts_whole(workload) else config.tp
    expert_copies = max(1, config.tp * shards // (expert_tp * config.ep)) if config.ep > 1 else 1
    rings = {
        "tensor": (config.tp, 1),
        "context": (config.cp, config.tp),
        "data": (shards, config.tp),
        "replicas": (config.dp * config.cp // shards, config.tp * shards),
        "expert_data": (expert_copies, expert_tp * config.ep),
    }
    domains = {name: _domains(size, stride, domain) for name, (size, stride) in rings.items()}
    within = {name: _within(size, stride, domain) for name, (size, stride) in rings.items()}
    experts = _domains(config.ep, expert_tp, domain)
    stages = _within(config.pp, config.tp * config.cp * config.dp, domain)
    sends_inside, sends_outside = config.pp > 1 and stages > 1, config.pp > 1 and stages < config.pp
    reads = {
        "intra_efficiency": sends_inside or any(size > 1 for size, _ in rings.values()),
        "latency_factor": config.ep > 1 or any(ranks > 1 for ranks in within.values()),
        "inter_efficiency": sends_outside or experts > 1 or any(count > 1 for count in domains.values()),
        "rails": any(count > 1 and within[name] > 1 for name, count in domains.items()),
        "inter_decay": any(count > 2 for count in domains.values()),
        "hop_s": any(count > 1 for count in domains.values()),
        "tensor_hop_s": domains["tensor"] > 1,
        "data_overlap": config.dp * config.cp > 1,
        "dispatch_efficiency": config.ep > 1,
        "dispatch_overlap": config.ep_overlap,
        "send_host_s": config.pp > 1,
        "pipelined_tensor_host_s": config.tp > 1 and sends_outside,
        "straggler": config.world_size > workload.cluster.gpus_per_node,
    }  # fmt: skip
    return tuple(name for name, is_read in reads.items() if is_read)


def _within(size: int, stride: int, domain: float) -> int:
    """Members of a group that share a domain; members lie `stride` ranks apart."""
    return int(min(max(domain // stride, 1), size))


def _domains(size: int, stride: int, domain: float) -> int:
    """Domains that a group spans."""
    return math.ceil(size / _within(size, stride, domain))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """Layers of one rank of a pipeline, those of all its virtual stages together."""

    layers: int
    """decoder layers, those of multi-token prediction left out"""
    dense: int
    """those of them that have no experts in a model with experts"""
    mtp: int
    """layers of multi-token prediction"""


def fullest_stage(model: ModelSpec, config: ParallelConfig, trainer: str) -> StageLayers:
    """The layers of the stage with most weights; of equal ones the first."""
    split = "edges" if config.pp_split == "edges" else layer_split(trainer)
    stages, first = [], 0
    counts = [int(count) for count in cut_layers(model, config.pp, split)]
    for rank, count in enumerate(counts):
        dense = min(max(model.num_dense_layers - first, 0), count)
        stages.append(
            StageLayers(
                layers=count, dense=dense, mtp=model.mtp_layers if rank == len(counts) - 1 else 0
            )
        )
        first += count
    return max(stages, key=lambda stage: _weights(model, stage))


def stage_model(model: ModelSpec, stage: StageLayers) -> ModelSpec:
    """A model with the layers of that stage. Raises `SpecError` where its builder or its
    config.json cannot be given another number of layers."""
    if (stage.layers, stage.mtp) == (model.num_layers, model.mtp_layers):
        return model
    if model.code is not None:
        raise SpecError(
            f"a proxy of one stage needs a model with {stage.layers} layers, but the code of {model.name} always builds {model.num_layers}",
            remedy="use configs with pp=1, or write the model's fields inline",
            field="model",
        )
    if model.num_experts and stage.dense == stage.layers:
        raise SpecError(
            f"a stage must have a layer with experts to represent a model with experts, but all its {stage.layers} layers are dense",
            remedy="use a smaller pp",
            field="pp",
        )
    cut = replace(
        model,
        name=f"{model.name}-{stage.layers}-layers",
        num_layers=stage.layers,
        num_dense_layers=stage.dense,
        dense_ffn_hidden_size=model.dense_ffn_hidden_size if stage.dense else 0,
        mtp_layers=stage.mtp,
    )
    return replace(cut, source=_cut_source(cut)) if model.source else cut


def _weights(model: ModelSpec, stage: StageLayers) -> int:
    plain = model.attention_parameters + model.norm_parameters + model.dense_mlp_parameters
    if not model.num_experts:
        return (stage.layers + stage.mtp) * plain
    return stage.dense * plain + (stage.layers - stage.dense + stage.mtp) * model.layer_parameters


def _cut_source(cut: ModelSpec) -> str:
    """The config.json of a model with fewer layers, as JSON text. Lists with one entry for each
    layer lose those of the layers that are gone."""
    document: dict[str, Any] = json.loads(cut.source)
    whole = fields_of(document)["num_layers"]
    for key, value in document.items():
        if "layer" not in key:
            continue
        if isinstance(value, list) and len(value) == whole:
            document[key] = (
                value[: cut.num_layers] if cut.num_dense_layers else value[whole - cut.num_layers :]
            )
        elif value == whole:
            document[key] = cut.num_layers
    for key in ("first_k_dense_replace", "moe_layer_start_index"):
        if key in document:
            document[key] = cut.num_dense_layers
    read = fields_of(document)
    if (read["num_layers"], read.get("num_dense_layers", 0)) != (
        cut.num_layers,
        cut.num_dense_layers,
    ):
        raise SpecError(
            f"the config.json of {cut.name} must give the number of dense layers, but the file is read as "
            f"{read['num_layers']} layers with {read.get('num_dense_layers', 0)} dense ones instead of {cut.num_layers} and {cut.num_dense_layers}",
            remedy="write the model's fields inline",
            field="model",
        )
    return json.dumps(document)
