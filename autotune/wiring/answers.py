"""What the store knows of a study, as answers: the result, its JSON document, explanations, other rankings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune import reward
from autotune.controller import contenders, decide
from autotune.errors import NotFoundError
from autotune.ports import Store, StudyRecord
from autotune.spec import Objective, ParallelConfig, Trial, TrialPurpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a study came to, as far as it came."""

    record: StudyRecord
    """the study with its status, message, and `record.result`: phase, finals, stop reason, notes"""
    trials: tuple[Trial, ...]
    """all of them, by number"""
    best: Trial | None
    """the named winner, or the best so far"""
    baseline: Trial | None
    """the default config's trial, where it could be measured"""
    speedup: float | None
    """best against baseline in tokens per second: medians of the final rounds, else of their own trials"""
    notes: tuple[str, ...] = ()
    """what must be said beside the speedup, in words"""

    def final_tokens_per_s(self, config: ParallelConfig) -> float | None:
        """Median over the final rounds that count; None where there were none."""
        finals = {_key(f["config"]): float(f["tokens_per_s"]) for f in self.record.result.get("finals", ())}
        return finals.get(_key(config.to_dict()))


def result_of(store: Store, study_id: str) -> Result:
    """What the store knows of a study, running or finished. Raises `NotFoundError`."""
    record = store.study(study_id)
    trials = tuple(store.trials(record.id))
    baseline = next((t for t in trials if t.purpose is TrialPurpose.BASELINE and t.is_measured), None)
    verdict = decide(trials, baseline, record.study.measure.finalists)
    best = verdict.winner if record.best is None else trials[record.best]
    return Result(
        record=record,
        trials=trials,
        best=best,
        baseline=baseline,
        speedup=verdict.speedup if record.speedup is None else record.speedup,
        notes=tuple(record.result.get("notes", verdict.notes)),
    )


def study_document(record: StudyRecord) -> dict[str, Any]:
    """A study as plain JSON values."""
    study, times = record.study, (record.created_at, record.started_at, record.ended_at, record.updated_at)
    created, started, ended, updated = (t.isoformat() if t else None for t in times)
    return {
        "id": record.id,
        "name": study.name,
        "status": str(record.status),
        "message": record.message,
        "model": study.workload.model.name,
        "cluster": study.workload.cluster.name,
        "trainer": study.trainer,
        "runner": study.runner,
        "searcher": study.searcher,
        "objective": {"metric": study.objective.metric, "stability_weight": study.objective.stability_weight},
        "budget": {"max_trials": study.budget.max_trials, "max_wall_s": study.budget.max_wall_s},
        "owner": record.owner,
        "created_at": created,
        "started_at": started,
        "ended_at": ended,
        "updated_at": updated,
        "elapsed_s": record.elapsed_s,
        "trials": dict(record.trial_counts),
        "result": dict(record.result),
    }


def trial_document(trial: Trial) -> dict[str, Any]:
    """A trial as plain JSON values."""
    return trial.to_dict()


def document(result: Result, *, top: int = 0) -> dict[str, Any]:
    """Plain JSON values: study {id, name, status, trials (count by status), ...}, best, baseline, speedup; `configs` when `top` > 0.

    `best` and `baseline` are trials with `final_tokens_per_s` beside: the median over the final rounds, on which the speedup rests.
    """
    study = study_document(result.record)
    if not study["trials"]:
        study["trials"] = dict(Counter(str(t.status) for t in result.trials))
    answer: dict[str, Any] = {
        "study": study,
        "best": _with_final(result, result.best),
        "baseline": _with_final(result, result.baseline),
        "speedup": result.speedup,
        "notes": list(result.notes),
    }
    if top > 0:
        first = [result.best] if result.best else []
        rest = [t for t in contenders(result.trials) if not first or t.config != first[0].config]
        ranked = list({t.config: t for t in reversed([*first, *rest])}.values())[::-1][:top]
        answer["configs"] = [{"rank": i, **trial_document(t)} for i, t in enumerate(ranked, 1)]
    return answer


def past_studies(
    store: Store, *, model: str = "", cluster: str = "", trainer: str = "", limit: int = 10
) -> list[dict[str, Any]]:
    """The best measured trials across all history, best first, one for each config: {study, best}."""
    found = store.best(model=model, cluster=cluster, trainer=trainer, limit=limit)
    return [{"study": study_document(record), "best": trial_document(trial)} for record, trial in found]


def explain(store: Store, study_id: str, number: int | None = None) -> dict[str, Any]:
    """Why a trial (None: the winner) won or lost, as `autotune.reward.Explanation`'s plain values. Raises `NotFoundError`."""
    result = result_of(store, study_id)
    if number is None and result.best is None:
        raise NotFoundError(
            f"no trial of study {result.record.id} has been measured yet", remedy="name one: autotune explain ID TRIAL"
        )
    trial = result.best if number is None else next((t for t in result.trials if t.number == number), None)
    if trial is None:
        raise NotFoundError(
            f"study {result.record.id} has no trial {number}", remedy=f"it has {len(result.trials)}, counted from 0"
        )
    others = [t for t in contenders(result.trials) if t.config != trial.config]
    won = result.best is not None and trial.config == result.best.config
    runner_up = next(iter(others), None) if won else result.best
    study = result.record.study
    return reward.explain(
        trial,
        baseline=result.baseline,
        runner_up=runner_up,
        objective=study.objective,
        workload=study.workload,
        profiles=_profiles(result.trials),
    ).to_dict()


def rerank(store: Store, study_id: str, objective: Objective) -> list[Trial]:
    """The measured trials of a study with their rewards under another objective, best first. Runs nothing, changes nothing."""
    result = result_of(store, study_id)
    first = [t for t in result.trials if t.purpose is not TrialPurpose.FINAL]
    base = result.baseline.measurement if result.baseline else None
    return reward.rerank(first, objective=objective, workload=result.record.study.workload, baseline=base)


def _profiles(trials: tuple[Trial, ...]) -> dict[int, Mapping[str, float]]:
    """Breakdowns taken in the final rounds, under the number of the config's first trial."""
    taken = {
        t.config: t.measurement.breakdown_s for t in trials if t.measurement is not None and t.measurement.breakdown_s
    }
    return {t.number: taken[t.config] for t in trials if t.config in taken}


def _with_final(result: Result, trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    return trial_document(trial) | {"final_tokens_per_s": result.final_tokens_per_s(trial.config)}


def _key(config: Mapping[str, Any]) -> ParallelConfig:
    return ParallelConfig.from_dict(config)
