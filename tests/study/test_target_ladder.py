"""More ranks for an hour: one rank, two, a quarter of the target and the target itself, each a
study that continues those before. Real trials on CPU ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.ports import Store
from autotune.results.result import Result
from autotune.search.target_searcher import TargetSearcher
from autotune.spec import StudyStatus, TrialPurpose
from autotune.study.assembly import assemble, history_of
from tests.shortcuts import present

pytestmark = pytest.mark.slow

TARGET = "cpu-1x4"


def rung(cluster: str, max_trials: int) -> dict[str, Any]:
    """The same spec with another cluster, as a user writes it."""
    return {
        "name": "ladder",
        "model": "nano-llama",
        "cluster": cluster,
        "target": TARGET,
        "workload": {"seq_len": 64, "global_batch_size": 16},
        "space": {"tp": [1, 2], "pp": [1, 2], "micro_batch_size": [2, 4], "precision": ["fp32"]},
        "objective": {"metric": "throughput", "stability_weight": 0.0},
        "budget": {"max_trials": max_trials, "min_gain": 0},
        "measure": {
            "warmup_steps": 1,
            "min_steps": 3,
            "max_steps": 4,
            "finalists": 0,
            "final_rounds": 0,
        },
        "calibrate": False,
        "check": False,
        "trainer": "native",
        "runner": {"kind": "local", "max_ranks": 4},
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("ladder") / "results.db"
    with closing(api.open_store(f"sqlite:///{path}")) as opened:
        yield opened


@pytest.fixture(scope="module")
def ended(store: Store) -> list[Result]:
    return [
        api.tune(rung(cluster, trials), store=store)
        for cluster, trials in (("cpu-1x1", 2), ("cpu-1x2", 2))
    ]


def test_each_rung_finds_the_proxies_of_those_before_it(store: Store, ended: list[Result]) -> None:
    one, two = ended
    assert all(result.record.status is StudyStatus.COMPLETED for result in ended)
    assert all(
        t.purpose is TrialPurpose.PROXY and t.is_measured for result in ended for t in result.trials
    )
    found = history_of(two.record.study, store, before=two.record.created_at)
    assert [t.config for _, t in found] == [t.config for t in one.trials]
    assert {t.config.world_size for t in two.trials} == {2}
    searcher = assemble(two.record.study).searcher(found)
    assert isinstance(searcher, TargetSearcher)
    untold = assemble(two.record.study).searcher()
    assert isinstance(untold, TargetSearcher)
    assert list(searcher.standing.log_tokens_per_s) != list(untold.standing.log_tokens_per_s)


def test_the_target_itself_begins_with_what_all_proxies_taught(
    store: Store, ended: list[Result]
) -> None:
    last = api.tune(rung(TARGET, 2), store=store)
    assert last.record.study.at_hand is None
    assert present(last.best).config.world_size == 4
    told = history_of(last.record.study, store, before=last.record.created_at)
    assert len(told) == sum(len(result.trials) for result in ended)
    first = next(t for t in last.trials if t.purpose is TrialPurpose.SEARCH)
    assembly = assemble(last.record.study)
    assert first.config == assembly.searcher(told).ask(1)[0]
