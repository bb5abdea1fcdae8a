"""The best known config for a model on a cluster, and its `source`:

measured     trials on a model and cluster with these names; with age, evidence, and the best untried config
nearest      trials on the nearest workload on as many GPUs; the config is valid here and expected to fit
cost_model   no near workload was measured: the cost model's first choice, which is untried
none         the model or the cluster is unknown, or nothing fits

Configs are ranked by tokens/s per GPU of the cluster (`autotune.reward.ranking`). With an
objective, they are ranked by its reward relative to the baseline, which makes several studies
comparable. Only measurements of the fastest config's workload are then ranked.

`distance` of two workloads: Euclidean norm of the differences in doublings, |log2 ratio|, of
parameters, layers, hidden size, experts, sequence length, GPU memory and GPU peak; it is 1 if one
of them is twice as large. Only clusters with the same number of GPUs, in total and per NVLink
domain (mostly a node), are compared, because a config's degrees do not apply to others, and only up
to `MAX_DISTANCE`.
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
from autotune.results.question import Question
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
"""number of latest observed runs that are compared, and number of the fastest that are shown"""
SEQ_LEN, SEQUENCES_PER_GPU = 4096, 4
"""assumed sequence length (tokens) and batch size if no similar workload is known"""


def best_known(store: BestKnownStore, question: Question, *, top: int = 1) -> dict[str, Any]:
    """Return {study, best, baseline, speedup, configs[] = {study, best}, source, objective,
    evidence, untried, nearest, assumed, notes}.

    `evidence`: trials, configs, studies, last_at, age_s, spread (of the best config's steps).
    `untried`: number of valid and of measured configs in the study's space, and the best untried
    one by the cost model. `observed`: runs that users started themselves, the fastest first; they
    are not trials and never the best. `nearest`: the workload of the configs, its distance, and the
    cost model's estimate of the first config here. `assumed`: values assumed for fields that the
    question leaves open. With an objective, rewards are those of the objective. Raises `SpecError`.
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
    answer["objective"] = _objective_document(question.objective)
    answer["observed"] = _observed(store, question)
    if not (question.model and question.cluster):
        names = {"model": question.model, "cluster": question.cluster, **question.measured_filters}
        studies = past_studies(store, **names, limit=top)
        if studies:
            return answer | studies[0] | {"source": "measured", "configs": studies}
        hint = "; specify a cluster to get a prediction" if question.model else ""
        if not question.runner and past_studies(store, **(names | {"runner": SIMULATED}), limit=1):
            hint += f"; simulated results are shown only with runner {SIMULATED}"
        return answer | {"notes": ["nothing was measured" + hint]}
    if pairs := measured_configs(store, question, model=question.model, cluster=question.cluster):
        rows = [
            {"study": study_document(record), "best": trial.to_dict()}
            for record, trial in pairs[:top]
        ]
        answer |= {**rows[0], "source": "measured", "configs": rows}
        return (
            answer
            | {"evidence": evidence(pairs), "untried": _untried(store, pairs)}
            | _ranking_notes(question, pairs)
        )
    try:
        workload, assumed = _workload(store, question)
    except CatalogError as error:
        return {**answer, "notes": [str(error)]}
    return (
        answer
        | (
            from_nearest(store, question, workload, top)
            or _from_cost_model(store, question, workload, assumed["space"], top)
        )
        | {"assumed": assumed}
    )


def _observed(store: BestKnownStore, question: Question) -> list[dict[str, Any]]:
    """Return the fastest observed runs of the model on the cluster. Runs with an MFU above 1 are
    left out, because their measurement must be wrong."""
    if not (question.model and question.cluster):
        return []
    runs = store.observed(
        model=question.model,
        cluster=question.cluster,
        trainer=question.trainer,
        measured=True,
        limit=RUNS,
    )
    plausible = [run for run in runs if run.measurement and (run.measurement.mfu or 0.0) <= 1.0]
    plausible.sort(key=lambda run: -run.measurement.median_tokens_per_s if run.measurement else 0.0)
    return [run.to_dict() for run in plausible[:SHOWN_RUNS]]


def _ranking_notes(question: Question, pairs: list[tuple[StudyRecord, Trial]]) -> dict[str, Any]:
    """Return {notes} about the ranking by an objective; empty without an objective."""
    if question.objective is None:
        return {}
    workload = pairs[0][0].study.workload
    batches = ", ".join(map(str, workload.global_batch_sizes))
    return {
        "notes": [
            f"among measurements at {workload.seq_len:,} tokens x {batches} sequences, trainer {workload.trainer}"
        ]
    }


def _objective_document(objective: Objective | None) -> dict[str, Any] | None:
    """Return the objective as JSON values."""
    if objective is None:
        return None
    return {"metric": objective.metric, "stability_weight": objective.stability_weight}


def _untried(
    store: KnowledgeStore, pairs: list[tuple[StudyRecord, Trial]]
) -> dict[str, Any] | None:
    """Return {legal, measured, best}: the number of valid and of measured configs in the space of
    the best config's study, and the best untried config; None if the space can no longer be
    built."""
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


def _workload(store: HistoryReader, question: Question) -> tuple[Workload, dict[str, Any]]:
    """Return the workload in question, and its assumed values. Raises `CatalogError` for names that
    are neither in the catalog nor in the history."""
    from autotune.schema.space_models import space_for

    known = [k.workload for k in store.known_workloads()]
    models: Mapping[str, ModelSpec] = {w.model.name: w.model for w in reversed(known)}
    clusters: Mapping[str, ClusterSpec] = {w.cluster.name: w.cluster for w in reversed(known)}
    model = models.get(question.model) or catalog.model(question.model)
    cluster = clusters.get(question.cluster) or catalog.cluster(question.cluster)
    trainer(
        question.trainer or "native"
    )  # reject an unknown name instead of using the ranking of native
    guess = Workload(
        model=model,
        cluster=cluster,
        seq_len=question.seq_len or min(SEQ_LEN, model.max_positions or SEQ_LEN),
        global_batch_size=question.global_batch_size or SEQUENCES_PER_GPU * cluster.num_gpus,
        trainer=question.trainer or "native",
    )
    workload = guess
    near = min(
        known, key=lambda w: distance(with_open_fields_of(question, guess, w), w), default=None
    )
    if (
        near is not None
        and distance(similar := with_open_fields_of(question, guess, near), near) <= MAX_DISTANCE
    ):
        workload = similar
    fields = {"seq_len": workload.seq_len, "global_batch_size": list(workload.global_batch_sizes)}
    return workload, fields | {
        "trainer": workload.trainer,
        "space": space_for(workload.model, workload.cluster),
    }


def _from_cost_model(
    store: KnowledgeStore, question: Question, workload: Workload, space_name: str, top: int
) -> dict[str, Any]:
    """Return the answer with the cost model's first `top` configs; only `notes` if nothing fits."""
    from autotune.schema import parse_space

    spec = parse_space(space_name)
    try:
        launchable = Launchable.in_space(trainer(workload.trainer), {}, workload, spec)
        space = SearchSpace.build(workload, spec, launchable=launchable)
    except (InfeasibleError, SpecError) as error:
        return {"notes": [str(error)]}
    ranked = plan(space, calibration=stored_calibration(workload, store), top=top)
    if ranked.nearest_miss is not None:
        return {"notes": ["nothing is expected to fit", *ranked.nearest_miss.remedies]}
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
        for r in ranked.rows
    ]
    untried = {"legal": len(space), "measured": 0, "best": None}
    by_speed = (
        ["ranked by predicted speed, because other objectives need measurements"]
        if question.objective
        else []
    )
    return {
        **rows[0],
        "configs": rows,
        "source": "cost_model",
        "untried": untried,
        "objective": None,
        "notes": [f"cost-model constants: {ranked.source}", *by_speed],
    }


