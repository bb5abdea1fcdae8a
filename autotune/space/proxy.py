"""Proxies: a training on the few GPUs you have that represents a training on many more.

    target    workload and config to be represented         held    the cluster you have, with the same GPU type
    proxy     an ordinary training with its own workload and config on that cluster

A proxy keeps everything that determines the speed of one rank, and reduces what needs many ranks:

    kept        tensor, context and expert degrees, micro-batch, accumulation, sequence length, precision, recomputation, and all other knobs
    pipeline    one stage, with the layers of the largest one (`stage_model`); all stages, if `held` has several nodes with enough ranks
    dp          as many ranks as fit, at most the target's
    batch       global batch = micro_batch_size * accumulation_steps * dp
    sharding    ZeRO over the ranks of the proxy, none for a single rank; shards of the target's size if a whole copy fits (HSDP)

It differs from the target in:

    constants       the target's step may depend on constants that the proxy's does not: `Proxy.blind`
    pipeline        no bubble and fewer micro-batches in flight; a single stage has both embedding and loss, which are on different stages of the target
    memory          fewer ranks shard a copy, so each holds more of it

So neither time nor memory of a proxy equals the target's. The cost model predicts both trainings,
and constants that are fitted to a proxy apply to the target.

The model of one pipeline stage has the target's shape with only the layers of that stage, an
embedding and a loss. The stage is the one whose layers have the most weights, as distributed by
`autotune.trainers.base.layer_split`. Layers without experts are the first ones of a model, and
layers of multi-token prediction are on the last stage.
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
from autotune.spec import ClusterSpec, ModelSpec, ParallelConfig, Workload, number_of
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
"""knobs that remove the pipeline from a config"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A training that represents a larger one."""

    workload: Workload
    """the model, or a stage of it, on the cluster you have, with the global batch of `config`"""
    config: ParallelConfig
    """the config to run"""
    blind: tuple[str, ...]
    """names of the cost model's constants that affect the target's step time but not the proxy's, so
    that the proxy does not reduce their uncertainty"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLaw:
    """A rule that a config must satisfy to have a proxy on the cluster you have. The functions take
    the target's workload, the target's config and the cluster you have."""

    name: str
    """short, stable name"""
    holds: Callable[[Workload, ParallelConfig, ClusterSpec], bool]
    reason: Callable[[Workload, ParallelConfig, ClusterSpec], str]
    """returns the rule and the values that violate it"""
    remedy: Callable[[Workload, ParallelConfig, ClusterSpec], str]
    field: str
    """the knob or key of the spec that violates it"""


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
            f"a proxy keeps its target's tensor degree, and its tensor-parallel group must stay on one fast link, but tp={config.tp} and a fast link of {held.name} has only {number_of(held.domain_gpus, 'GPU')}"
        ),
        remedy=lambda target, config, held: f"use a node with {config.tp} GPUs, or accept tp={config.tp} without proxies",
        field="tp",
    ),
    ProxyLaw(
        name="ranks",
        holds=lambda target, config, held: _least_ranks(target, config) <= held.num_gpus,
        reason=lambda target, config, held: (
            f"a proxy keeps its target's tensor, context and expert degrees, but tp={config.tp}, cp={config.cp} and ep={config.ep} need {_least_ranks(target, config)} ranks and {held.name} has only {number_of(held.num_gpus, 'GPU')}"
        ),
        remedy=lambda target, config, held: f"use {_least_ranks(target, config)} GPUs, or accept such configs without proxies",
        field="cluster",
    ),
)  # fmt: skip
"""all rules for proxies, the most general first"""


def proxy_of(target: Workload, config: ParallelConfig, held: ClusterSpec) -> Proxy:
    """The training on the cluster `held` that represents `config` of `target`.

    If `held` has several nodes and at least tp * cp * pp ranks, the proxy keeps all stages, and so
    includes the cost of a pipeline across nodes. Raises `ConfigError` if there is no proxy, or the
    config is not valid on the target; `SpecError` if the model cannot be reduced to a stage.
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
        found = _largest_valid(target, config, model, config, held) if held.num_nodes > 1 else ""
        if isinstance(found, Proxy):
            return found
        model = stage_model(model, fullest_stage(model, config, training_loop(target)))
    found = _largest_valid(target, config, model, replace(config, **ONE_STAGE), held)
    if isinstance(found, Proxy):
        return found
    raise ConfigError(
        f"a proxy must be valid on {held.name}, but no number of data-parallel ranks is valid with tp={config.tp}, cp={config.cp}, ep={config.ep}"
        + (f": {found}" if found else ""),
        remedy="use more GPUs",
        field="cluster",
    )


def _largest_valid(
    target: Workload,
    config: ParallelConfig,
    model: ModelSpec,
    kept: ParallelConfig,
    held: ClusterSpec,
) -> Proxy | str:
    """The valid proxy of `config` with the most data-parallel ranks and the other knobs of `kept`. If
    there is none, the reason, which is empty if there are too few ranks."""
    reason = ""
    for dp in _data_ranks(kept, held):
        reduced = _with_data_ranks(kept, dp)
        workload = replace(
            target, model=model, cluster=held, global_batch_size=reduced.global_batch_size
        )
        broken = why_not(workload, reduced)
        if not broken:
            return Proxy(
                workload=workload, config=reduced, blind=_blind(target, config, workload, reduced)
            )
        reason = reason or broken
    return reason


