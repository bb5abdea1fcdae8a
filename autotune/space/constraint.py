"""The laws that decide which configs exist: each a vectorized check, with the reason in words when it is broken.

    world_size   tp * pp * dp * cp fits the cluster               batch     micro_batch_size * accumulation_steps * dp is the asked batch
    tp_*         what tensor parallelism cuts must divide         pp_*      layers, schedule and micro-batches of a pipeline
    sp_*         sequence parallelism                             cp_*      context parallelism
    ep_*         expert parallelism                               zero_*    what ZeRO can shard, and where
    precision    the hardware has it

Assumptions: vocabularies are padded by the trainer (Megatron pads to a multiple of 128 * tp), so no law speaks of them; layers need not divide
evenly over stages; what one trainer alone cannot do is not a law but a limit of that trainer. Some laws refuse configs that would train,
because they are another config under a second name (ZeRO on one rank, a schedule without a pipeline): the space holds every
training once.

Sources: Megatron-LM argument checks (heads, kv heads, ffn, sequence parallelism, interleaving, context parallelism), torch.distributed.pipelining
(1F1B needs at least as many micro-batches as stages, multi-stage schedules more than one stage per rank), DeepSpeed (no ZeRO 2 or 3 under a pipeline).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, ParallelConfig, Workload

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One rule that a config obeys or breaks."""

    name: str
    """short and stable: rejected combinations are counted under it"""
    fields: tuple[str, ...]
    """the knobs that it reads; it can be checked as soon as they are known"""
    check: Callable[[Workload, ConfigTable], Mask]
    """where it holds, shape (N,)"""
    reason: Callable[[Workload, ParallelConfig], str]
    """why it is broken: law, values, remedy"""


def why_not(workload: Workload, config: ParallelConfig, laws: Sequence[Law] | None = None) -> str | None:
    """The reason of the first law that `config` breaks, or None when it is legal."""
    return next(iter(reasons(workload, config, laws)), None)


def reasons(workload: Workload, config: ParallelConfig, laws: Sequence[Law] | None = None) -> list[str]:
    """The reasons of all laws (default `LAWS`) that `config` breaks."""
    table = ConfigTable.of([config])
    broken = (law for law in (LAWS if laws is None else laws) if not law.check(workload, table)[0])
    return [law.reason(workload, config) for law in broken]


def legal(workload: Workload, table: ConfigTable) -> Mask:
    """Which rows of `table` obey all `LAWS`, shape (N,)."""
    mask = np.ones(len(table), dtype=np.bool_)
    for law in LAWS:
        mask &= law.check(workload, table)
    return mask


def world_size_law(sizes: Sequence[int]) -> Law:
    """The law of a space: a config uses exactly one of these numbers of ranks."""
    allowed = np.array(sorted(sizes), dtype=np.float64)
    return Law(
        name="world_size",
        fields=("tp", "pp", "dp", "cp"),
        check=lambda w, t: np.isin(_product(t, "tp", "pp", "dp", "cp"), allowed),
        reason=lambda w, c: (
            f"tp * pp * dp * cp must be {_listed(sizes)}, but {_degrees(c)} and their product is {c.world_size}; "
            "change a degree, or the world_sizes of the space"
        ),
    )


def _product(table: ConfigTable, *names: str) -> NDArray[np.float64]:
    """The product of columns; as floats, which are exact as far as any cluster goes and cannot wrap around."""
    product = np.ones(len(table), dtype=np.float64)
    for name in names:
        product *= table.column(name)
    return product


def _divides(number: int, by: NDArray[np.int64]) -> Mask:
    mask: Mask = number % by == 0
    return mask


def _pipelined(table: ConfigTable) -> Mask:
    return table.pp > 1


def _interleaved(table: ConfigTable) -> Mask:
    return table.is_word("pp_schedule", "interleaved_1f1b") | table.is_word("pp_schedule", "interleaved_zero_bubble")


def _divisors(number: int, *, at_most: int) -> list[int]:
    return [d for d in range(1, min(number, at_most) + 1) if number % d == 0]