MAX_DISTANCE = 2.0
"""maximum `distance`, in doublings, of a workload whose configs are used"""


class BestKnownStore(HistoryReader, KnowledgeStore, Protocol):
    """A store that has measurements and the cost model's constants."""


def distance(one: Workload, other: Workload) -> float:
    """Return the distance of two workloads in doublings (see the module's docstring); infinite for
    clusters of different layouts."""
    layouts = [(w.cluster.num_gpus, w.cluster.domain_gpus) for w in (one, other)]
    if layouts[0] != layouts[1]:
        return float("inf")
    return hypot(*(log2(a) - log2(b) for a, b in zip(_size(one), _size(other), strict=True)))


def _size(workload: Workload) -> tuple[float, ...]:
    """Return the sizes that `distance` compares."""
    model, gpu = workload.model, workload.cluster.gpu
    shape = (model.num_parameters, model.num_layers, model.hidden_size, max(1, model.num_experts))
    return (*shape, workload.seq_len, gpu.memory_bytes, _peak(gpu))


def _peak(gpu: GpuSpec) -> float:
    """Return the GPU's peak in FLOP/s: of bf16, else of its fastest precision."""
    return gpu.peak_flops_per_s.get("bf16") or max(gpu.peak_flops_per_s.values())


def with_open_fields_of(question: Question, guess: Workload, known: Workload) -> Workload:
    """Return `guess` with the sequence length and batch of a known workload, if the question left
    them open."""
    return replace(
        guess,
        seq_len=question.seq_len or known.seq_len,
        global_batch_size=question.global_batch_size or known.global_batch_size,
    )


