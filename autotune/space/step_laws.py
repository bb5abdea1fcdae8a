"""Rules on a step: pipeline, sequence parallelism, batch, recomputation, and precision.

Sources: Megatron-LM argument checks (sequence parallelism, interleaving,
`--account-for-embedding-in-pipeline-split`), torch.distributed.pipelining (1F1B needs at least as
many micro-batches as stages, multi-stage schedules more than one stage per rank).
"""

from __future__ import annotations

import numpy as np

from autotune.space.law import Law, Mask, divides, listed, product
from autotune.spec import KNOBS, ConfigTable, Workload

_FULL_BUDGET = KNOBS["activation_budget"].encode(100)


def _pipelined(table: ConfigTable) -> Mask:
    return table.pp > 1


def _interleaved(table: ConfigTable) -> Mask:
    return table.is_word("pp_schedule", "interleaved_1f1b") | table.is_word(
        "pp_schedule", "interleaved_zero_bubble"
    )


def _precisions(workload: Workload) -> str:
    return ", ".join(workload.cluster.gpu.peak_flops_per_s)


def _has_precision(workload: Workload, table: ConfigTable) -> Mask:
    mask = np.zeros(len(table), dtype=np.bool_)
    for precision in workload.cluster.gpu.peak_flops_per_s:
        mask |= table.is_word("precision", precision)
    return mask


_WITH_BF16 = ("bf16", "fp8", "mxfp8", "nvfp4")
"""precisions in which weights may be kept in bf16"""


def _allows_pure_bf16(workload: Workload, table: ConfigTable) -> Mask:
    if not workload.pure_bf16:
        return np.ones(len(table), dtype=np.bool_)
    return np.asarray(
        np.logical_or.reduce([table.is_word("precision", word) for word in _WITH_BF16])
    )


