"""Optuna's samplers as searchers, our searchers as Optuna samplers, and our studies in an Optuna
storage."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import numpy as np
import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore, download_artifact, get_all_artifact_meta

from autotune.cost import estimate
from autotune.errors import SpecError
from autotune.search import make_searcher
from autotune.search.optuna_study import (
    MemoryConstraint,
    SearcherSampler,
    constraints,
    distributions,
    export_study,
    suggest_config,
)
from autotune.space import SearchSpace
from autotune.spec import FailureKind, ParallelConfig, Trial, TrialStatus
from autotune.testing.searchers import (
    WORKLOAD,
    SearcherContract,
    candidates,
    failed,
    measured,
    truth,
)
from tests.search.playing import SPACE, play
from tests.shortcuts import present


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def driven(space: SearchSpace, searcher: str) -> optuna.Study:
    """A study of Optuna in which our searcher proposes."""
    return optuna.create_study(direction="maximize", sampler=SearcherSampler(space, searcher))


class TestTpe(SearcherContract):
    searcher = "optuna:tpe"
    budget: ClassVar[int] = 14


@pytest.mark.slow
class TestGp(SearcherContract):
    searcher = "optuna:gp"
    budget: ClassVar[int] = 10


@pytest.mark.slow
class TestCmaes(SearcherContract):
    searcher = "optuna:cmaes"
    budget: ClassVar[int] = 10


@pytest.mark.slow
class TestNsga2(SearcherContract):
    searcher = "optuna:nsga2"
    budget: ClassVar[int] = 10


@pytest.mark.thorough
class TestQmc(SearcherContract):
    searcher = "optuna:qmc"
    budget: ClassVar[int] = 12


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", ["optuna:gp", "optuna:cmaes", "optuna:nsga2"])
def test_other_samplers_ask_candidates_once_and_replay(sampler: str) -> None:
    searcher = make_searcher(sampler, SPACE, seed=2)
    played = play(searcher, 5)
    assert len({t.config for t in played}) == 5
    again = make_searcher(sampler, SPACE, seed=2)
    again.tell(played)
    assert again.ask(1) == searcher.ask(1)


def test_our_searcher_drives_an_optuna_study() -> None:
    capacity = WORKLOAD.cluster.gpu.memory_bytes

    def objective(trial: optuna.Trial) -> float:
        config = suggest_config(trial, SPACE)
        step_time_s, peak_bytes = truth(WORKLOAD, config)
        trial.set_user_attr("peak_memory_bytes", peak_bytes)
        if peak_bytes > capacity:
            trial.set_user_attr("failure", "OUT_OF_MEMORY")
            raise MemoryError
        return config.global_batch_size * WORKLOAD.seq_len / step_time_s

    sampler = SearcherSampler(SPACE, "bayesian")
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=8, catch=(MemoryError,))
    configs = [tuple(t.params.items()) for t in study.trials]
    assert len(set(configs)) == 8
    gain = present(sampler.expected_gain(study))
    assert gain >= 0
    # the same trials told to the searcher itself lead to the same next config
    fresh = make_searcher("bayesian", SPACE)
    names = list(distributions(SPACE))
    asked = fresh.ask(1)[0]
    assert {n: getattr(asked, n) for n in names} == study.trials[0].params


def test_parallel_optuna_trials_differ() -> None:
    study = driven(SPACE, "cost_ranked")
    running = [suggest_config(study.ask(), SPACE) for _ in range(4)]
    assert len(set(running)) == 4
    assert set(running) <= set(candidates())


def test_export_opens_as_an_optuna_study(tmp_path: Path) -> None:
    began = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    ran = [
        measured(c, number=i) for i, c in enumerate(candidates()) if truth(WORKLOAD, c)[1] < 60e9
    ][:3]
    trials = [
        *(
            Trial(
                config=t.config,
                number=t.number,
                status=t.status,
                measurement=t.measurement,
                reason="a guess",
                started_at=began,
                ended_at=began + timedelta(seconds=9),
            )
            for t in ran
        ),
        failed(candidates()[0], FailureKind.OUT_OF_MEMORY, number=3),
        Trial(
            config=ParallelConfig(dp=16, accumulation_steps=4), number=4, status=TrialStatus.RUNNING
        ),
        Trial(config=ParallelConfig(dp=8, pp=2, accumulation_steps=8), number=5),
    ]
    storage = f"sqlite:///{tmp_path}/optuna.db"
    export_study("demo", trials, storage)
    opened = optuna.load_study(study_name="demo", storage=storage)
    best = max(ran, key=lambda t: t.measurement.tokens_per_s)
    assert opened.best_value == pytest.approx(best.measurement.tokens_per_s)
    assert opened.best_params["pp"] == best.config.pp
    assert opened.best_trial.duration == timedelta(seconds=9)
    states = [t.state.name for t in opened.trials]
    assert states == ["COMPLETE"] * 3 + ["FAIL", "RUNNING", "WAITING"]
    assert opened.trials[3].user_attrs["failure"] == "OUT_OF_MEMORY"


def test_exported_trials_keep_their_evidence_as_artifacts(tmp_path: Path) -> None:
    ran = measured(next(c for c in candidates() if truth(WORKLOAD, c)[1] < 60e9), number=0)
    lost = failed(candidates()[1], FailureKind.OUT_OF_MEMORY, number=1)
    storage, folder = f"sqlite:///{tmp_path}/optuna.db", tmp_path / "artifacts"
    folder.mkdir()
    store = FileSystemArtifactStore(folder)
    study = export_study("demo", [ran, lost], storage, artifact_store=store)
    kept = [
        {meta.filename: meta for meta in get_all_artifact_meta(frozen, storage=study._storage)}
        for frozen in study.trials
    ]
    assert [set(files) for files in kept] == [{"trial.json"}, {"trial.json", "failure.log"}]
    download_artifact(
        artifact_store=store,
        file_path=str(tmp_path / "back.json"),
        artifact_id=kept[0]["trial.json"].artifact_id,
    )
    assert Trial.from_dict(json.loads((tmp_path / "back.json").read_text())) == ran
    download_artifact(
        artifact_store=store,
        file_path=str(tmp_path / "back.log"),
        artifact_id=kept[1]["failure.log"].artifact_id,
    )
    assert (tmp_path / "back.log").read_text().startswith("out of memory")


@pytest.mark.thorough
def test_predicted_memory_constrains_any_sampler() -> None:
    limit = MemoryConstraint(WORKLOAD)
    excesses = [limit.excess(config) for config in candidates()]
    expected = [float(estimate(WORKLOAD, config).oom_probability) > 0.5 for config in candidates()]
    assert [excess > 0 for excess in excesses] == expected
    assert 0 < sum(expected) < len(expected), "some fit and some do not"

    def objective(trial: optuna.Trial) -> float:
        config = candidates()[trial.suggest_categorical("index", range(len(candidates())))]
        # more memory is better: only the constraint says no
        return float(np.exp(limit.set(trial, config)))

    told = {} if hasattr(optuna.Trial, "set_constraint") else {"constraints_func": constraints}
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=5, **told)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=15)
    assert constraints(study.best_trial)[0] <= 0
    assert study.best_value < max(t.value for t in study.trials)
    if not told:
        assert constraints(study.trials[0]) == tuple(study.trials[0].constraints.values())


def test_threads_never_ask_for_the_same_config() -> None:
    """Parameters are stored one by one: a trial that has some of them is pending all the same."""
    study = driven(SPACE, "cost_ranked")
    first, second = study.ask(), study.ask()
    name, values = next((n, v) for n, v in SPACE.knobs.items() if len(v) > 1)
    first.suggest_categorical(name, values)
    assert suggest_config(second, SPACE) != suggest_config(first, SPACE)
    study.optimize(lambda trial: float(suggest_config(trial, SPACE).dp), n_trials=12, n_jobs=4)
    assert len({tuple(t.params.items()) for t in study.trials}) == len(study.trials) == 14


@pytest.mark.parametrize("searcher", ["random", "cost_ranked"])
def test_an_exhausted_space_ends_the_optuna_study(searcher: str) -> None:
    for configs in (candidates()[:3], candidates()[:1]):
        space = SearchSpace.of(WORKLOAD, configs)
        study = driven(space, searcher)
        study.optimize(
            lambda trial, space=space: float(suggest_config(trial, space).dp), n_trials=9
        )
        assert [t.state.name for t in study.trials] == ["COMPLETE"] * len(configs)
    study = driven(space, searcher)
    study.optimize(
        lambda trial, space=space: (
            trial.suggest_float("lr", 1, 2) * suggest_config(trial, space).dp
        ),
        n_trials=9,
    )
    assert [t.state.name for t in study.trials] == ["COMPLETE"]
    by_hand = driven(space, searcher)
    trial = by_hand.ask()
    suggest_config(trial, space)
    by_hand.tell(trial, 1.0)


def test_an_unsuitable_optuna_study_is_refused() -> None:
    study = optuna.create_study(direction="minimize", sampler=SearcherSampler(SPACE))
    with pytest.raises(SpecError, match="maximize"):
        suggest_config(study.ask(), SPACE)
    study = driven(SPACE, "random")
    trial = study.ask()
    suggest_config(trial, SPACE)
    trial.set_user_attr("failure", "OUT_OF_MEMORYY")
    with pytest.raises(SpecError, match="did you mean OUT_OF_MEMORY"):
        study.tell(trial, state=optuna.trial.TrialState.FAIL)


def test_a_config_that_the_user_enqueued_in_optuna_is_tried_even_last() -> None:
    space = SearchSpace.of(WORKLOAD, candidates()[:2])
    study = driven(space, "cost_ranked")
    ours = [{n: getattr(c, n) for n in distributions(space)} for c in candidates()[:2]]
    for knobs in ours:
        study.enqueue_trial(knobs)
    study.optimize(lambda trial: float(suggest_config(trial, space).dp), n_trials=5)
    assert [t.params for t in study.trials] == ours
