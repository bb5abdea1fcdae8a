"""The measured configs of a model and cluster across all studies, best first, and what evidence they are.

Order: by the tokens per second per GPU of the cluster at which they stand (`autotune.reward.ranking`). Where the question names an objective: by its reward among the measurements of one workload, the
fastest one's, relative to the baseline there, so that the results of several studies are compared by one measure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from autotune import reward
from autotune.errors import AutotuneError
from autotune.ports import HistoryReader, StudyRecord
from autotune.results.question import Asked
from autotune.results.winner import confirmed_best
from autotune.space import SearchSpace, default_config
from autotune.spec import Objective, ParallelConfig, Trial
from autotune.spec.study import SIMULATED

MOST_CONFIGS = 1000
"""measured configs of one workload that are looked at"""


def measured_configs(store: HistoryReader, asked: Asked, **names: Any) -> list[tuple[StudyRecord, Trial]]:
    """All measured configs of that model and cluster (or workload), best first."""
    without = "" if asked.runner else SIMULATED
    filters = {"limit": MOST_CONFIGS, "without_runner": without, **asked.measured_filters, **names}
    found = confirmed_best(store, **filters)
    return _by_objective(found, asked.objective) if found and asked.objective is not None else found


def _by_objective(pairs: list[tuple[StudyRecord, Trial]], objective: Objective) -> list[tuple[StudyRecord, Trial]]:
    """The measurements of the first one's workload with their rewards under that objective, best first."""

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
    """{trials, configs, studies, last_at, age_s, spread}: how much was measured, how long ago, and how steady the best config's steps were."""
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
