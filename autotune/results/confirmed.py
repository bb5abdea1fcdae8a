"""Measured configs of many studies in the order in which they stand, each as its study's finals showed it (`autotune.reward.standing`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.ports import HistoryReader, StudyRecord
from autotune.reward import slowed, speeds_in_finals, tokens_per_s
from autotune.spec import Trial


def confirmed_best(store: HistoryReader, **filters: Any) -> list[tuple[StudyRecord, Trial]]:
    """The best of all studies, best first; measurements of configs that were re-measured have the speed of the finals. `filters`: of `HistoryReader.best`."""
    return [(record, _as_confirmed(record, trial)) for record, trial in store.best(**filters)]


def _as_confirmed(record: StudyRecord, trial: Trial) -> Trial:
    speed = speeds_in_finals(record.result).get(trial.config)
    if trial.measurement is None or speed is None:
        return trial
    return replace(trial, measurement=slowed(trial.measurement, tokens_per_s(trial) / speed))
