"""The best config that is known for a model on a cluster, and how it is known.

    measured     it was measured for a model and cluster of these names: with freshness, evidence, and what was not tried
    nearest      nothing was, but for a model of nearly this shape on as many GPUs; its config is legal here and expected to fit
    cost_model   neither: the cost model's first choice, which nobody has tried
    none         the model or the cluster is not known, or nothing fits

Distance between workloads (`distance`): the Euclidean norm of their differences in doublings, |log2 ratio|, of parameters, layers, hidden size, experts,
sequence length, GPU memory and GPU peak; 1 is twice as large in one of them. Only clusters with as many nodes and GPUs per node are compared, for
a config's degrees make no sense on others, and only up to `FARTHEST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import hypot, log2
from typing import Any, cast

from autotune.errors import AutotuneError, CatalogError, InfeasibleError
from autotune.ports import Store, StudyRecord
from autotune.spec import ClusterSpec, GpuSpec, ModelSpec, ParallelConfig, SpaceSpec, Trial, Workload, catalog
from autotune.spec.checks import positive_int
from autotune.spec.study import SIMULATED
from autotune.store.sql import SqlStore
from autotune.store.statistics import KnownWorkload
from autotune.wiring.answers import past_studies, study_document, trial_document
from autotune.wiring.assembly import stored_calibration

FARTHEST = 2.0
"""largest distance of a workload whose configs are handed on: four times as large in one respect"""
MOST_CONFIGS = 1000
"""measured configs of one workload that are looked at"""
SEQ_LEN, SEQUENCES_PER_GPU = 4096, 4
"""what is assumed of a model of which nothing is known"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whose best config is wanted."""

    model: str = ""
    """name in the catalog or in the history; empty: the best of each model and cluster"""
    cluster: str = ""
    """name"""
    trainer: str = ""
    """empty: any for what was measured, native for the cost model"""
    runner: str = ""
    """empty: all but simulated"""
    seq_len: int | None = None
    """tokens, for the nearest workload and for the cost model; None: as in the history, else assumed"""
    global_batch_size: int | None = None
    """sequences, for the cost model; None: as in the history, else assumed"""

    def __post_init__(self) -> None:
        for name in ("seq_len", "global_batch_size"):
            if (value := getattr(self, name)) is not None:
                positive_int(name, value, at_most=1 << 27)


def best_known(store: Store, asked: Asked, *, top: int = 1) -> dict[str, Any]:
    """{study, best, baseline, speedup, configs[] = {study, best}, source, evidence, untried, nearest, assumed, notes}.

    `evidence`: trials, configs, studies, last_at, age_s, spread (of the best config's steps). `untried`: legal and measured configs of the
    study's space, and the best untried one by the cost model. `nearest`: of which workload the configs are, its distance, and what the cost
    model expects of the first one here. `assumed`: what the question left open. Raises `SpecError`.
    """
    found = past_studies(
        store, model=asked.model, cluster=asked.cluster, trainer=asked.trainer, runner=asked.runner, limit=top
    )
    answer: dict[str, Any] = {"study": None, "best": None, "baseline": None, "speedup": None, "configs": found}
    answer |= {"source": "none", "evidence": None, "untried": None, "nearest": None, "assumed": None, "notes": []}
    if found:
        answer |= {**found[0], "source": "measured"}
        if asked.model and asked.cluster:
            pairs = _measured(store, asked, model=asked.model, cluster=asked.cluster)
            answer["evidence"] = _evidence(pairs)
            answer["untried"] = _untried(store, pairs)
        return answer
    if not (asked.model and asked.cluster):
        answer["notes"] = [
            "nothing was measured" + ("; name a cluster for what the cost model says" if asked.model else "")
        ]
        return answer
    try:
        workload, assumed = _workload(store, asked)
    except CatalogError as error:
        return {**answer, "notes": [str(error)]}
    return (
        answer
        | (_from_nearest(store, asked, workload, top) or _from_cost_model(store, workload, top))
        | {"assumed": assumed}
    )


