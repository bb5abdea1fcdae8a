"""Rankings of a study's trials: by another objective, by version, or as the Pareto front; and why a
trial won or lost against the baseline and against the winner or the runner-up. All of it is
computed from the stored trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from autotune import reward
from autotune.errors import NotFoundError, SpecError
from autotune.ports import StudyReader
from autotune.results.answers import document, ranked_documents, result_of, standings_of, trial_of
from autotune.results.result import Result
from autotune.results.winner import may_win
from autotune.spec import Objective, Trial, TrialPurpose, TrialStatus, Workload
from autotune.spec.checks import one_of
from autotune.spec.plain import to_plain
from autotune.spec.runs.versions import has_versions, parse_versions
from autotune.spec.study import METRICS, SIMULATED
from autotune.spec.texts.as_text import format_duration


def rerank(store: StudyReader, study_id: str, objective: Objective) -> list[Trial]:
    """Return the measured trials of a study with their rewards under another objective, best
    first."""
    return _ranked(result_of(store, study_id), objective)


def pareto(result: Result) -> list[Trial]:
    """Return the Pareto front of a study's trials in speed, stability, memory headroom and cost,
    fastest first."""
    return reward.pareto(_candidates(result), result.record.study.workload.cluster.gpu)


def best_document(
    store: StudyReader,
    study_id: str,
    *,
    top: int = 1,
    pareto: bool = False,
    metric: str | None = None,
    stability_weight: float | None = None,
    version: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the `ranking_document` of a stored study. Raises `NotFoundError`."""
    result = result_of(store, study_id)
    return ranking_document(
        result,
        top=top,
        pareto=pareto,
        metric=metric,
        stability_weight=stability_weight,
        version=version,
    )


def ranking_document(
    result: Result,
    *,
    top: int = 1,
    pareto: bool = False,
    metric: str | None = None,
    stability_weight: float | None = None,
    version: Sequence[str] = (),
) -> dict[str, Any]:
    """Return `document` with `configs`: the best `top`, or with `pareto` the Pareto front, each
    trial with its `merits`.

    `version`: NAME=VERSION, only trials measured with all of these; the speedup is None if that
    leaves out the winner. `metric` and `stability_weight`: another objective, which then determines
    best, speedup and rewards. Raises `SpecError` for an unknown metric, and for any of these
    options with a target, because its proxies cannot be compared.
    """
    requested = objective = result.record.study.objective
    if metric:
        requested = replace(requested, metric=one_of("metric", metric, METRICS))
    if stability_weight is not None:
        requested = replace(requested, stability_weight=stability_weight)
    if result.record.study.at_hand is not None and (pareto or requested != objective):
        raise SpecError(
            "a study with a target has one ranking, by throughput, because its proxies are different jobs and are not compared with each other",
            remedy="omit pareto, metric and stability_weight",
        )
    if versions := parse_versions(version):
        if pareto or requested != objective:
            raise SpecError(
                "a ranking by version uses the study's own objective, but you also requested a different ranking",
                remedy="omit pareto, metric and stability_weight, or omit version",
                field="version",
            )
        return _ranking_by_versions(result, versions, top)
    answer = document(result, top=top)
    answer["objective"] = {
        "metric": requested.metric,
        "stability_weight": requested.stability_weight,
    }
    # `document` ranks by the study's objective already
    ranked = _ranked(result, requested) if requested != objective else []
    if requested != objective:
        answer |= _outcome(result, ranked)
        answer["configs"] = [
            {"rank": i, **t.to_dict(), "note": ""} for i, t in enumerate(ranked[:top], 1)
        ]
    if pareto:
        answer["configs"] = front_documents(result, {t.number: t for t in ranked})
    return answer