def _listed(values: Sequence[int]) -> str:
    """ "1, 2 or 4"."""
    words = [str(v) for v in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _degrees(c: ParallelConfig) -> str:
    return f"tp={c.tp}, pp={c.pp}, dp={c.dp}, cp={c.cp}"


def _tp_must_divide(name: str, size: Callable[[Workload], int], what: str) -> Law:
    return Law(
        name=name,
        fields=("tp",),
        check=lambda w, t: _divides(size(w), t.tp),
        reason=lambda w, c: (
            f"tp must divide {what}, but tp={c.tp} and {what}={size(w)}; "
            f"use {_listed(_divisors(size(w), at_most=w.cluster.gpus_per_node))}"
        ),
    )


def _tp_within_node(workload: Workload, table: ConfigTable) -> Mask:
    """Ranks are numbered with tp fastest: a group stays in its node when it divides the node, or when one node holds all ranks."""
    node = workload.cluster.gpus_per_node
    one_node = _product(table, "tp", "pp", "dp", "cp") <= node
    return (table.tp <= node) & (_divides(node, table.tp) | one_node)


def _precisions(workload: Workload) -> str:
    return ", ".join(workload.cluster.gpu.peak_flops_per_s)


def _has_precision(workload: Workload, table: ConfigTable) -> Mask:
    mask = np.zeros(len(table), dtype=np.bool_)
    for precision in workload.cluster.gpu.peak_flops_per_s:
        mask |= table.is_word("precision", precision)
    return mask


LAWS: tuple[Law, ...] = (
    Law(
        name="world_size",
        fields=("tp", "pp", "dp", "cp"),
        check=lambda w, t: _product(t, "tp", "pp", "dp", "cp") <= w.cluster.num_gpus,
        reason=lambda w, c: (
            f"tp * pp * dp * cp must be at most the {w.cluster.num_gpus} GPUs of {w.cluster.name}, "
            f"but {_degrees(c)} and their product is {c.world_size}; use smaller degrees or a larger cluster"
        ),
    ),
    _tp_must_divide("tp_heads", lambda w: w.model.num_attention_heads, "num_attention_heads"),
    _tp_must_divide("tp_kv_heads", lambda w: w.model.num_kv_heads, "num_kv_heads"),
    _tp_must_divide("tp_ffn", lambda w: w.model.ffn_hidden_size, "ffn_hidden_size"),
    Law(
        name="tp_within_node",
        fields=("tp", "pp", "dp", "cp"),
        check=_tp_within_node,
        reason=lambda w, c: (
            f"a tensor-parallel group must stay within one node, but tp={c.tp} and gpus_per_node={w.cluster.gpus_per_node}; "
            f"use {_listed(_divisors(w.cluster.gpus_per_node, at_most=w.cluster.gpus_per_node))}"
        ),
    ),
    Law(
        name="cp_sequence",
        fields=("cp",),
        check=lambda w, t: (t.cp == 1) | _divides(w.seq_len, 2 * t.cp),
        reason=lambda w, c: (
            "context parallelism deals every rank two slices of the sequence (so that causal work is even): seq_len must be a multiple "
            f"of 2 * cp, but seq_len={w.seq_len} and cp={c.cp}; use a cp that divides {w.seq_len}/2, or another seq_len"
        ),
    ),
    Law(
        name="zero_ranks",
        fields=("dp", "cp", "zero_stage"),
        check=lambda w, t: (t.zero_stage == 0) | (t.dp > 1) | (t.cp > 1),
        reason=lambda w, c: (
            f"ZeRO shards over dp * cp ranks, but zero_stage={c.zero_stage} and dp * cp = 1, which is zero_stage=0 under another name; "
            "use zero_stage=0, or more data-parallel ranks"
        ),
    ),
    Law(
        name="zero_pipeline",
        fields=("pp", "zero_stage"),
        check=lambda w, t: (t.zero_stage <= 1) | (t.pp == 1),
        reason=lambda w, c: (
            "under a pipeline every micro-batch would reduce-scatter its gradients (ZeRO 2) and gather its weights (ZeRO 3) again, "
            f"so zero_stage must be 0 or 1 with pp > 1, but zero_stage={c.zero_stage} and pp={c.pp}; use zero_stage=1, or pp=1"
        ),
    ),
    Law(
        name="ep_experts",
        fields=("ep",),
        check=lambda w, t: (t.ep == 1) | (_divides(w.model.num_experts, t.ep) & (w.model.num_experts > 0)),
        reason=lambda w, c: (
            f"ep must divide num_experts, but ep={c.ep} and num_experts={w.model.num_experts}; "
            f"use {_listed(_divisors(max(1, w.model.num_experts), at_most=4096))}"
            + ("" if w.model.num_experts else f" ({w.model.name} is a dense model)")
        ),
    ),
    Law(
        name="ep_ranks",
        fields=("dp", "cp", "ep"),
        check=lambda w, t: (t.dp * t.cp) % t.ep == 0,
        reason=lambda w, c: (
            f"expert-parallel ranks are taken from dp * cp, so ep must divide it, but ep={c.ep} and dp * cp = {c.dp * c.cp}; "
            f"use {_listed(_divisors(c.dp * c.cp, at_most=64))}"
        ),
    ),
    Law(
        name="pp_layers",
        fields=("pp", "virtual_stages"),
        check=lambda w, t: t.pp * t.virtual_stages <= w.model.num_layers,
        reason=lambda w, c: (
            "every pipeline stage needs a layer: pp * virtual_stages must be at most num_layers, "
            f"but pp={c.pp}, virtual_stages={c.virtual_stages} and num_layers={w.model.num_layers}; use a smaller pp"
        ),
    ),
    Law(
        name="pp_schedule",
        fields=("pp", "pp_schedule", "virtual_stages"),
        check=lambda w, t: _pipelined(t) | (t.is_word("pp_schedule", "1f1b") & (t.virtual_stages == 1)),
        reason=lambda w, c: (
            "without a pipeline there is nothing to schedule: pp=1 goes with pp_schedule=1f1b and virtual_stages=1, "
            f"but pp_schedule={c.pp_schedule} and virtual_stages={c.virtual_stages}; leave both at their defaults, or use pp > 1"
        ),
    ),
    Law(
        name="pp_virtual_stages",
        fields=("pp", "pp_schedule", "virtual_stages"),
        check=lambda w, t: ~_pipelined(t) | (_interleaved(t) == (t.virtual_stages > 1)),
        reason=lambda w, c: (
            "interleaved schedules have more than one stage per rank, the others exactly one, "
            f"but pp_schedule={c.pp_schedule} and virtual_stages={c.virtual_stages}; "
            + (
                "use virtual_stages >= 2"
                if c.pp_schedule.startswith("interleaved")
                else "use virtual_stages=1, or an interleaved schedule"
            )
        ),
    ),
    Law(
        name="sp_tensor_parallel",
        fields=("tp", "sequence_parallel"),
        check=lambda w, t: ~t.sequence_parallel | (t.tp > 1),
        reason=lambda w, c: (
            "sequence_parallel shards over the tensor-parallel group, but tp=1; use tp > 1, or sequence_parallel=false"
        ),
    ),
    Law(
        name="sp_sequence",
        fields=("tp", "cp", "sequence_parallel"),
        check=lambda w, t: ~t.sequence_parallel | _divides(w.seq_len, t.tp * t.cp),
        reason=lambda w, c: (
            f"with sequence_parallel, seq_len must be a multiple of tp * cp, but seq_len={w.seq_len}, tp={c.tp} and cp={c.cp}; "
            "use sequence_parallel=false, or another seq_len"
        ),
    ),
    Law(
        name="batch",
        fields=("dp", "micro_batch_size", "accumulation_steps"),
        check=lambda w, t: np.isin(
            _product(t, "micro_batch_size", "accumulation_steps", "dp"),
            np.array(w.global_batch_sizes, dtype=np.float64),
        ),
        reason=lambda w, c: (
            f"micro_batch_size * accumulation_steps * dp must be the global batch size {_listed(w.global_batch_sizes)}, "
            f"but micro_batch_size={c.micro_batch_size}, accumulation_steps={c.accumulation_steps}, dp={c.dp} "
            f"and their product is {c.global_batch_size}; change one of them, or the workload's global_batch_size"
        ),
    ),
    Law(
        name="pp_fill",
        fields=("pp", "accumulation_steps"),
        check=lambda w, t: t.accumulation_steps >= np.where(_pipelined(t), t.pp, 1),
        reason=lambda w, c: (
            "a pipeline needs a micro-batch for each of its ranks: accumulation_steps must be at least pp, "
            f"but accumulation_steps={c.accumulation_steps} and pp={c.pp}; use a smaller micro_batch_size, or a smaller pp"
        ),
    ),
    Law(
        name="pp_interleave",
        fields=("pp", "pp_schedule", "accumulation_steps"),
        check=lambda w, t: ~(_pipelined(t) & _interleaved(t)) | (t.accumulation_steps % t.pp == 0),
        reason=lambda w, c: (
            "interleaved schedules work through the micro-batches in rounds of pp: accumulation_steps must be a multiple of pp, "
            f"but accumulation_steps={c.accumulation_steps} and pp={c.pp}; use pp_schedule=1f1b, or another micro_batch_size"
        ),
    ),
    Law(
        name="precision",
        fields=("precision",),
        check=_has_precision,
        reason=lambda w, c: (
            f"the GPU must support the precision, but {w.cluster.gpu.name} has {_precisions(w)} and precision={c.precision}; "
            f"use {_precisions(w).replace(', ', ' or ')}"
        ),
    ),
)
"""All laws that need no more than workload and config, cheapest and most general first."""