def distance(one: Workload, other: Workload) -> float:
    """How far apart two workloads are, in doublings; infinite between clusters of different layout."""
    layouts = [(w.cluster.num_nodes, w.cluster.gpus_per_node) for w in (one, other)]
    if layouts[0] != layouts[1]:
        return float("inf")
    return hypot(*(log2(a) - log2(b) for a, b in zip(_size(one), _size(other), strict=True)))


def _size(workload: Workload) -> tuple[float, ...]:
    model, gpu = workload.model, workload.cluster.gpu
    shape = (model.num_parameters, model.num_layers, model.hidden_size, max(1, model.num_experts))
    return (*shape, workload.seq_len, gpu.memory_bytes, _peak(gpu))


def _peak(gpu: GpuSpec) -> float:
    return gpu.peak_flops_per_s.get("bf16") or max(gpu.peak_flops_per_s.values())


def _known(store: Store) -> list[KnownWorkload]:
    return cast(SqlStore, store).known_workloads()


def _measured(store: Store, asked: Asked, **names: Any) -> list[tuple[StudyRecord, Trial]]:
    """All measured configs of that model and cluster (or workload), best first."""
    without = "" if asked.runner else SIMULATED
    return store.best(trainer=asked.trainer, limit=MOST_CONFIGS, runner=asked.runner, without_runner=without, **names)


def _evidence(pairs: list[tuple[StudyRecord, Trial]]) -> dict[str, Any]:
    studies = {record.id: record for record, _ in pairs}
    ends = [trial.ended_at for _, trial in pairs if trial.ended_at is not None]
    best = pairs[0][1].measurement
    return {
        "trials": sum(sum(r.trial_counts.get(s, 0) for s in ("COMPLETED", "STOPPED")) for r in studies.values()),
        "configs": len(pairs),
        "studies": len(studies),
        "last_at": max(ends).isoformat() if ends else None,
        "age_s": (datetime.now(UTC) - max(ends)).total_seconds() if ends else None,
        "spread": best.step_time_spread if best else None,
    }


def _untried(store: Store, pairs: list[tuple[StudyRecord, Trial]]) -> dict[str, Any] | None:
    """What the space of the best config's study holds beside the measured configs; None when it cannot be worked out any more."""
    from autotune.plan import plan
    from autotune.space import SearchSpace

    study = pairs[0][0].study
    try:
        space = SearchSpace.build(study.workload, study.space)
    except AutotuneError:
        return None
    done = {trial.config for record, trial in pairs if record.study.workload == study.workload}
    tried = [config for config in done if space.index_of(config) is not None]
    ranked = plan(space, calibration=stored_calibration(study.workload, store), top=len(tried) + 1)
    first = next((row for row in ranked.rows if row.config not in done), None)
    best = {"config": first.config.to_dict(), "estimate": first.estimate.to_dict()} if first else None
    return {"legal": len(space), "measured": len(tried), "best": best}


def _workload(store: Store, asked: Asked) -> tuple[Workload, dict[str, Any]]:
    """What is asked about, with what had to be assumed. Raises `CatalogError` for names that neither catalog nor history know."""
    known = [k.workload for k in _known(store)]
    models: Mapping[str, ModelSpec] = {w.model.name: w.model for w in reversed(known)}
    clusters: Mapping[str, ClusterSpec] = {w.cluster.name: w.cluster for w in reversed(known)}
    model = models.get(asked.model) or catalog.model(asked.model)
    cluster = clusters.get(asked.cluster) or catalog.cluster(asked.cluster)
    guess = Workload(
        model=model,
        cluster=cluster,
        seq_len=asked.seq_len or min(SEQ_LEN, model.max_positions or SEQ_LEN),
        global_batch_size=asked.global_batch_size or SEQUENCES_PER_GPU * cluster.num_gpus,
        trainer=asked.trainer or "native",
    )
    workload = guess
    near = min(known, key=lambda w: distance(_as_open_as(asked, guess, w), w), default=None)
    if near is not None and distance(asked_like := _as_open_as(asked, guess, near), near) <= FARTHEST:
        workload = asked_like
    settled = {"seq_len": workload.seq_len, "global_batch_size": list(workload.global_batch_sizes)}
    return workload, settled | {"trainer": workload.trainer, "space": _space_of(workload)}


