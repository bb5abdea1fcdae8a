"""What a replay makes again: the choices of every searcher, waits, and what was cut off."""

from __future__ import annotations

import pytest

from autotune import api
from autotune.cost import calibration_for
from autotune.ports import AttemptQueued, RunnerEvent, TrialRequest
from autotune.registry import runner_class
from autotune.store import SqlStore
from tests.chaos.replay.faults import faults_of, replay_of
from tests.small_studies import QUIET, spec
from tests.study.test_target import target_spec

SPACE = {"tp": [1, 2, 4], "pp": [1, 2], "micro_batch_size": [1, 2, 4], "precision": ["bf16"]}
SMALL = spec(
    space=SPACE,
    budget={"max_trials": 3, "min_gain": 0},
    measure={"final_rounds": 1, "finalists": 1},
)

Simulated = runner_class("simulated", {})


def check_replayed(store: SqlStore) -> None:
    """All decisions of the newest study follow, and nothing is wrong in the store."""
    found = replay_of(store, store.studies()[0].id)
    assert (found.followed, found.unfollowed) == (found.decisions, None)
    assert faults_of(store) == []


SOME = ("random", "reinforce")
OTHERS = (
    *("grid", "rule_of_thumb", "cost_ranked", "bayesian"),
    *("optuna:tpe", "optuna:nsga2", "optuna:qmc", "optuna:gp", "optuna:cmaes"),
)


@pytest.mark.parametrize(
    "searcher", [*SOME, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_the_choices_of_every_searcher_are_made_again(store: SqlStore, searcher: str) -> None:
    api.tune(SMALL | {"searcher": searcher}, store=store)
    check_replayed(store)


@pytest.mark.thorough
def test_the_choices_of_proxies_are_made_again(store: SqlStore) -> None:
    told = api.tune(target_spec(), store=store).trials
    check_replayed(store)
    assert any(trial.reason.startswith("most informative") for trial in told)


@pytest.mark.thorough
def test_constants_that_were_measured_again_do_not_matter(store: SqlStore) -> None:
    study = api.load_study(SMALL)
    cluster, trainer = study.workload.cluster.name, study.trainer
    api.tune(SMALL, store=store)
    constants = calibration_for(study.workload).to_dict()
    store.save_calibration(cluster, trainer, constants | {"matmul_efficiency": 0.3})
    api.tune(SMALL | {"name": "another"}, store=store)
    store.save_calibration(cluster, trainer, constants | {"matmul_efficiency": 0.9})
    assert faults_of(store) == []


class Waiting(Simulated):  # type: ignore[misc, valid-type]
    """The simulated runner, whose attempts wait for ranks that others use before they start."""

    def __init__(self) -> None:
        super().__init__(noise=0.0, outlier_every=0)
        self.waits: list[tuple[TrialRequest, int]] = []

    def start(self, request: TrialRequest) -> None:
        self.waits.append((request, 2))

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        waits, self.waits = self.waits, []
        for request, left in waits:
            if left:
                self.waits.append((request, left - 1))
            else:
                super().start(request)
        queued: list[RunnerEvent] = [
            AttemptQueued(id=request.id, reason="others run") for request, _ in self.waits
        ]
        return queued or super().poll(timeout_s)  # type: ignore[no-any-return]


@pytest.mark.thorough
def test_attempts_that_waited_for_ranks_are_replayed(store: SqlStore) -> None:
    api.tune(SMALL, store=store, runner=Waiting())
    queued = [e for e in store.events(store.studies()[0].id) if e.kind == "attempt.queued"]
    assert len(queued) == len(store.trials(queued[0].study))
    check_replayed(store)


@pytest.mark.thorough
def test_what_was_cut_off_at_the_end_of_the_wall_time_is_replayed(store: SqlStore) -> None:
    runner = QUIET | {"time_scale": 50.0}  # the first trial takes longer than the study may
    result = api.tune(
        SMALL | {"runner": runner, "budget": {"max_trials": 50, "max_wall_s": 2.0}}, store=store
    )
    check_replayed(store)
    assert "attempt.cancelled" in [e.kind for e in store.events(result.record.id)]
