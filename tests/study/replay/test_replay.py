"""What a replay checks, what it takes as it is recorded, and what it says of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from autotune import api, study
from autotune.cost import calibration_for
from autotune.ports import AttemptQueued, Replayed, RunnerEvent, TrialRequest
from autotune.registry import runner_class
from autotune.search import make_searcher
from autotune.spec import TrialPurpose
from autotune.store import MemoryStore, SqlStore, open_store
from autotune.store.examination import Progress, changed_studies, examine
from autotune.study.deletion import delete_study
from autotune.study.environment import RELEASE, code_in, environment
from autotune.study.replay import replay_study
from autotune.testing.stores import a_study
from tests.small_studies import QUIET, spec
from tests.store.forging import forge
from tests.study.replay.forger import Forger
from tests.study.replay.test_forgeries import measurement_changed
from tests.study.test_target import target_spec

SPACE = {"tp": [1, 2, 4], "pp": [1, 2], "micro_batch_size": [1, 2, 4], "precision": ["bf16"]}
SMALL = spec(space=SPACE, budget={"max_trials": 3, "min_gain": 0}, measure={"final_rounds": 1, "finalists": 1})

Simulated = runner_class("simulated", {})


def replayed(store: SqlStore) -> Replayed:
    """Of the newest study; nothing but its replay may find a fault."""
    found = examine(store, replay=partial(replay_study, store))
    (study,) = (each for each in found.studies if each.id == store.studies()[0].id)
    assert all("does not follow" in fault for fault in found.faults)
    assert study.replayed is not None
    return study.replayed


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "store.db"
    with closing(open_store(path)) as store:
        api.tune(SMALL | {"searcher": "bayesian"}, store=store)
    return path


@pytest.fixture
def store_of(small: Path, tmp_path: Path) -> Callable[[], SqlStore]:
    return lambda: open_store(shutil.copy(small, tmp_path / "store.db"))


SOME = ("random", "reinforce", "optuna:tpe")
OTHERS = (
    *("grid", "rule_of_thumb", "cost_ranked", "bayesian"),
    *("optuna:nsga2", "optuna:qmc", "optuna:gp", "optuna:cmaes"),
)


@pytest.mark.parametrize("searcher", [*SOME, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_the_choices_of_every_searcher_are_made_again(tmp_path: Path, searcher: str) -> None:
    with closing(open_store(tmp_path / "store.db")) as store:
        api.tune(SMALL | {"searcher": searcher}, store=store)
        found = replayed(store)
    assert (found.followed, found.unfollowed, found.not_checked) == (found.decisions, None, ())


@pytest.mark.thorough
def test_the_choices_of_proxies_are_made_again(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db")) as store:
        told = api.tune(target_spec(), store=store).trials
        found = replayed(store)
    assert any(trial.reason.startswith("tells most") for trial in told)
    assert (found.followed, found.unfollowed, found.not_checked) == (found.decisions, None, ())


def made_elsewhere(forger: Forger, **versions: str) -> None:
    forger.line("controller.began")["environment"] |= versions


@pytest.mark.thorough
def test_other_choices_of_a_searcher_elsewhere_prove_nothing(store_of: Callable[[], SqlStore]) -> None:
    as_if_by_grid = 'UPDATE specs SET "values" = replace("values", \'"bayesian"\', \'"grid"\')'
    with closing(store_of()) as store:
        forge(store, as_if_by_grid)
        found = replayed(store)
        assert "trial.asked of trial" in str(found.unfollowed)
        forger = Forger(store)
        made_elsewhere(forger, numpy="1.0")
        forger.save()
        found = replayed(store)
    assert (found.followed, found.unfollowed) == (found.decisions, None)
    (reason,) = found.not_checked
    assert reason.startswith(
        "choices of the searcher grid, taken as they are recorded: they were made elsewhere (numpy 1.0"
    )


def test_what_is_no_choice_of_a_searcher_must_follow_elsewhere_too(store_of: Callable[[], SqlStore]) -> None:
    with closing(store_of()) as store:
        forger = Forger(store)
        measurement_changed(forger)
        made_elsewhere(forger, numpy="1.0")
        forger.save()
        found = replayed(store)
        assert "reward" in str(found.unfollowed)
        made_elsewhere(forger, autotune="0.0.1")
        forger.save()
        found = replayed(store)
    assert found.unfollowed is None, "another release may have decided by other rules"
    assert any("autotune 0.0.1" in reason and "reward" in reason for reason in found.not_checked)


@pytest.mark.thorough
def test_constants_that_were_measured_again_do_not_matter(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db")) as store:
        study = api.load_study(SMALL)
        cluster, trainer = study.workload.cluster.name, study.trainer
        api.tune(SMALL, store=store)
        constants = calibration_for(study.workload).to_dict()
        store.save_calibration(cluster, trainer, constants | {"matmul_efficiency": 0.3})
        api.tune(SMALL | {"name": "another"}, store=store)
        store.save_calibration(cluster, trainer, constants | {"matmul_efficiency": 0.9})
        found = examine(store, replay=partial(replay_study, store))
    assert found.faults == ()
    assert [s.replayed.not_checked for s in found.studies if s.replayed] == [(), ()]


@pytest.mark.thorough
def test_what_a_study_learnt_from_matters(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db")) as store:
        first = api.tune(SMALL, store=store)
        api.tune(SMALL | {"name": "second", "searcher": "bayesian"}, store=store)
        assert replayed(store).not_checked == ()
        delete_study(store, first.record.id)
        found = replayed(store)
    assert found.followed == found.decisions
    assert ["studies that it learnt from are gone" in reason for reason in found.not_checked] == [True]


def test_the_choices_of_a_searcher_that_was_passed_are_taken_as_they_are(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db")) as store:
        api.tune(SMALL, store=store, searcher=lambda problem: make_searcher("random", problem.space, seed=3))
        found = replayed(store)
        assert found.followed == found.decisions
        assert "passed as an object" in found.not_checked[0]
        forger = Forger(store)
        searched = [row for row in forger.trials if row["purpose"] == TrialPurpose.SEARCH]
        twice = searched[0]["document"]
        forger.put_config(searched[1]["number"], twice["config"], twice["estimate"])
        forger.save()
        found = replayed(store)
    assert "trial.asked" in str(found.unfollowed), "no config is asked for twice, whoever chooses"


def test_decisions_of_releases_that_kept_no_beginnings_are_not_replayed(store_of: Callable[[], SqlStore]) -> None:
    with closing(store_of()) as store:
        forger = Forger(store)
        at = next(i for i, (kind, _) in enumerate(forger.lines) if kind == "controller.began")
        del forger.lines[at - 1 : at + 1]
        forger.save()
        found = replayed(store)
    assert found.followed == 0 < found.decisions
    assert found.not_checked == ("decisions of releases that did not keep what their controllers began with",)


def test_code_that_changes_between_releases_is_another_release(tmp_path: Path) -> None:
    for room, name in (("cost", "constants.json"), ("search", "random.py"), ("cli", "best.py")):
        (tmp_path / room).mkdir()
        (tmp_path / room / name).write_text("1")
    before = code_in(tmp_path)
    (tmp_path / "cli" / "best.py").write_text("2")
    (tmp_path / "search" / "__pycache__").mkdir()
    (tmp_path / "search" / "__pycache__" / "random.pyc").write_text("compiled")
    assert code_in(tmp_path) == before
    (tmp_path / "cost" / "constants.json").write_text("2")
    assert code_in(tmp_path) != before
    assert environment()[RELEASE].endswith(f"(code {code_in(Path(study.__file__).parents[1])})")


def test_the_examination_says_how_far_it_is(store_of: Callable[[], SqlStore]) -> None:
    told: list[tuple[int, int, int, int]] = []

    def hear(at: Progress) -> None:
        told.append((at.done, at.studies, at.replayed, at.replays))

    with closing(store_of()) as store:
        for name in ("second", "third"):
            store.submit(a_study(name), {})
        newest = changed_studies(store, newest=2)
        examine(store, replay=partial(replay_study, store), of=newest, on_study=hear)
        assert newest == {record.id for record in store.studies(limit=2)}
        assert changed_studies(store, since=datetime.now(UTC) - timedelta(hours=1)) > newest
        assert changed_studies(store, since=datetime.now(UTC) + timedelta(hours=1)) == frozenset()
    assert told == [(1, 3, 1, 2), (2, 3, 2, 2), (3, 3, 2, 2)]


def test_what_is_left_of_an_examination_is_reckoned_from_what_was_done() -> None:
    far = Progress(studies=1000, replays=100, done=10, replayed=10, checked_s=1.0, replayed_s=20.0)
    assert far.left_s == 990 * 0.1 + 90 * 2.0


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
        queued: list[RunnerEvent] = [AttemptQueued(id=request.id, reason="others run") for request, _ in self.waits]
        return queued or super().poll(timeout_s)  # type: ignore[no-any-return]


@pytest.mark.thorough
def test_attempts_that_waited_for_ranks_are_replayed() -> None:
    with closing(MemoryStore()) as store:
        api.tune(SMALL, store=store, runner=Waiting())
        queued = [e for e in store.events(store.studies()[0].id) if e.kind == "attempt.queued"]
        found = replayed(store)
        assert len(queued) == len(store.trials(queued[0].study))
    assert (found.followed, found.unfollowed, found.not_checked) == (found.decisions, None, ())


@pytest.mark.thorough
def test_what_was_cut_off_at_the_end_of_the_wall_time_is_replayed() -> None:
    runner = QUIET | {"time_scale": 50.0}  # the first trial takes longer than the study may
    with closing(MemoryStore()) as store:
        result = api.tune(SMALL | {"runner": runner, "budget": {"max_trials": 50, "max_wall_s": 2.0}}, store=store)
        kinds = [e.kind for e in store.events(result.record.id)]
        found = replayed(store)
    assert "attempt.cancelled" in kinds
    assert (found.followed, found.unfollowed, found.not_checked) == (found.decisions, None, ())
