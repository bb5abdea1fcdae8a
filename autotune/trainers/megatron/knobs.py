"""Knobs as fields of Megatron Core's TransformerConfig, DistributedDataParallelConfig and
OptimizerConfig, and back (release 0.16).

Megatron-LM takes each field as a flag with dashes, Megatron-Bridge under `model`, `ddp` or
`optimizer`. An explicit layout of a pipeline names the layers of each stage, separated by |, with E
for the embedding, t for a layer, m for one of multi-token prediction and L for the loss:
`Ett|ttt|tmL`. Stage i belongs to rank i mod pp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from autotune.spec import KNOBS, ModelSpec, ParallelConfig, Workload
from autotune.trainers.base.torchrun import tf32_environment
from autotune.trainers.present_configuration import KeyReader

CP_STYLES = {"ring": "p2p", "heads": "a2a", "gather": "allgather"}
"""values of cp_comm_type"""
NORM_MODULES, MLP_MODULES = (
    frozenset({"layernorm", "moe_act", "mla_up_proj"}),
    frozenset({"mlp", "moe", "shared_experts"}),
)
"""values of recompute_modules, by what they mean to us"""
OFFLOADED = ["attn_norm", "core_attn", "attn_proj", "mlp_norm"]
OFFLOADED_EXPERTS = ["expert_fc1", "moe_act"]
"""values of offload_modules"""
GRAPHED_EXPERTS = ["attn", "moe_router"]
"""cuda_graph_scope of a layer with experts, whose own sizes change from step to step"""
STRATEGIES = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3, "no_shard": 0}
"""ZeRO stage of Megatron-FSDP's sharding strategies"""


def model_fields(workload: Workload, c: ParallelConfig) -> dict[str, Any]:
    """What the config sets in TransformerConfig beside degrees and recompute_granularity; None,
    false and empty lists are Megatron's defaults."""
    model = workload.model
    experts = model.num_experts > 0
    layout = None if c.pp_split == "layers" or divides_evenly(model, c) else stage_layout(model, c)
    by_flags = c.pp_split == "edges" and layout is None
    activations = c.offload in ("activations", "all")
    offloaded = [*OFFLOADED, *(OFFLOADED_EXPERTS if experts else [])]
    fields: dict[str, Any] = {
        "cp_comm_type": CP_STYLES[c.cp_style] if c.cp > 1 else None,
        "account_for_embedding_in_pipeline_split": by_flags,
        "account_for_loss_in_pipeline_split": by_flags,
        "pipeline_model_parallel_layout": layout,
        "recompute_modules": _recomputed(model, c),
        "tp_comm_overlap": c.async_tp,
        "cuda_graph_impl": {"none": "none", "layers": "transformer_engine", "step": "local"}[
            c.cuda_graph
        ],
        "cuda_graph_scope": ["full_iteration"] if c.cuda_graph == "step" else None,
        "use_te_rng_tracker": c.cuda_graph != "none",
        "fine_grained_activation_offloading": activations,
        "offload_modules": offloaded if activations else [],
    }
    if experts:
        flex = c.dispatcher == "flex"
        fields |= {
            "moe_token_dispatcher_type": c.dispatcher,
            "moe_flex_dispatcher_backend": flex_backend(workload) if flex else None,
            "overlap_moe_expert_parallel_comm": c.ep_overlap,
        }
        if c.cuda_graph == "layers":
            fields["cuda_graph_scope"] = GRAPHED_EXPERTS
    if c.loss != "own":
        fused = c.loss == "fused"
        fields |= {
            "cross_entropy_loss_fusion": fused,
            **({"cross_entropy_fusion_impl": "te"} if fused else {}),
        }
    return fields


def optimizer_fields(c: ParallelConfig) -> dict[str, Any]:
    """What the config sets in OptimizerConfig."""
    away = c.offload in ("optimizer", "all")
    return {
        "optimizer_cpu_offload": away,
        **(
            {"optimizer_offload_fraction": 1.0, "overlap_cpu_optimizer_d2h_h2d": True}
            if away
            else {}
        ),
        "use_precision_aware_optimizer": away,
    }


def flex_backend(workload: Workload) -> str:
    """HybridEP on the GPUs whose NVLink domain it was written for, DeepEP elsewhere."""
    return (
        "hybridep"
        if workload.cluster.gpu.name.startswith(("b200", "b300", "gb200", "gb300"))
        else "deepep"
    )


def divides_evenly(model: ModelSpec, c: ParallelConfig) -> bool:
    """Whether layers, with embedding and loss where they count, make equal stages. Layers of
    multi-token prediction count beside them in a layout alone."""
    if c.pp_split == "edges" and c.pp > 1 and model.mtp_layers:
        return False
    counted = model.num_layers + (2 if c.pp_split == "edges" else 0)
    return counted % (c.pp * c.virtual_stages) == 0


