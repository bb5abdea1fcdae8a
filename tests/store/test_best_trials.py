"""The records of the best follow the finals of a study, and cost nothing while there are none."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from autotune.ports import Lease
from autotune.spec import StudyStatus
from autotune.store import SqlStore, open_store
from autotune.store.writes import best_trials
from autotune.testing.stores.sample_studies import (
    a_study,
    measured,
    pending,
    run_trial,
    running_study,
)


def study_of(store: SqlStore, name: str, num_trials: int) -> Lease:
    """A running study of a model of that name, each trial of which is slower than the one
    before."""
    lease = running_study(store, a_study(name, model=name))
    for number in range(num_trials):
        run_trial(store, lease, measured(pending(number), step_time_s=0.1 * (number + 1)))
    return lease


def write(store: SqlStore, lease: Lease, result: dict[str, Any]) -> None:
    store.set_status(
        lease.study, StudyStatus.RUNNING, expect=[StudyStatus.RUNNING], lease=lease, result=result
    )


def test_the_time_of_a_decision_does_not_depend_on_the_study(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "store.db"))) as store:
        statements = list[str]()
        small, large = study_of(store, "small", 1), study_of(store, "large", 12)
        event.listen(
            store.database.engine,
            "before_cursor_execute",
            lambda *given: statements.append(given[2]),
        )
        write(store, small, {"gpu_s": 1.0})
        of_small = [*statements]
        statements.clear()
        write(store, large, {"gpu_s": 1.0})
        assert statements == of_small
        assert any(statement.startswith("UPDATE specs") for statement in statements)


def test_configs_are_ranked_by_the_finals_while_these_exist(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "store.db"))) as store:
        lease = study_of(store, "model", 3)
        finals = [{"config": pending(2).config.to_dict(), "tokens_per_s": 32 * 1024 / 0.2}]

        def order() -> list[int]:
            return [trial.number for _, trial in store.best(model="model")]

        assert order() == [0, 1, 2]
        write(store, lease, {"finals": finals})
        assert order()[0] == 2
        write(store, lease, {"gpu_s": 2.0})
        assert order() == [0, 1, 2]


@pytest.mark.thorough
@pytest.mark.parametrize("at_once", [2, 1000])
def test_a_deletion_updates_the_representatives_in_batches(
    address: str, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Of each config the median trial of those that are left, a simulated one only where there is
    no other; nobody for a config that was measured nowhere else."""
    monkeypatch.setattr(best_trials, "BATCH", at_once)
    with closing(open_store(address)) as store:
        numbers = {"middle": 5, "slow": 4, "fast": 3, "fastest": 2}  # the first trials of each
        for name, seconds in {"middle": 0.2, "slow": 0.3, "fast": 0.1, "fastest": 0.05}.items():
            runner = "simulated" if name == "fastest" else "ray"
            lease = running_study(store, replace(a_study(name, model="model"), runner=runner))
            for number in range(numbers[name]):
                run_trial(store, lease, measured(pending(number), step_time_s=seconds))
            store.set_status(
                lease.study, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=lease
            )

        def standing() -> dict[int, str]:
            return {
                trial.number: record.study.name
                for record, trial in store.best(model="model", limit=10)
            }

        assert standing() == {0: "middle", 1: "middle", 2: "middle", 3: "slow", 4: "middle"}
        store.delete(store.study("middle").id)
        assert standing() == {0: "slow", 1: "slow", 2: "slow", 3: "slow"}
        store.delete(store.study("slow").id)
        assert standing() == {0: "fast", 1: "fast", 2: "fast"}
        store.delete(store.study("fast").id)
        assert standing() == {0: "fastest", 1: "fastest"}
