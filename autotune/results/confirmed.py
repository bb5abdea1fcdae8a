"""Measured configs of many studies in one order, in which what a study measured again stands at what its finals showed.

    speed      of a config that took part in its study's finals: what they showed of it; of any other: its measurement, but at most what the study's winner reached

The fastest of many configs that were measured once was lucky on average (the winner's curse). So no config stands before the winner of its own study, and the
config that heads an answer is the one that `autotune best` and `autotune export` name for that study.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autotune.ports import StudyRecord
from autotune.reward import slowed, tokens_per_s
from autotune.spec import ParallelConfig, Trial

MOST_CONFIGS = 1000
"""measured configs of one workload that are looked at"""


def confirmed_first(pairs: Iterable[tuple[StudyRecord, Trial]]) -> list[tuple[StudyRecord, Trial]]:
    """The pairs by speed per GPU of the cluster, best first; speeds of configs that were measured again are those of the finals."""
    listed = list(pairs)
    finals = {record.id: _speeds_in_finals(record) for record in {record.id: record for record, _ in listed}.values()}
    placed = (_placed(record, trial, finals[record.id]) for record, trial in listed)
    return [pair for _, pair in sorted(placed, key=lambda at: at[0])]


def _placed(
    record: StudyRecord, trial: Trial, speeds: Mapping[ParallelConfig, float]
) -> tuple[tuple[float, bool], tuple[StudyRecord, Trial]]:
    """Its place, and the pair with the trial at its speed. `speeds`: of its study's finals."""
    winner = next(iter(speeds), None)
    most = speeds[winner] if winner is not None else math.inf
    speed, shown = tokens_per_s(trial), trial
    if trial.measurement is not None and trial.config in speeds:
        shown = replace(trial, measurement=slowed(trial.measurement, speed / speeds[trial.config]))
        speed = speeds[trial.config]
    return (-min(speed, most) / record.study.workload.cluster.num_gpus, trial.config != winner), (record, shown)


def _speeds_in_finals(record: StudyRecord) -> dict[ParallelConfig, float]:
    """Tokens per second of the configs that were measured again, the winner's first."""
    finals = record.result.get("finals") or ()
    return {ParallelConfig.from_dict(f["config"]): f["tokens_per_s"] for f in finals if f["tokens_per_s"]}