def front_documents(
    result: Result, rewarded: Mapping[int, Trial] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the Pareto front, fastest first, each trial with its rank and `merits`. `rewarded`:
    trials by number that replace those of the result, with rewards by another objective."""
    front, workload = pareto(result), result.record.study.workload
    return [
        {
            "rank": i,
            **rewarded.get(t.number, t).to_dict(),
            "note": result.below.get(t.number, ""),
            "merits": merits_document(t, workload),
        }
        for i, t in enumerate(front, 1)
    ]


def merits_document(trial: Trial, workload: Workload) -> dict[str, Any]:
    """Return the quantities that the Pareto front compares: tokens_per_s, stability,
    memory_headroom (fraction of the capacity, None if unknown), cost of a million tokens and its
    unit (USD, J or rank_s)."""
    m = trial.measurement
    if m is None:
        return {}
    cost = reward.token_cost(m, workload.cluster.gpu)
    speed, stability, headroom, _ = reward.merits(trial, m, cost.value)
    known = m.peak_memory_bytes is not None and bool(m.memory_capacity_bytes)
    return {
        "tokens_per_s": speed,
        "stability": stability,
        "memory_headroom": headroom if known else None,
        "cost_of_million_tokens": cost.value * 1e6,
        "cost_unit": cost.unit,
    }


def _outcome(result: Result, ranked: list[Trial]) -> dict[str, Any]:
    """Return best and speedup of a ranking by another objective. Its speedup has no interval,
    because the finals compare configs by the study's objective."""
    best, base = next(iter(ranked), None), result.baseline
    speeds = [
        reward.tokens_per_s(t) for t in (best, base) if t is not None and t.measurement is not None
    ]
    remeasured = {t.number for t in result.confirmed}
    confirmed = best is not None and base is not None and {best.number, base.number} <= remeasured
    return {
        "best": best.to_dict() if best is not None else None,
        "speedup": speeds[0] / speeds[1] if len(speeds) == 2 and result.too_noisy is None else None,
        "speedup_low": None,
        "speedup_high": None,
        "tied_with": [],
        "final_rounds": result.final_rounds if confirmed else 0,
    }


def _ranking_by_versions(result: Result, versions: Mapping[str, str], top: int) -> dict[str, Any]:
    """Return the ranking of the trials that were measured with these versions."""
    answer, objective = document(result, top=1), result.record.study.objective
    rows = [
        row
        for row in ranked_documents(result, len(result.trials))
        if has_versions(row["measurement"].get("versions") or {}, versions)
    ]
    best = next((t for t in standings_of(result) if rows and t.number == rows[0]["number"]), None)
    if best is None or result.best is None or best.number != result.best.number:
        answer |= dict.fromkeys(("speedup", "speedup_low", "speedup_high")) | {"tied_with": []}
    words = ", ".join(f"{name}={version}" for name, version in versions.items())
    answer["notes"] = [
        f"only trials measured with {words} are ranked: {len(rows)}",
        *answer["notes"],
    ]
    answer["objective"] = {
        "metric": objective.metric,
        "stability_weight": objective.stability_weight,
    }
    return answer | {
        "best": to_plain(best),
        "configs": [{**row, "rank": rank} for rank, row in enumerate(rows[:top], 1)],
    }


def _ranked(result: Result, objective: Objective) -> list[Trial]:
    """Return the measured trials with their rewards by this objective, best first."""
    base = result.baseline.measurement if result.baseline else None
    workload = result.record.study.workload
    return reward.rerank(_candidates(result), objective=objective, workload=workload, baseline=base)


def _candidates(result: Result) -> list[Trial]:
    """Return the trials that may win, with the corrected figures of their configs."""
    return may_win(result.shown, result.record.study)


def explain(store: StudyReader, study_id: str, trial: int | None = None) -> dict[str, Any]:
    """Return why a trial (None: the winner) won or lost: `autotune.reward.Explanation` as JSON
    values, and for the winner the study's `notes`. Raises `NotFoundError`."""
    return explained(result_of(store, study_id), trial)


def explained(result: Result, number: int | None = None) -> dict[str, Any]:
    """Return `explain` for a result that is already loaded."""
    if number is None and result.best is None:
        why = (
            "has no winner, because proxies are not ranked"
            if any(t.purpose is TrialPurpose.PROXY for t in result.measured)
            else "has no measured trial yet"
        )
        raise NotFoundError(
            f"study {result.record.id} {why}", remedy="specify a trial: autotune explain ID TRIAL"
        )
    trial = result.best if number is None else trial_of(result, number)
    assert trial is not None
    won = result.best is not None and trial.config == result.best.config
    others = [
        t
        for t in standings_of(result)
        if t.config != trial.config and (not result.baseline or t.number != result.baseline.number)
    ]
    runner_up = next(iter(others), None) if won else result.best
    study = result.record.study
    explanation = reward.explain(
        trial,
        baseline=result.baseline,
        other=runner_up,
        other_is="runner-up" if won else "winner",
        objective=study.objective,
        workload=study.workload,
        profiles=_profiles(result.shown),
        trials=result.shown,
        can_win=reward.competes(trial, study),
        simulated=study.runner == SIMULATED,
    )
    document = explanation.to_dict()
    if trial.is_measured and trial.status is TrialStatus.STOPPED:
        document["text"].insert(0, f"trial {trial.number} was stopped early: {trial.reason}")
    if "winner" in explanation.against:
        document["text"].append(_compared_steps(trial, result))
    if won and runner_up is not None and runner_up.number in result.tied_with:
        document["text"].append(
            f"trial {trial.number} and trial {runner_up.number} are statistically tied: in the final "
            f"rounds, runs of one config differ as much as these two configs do"
        )
    below = result.below.get(trial.number)
    if below and not won:
        document["text"].append(
            f"trial {trial.number} is faster than the winner, but ranks lower: {below}"
        )
    return {**document, "notes": list(result.notes) if won else []}


def _compared_steps(trial: Trial, result: Result) -> str:
    """Return a sentence with the median step times of the trial and of the winner."""
    step, winner_step = (
        format_duration(t.measurement.step_time_s if t is not None and t.measurement else None)
        for t in (trial, result.best)
    )
    return f"trial {trial.number}'s median step takes {step}, and the winner's takes {winner_step}"


def _profiles(trials: tuple[Trial, ...]) -> dict[int, Mapping[str, float]]:
    """Return the breakdowns of step times (seconds by part), by trial number. A breakdown is
    measured in one trial of a config, and applies to all of its trials."""
    breakdowns = {
        t.config: t.measurement.breakdown_s
        for t in trials
        if t.measurement is not None and t.measurement.breakdown_s
    }
    return {t.number: breakdowns[t.config] for t in trials if t.config in breakdowns}
