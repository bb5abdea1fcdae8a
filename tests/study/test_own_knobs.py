"""A study's own knobs go the whole way: enumerated, searched, stored, replayed, shown, ranked and
exported like any other."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import api
from autotune.cost import estimate
from autotune.ports import Store
from autotune.report.page import html_report
from autotune.search import make_searcher
from autotune.search.optuna_study import distributions
from autotune.space import SearchSpace
from autotune.spec import FIELDS, Measurement, ParallelConfig, Trial, TrialStatus
from autotune.store import SqlStore, open_store
from autotune.store.upkeep.table_files import export
from tests.matrix import sampled
from tests.shortcuts import present
from tests.small_studies import spec

OWN = {"num_workers": [2, 0, 4], "flash": [False, True]}
COMMAND = {
    "kind": "command",
    "argv": [
        *(
            "train",
            "--tp={tp}",
            "--mb={micro_batch_size}",
            "--acc={accumulation_steps}",
            "--dp={dp}",
        ),
        *("--workers={num_workers}", "--flash={flash}"),
    ],
}


def own_spec(**changes: Any) -> dict[str, Any]:
    space = {"tp": [1, 2], "micro_batch_size": [1, 2, 4]}
    return spec(
        name="own",
        knobs=OWN,
        space=space,
        trainer=COMMAND,
        enqueue=["tp=2,num_workers=4"],
        **changes,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(open_store(tmp_path / "own.db")) as opened:
        yield opened


@pytest.mark.parametrize(
    "searcher",
    sampled(["bayesian", "cost_ranked", "random", "reinforce", "optuna:tpe"], ["cost_ranked"]),
)
def test_every_searcher_tries_them(store: Store, searcher: str) -> None:
    result = api.tune(
        own_spec(searcher=searcher, budget={"max_trials": 8, "min_gain": 0}), store=store
    )
    assert result.best is not None
    assert dict(present(result.baseline).config.extra) == {"num_workers": 2, "flash": False}
    searched = [trial.config for trial in result.trials]
    assert all(set(config.extra) == set(OWN) for config in searched)
    assert searched[1].extra["num_workers"] == 4, "the enqueued guess goes first"
    assert len({config.extra["num_workers"] for config in searched}) > 1
    assert [trial.config for trial in store.trials(result.record.id)] == searched
    again = api.tune(
        own_spec(searcher=searcher, budget={"max_trials": 8, "min_gain": 0}),
        store=store,
        resume=False,
    )
    if searcher in ("cost_ranked", "random"):  # the others learn from the first study
        assert [trial.config for trial in again.trials] == searched


def test_a_config_as_documents_hold_it_may_be_enqueued(store: Store) -> None:
    result = api.tune(own_spec(), store=store)
    document = api.best_document(store, result.record.id)["best"]["config"]
    again = api.load_study({**own_spec(), "enqueue": [document, "tp=2,num_workers=4.0"]})
    assert again.enqueue[0] == present(result.best).config
    assert '"num_workers":4}' in again.enqueue[1].key, "a value is kept as it is declared"


def test_they_are_shown_ranked_and_exported(store: SqlStore, tmp_path: Path) -> None:
    result = api.tune(own_spec(), store=store)
    best = present(result.best)
    document = json.loads(json.dumps(api.best_document(store, result.record.id, top=2)))
    assert document["best"]["config"]["extra"] == dict(best.config.extra)
    launch = api.export_document(store, result.record.id, "command", {})
    workers, flash = best.config.extra["num_workers"], str(best.config.extra["flash"]).lower()
    assert list(launch["argv"])[-2:] == [f"--workers={workers}", f"--flash={flash}"]
    assert f"num_workers={workers}" in html_report(result.record, result.trials)
    export(store, tmp_path / "tables")
    with (tmp_path / "tables" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert json.loads(rows[0]["extra"]) == {"flash": False, "num_workers": 2}


def test_a_plan_has_one_row_for_configs_that_the_cost_model_cannot_tell_apart() -> None:
    study = api.load_study(own_spec())
    found = api.plan_of(study, top=None)
    assert found.not_modelled == ("flash", "num_workers")
    assert found.feasible == len(found.rows) * 6
    assert {tuple(row.config.extra.items()) for row in found.rows} == {
        (("flash", False), ("num_workers", 2))
    }
    assert found.to_dict()["not_modelled"] == ["flash", "num_workers"]


def test_the_surrogate_learns_what_an_own_knob_is_worth() -> None:
    """A knob that the cost model knows nothing of doubles the speed: a few trials find that out."""
    study = api.load_study(own_spec())
    space = SearchSpace.build(study.workload, study.space)
    assert space.coordinates().shape[1] == len(FIELDS) + 2
    searcher = make_searcher("bayesian", space, seed=0)
    predicted = np.asarray(estimate(study.workload, space.table).step_time_s)
    tried: list[ParallelConfig] = []
    for number in range(12):
        asked = searcher.ask(1)
        if not asked:
            break
        (config,) = asked
        tried.append(config)
        index = present(space.index_of(config))
        time = float(predicted[index]) * (0.5 if config.extra["flash"] else 1.0)
        measurement = Measurement(
            step_times_s=(time,) * 5,
            tokens_per_step=config.global_batch_size * study.workload.seq_len,
            num_ranks=config.world_size,
            peak_memory_bytes=1e9,
        )
        searcher.tell(
            [
                Trial(
                    config=config,
                    number=number,
                    status=TrialStatus.COMPLETED,
                    measurement=measurement,
                )
            ]
        )
    first = next(i for i, config in enumerate(tried) if config.extra["flash"])
    assert first < 6
    later = [config.extra["flash"] for config in tried[first + 1 : first + 4]]
    assert sum(later) >= 2, "once the flag was seen to help, most trials have it"


def test_optuna_sees_them_as_parameters() -> None:
    study = api.load_study(own_spec())
    space = SearchSpace.build(study.workload, study.space)
    assert distributions(space)["num_workers"].choices == (0, 2, 4)  # type: ignore[attr-defined]


@pytest.mark.thorough
@pytest.mark.parametrize("searcher", ["bayesian", "reinforce"])
def test_a_history_without_the_knobs_or_with_others_is_no_obstacle(
    store: SqlStore, searcher: str
) -> None:
    """Earlier studies of the same workload have other own knobs, or other values of one with the
    same name."""
    others = {"num_workers": [8, 16], "bucket": [1, 2]}
    command = {**COMMAND, "argv": [*COMMAND["argv"], "--bucket={bucket}"]}
    for document in (
        spec(name="plain", searcher=searcher, budget={"max_trials": 2}),
        own_spec(searcher=searcher, budget={"max_trials": 3}),
        {
            **own_spec(searcher=searcher, budget={"max_trials": 3}),
            "name": "other",
            "knobs": {**OWN, **others},
            "trainer": command,
            "enqueue": [],
        },
        spec(name="plain again", searcher=searcher, budget={"max_trials": 2}),
    ):
        assert api.tune(document, store=store).best is not None