def stage_layout(model: ModelSpec, c: ParallelConfig) -> str:
    """An explicit layout whose stages hold equally many of layers, embedding and loss, as
    `cut_layers` counts them; those left over go to the stages in the middle. Layers of multi-token
    prediction are all on the last stage, with the loss."""
    stages, loss = c.pp * c.virtual_stages, 1 + 2 * model.mtp_layers
    last = max(0, (model.num_layers + 1 + loss) // stages - loss)
    each, spare = divmod(model.num_layers - last + 1, stages - 1)
    start = (stages - spare) // 2
    letters = ["t" * (each + (start <= stage < start + spare)) for stage in range(stages - 1)]
    letters[0] = "E" + letters[0][1:]
    return "|".join([*letters, "t" * last + "m" * model.mtp_layers + "L"])


def stages_of_layout(layout: Any) -> int:
    """Stages that an explicit layout names: text such as `Et*3|(tt|)*29L`, or a list of lists."""
    if isinstance(layout, list):
        return len(layout)
    expanded = re.sub(
        r"\(([^()]{0,999})\)\*(\d{1,3})", lambda found: found[1] * int(found[2]), str(layout)
    )
    return expanded.count("|") + 1


def read_knobs(keys: KeyReader, name: Callable[[str], str]) -> dict[str, Any]:
    """The knobs that TransformerConfig sets to other values than their defaults; `name`: how the
    file writes a field."""
    layout = keys.find(name("pipeline_model_parallel_layout"))
    flags = [
        keys.flag(name(f"account_for_{edge}_in_pipeline_split")) for edge in ("embedding", "loss")
    ]
    fused = keys.flag(name("cross_entropy_loss_fusion"))
    fused_or_full = "fused" if fused else "full"
    keys.drop(name("cross_entropy_fusion_impl"), name("pipeline_model_parallel_layout"))
    knobs = {
        "pp_split": "edges" if layout or any(flags) else "layers",
        "cp_style": keys.word(
            name("cp_comm_type"), {theirs: ours for ours, theirs in CP_STYLES.items()}, "ring"
        ),
        "async_tp": keys.is_on(name("tp_comm_overlap")),
        "loss": "own" if fused is None else fused_or_full,
        "cuda_graph": _read_graph(keys, name),
        "offload": _read_offload(keys, name),
        "dispatcher": _read_dispatcher(keys, name),
        "ep_overlap": keys.is_on(name("overlap_moe_expert_parallel_comm")),
    }
    return {knob: value for knob, value in knobs.items() if value != KNOBS[knob].default}


def read_recompute(keys: KeyReader, name: Callable[[str], str], granularity: str) -> str:
    """The knob recompute, by granularity and modules."""
    modules = keys.find(name("recompute_modules"))
    keys.drop(name("recompute_modules"))
    named = frozenset([modules] if isinstance(modules, str) else modules or ())
    if granularity != "selective" or not named or "core_attn" in named:
        return granularity
    if not named <= NORM_MODULES and not named <= MLP_MODULES:
        keys.remarks.append(
            f"{keys.name}: {name('recompute_modules')}={' '.join(sorted(named))} is read as recompute=mlp"
        )
    return "norm" if named <= NORM_MODULES else "mlp"


def has_grouped_gemm(model: ModelSpec, c: ParallelConfig) -> bool:
    """Whether the experts of a rank are multiplied together, which these kernels do in 16 bits and
    below."""
    return bool(model.num_experts) and c.precision not in ("fp32", "tf32", "fp16")


def environment(c: ParallelConfig) -> dict[str, str]:
    """Variables that its knobs need. Transformer Engine from 2.10 on takes weights along with
    offloaded activations unless it is told not to; the overlap of experts runs several streams."""
    activations = c.offload in ("activations", "all")
    is_ordered = c.zero_stage < 2 and c.tp * c.cp > 1 and not c.ep_overlap
    return {
        **tf32_environment(c.precision),
        **({"NVTE_CPU_OFFLOAD_V1": "1"} if activations else {}),
        **({"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if is_ordered else {}),
    }


def _recomputed(model: ModelSpec, c: ParallelConfig) -> list[str] | None:
    if c.recompute == "norm":
        return ["layernorm", "moe_act"] if has_grouped_gemm(model, c) else ["layernorm"]
    if c.recompute == "mlp":
        dense = ["mlp"] if model.num_dense_layers or not model.num_experts else []
        return [*dense, *(["moe"] if model.num_experts else [])]
    return None


def _read_graph(keys: KeyReader, name: Callable[[str], str]) -> str:
    kind = keys.find(name("cuda_graph_impl"))
    scope = keys.find(name("cuda_graph_scope"))
    old = [keys.flag(name(word)) for word in ("enable_cuda_graph", "external_cuda_graph")]
    keys.drop(
        *map(name, ("cuda_graph_impl", "cuda_graph_scope", "use_te_rng_tracker")), "te-rng-tracker"
    )
    if "full_iteration" in (kind, *([scope] if isinstance(scope, str) else scope or ())):
        return "step"
    return "layers" if kind not in (None, "none") or any(old) else "none"


def _read_offload(keys: KeyReader, name: Callable[[str], str]) -> str:
    activations = any(
        [keys.flag(name("fine_grained_activation_offloading")), keys.flag(name("cpu_offloading"))]
    )
    keys.drop(name("offload_modules"))
    return "activations" if activations else "none"


def _read_dispatcher(keys: KeyReader, name: Callable[[str], str]) -> str:
    meanings: Mapping[str, str] = {word: word for word in ("alltoall", "allgather", "flex")}
    kind = keys.find(name("moe_token_dispatcher_type"))
    keys.drop(name("moe_flex_dispatcher_backend"))
    return (
        "alltoall"
        if kind is None
        else keys.word(name("moe_token_dispatcher_type"), meanings, "alltoall")
    )


def with_optimizer(knobs: Mapping[str, Any], *, away: bool) -> dict[str, Any]:
    """The knobs with what is offloaded: the activations, by the knobs, and the optimizer, by
    `away`."""
    if not away:
        return dict(knobs)
    return {**knobs, "offload": "all" if "offload" in knobs else "optimizer"}
