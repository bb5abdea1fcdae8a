"""Rules on the mesh: the number of ranks, and the degrees of tensor, context, data and expert
parallelism.

Sources: Megatron-LM argument checks (heads, kv heads, ffn, context parallelism), DeepSpeed (no ZeRO
2 or 3 under a pipeline; torchtitan has ZeRO 2 there), DeepSpeed-Ulysses (arXiv 2309.14509: whole
heads per rank), PyTorch's HYBRID_SHARD (copies of shards), Megatron-Core (experts over tp * cp * dp
ranks where they stay whole).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autotune.space.law import Law, Mask, divides, divisors, listed, product
from autotune.spec import ConfigTable, ParallelConfig, Workload, number_of
from autotune.trainers.base.whole_experts import keeps_experts_whole

SHARDED_PIPELINES = frozenset({"torchtitan"})
"""trainers whose pipelines support ZeRO 2: they shard gradients and optimizer states, keep 16-bit
weights gathered, and reduce once per step. torchtitan keeps weights gathered in a pipeline by
default (`get_fsdp_reshard_after_forward_policy`), and torch's pipeline schedules let FSDP reduce
gradients only after the last micro-batch (`backward_maybe_with_nosync` of
`torch.distributed.pipelining`). Others would reduce in every micro-batch, which DeepSpeed and
Megatron-LM reject"""
_WRONG_WORLD_SIZE = "tp * pp * dp * cp is not an allowed number of ranks"


def world_size_law(sizes: Sequence[int]) -> Law:
    """The rule of a space: a config uses one of these numbers of ranks."""
    allowed = np.array(sorted(sizes), dtype=np.float64)
    return Law(
        name="world_size",
        broken=_WRONG_WORLD_SIZE,
        fields=("tp", "pp", "dp", "cp"),
        check=lambda w, t: np.isin(product(t, "tp", "pp", "dp", "cp"), allowed),
        reason=lambda w, c: (
            f"tp * pp * dp * cp must be {listed(sizes)}, but {_degrees(c)} and their product is {c.world_size}; "
            "change a degree, or the world_sizes of the space"
        ),
    )


def _kv_heads(workload: Workload) -> int:
    """Number of key and value heads in attention. Latent attention expands its latent to one per
    query head."""
    model = workload.model
    return model.num_attention_heads if model.kv_lora_rank else model.num_kv_heads


def _degrees(c: ParallelConfig) -> str:
    return f"tp={c.tp}, pp={c.pp}, dp={c.dp}, cp={c.cp}"


def _tp_must_divide(name: str, size: Callable[[Workload], int], what: str) -> Law:
    def reason(w: Workload, c: ParallelConfig) -> str:
        if w.model.code is not None and "num_attention_heads" in w.model.code.guessed:
            known = (
                "write the model's fields inline"
                if w.model.is_counted
                else "return `shapes: {num_attention_heads: ...}` from the model's builder"
            )
            return (
                f"tp splits attention by heads, but tp={c.tp} and the number of heads of {w.model.name} is unknown; "
                f"{known}, or use tp=1"
            )
        return (
            f"tp must divide {what}, but tp={c.tp} and {what}={size(w)}; "
            f"use {listed(divisors(size(w), at_most=w.cluster.domain_gpus))}"
        )

    return Law(
        name=name,
        broken=f"tp does not divide {what}",
        fields=("tp",),
        check=lambda w, t: divides(size(w), t.tp),
        reason=reason,
    )


def _mlp_width(workload: Workload) -> int:
    """Inner width of the MLP. If it was only guessed, 0, which every degree divides."""
    model = workload.model
    is_guessed = model.code is not None and "ffn_hidden_size" in model.code.guessed
    return 0 if is_guessed else model.ffn_hidden_size


def _tp_within_node(workload: Workload, table: ConfigTable) -> Mask:
    """Whether each tensor-parallel group stays in one domain, shape (N,). Consecutive ranks form a
    group, so it does if tp divides the domain, or if one domain holds all ranks.

    A domain is a node, or the nodes of one NVLink switch. The job uses the same number of nodes in
    each domain (`ClusterSpec.domain_ranks`).
    """
    world = product(table, "tp", "pp", "dp", "cp")
    domain = workload.cluster.domain_ranks(world)
    return np.asarray((table.tp <= domain) & ((domain % table.tp == 0) | (world <= domain)))


def _expert_ranks(workload: Workload, tp: Any, dp: Any, cp: Any) -> Any:
    """Number of ranks of a pipeline stage that can hold different experts."""
    return tp * dp * cp if keeps_experts_whole(workload) else dp * cp


def _named_expert_ranks(workload: Workload) -> str:
    return "tp * dp * cp" if keeps_experts_whole(workload) else "dp * cp"


def _domain_size(workload: Workload, config: ParallelConfig) -> int:
    """Number of GPUs that a job of this size uses in each domain."""
    return int(workload.cluster.domain_ranks(np.array(float(config.world_size))))


def _domain(workload: Workload, config: ParallelConfig) -> str:
    """The domain that a tensor-parallel group must stay in, with its size, as text."""
    cluster, tp = workload.cluster, f"tp={config.tp}"
    if cluster.nodes_per_domain == 1:
        return f"node, but {tp} and gpus_per_node={cluster.gpus_per_node}"
    size, world = _domain_size(workload, config), config.world_size
    return f"NVLink domain, but {tp}, and a job of {number_of(world, 'GPU')} has {size} in each domain of {cluster.domain_gpus}"


MESH_LAWS: tuple[Law, ...] = (
    Law(
        name="world_size",
        broken=_WRONG_WORLD_SIZE,
        fields=("tp", "pp", "dp", "cp"),
        check=lambda w, t: product(t, "tp", "pp", "dp", "cp") <= w.cluster.num_gpus,
        reason=lambda w, c: (
            f"tp * pp * dp * cp must be at most the {number_of(w.cluster.num_gpus, 'GPU')} of {w.cluster.name}, "
            f"but {_degrees(c)} and their product is {c.world_size}; use smaller degrees or a larger cluster"
        ),
    ),
    _tp_must_divide("tp_heads", lambda w: w.model.num_attention_heads, "num_attention_heads"),
    _tp_must_divide("tp_kv_heads", lambda w: w.model.num_kv_heads, "num_kv_heads"),
    _tp_must_divide("tp_ffn", _mlp_width, "ffn_hidden_size"),
    Law(
        name="tp_within_node",
        broken="a tensor-parallel group would span nodes",
        fields=("tp", "pp", "dp", "cp"),
        check=_tp_within_node,
        reason=lambda w, c: (
            f"a tensor-parallel group must stay within one {_domain(w, c)}; "
            f"use {listed(divisors(_domain_size(w, c), at_most=_domain_size(w, c)))}"
        ),
    ),
    Law(
        name="cp_sequence",
        broken="seq_len is not a multiple of 2 * cp",
        fields=("cp",),
        check=lambda w, t: (t.cp == 1) | divides(w.seq_len, 2 * t.cp),
        reason=lambda w, c: (
            "context parallelism gives every rank two slices of the sequence (to balance causal attention), so seq_len must be a multiple "
            f"of 2 * cp, but seq_len={w.seq_len} and cp={c.cp}; use a cp that divides {w.seq_len}/2, or another seq_len"
        ),
    ),
    Law(
        name="zero_ranks",
        broken="ZeRO with a single rank (nothing to shard)",
        fields=("dp", "cp", "zero_stage"),
        check=lambda w, t: (t.zero_stage == 0) | (t.dp > 1) | (t.cp > 1),
        reason=lambda w, c: (
            f"ZeRO shards over dp * cp ranks, but zero_stage={c.zero_stage} and dp * cp = 1, which is the same as zero_stage=0; use zero_stage=0, or more data-parallel ranks"
        ),
    ),
    Law(
        name="zero_pipeline",
        broken="ZeRO-2/3 with pipeline parallelism (would communicate for every micro-batch)",
        fields=("pp", "zero_stage"),
        check=lambda w, t: (t.zero_stage <= 1 + (w.trainer in SHARDED_PIPELINES)) | (t.pp == 1),
        reason=lambda w, c: (
            f"under a pipeline every micro-batch would gather its weights again (ZeRO 3), so zero_stage must be at most 2 with pp > 1 under {w.trainer}, "
            f"but zero_stage={c.zero_stage} and pp={c.pp}; use zero_stage=2, or pp=1"
            if w.trainer in SHARDED_PIPELINES
            else "under a pipeline every micro-batch would reduce-scatter its gradients (ZeRO 2) and gather its weights (ZeRO 3) again, "
            f"so zero_stage must be 0 or 1 with pp > 1, but zero_stage={c.zero_stage} and pp={c.pp}; use zero_stage=1, or pp=1"
        ),
    ),
    Law(
        name="cp_style",
        broken="cp_style without context parallelism",
        fields=("cp", "cp_style"),
        check=lambda w, t: t.is_word("cp_style", "ring") | (t.cp > 1),
        reason=lambda w, c: (
            f"cp_style needs context parallelism, but cp=1 and cp_style={c.cp_style}; use cp_style=ring, or cp > 1"
        ),
    ),
    Law(
        name="cp_heads",
        broken="tp * cp does not divide num_kv_heads (with cp_style=heads)",
        fields=("tp", "cp", "cp_style"),
        check=lambda w, t: ~t.is_word("cp_style", "heads") | divides(_kv_heads(w), t.tp * t.cp),
        reason=lambda w, c: (
            f"cp_style=heads gives every rank whole heads, so tp * cp must divide num_kv_heads, but tp={c.tp}, cp={c.cp} and "
            f"num_kv_heads={_kv_heads(w)}; use cp_style=ring or gather, or a smaller cp"
        ),
    ),
    Law(
        name="replicas_divide",
        broken="dp_replicas does not divide dp",
        fields=("dp", "dp_replicas"),
        check=lambda w, t: t.dp % t.dp_replicas == 0,
        reason=lambda w, c: (
            f"every replica of the shards has the same number of ranks, so dp_replicas must divide dp, but dp={c.dp} and dp_replicas={c.dp_replicas}; "
            f"use {listed(divisors(c.dp, at_most=64))}"
        ),
    ),
    Law(
        name="replicas_shards",
        broken="dp_replicas without shards to replicate",
        fields=("dp", "cp", "zero_stage", "dp_replicas"),
        check=lambda w, t: (
            (t.dp_replicas == 1) | ((t.zero_stage > 0) & (t.dp * t.cp > t.dp_replicas))
        ),
        reason=lambda w, c: (
            f"dp_replicas replicates ZeRO's shards, so it needs zero_stage >= 1 and fewer replicas than dp * cp, but zero_stage={c.zero_stage}, dp * cp = {c.dp * c.cp} and dp_replicas={c.dp_replicas}; "
            "use dp_replicas=1, or zero_stage=0 to replicate everything"
        ),
    ),
    Law(
        name="ep_dispatch",
        broken="an expert dispatcher without expert parallelism",
        fields=("ep", "dispatcher"),
        check=lambda w, t: t.is_word("dispatcher", "alltoall") | (t.ep > 1),
        reason=lambda w, c: (
            f"a dispatcher needs expert parallelism, but ep=1 and dispatcher={c.dispatcher}; "
            "use dispatcher=alltoall, or ep > 1"
        ),
    ),
    Law(
        name="ep_overlap",
        broken="ep_overlap without expert parallelism or without accumulation",
        fields=("ep", "ep_overlap", "accumulation_steps"),
        check=lambda w, t: ~t.ep_overlap | ((t.ep > 1) & (t.accumulation_steps > 1)),
        reason=lambda w, c: (
            "ep_overlap hides the experts' all-to-all behind another micro-batch, so it needs ep > 1 and accumulation_steps > 1, "
            f"but ep={c.ep} and accumulation_steps={c.accumulation_steps}; use ep_overlap=false"
        ),
    ),
    Law(
        name="ep_experts",
        broken="ep does not divide num_experts",
        fields=("ep",),
        check=lambda w, t: (
            (t.ep == 1) | (divides(w.model.num_experts, t.ep) & (w.model.num_experts > 0))
        ),
        reason=lambda w, c: (
            f"ep must divide num_experts, but ep={c.ep} and num_experts={w.model.num_experts}; "
            f"use {listed(divisors(max(1, w.model.num_experts), at_most=4096))}"
            + ("" if w.model.num_experts else f" ({w.model.name} is a dense model)")
        ),
    ),
    Law(
        name="ep_ranks",
        broken="ep does not divide the number of ranks that hold experts",
        fields=("tp", "dp", "cp", "ep"),
        check=lambda w, t: _expert_ranks(w, t.tp, t.dp, t.cp) % t.ep == 0,
        reason=lambda w, c: (
            f"expert-parallel ranks are taken from the {_named_expert_ranks(w)} ranks, so ep must divide the number of these ranks, "
            f"but ep={c.ep} and {_named_expert_ranks(w)} = {_expert_ranks(w, c.tp, c.dp, c.cp)}; "
            f"use {listed(divisors(_expert_ranks(w, c.tp, c.dp, c.cp), at_most=64))}"
        ),
    ),
)
"""rules on the degrees, in the order in which they are checked"""
