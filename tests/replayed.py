"""All that `autotune store check` finds in a store, replayed decisions included."""

from __future__ import annotations

from functools import partial

from autotune.store import SqlStore
from autotune.store.examination import examine
from autotune.study.replay import replay_study


def faults_of(store: SqlStore) -> list[str]:
    """In sentences."""
    return list(examine(store, replay=partial(replay_study, store)).faults)