def _as_open_as(asked: Asked, guess: Workload, known: Workload) -> Workload:
    """`guess` with the sequence length and batch of a known workload where the question left them open."""
    return replace(
        guess,
        seq_len=asked.seq_len or known.seq_len,
        global_batch_size=asked.global_batch_size or known.global_batch_size,
    )


def _adapted(workload: Workload, config: ParallelConfig) -> ParallelConfig | None:
    """The config with the accumulation that this workload's batch needs; None when it is not legal here."""
    from autotune.space import complete, why_not

    knobs = {name: value for name, value in config.to_dict().items() if name != "accumulation_steps"}
    here = complete(workload, knobs)
    return here if why_not(workload, here) is None else None


def _from_nearest(store: Store, asked: Asked, workload: Workload, top: int) -> dict[str, Any] | None:
    """The configs of the nearest workload that are legal here and expected to fit."""
    from autotune.cost import estimate
    from autotune.plan import FITS

    near = sorted(((distance(k.workload, workload), k) for k in _known(store)), key=lambda pair: pair[0])
    for far, known in near:
        if far > FARTHEST:
            return None
        rows, first = [], None
        for record, trial in _measured(store, asked, workload=known.key):
            config = _adapted(workload, trial.config)
            if config is None:
                continue
            here = estimate(workload, config, calibration=stored_calibration(workload, store))
            if float(here.oom_probability) > FITS:
                continue
            first = first or {"config": config.to_dict(), "estimate": here.to_dict()}
            rows.append({"study": study_document(record), "best": trial_document(trial)})
            if len(rows) == top:
                break
        if first:
            pairs = _measured(store, asked, workload=known.key)
            nearest = {
                "model": known.workload.model.name,
                "cluster": known.workload.cluster.name,
                "seq_len": known.workload.seq_len,
                "global_batch_size": list(known.workload.global_batch_sizes),
                "distance": far,
                "here": first,
            }
            return {**rows[0], "configs": rows, "source": "nearest", "nearest": nearest, "evidence": _evidence(pairs)}
    return None


def _from_cost_model(store: Store, workload: Workload, top: int) -> dict[str, Any]:
    from autotune.plan import plan
    from autotune.space import SearchSpace

    try:
        space = SearchSpace.build(workload, _space(_space_of(workload)))
    except InfeasibleError as error:
        return {"notes": [str(error)]}
    found = plan(space, calibration=stored_calibration(workload, store), top=top)
    if found.nearest_miss is not None:
        return {"notes": ["nothing is expected to fit", *found.nearest_miss.remedies]}
    rows = [
        {
            "study": None,
            "best": {
                "config": r.config.to_dict(),
                "estimate": r.estimate.to_dict(),
                "measurement": None,
                "reward": None,
            },
        }
        for r in found.rows
    ]
    untried = {"legal": len(space), "measured": 0, "best": None}
    return {
        **rows[0],
        "configs": rows,
        "source": "cost_model",
        "untried": untried,
        "notes": [f"constants of the cost model: {found.source}"],
    }


def _space_of(workload: Workload) -> str:
    """The search space that ships for such a workload."""
    if workload.cluster.num_gpus == 1:
        return "single-gpu"
    if workload.model.num_experts:
        return "moe-multi-node"
    return "dense-single-node" if workload.cluster.num_nodes == 1 else "dense-multi-node"


def _space(name: str) -> SpaceSpec:
    from autotune.schema import parse_space

    return parse_space(name)
