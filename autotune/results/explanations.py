"""Why a trial of a study won or lost: against the baseline, and against the winner or the runner-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune import reward
from autotune.errors import NotFoundError
from autotune.ports import StudyReader
from autotune.results.answers import result_of, standings_of, trial_of
from autotune.results.result import Result
from autotune.spec import Trial, TrialPurpose


def explain(store: StudyReader, study_id: str, number: int | None = None) -> dict[str, Any]:
    """Why a trial (None: the winner) won or lost: `autotune.reward.Explanation`'s plain values and, of the winner, the study's `notes`. Raises `NotFoundError`."""
    return explained(result_of(store, study_id), number)


def explained(result: Result, number: int | None = None) -> dict[str, Any]:
    """`explain` of a result that is at hand."""
    if number is None and result.best is None:
        why = (
            "has no winner, because proxies are not ranked"
            if any(t.purpose is TrialPurpose.PROXY for t in result.measured)
            else "has no trial that was measured yet"
        )
        raise NotFoundError(f"study {result.record.id} {why}", remedy="name a trial: autotune explain ID TRIAL")
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
    )
    document = explanation.to_dict()
    if won and runner_up is not None and runner_up.number in result.tied_with:
        document["text"].append(
            f"trial {trial.number} and trial {runner_up.number} are tied: in the final rounds runs of one config differ by as much as these two do"
        )
    below = result.below.get(trial.number)
    if below and not won:
        document["text"].append(f"its figure is higher than the winner's, but it does not stand above it: {below}")
    return {**document, "notes": list(result.notes) if won else []}


def _profiles(trials: tuple[Trial, ...]) -> dict[int, Mapping[str, float]]:
    """Breakdowns taken in the final rounds, under the number of the config's first trial."""
    taken = {
        t.config: t.measurement.breakdown_s for t in trials if t.measurement is not None and t.measurement.breakdown_s
    }
    return {t.number: taken[t.config] for t in trials if t.config in taken}
