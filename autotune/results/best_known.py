"""The best config that is known for a model on a cluster, and how it is known.

measured     it was measured for a model and cluster of these names: with freshness, evidence, and what was not tried
nearest      a model of nearly this shape was, on as many GPUs; its config is legal here and expected to fit (`nearest_workload`)
cost_model   nothing near was measured: the cost model's first choice, which nobody has tried
none         the model or the cluster is not known, or nothing fits

Order: by the tokens per second per GPU of the cluster at which they stand
(`autotune.reward.ranking`). Where the question names an objective: by its reward among the
measurements of one workload, the fastest one's, relative to the baseline there, so that the results
of several studies are compared by one measure.

The configs of the nearest workload that was measured, where the one asked for was not.

`distance`: the Euclidean norm of the differences of two workloads in doublings, |log2 ratio|, of
parameters, layers, hidden size, experts, sequence length, GPU memory and GPU peak; 1 is twice as
large in one of them. Only clusters with as many GPUs, and as many in each NVLink domain (mostly a
node), are compared, for a config's degrees make no sense on others, and only up to `FARTHEST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import hypot, log2
from typing import Any, Protocol

from autotune import reward
from autotune.cost import estimate
from autotune.errors import AutotuneError, CatalogError, InfeasibleError, SpecError
from autotune.plan.plan import fits, plan
from autotune.ports import HistoryReader, KnowledgeStore, StudyRecord
from autotune.results.answers import past_studies, study_document
from autotune.results.calibrations import program_of, stored_calibration
from autotune.results.question import Asked
from autotune.results.winner import confirmed_best
from autotune.space import Launchable, SearchSpace, complete, default_config, why_not
from autotune.spec import (
    ClusterSpec,
    GpuSpec,
    ModelSpec,
    Objective,
    ParallelConfig,
    Trial,
    Workload,
    catalog,
)
from autotune.spec.study import SIMULATED
from autotune.trainers import trainer

RUNS, SHOWN_RUNS = 50, 3
"""observed runs: the last ones that are looked at, and the fastest of them that are told"""
SEQ_LEN, SEQUENCES_PER_GPU = 4096, 4
"""what is assumed of a model of which nothing is known"""


def best_known(store: BestKnownStore, asked: Asked, *, top: int = 1) -> dict[str, Any]:
    """{study, best, baseline, speedup, configs[] = {study, best}, source, objective, evidence,
    untried, nearest, assumed, notes}.

    `evidence`: trials, configs, studies, last_at, age_s, spread (of the best config's steps).
    `untried`: legal and measured configs of the study's space, and the best untried one by the cost
    model. `observed`: runs that people started themselves, the fastest first; they are no trials,
    and none is the best. `nearest`: of which workload the configs are, its distance, and what the
    cost model expects of the first one here. `assumed`: what the question left open. With an
    objective the rewards are those of that objective. Raises `SpecError`.
    """
    answer: dict[str, Any] = {"study": None, "best": None, "baseline": None, "configs": []}
    answer |= dict.fromkeys(("speedup", "speedup_low", "speedup_high"))
    answer |= {
        "source": "none",
        "evidence": None,
        "untried": None,
        "nearest": None,
        "assumed": None,
        "notes": [],
    }
    answer["objective"] = _objective_document(asked.objective)
    answer["observed"] = _observed(store, asked)
    if not (asked.model and asked.cluster):
        names = {"model": asked.model, "cluster": asked.cluster, **asked.measured_filters}
        found = past_studies(store, **names, limit=top)
        if found:
            return answer | found[0] | {"source": "measured", "configs": found}
        hint = "; specify a cluster to get a prediction" if asked.model else ""
        if not asked.runner and past_studies(store, **(names | {"runner": SIMULATED}), limit=1):
            hint += f"; simulated results are shown only with runner {SIMULATED}"
        return answer | {"notes": ["nothing was measured" + hint]}
    if pairs := measured_configs(store, asked, model=asked.model, cluster=asked.cluster):
        rows = [
            {"study": study_document(record), "best": trial.to_dict()}
            for record, trial in pairs[:top]
        ]
        answer |= {**rows[0], "source": "measured", "configs": rows}
        return (
            answer
            | {"evidence": evidence(pairs), "untried": _untried(store, pairs)}
            | _compared(asked, pairs)
        )
    try:
        workload, assumed = _workload(store, asked)
    except CatalogError as error:
        return {**answer, "notes": [str(error)]}
    return (
        answer
        | (
            from_nearest(store, asked, workload, top)
            or _from_cost_model(store, asked, workload, assumed["space"], top)
        )
        | {"assumed": assumed}
    )


def _observed(store: BestKnownStore, asked: Asked) -> list[dict[str, Any]]:
    if not (asked.model and asked.cluster):
        return []
    runs = store.observed(
        model=asked.model, cluster=asked.cluster, trainer=asked.trainer, measured=True, limit=RUNS
    )
    sure = [run for run in runs if run.measurement and (run.measurement.mfu or 0.0) <= 1.0]
    sure.sort(key=lambda run: -run.measurement.median_tokens_per_s if run.measurement else 0.0)
    return [run.to_dict() for run in sure[:SHOWN_RUNS]]


def _compared(asked: Asked, pairs: list[tuple[StudyRecord, Trial]]) -> dict[str, Any]:
    """What must be said of an order by an objective."""
    if asked.objective is None:
        return {}
    w = pairs[0][0].study.workload
    batches = ", ".join(map(str, w.global_batch_sizes))
    return {
        "notes": [
            f"among measurements at {w.seq_len:,} tokens x {batches} sequences, trainer {w.trainer}"
        ]
    }


def _objective_document(objective: Objective | None) -> dict[str, Any] | None:
    if objective is None:
        return None
    return {"metric": objective.metric, "stability_weight": objective.stability_weight}


def _untried(
    store: KnowledgeStore, pairs: list[tuple[StudyRecord, Trial]]
) -> dict[str, Any] | None:
    """What the space of the best config's study holds beside the measured configs; None when it
    cannot be worked out any more."""

    study = pairs[0][0].study
    try:
        space = SearchSpace.of_study(study)
    except AutotuneError:
        return None
    done = {trial.config for record, trial in pairs if record.study.workload == study.workload}
    tried = [config for config in done if space.index_of(config) is not None]
    ranked = plan(
        space,
        calibration=stored_calibration(study.workload, store, program_of(study)),
        top=len(tried) + 1,
    )
    first = next((row for row in ranked.rows if row.config not in done), None)
    best = (
        {"config": first.config.to_dict(), "estimate": first.estimate.to_dict()} if first else None
    )
    return {"legal": len(space), "measured": len(tried), "best": best}


def _workload(store: HistoryReader, asked: Asked) -> tuple[Workload, dict[str, Any]]:
    """What is asked about, with what had to be assumed. Raises `CatalogError` for names that
    neither catalog nor history know."""
    from autotune.schema.space_models import space_for

    known = [k.workload for k in store.known_workloads()]
    models: Mapping[str, ModelSpec] = {w.model.name: w.model for w in reversed(known)}
    clusters: Mapping[str, ClusterSpec] = {w.cluster.name: w.cluster for w in reversed(known)}
    model = models.get(asked.model) or catalog.model(asked.model)
    cluster = clusters.get(asked.cluster) or catalog.cluster(asked.cluster)
    trainer(asked.trainer or "native")  # an unknown name is refused, not given native's ranking
    guess = Workload(
        model=model,
        cluster=cluster,
        seq_len=asked.seq_len or min(SEQ_LEN, model.max_positions or SEQ_LEN),
        global_batch_size=asked.global_batch_size or SEQUENCES_PER_GPU * cluster.num_gpus,
        trainer=asked.trainer or "native",
    )
    workload = guess
    near = min(known, key=lambda w: distance(with_open_fields_of(asked, guess, w), w), default=None)
    if (
        near is not None
        and distance(asked_like := with_open_fields_of(asked, guess, near), near) <= FARTHEST
    ):
        workload = asked_like
    settled = {"seq_len": workload.seq_len, "global_batch_size": list(workload.global_batch_sizes)}
    return workload, settled | {
        "trainer": workload.trainer,
        "space": space_for(workload.model, workload.cluster),
    }


def _from_cost_model(
    store: KnowledgeStore, asked: Asked, workload: Workload, space_name: str, top: int
) -> dict[str, Any]:
    from autotune.schema import parse_space

    spec = parse_space(space_name)
    try:
        launchable = Launchable.in_space(trainer(workload.trainer), {}, workload, spec)
        space = SearchSpace.build(workload, spec, launchable=launchable)
    except (InfeasibleError, SpecError) as error:
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
    by_speed = (
        ["ranked by predicted speed, because other objectives need measurements"]
        if asked.objective
        else []
    )
    return {
        **rows[0],
        "configs": rows,
        "source": "cost_model",
        "untried": untried,
        "objective": None,
        "notes": [f"cost-model constants: {found.source}", *by_speed],
    }


FARTHEST = 2.0
"""largest distance of a workload whose configs are handed on: four times as large in one respect"""


class BestKnownStore(HistoryReader, KnowledgeStore, Protocol):
    """What was measured, and the cost model's constants for what was not."""


def distance(one: Workload, other: Workload) -> float:
    """How far apart two workloads are, in doublings; infinite between clusters of different
    layout."""
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
    """`guess` with the sequence length and batch of a known workload where the question left them
    open."""
    return replace(
        guess,
        seq_len=asked.seq_len or known.seq_len,
        global_batch_size=asked.global_batch_size or known.global_batch_size,
    )


def _adapted(workload: Workload, config: ParallelConfig) -> ParallelConfig | None:
    """The config with the accumulation that this workload's batch needs; None when it is not legal
    here."""

    knobs = {
        name: value for name, value in config.to_dict().items() if name != "accumulation_steps"
    }
    here = complete(workload, knobs)
    return here if why_not(workload, here) is None else None


def from_nearest(
    store: BestKnownStore, asked: Asked, workload: Workload, top: int
) -> dict[str, Any] | None:
    """The configs of the nearest workload that are legal here and expected to fit."""

    near = sorted(
        ((distance(k.workload, workload), k) for k in store.known_workloads()),
        key=lambda pair: pair[0],
    )
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
            return {
                **rows[0],
                "configs": rows,
                "source": "nearest",
                "nearest": nearest,
                "evidence": evidence(pairs),
            }
    return None


MOST_CONFIGS = 1000
"""measured configs of one workload that are looked at"""


def measured_configs(
    store: HistoryReader, asked: Asked, **names: Any
) -> list[tuple[StudyRecord, Trial]]:
    """All measured configs of that model and cluster (or workload), best first."""
    without = "" if asked.runner else SIMULATED
    filters = {"limit": MOST_CONFIGS, "without_runner": without, **asked.measured_filters, **names}
    found = confirmed_best(store, **filters)
    return _by_objective(found, asked.objective) if found and asked.objective is not None else found


def _by_objective(
    pairs: list[tuple[StudyRecord, Trial]], objective: Objective
) -> list[tuple[StudyRecord, Trial]]:
    """The measurements of the first one's workload with their rewards under that objective, best
    first."""

    study = pairs[0][0].study
    alike: dict[ParallelConfig, tuple[StudyRecord, Trial]] = {}
    for record, trial in pairs:
        if record.study.workload == study.workload:
            alike.setdefault(trial.config, (record, trial))
    try:
        default = alike.get(default_config(SearchSpace.of_study(study)))
    except AutotuneError:
        default = None
    ranked = reward.rerank(
        [trial for _, trial in alike.values()],
        objective=objective,
        workload=study.workload,
        baseline=default[1].measurement if default else None,
    )
    return [(alike[trial.config][0], trial) for trial in ranked]


def evidence(pairs: list[tuple[StudyRecord, Trial]]) -> dict[str, Any]:
    """{trials, configs, studies, last_at, age_s, spread}: how much was measured, how long ago, and
    how steady the best config's steps were."""
    studies = {record.id: record for record, _ in pairs}
    ends = [trial.ended_at for _, trial in pairs if trial.ended_at is not None]
    best = pairs[0][1].measurement
    return {
        "trials": sum(
            sum(r.trial_counts.get(s, 0) for s in ("COMPLETED", "STOPPED"))
            for r in studies.values()
        ),
        "configs": len(pairs),
        "studies": len(studies),
        "last_at": max(ends).isoformat() if ends else None,
        "age_s": (datetime.now(UTC) - max(ends)).total_seconds() if ends else None,
        "spread": best.step_time_spread if best else None,
    }