def _adapted(workload: Workload, config: ParallelConfig) -> ParallelConfig | None:
    """Return the config with its accumulation adapted to this workload's batch; None if it is not
    valid here."""
    knobs = {
        name: value for name, value in config.to_dict().items() if name != "accumulation_steps"
    }
    here = complete(workload, knobs)
    return here if why_not(workload, here) is None else None


def from_nearest(
    store: BestKnownStore, question: Question, workload: Workload, top: int
) -> dict[str, Any] | None:
    """Return the answer with configs of the nearest workload that are valid here and expected to
    fit; None if there are none within `MAX_DISTANCE`."""
    near = sorted(
        ((distance(k.workload, workload), k) for k in store.known_workloads()),
        key=lambda pair: pair[0],
    )
    for distance_here, known in near:
        if distance_here > MAX_DISTANCE:
            return None
        rows, first = [], None
        pairs = measured_configs(store, question, workload=known.key)
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
                "distance": distance_here,
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


MAX_CONFIGS = 1000
"""maximum number of measured configs of one workload that are compared"""


def measured_configs(
    store: HistoryReader, question: Question, **names: Any
) -> list[tuple[StudyRecord, Trial]]:
    """Return all measured configs of the model and cluster, or of the workload, in `names`, best
    first."""
    without = "" if question.runner else SIMULATED
    filters = {
        "limit": MAX_CONFIGS,
        "without_runner": without,
        **question.measured_filters,
        **names,
    }
    pairs = confirmed_best(store, **filters)
    return (
        _by_objective(pairs, question.objective)
        if pairs and question.objective is not None
        else pairs
    )


def _by_objective(
    pairs: list[tuple[StudyRecord, Trial]], objective: Objective
) -> list[tuple[StudyRecord, Trial]]:
    """Return the measurements of the first pair's workload with their rewards by this objective,
    best first."""
    study = pairs[0][0].study
    by_config: dict[ParallelConfig, tuple[StudyRecord, Trial]] = {}
    for record, trial in pairs:
        if record.study.workload == study.workload:
            by_config.setdefault(trial.config, (record, trial))
    try:
        default = by_config.get(default_config(SearchSpace.of_study(study)))
    except AutotuneError:
        default = None
    ranked = reward.rerank(
        [trial for _, trial in by_config.values()],
        objective=objective,
        workload=study.workload,
        baseline=default[1].measurement if default else None,
    )
    return [(by_config[trial.config][0], trial) for trial in ranked]


def evidence(pairs: list[tuple[StudyRecord, Trial]]) -> dict[str, Any]:
    """Return {trials, configs, studies, last_at, age_s, spread}: number of measurements, their age,
    and the spread of the best config's step times."""
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
