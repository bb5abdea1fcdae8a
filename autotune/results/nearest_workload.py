"""The configs of the nearest workload that was measured, where the one asked for was not.

`distance`: the Euclidean norm of the differences of two workloads in doublings, |log2 ratio|, of parameters, layers, hidden size, experts, sequence
length, GPU memory and GPU peak; 1 is twice as large in one of them. Only clusters with as many GPUs, and as many in each NVLink domain (mostly a node), are
compared, for a config's degrees make no sense on others, and only up to `FARTHEST`.
"""

from __future__ import annotations

from dataclasses import replace
from math import hypot, log2
from typing import Any, Protocol

from autotune.cost import estimate
from autotune.planning import fits
from autotune.ports import HistoryReader, KnowledgeStore
from autotune.results.answers import study_document
from autotune.results.calibrations import stored_calibration
from autotune.results.measured_configs import evidence, measured_configs
from autotune.results.question import Asked
from autotune.space import complete, why_not
from autotune.spec import GpuSpec, ParallelConfig, Workload

FARTHEST = 2.0
"""largest distance of a workload whose configs are handed on: four times as large in one respect"""


class BestKnownStore(HistoryReader, KnowledgeStore, Protocol):
    """What was measured, and the cost model's constants for what was not."""


def distance(one: Workload, other: Workload) -> float:
    """How far apart two workloads are, in doublings; infinite between clusters of different layout."""
    layouts = [(w.cluster.num_gpus, w.cluster.domain_gpus) for w in (one, other)]
    if layouts[0] != layouts[1]:
        return float("inf")
    return hypot(*(log2(a) - log2(b) for a, b in zip(_size(one), _size(other), strict=True)))


def _size(workload: Workload) -> tuple[float, ...]:
    model, gpu = workload.model, workload.cluster.gpu
    shape = (model.num_parameters, model.num_layers, model.hidden_size, max(1, model.num_experts))
    return (*shape, workload.seq_len, gpu.memory_bytes, _peak(gpu))


def _peak(gpu: GpuSpec) -> float:
    return gpu.peak_flops_per_s.get("bf16") or max(gpu.peak_flops_per_s.values())


def with_open_fields_of(asked: Asked, guess: Workload, known: Workload) -> Workload:
    """`guess` with the sequence length and batch of a known workload where the question left them open."""
    return replace(
        guess,
        seq_len=asked.seq_len or known.seq_len,
        global_batch_size=asked.global_batch_size or known.global_batch_size,
    )


def _adapted(workload: Workload, config: ParallelConfig) -> ParallelConfig | None:
    """The config with the accumulation that this workload's batch needs; None when it is not legal here."""

    knobs = {name: value for name, value in config.to_dict().items() if name != "accumulation_steps"}
    here = complete(workload, knobs)
    return here if why_not(workload, here) is None else None


def from_nearest(store: BestKnownStore, asked: Asked, workload: Workload, top: int) -> dict[str, Any] | None:
    """The configs of the nearest workload that are legal here and expected to fit."""

    near = sorted(((distance(k.workload, workload), k) for k in store.known_workloads()), key=lambda pair: pair[0])
    for far, known in near:
        if far > FARTHEST:
            return None
        rows, first = [], None
        pairs = measured_configs(store, asked, workload=known.key)
        for record, trial in pairs:
            config = _adapted(workload, trial.config)
            if config is None:
                continue
            here = estimate(workload, config, calibration=stored_calibration(workload, store))
            if not fits(here):
                continue
            first = first or {"config": config.to_dict(), "estimate": here.to_dict()}
            rows.append({"study": study_document(record), "best": trial.to_dict()})
            if len(rows) == top:
                break
        if first:
            nearest = {
                "model": known.workload.model.name,
                "cluster": known.workload.cluster.name,
                "seq_len": known.workload.seq_len,
                "global_batch_size": list(known.workload.global_batch_sizes),
                "distance": far,
                "here": first,
            }
            return {**rows[0], "configs": rows, "source": "nearest", "nearest": nearest, "evidence": evidence(pairs)}
    return None
