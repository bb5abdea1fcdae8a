"""The best known config for a model on a cluster, with the source of the knowledge.

measured     measured for a model and cluster with these names: with age, evidence, and the best untried config
nearest      measured for the nearest workload on as many GPUs; the config is valid here and expected to fit
cost_model   no near workload was measured: the first choice of the cost model, which is untried
none         the model or the cluster is unknown, or nothing fits

Configs are sorted by their standing in tokens/s per GPU of the cluster (`autotune.reward.ranking`).
With an objective, they are sorted by its reward among the measurements of one workload, the fastest
one's, relative to the baseline there, so that results of several studies are comparable.

`distance` of two workloads: Euclidean norm of the differences in doublings, |log2 ratio|, of
parameters, layers, hidden size, experts, sequence length, GPU memory and GPU peak; it is 1 if one of
them is twice as large. Only clusters with the same number of GPUs, in total and per NVLink domain
(mostly a node), are compared, because a config's degrees do not apply to others, and only up to
`FARTHEST`.
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
"""number of last observed runs that are considered, and of the fastest of them that are shown"""
SEQ_LEN, SEQUENCES_PER_GPU = 4096, 4
"""assumed sequence length and batch without a similar known workload"""


def best_known(store: BestKnownStore, asked: Asked, *, top: int = 1) -> dict[str, Any]:
    """{study, best, baseline, speedup, configs[] = {study, best}, source, objective, evidence,
    untried, nearest, assumed, notes}.

    `evidence`: trials, configs, studies, last_at, age_s, spread (of the best config's steps).
    `untried`: number of valid and of measured configs in the study's space, and the best untried one
    by the cost model. `observed`: runs that users started themselves, the fastest first; they are not
    trials and never the best. `nearest`: the workload of the configs, its distance, and the cost
    model's estimate of the first config here. `assumed`: assumed values for what the question left
    open. With an objective, rewards are those of the objective. Raises `SpecError`.
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
        studies = past_studies(store, **names, limit=top)
        if studies:
            return answer | studies[0] | {"source": "measured", "configs": studies}
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
    """The fastest observed runs of the model on the cluster. Runs with an MFU above 1 are left out,
    because their measurement must be wrong."""
    if not (asked.model and asked.cluster):
        return []
    runs = store.observed(
        model=asked.model, cluster=asked.cluster, trainer=asked.trainer, measured=True, limit=RUNS
    )
    plausible = [run for run in runs if run.measurement and (run.measurement.mfu or 0.0) <= 1.0]
    plausible.sort(key=lambda run: -run.measurement.median_tokens_per_s if run.measurement else 0.0)
    return [run.to_dict() for run in plausible[:SHOWN_RUNS]]


def _compared(asked: Asked, pairs: list[tuple[StudyRecord, Trial]]) -> dict[str, Any]:
    """Notes about the ranking by an objective; empty without one."""
    if asked.objective is None:
        return {}
    workload = pairs[0][0].study.workload
    batches = ", ".join(map(str, workload.global_batch_sizes))
    return {
        "notes": [
            f"among measurements at {workload.seq_len:,} tokens x {batches} sequences, trainer {workload.trainer}"
        ]
    }


def _objective_document(objective: Objective | None) -> dict[str, Any] | None:
    if objective is None:
        return None
    return {"metric": objective.metric, "stability_weight": objective.stability_weight}


def _untried(
    store: KnowledgeStore, pairs: list[tuple[StudyRecord, Trial]]
) -> dict[str, Any] | None:
    """Untried configs in the space of the best config's study; None if the space cannot be built any
    more."""

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
    """The workload in question, and the assumed values. Raises `CatalogError` for names that are
    neither in the catalog nor in the history."""
    from autotune.schema.space_models import space_for

    known = [k.workload for k in store.known_workloads()]
    models: Mapping[str, ModelSpec] = {w.model.name: w.model for w in reversed(known)}
    clusters: Mapping[str, ClusterSpec] = {w.cluster.name: w.cluster for w in reversed(known)}
    model = models.get(asked.model) or catalog.model(asked.model)
    cluster = clusters.get(asked.cluster) or catalog.cluster(asked.cluster)
    trainer(
        asked.trainer or "native"
    )  # reject an unknown name instead of using the ranking of native
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
"""maximum distance of a workload whose configs are used: four times as large in one respect"""


class BestKnownStore(HistoryReader, KnowledgeStore, Protocol):
    """A store with measurements, and with the cost model's constants."""


def distance(one: Workload, other: Workload) -> float:
    """Distance of two workloads in doublings (see above); infinite for clusters of different
    layouts."""
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
    """`guess` with the sequence length and batch of a known workload, if the question left them
    open."""
    return replace(
        guess,
        seq_len=asked.seq_len or known.seq_len,
        global_batch_size=asked.global_batch_size or known.global_batch_size,
    )


def _adapted(workload: Workload, config: ParallelConfig) -> ParallelConfig | None:
    """The config with its accumulation adapted to this workload's batch; None if it is not valid
    here."""

    knobs = {
        name: value for name, value in config.to_dict().items() if name != "accumulation_steps"
    }
    here = complete(workload, knobs)
    return here if why_not(workload, here) is None else None


def from_nearest(
    store: BestKnownStore, asked: Asked, workload: Workload, top: int
) -> dict[str, Any] | None:
    """The answer with configs of the nearest workload that are valid here and expected to fit; None if
    there are none up to the distance `FARTHEST`."""

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
"""maximum number of measured configs of one workload that are considered"""


def measured_configs(
    store: HistoryReader, asked: Asked, **names: Any
) -> list[tuple[StudyRecord, Trial]]:
    """All measured configs of the model and cluster (or workload) in `names`, best first."""
    without = "" if asked.runner else SIMULATED
    filters = {"limit": MOST_CONFIGS, "without_runner": without, **asked.measured_filters, **names}
    pairs = confirmed_best(store, **filters)
    return _by_objective(pairs, asked.objective) if pairs and asked.objective is not None else pairs


def _by_objective(
    pairs: list[tuple[StudyRecord, Trial]], objective: Objective
) -> list[tuple[StudyRecord, Trial]]:
    """The measurements of the first pair's workload with their rewards by this objective, best
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
    """{trials, configs, studies, last_at, age_s, spread}: number of measurements, their age, and the
    spread of the best config's step times."""
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