STEP_LAWS: tuple[Law, ...] = (
    Law(
        name="pp_split",
        broken="pp_split without a pipeline",
        fields=("pp", "pp_split"),
        check=lambda w, t: t.is_word("pp_split", "layers") | _pipelined(t),
        reason=lambda w, c: (
            f"pp_split needs pipeline stages, but pp=1 and pp_split={c.pp_split}; use pp_split=layers, or pp > 1"
        ),
    ),
    Law(
        name="pp_layers",
        broken="more pipeline stages than layers",
        fields=("pp", "virtual_stages", "pp_split"),
        check=lambda w, t: (
            t.pp * t.virtual_stages <= w.model.num_layers + 2 * t.is_word("pp_split", "edges")
        ),
        reason=lambda w, c: (
            "every pipeline stage needs a layer (with pp_split=edges, embedding and loss count as one layer each), so pp * virtual_stages must be at "
            f"most {'num_layers + 2' if c.pp_split == 'edges' else 'num_layers'}, but pp={c.pp}, virtual_stages={c.virtual_stages} and "
            f"num_layers={w.model.num_layers}; use a smaller pp"
        ),
    ),
    Law(
        name="pp_schedule",
        broken="a pipeline schedule without a pipeline",
        fields=("pp", "pp_schedule", "virtual_stages"),
        check=lambda w, t: (
            _pipelined(t) | (t.is_word("pp_schedule", "1f1b") & (t.virtual_stages == 1))
        ),
        reason=lambda w, c: (
            "without a pipeline there is nothing to schedule, so pp=1 needs pp_schedule=1f1b and virtual_stages=1, "
            f"but pp_schedule={c.pp_schedule} and virtual_stages={c.virtual_stages}; keep the defaults of both, or use pp > 1"
        ),
    ),
    Law(
        name="pp_virtual_stages",
        broken="virtual_stages does not match the pipeline schedule",
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
        broken="sequence_parallel without tensor parallelism",
        fields=("tp", "sequence_parallel"),
        check=lambda w, t: ~t.sequence_parallel | (t.tp > 1),
        reason=lambda w, c: (
            "sequence_parallel shards over the tensor-parallel group, but tp=1; use tp > 1, or sequence_parallel=false"
        ),
    ),
    Law(
        name="sp_sequence",
        broken="seq_len is not a multiple of tp * cp (with sequence_parallel)",
        fields=("tp", "cp", "sequence_parallel"),
        check=lambda w, t: ~t.sequence_parallel | divides(w.seq_len, t.tp * t.cp),
        reason=lambda w, c: (
            f"with sequence_parallel, seq_len must be a multiple of tp * cp, but seq_len={w.seq_len}, tp={c.tp} and cp={c.cp}; "
            "use sequence_parallel=false, or another seq_len"
        ),
    ),
    Law(
        name="sp_async_tp",
        broken="async_tp without tensor and sequence parallelism",
        fields=("tp", "sequence_parallel", "async_tp"),
        check=lambda w, t: ~t.async_tp | ((t.tp > 1) & t.sequence_parallel),
        reason=lambda w, c: (
            "async_tp overlaps the gathers and scatters of sequence parallelism, so it needs tp > 1 and sequence_parallel, "
            f"but tp={c.tp} and sequence_parallel={str(c.sequence_parallel).lower()}; use async_tp=false, or tp > 1 with sequence_parallel=true"
        ),
    ),
    Law(
        name="batch",
        broken="micro_batch_size * accumulation_steps * dp is not the global batch size",
        fields=("dp", "micro_batch_size", "accumulation_steps"),
        check=lambda w, t: np.isin(
            product(t, "micro_batch_size", "accumulation_steps", "dp"),
            np.array(w.global_batch_sizes, dtype=np.float64),
        ),
        reason=lambda w, c: (
            f"micro_batch_size * accumulation_steps * dp must be the global batch size {listed(w.global_batch_sizes)}, "
            f"but micro_batch_size={c.micro_batch_size}, accumulation_steps={c.accumulation_steps}, dp={c.dp} "
            f"and their product is {c.global_batch_size}; change one of them, or the workload's global_batch_size"
        ),
    ),
    Law(
        name="pp_fill",
        broken="fewer micro-batches than pipeline ranks",
        fields=("pp", "accumulation_steps"),
        check=lambda w, t: t.accumulation_steps >= np.where(_pipelined(t), t.pp, 1),
        reason=lambda w, c: (
            "a pipeline needs at least one micro-batch per rank, so accumulation_steps must be at least pp, "
            f"but accumulation_steps={c.accumulation_steps} and pp={c.pp}; use a smaller micro_batch_size, or a smaller pp"
        ),
    ),
    Law(
        name="pp_interleave",
        broken="accumulation_steps is not a multiple of pp (with an interleaved schedule)",
        fields=("pp", "pp_schedule", "accumulation_steps"),
        check=lambda w, t: ~(_pipelined(t) & _interleaved(t)) | (t.accumulation_steps % t.pp == 0),
        reason=lambda w, c: (
            "interleaved schedules work through the micro-batches in rounds of pp, so accumulation_steps must be a multiple of pp, "
            f"but accumulation_steps={c.accumulation_steps} and pp={c.pp}; use pp_schedule=1f1b, or another micro_batch_size"
        ),
    ),
    Law(
        name="budget",
        broken="activation_budget without compile, or with recompute",
        fields=("recompute", "compile", "activation_budget"),
        check=lambda w, t: (
            (t.activation_budget == _FULL_BUDGET) | (t.compile & t.is_word("recompute", "none"))
        ),
        reason=lambda w, c: (
            "the compiler chooses what activation_budget recomputes, so it needs compile=true and recompute=none, "
            f"but compile={str(c.compile).lower()}, recompute={c.recompute} and activation_budget={c.activation_budget}; "
            "use activation_budget=100, or compile=true with recompute=none"
        ),
    ),
    Law(
        name="precision",
        broken="the GPU does not support the precision",
        fields=("precision",),
        check=_has_precision,
        reason=lambda w, c: (
            f"the GPU must support the precision, but {w.cluster.gpu.name} has {_precisions(w)} and precision={c.precision}; "
            f"use {_precisions(w).replace(', ', ' or ')}"
        ),
    ),
    Law(
        name="pure_bf16",
        broken="the precision does not match weights in bf16",
        fields=("precision",),
        check=_allows_pure_bf16,
        reason=lambda w, c: (
            f"pure_bf16 keeps all weights in bf16, but precision={c.precision}; use {' or '.join(_WITH_BF16)}, or omit pure_bf16"
        ),
    ),
)
"""rules on a step, in the order in which they are checked"""
