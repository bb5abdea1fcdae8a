"""What a rank does in one step, composed from a profile: FLOPs and matrix products of a micro-batch, and every collective of the step.

    d ranks that hold the same weights, or cut them    w weights    m micro-batches    p pipeline stages

per micro-batch   what `profile_work.py` has of the layers and what is before and behind them; between stages one message forward and one backward
replicated        (ZeRO 0) the gradients of each bucket are summed in fp32; ZeRO 1 scatters the sums and gathers the updated weights, both in fp32
                  (`autotune_workers.training.data_parallel`)
sharded           (ZeRO 2, 3) weights of a layer, or of all that is outside of the layers, are gathered together in the compute dtype: once per step in ZeRO 2,
                  before the forward and the backward pass of every micro-batch in ZeRO 3. A pipeline keeps them after a backward pass until the next
                  forward pass is through with them. Gradients are scattered in fp32 in the last micro-batch (FSDP2, Zhao et al. 2023, arXiv:2304.11277)
copies of shards  (HSDP, `dp_replicas`) sum their parts of the gradients over the copies
at the end        all ranks agree on loss and gradient norm
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

from autotune.cost.compute import element_bytes
from autotune.cost.profile import Profile
from autotune.cost.profile_compose import stage_layers
from autotune.cost.profile_replicated import bucketed
from autotune.cost.profile_runs import kind_of
from autotune.cost.profile_weights import RankShapes
from autotune.cost.profile_work import SegmentWork
from autotune.cost.profile_work_read import VERDICT_BYTES
from autotune.errors import DryRunError
from autotune.spec import ConfigTable, ParallelConfig, Workload

ALONE = "ranks"
"""axis of what is called in a group that is none of the mesh's, such as that of a single rank"""
Call = tuple[str, str, int]
"""Kind, axis and bytes of a collective, with the words of `CollectiveCall`."""
Product = tuple[int, int, int, str]
"""m, n, k and dtype of matrix products."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """One rank's work and traffic."""

    flops: float
    """of one micro-batch, forward and backward, with what is recomputed"""
    flops_again: float
    """of these, what is recomputed"""
    products: Mapping[Product, int]
    """matrix products of one micro-batch, and how many"""
    collectives: Mapping[Call, int]
    """of one step, and how many"""


def rank_work(profile: Profile, workload: Workload, config: ParallelConfig, pp_rank: int = 0) -> RankWork:
    """What the ranks of that stage do. Raises `DryRunError` where the profile does not answer."""
    if reason := profile.why_no_work(config):
        raise DryRunError(f"the profile does not answer for {config}: {reason}", remedy="run it dry in full")
    sizes = (float(config.micro_batch_size), workload.seq_len / config.cp, float(config.tp))
    layers = stage_layers(workload.model, config)[pp_rank]
    is_first, is_last = pp_rank == 0, pp_rank == config.pp - 1
    work = profile.work[kind_of(config.zero_stage, config.tp)]
    each = work.of_micro_batch(config.recompute, layers, is_first=is_first, is_last=is_last)
    once = work.of_step_end(layers, is_first=is_first, is_last=is_last)
    products: Counter[Product] = Counter()
    for one, count in each.operations.items():
        if one.is_product:
            m, n, k, times = (round(size.at(*sizes)) for size in one.sizes)
            products[m, n, k, one.dtype] += count * times
    calls = _calls(each, sizes, config.accumulation_steps) + _calls(once, sizes, 1)
    shapes = RankShapes.of(profile.weights, config.tp, layers, is_first=is_first, is_last=is_last)
    for kind, axis, num_bytes, count in _of_weights(shapes, config):
        calls[kind, axis, num_bytes] += count
    for (_, axis, num_bytes), count in _calls(work.message, sizes, config.accumulation_steps).items():
        for kind in ("send", "recv") if config.pp > 1 else ():
            calls[kind, axis, num_bytes] += count * ((not is_first) + (not is_last))
    calls["all_reduce", _axis_of_all(config), VERDICT_BYTES] += 1
    flops = {again: _flops(each, sizes, again=again) for again in (False, True)}
    return RankWork(
        flops=flops[False] + flops[True],
        flops_again=flops[True],
        products=dict(products),
        collectives={call: count for call, count in calls.items() if count},
    )


def _flops(work: SegmentWork, sizes: tuple[float, float, float], *, again: bool) -> float:
    return sum(count * one.flops.at(*sizes) for one, count in work.operations.items() if one.is_again == again)


def _calls(work: SegmentWork, sizes: tuple[float, float, float], times: int) -> Counter[Call]:
    found: Counter[Call] = Counter()
    for one, count in work.collectives.items():
        found[one.kind, one.axis, round(one.num_bytes.at(*sizes))] += count * times
    return found


def _of_weights(shapes: RankShapes, config: ParallelConfig) -> Iterator[tuple[str, str, int, int]]:
    """(kind, axis, bytes, calls) of data parallelism."""
    ranks = config.dp * config.cp
    if ranks == 1:
        return
    shards = ranks // config.dp_replicas
    axis, among_copies = ("dp_cp_shard", "dp_cp_replica") if config.dp_replicas > 1 else ("dp_cp", "")
    if shards == 1:
        axis = ALONE
    if config.zero_stage < 2:
        multiple = shards if config.zero_stage else ranks
        for bucket in bucketed(shapes):
            numel = -(-sum(w.numel for _, _, w in bucket) // multiple) * multiple
            if config.zero_stage == 0:
                yield "all_reduce", "dp_cp", 4 * numel, 1
                continue
            yield "reduce_scatter", axis, 4 * numel, 1
            yield "all_gather", axis, 4 * numel, 1
            if among_copies:
                yield "all_reduce", among_copies, 4 * numel // shards, 1
        return
    size = int(element_bytes(ConfigTable.of([config]))[0])
    m = config.accumulation_steps
    gathers = 1 if config.zero_stage == 2 else 2 * m if config.pp == 1 else m + 1
    for weights, groups in (((*shapes.first, *shapes.last), 1), (shapes.layer, shapes.layers)):
        numel = sum(w.padded(shards) for w in weights)
        if not numel or not groups:
            continue
        if shards > 1:
            yield "all_gather", axis, size * numel, groups * gathers
            yield "reduce_scatter", axis, 4 * numel, groups
        if among_copies:
            yield "all_reduce", among_copies, 4 * numel // shards, groups


def _axis_of_all(config: ParallelConfig) -> str:
    """Name of the group of all ranks: that of the only mesh axis, where there is no other."""
    data = config.dp * config.cp
    sizes = {"tp": config.tp, "pp": config.pp, "dp_cp_replica" if data == config.dp_replicas else "dp_cp": data}
    cut = [name for name, size in sizes.items() if size > 1]
    return cut[0] if len(cut) == 1 else ALONE
