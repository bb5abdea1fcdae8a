"""Measured configs of many studies in one order, in which what a study measured again stands at what its finals showed.

    speed      of a config that took part in its study's finals: what they showed of it; of any other: its measurement, but at most what the study's winner reached

The fastest of many configs that were measured once was lucky on average (the winner's curse). So no config stands before the winner of its own study, and the
config that heads an answer is the one that `autotune best` and `autotune export` name for that study.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from autotune.ports import HistoryReader, StudyRecord
from autotune.reward import slowed, tokens_per_s
from autotune.spec import ParallelConfig, Trial

MOST_CONFIGS = 1000
"""measured configs of one workload that are looked at"""
FIRST_LOOK = 8
"""configs that are looked at before it is known whether more are needed, at least"""

Pair = tuple[StudyRecord, Trial]


def confirmed_first(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs by speed per GPU of the cluster, best first; speeds of configs that were measured again are those of the finals."""
    return [pair for _, pair in _in_order(list(pairs))]


def confirmed_best(store: HistoryReader, *, limit: int, **filters: Any) -> list[Pair]:
    """The first `limit` of `confirmed_first` of the first `MOST_CONFIGS` that match (filters of `HistoryReader.best`). No more are read than it takes to tell."""
    looked_at = min(MOST_CONFIGS, max(FIRST_LOOK, 2 * limit))
    while True:
        found = store.best(limit=looked_at, **filters)
        first = _in_order(found)[:limit]
        if len(found) < looked_at or looked_at == MOST_CONFIGS or _is_settled(first, found):
            return [pair for _, pair in first]
        looked_at = min(MOST_CONFIGS, 4 * looked_at)


def _is_settled(first: list[tuple[float, Pair]], found: list[Pair]) -> bool:
    """Whether none that was not found belongs to the first: they are no slower than the last one found, and the winners of their studies were found."""
    slowest, last = first[-1][0], found[-1]
    if slowest < _per_gpu(last[0], tokens_per_s(last[1])):
        return False
    return all(
        winner is None or any(t.config == winner and r.study.workload == record.study.workload for r, t in found)
        for record, winner in ((record, next(iter(_speeds_in_finals(record)), None)) for _, (record, _) in first)
    )


def _in_order(pairs: list[Pair]) -> list[tuple[float, Pair]]:
    """The pairs with the speed per GPU at which they stand, best first; equal ones as they came, but a study's winner before its others."""
    finals = {record.id: _speeds_in_finals(record) for record in {record.id: record for record, _ in pairs}.values()}
    placed = (_placed(record, trial, finals[record.id]) for record, trial in pairs)
    return [(speed, pair) for speed, _, pair in sorted(placed, key=lambda at: (-at[0], at[1]))]


def _placed(record: StudyRecord, trial: Trial, speeds: Mapping[ParallelConfig, float]) -> tuple[float, bool, Pair]:
    """Its speed, whether it is another than its study's winner, and the pair with the trial at that speed. `speeds`: of its study's finals."""
    winner = next(iter(speeds), None)
    most = speeds[winner] if winner is not None else math.inf
    speed, shown = tokens_per_s(trial), trial
    if trial.measurement is not None and trial.config in speeds:
        shown = replace(trial, measurement=slowed(trial.measurement, speed / speeds[trial.config]))
        speed = speeds[trial.config]
    return _per_gpu(record, min(speed, most)), trial.config != winner, (record, shown)


def _per_gpu(record: StudyRecord, tokens_per_second: float) -> float:
    return tokens_per_second / record.study.workload.cluster.num_gpus


def _speeds_in_finals(record: StudyRecord) -> dict[ParallelConfig, float]:
    """Tokens per second of the configs that were measured again, the winner's first."""
    finals = record.result.get("finals") or ()
    return {ParallelConfig.from_dict(f["config"]): f["tokens_per_s"] for f in finals if f["tokens_per_s"]}