def _least_ranks(target: Workload, config: ParallelConfig) -> int:
    """Minimum number of ranks for the tensor, context and expert degrees. If the experts need more
    ranks than tp and cp provide, data parallelism adds them."""
    expert_ranks = config.tp * config.cp if keeps_experts_whole(target) else config.cp
    return config.tp * config.cp * (math.lcm(config.ep, expert_ranks) // expert_ranks)


def _data_ranks(config: ParallelConfig, held: ClusterSpec) -> Iterator[int]:
    """Data-parallel degrees that fit on one node or on whole nodes of `held`, the largest first."""
    inner = config.tp * config.cp * config.pp
    for dp in range(min(config.dp, held.num_gpus // inner), 0, -1):
        if inner * dp <= held.gpus_per_node or inner * dp % held.gpus_per_node == 0:
            yield dp


def _with_data_ranks(config: ParallelConfig, dp: int) -> ParallelConfig:
    """The config with another number of data-parallel ranks: with shards of the same size if a whole
    copy fits, and without ZeRO for a single rank."""
    ranks_per_copy = config.dp // config.dp_replicas
    copies = dp // ranks_per_copy if dp % ranks_per_copy == 0 else 1
    has_copies = config.zero_stage > 0 and dp * config.cp > copies
    zero_stage = 0 if dp * config.cp == 1 else config.zero_stage
    return replace(config, dp=dp, dp_replicas=copies if has_copies else 1, zero_stage=zero_stage)


def _blind(
    target: Workload, config: ParallelConfig, ours: Workload, proxy: ParallelConfig
) -> tuple[str, ...]:
    known = _constants_used(ours, proxy)
    return tuple(name for name in _constants_used(target, config) if name not in known)


def _constants_used(workload: Workload, config: ParallelConfig) -> tuple[str, ...]:
    """The communication constants that a config's step time depends on. Those of compute and host
    are left out, because every step depends on them.

    A group of n ranks with g ranks per domain uses the constants of the fast link if g > 1, and
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
    expert_domains = _domains(config.ep, expert_tp, domain)
    stages_within = _within(config.pp, config.tp * config.cp * config.dp, domain)
    sends_inside = config.pp > 1 and stages_within > 1
    sends_outside = config.pp > 1 and stages_within < config.pp
    uses = {
        "intra_efficiency": sends_inside or any(size > 1 for size, _ in rings.values()),
        "latency_factor": config.ep > 1 or any(ranks > 1 for ranks in within.values()),
        "inter_efficiency": sends_outside or expert_domains > 1 or any(count > 1 for count in domains.values()),
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
    return tuple(name for name, is_used in uses.items() if is_used)


def _within(size: int, stride: int, domain: float) -> int:
    """Number of members of a group in the same domain. Members are `stride` ranks apart."""
    return int(min(max(domain // stride, 1), size))


def _domains(size: int, stride: int, domain: float) -> int:
    """Number of domains that a group spans."""
    return math.ceil(size / _within(size, stride, domain))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """Numbers of layers on a rank of a pipeline, including all its virtual stages."""

    layers: int
    """decoder layers without those of multi-token prediction"""
    dense: int
    """decoder layers without experts, in a model with experts"""
    mtp: int
    """layers of multi-token prediction"""


def fullest_stage(model: ModelSpec, config: ParallelConfig, trainer: str) -> StageLayers:
    """The layers of the stage with the most weights; among equal ones, the first."""
    split = "edges" if config.pp_split == "edges" else layer_split(trainer)
    stages, first = [], 0
    counts = [int(count) for count in cut_layers(model, config.pp, split)]
    for rank, count in enumerate(counts):
        dense = min(max(model.num_dense_layers - first, 0), count)
        mtp = model.mtp_layers if rank == len(counts) - 1 else 0
        stages.append(StageLayers(layers=count, dense=dense, mtp=mtp))
        first += count
    return max(stages, key=lambda stage: _weights(model, stage))


def stage_model(model: ModelSpec, stage: StageLayers) -> ModelSpec:
    """The model with only the layers of that stage. Raises `SpecError` if its builder or config.json
    does not allow another number of layers."""
    if (stage.layers, stage.mtp) == (model.num_layers, model.mtp_layers):
        return model
    if model.code is not None:
        raise SpecError(
            f"a one-stage proxy needs a model with {number_of(stage.layers, 'layer')}, but the code of {model.name} always builds {model.num_layers}",
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
    """The config.json of a model with fewer layers, as JSON text. Lists with one entry per layer are
    shortened too."""
    document: dict[str, Any] = json.loads(cut.source)
    num_layers = fields_of(document)["num_layers"]
    kept = (
        slice(cut.num_layers) if cut.num_dense_layers else slice(num_layers - cut.num_layers, None)
    )
    for key, value in document.items():
        if "layer" not in key:
            continue
        if isinstance(value, list) and len(value) == num_layers:
            document[key] = value[kept]
        elif value == num_layers:
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
            f"{number_of(read['num_layers'], 'layer')} with {read.get('num_dense_layers', 0)} dense ones instead of {cut.num_layers} and {cut.num_dense_layers}",
            remedy="write the model's fields inline",
            field="model",
        )
    return json.dumps(document)
