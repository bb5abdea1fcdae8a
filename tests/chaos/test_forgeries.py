"""Forgeries with valid checksums that break no law of the history: a replay finds that a decision
does not follow, and which."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.reward import score
from autotune.spec import TrialPurpose
from autotune.store import open_store
from autotune.store.upkeep import maintenance
from tests.chaos.commit_points import begin, stories, tell
from tests.chaos.replay.faults import faults_of, ranking_faults, replay_of
from tests.chaos.replay.forger import Forger
from tests.small_studies import QUIET, spec
from tests.store.forging import forge

NOISY = spec(
    name="noisy",
    searcher="bayesian",
    space={"tp": [1, 2, 4], "pp": [1, 2], "micro_batch_size": [1, 2, 4, 8], "precision": ["bf16"]},
    objective={"stability_weight": 0},
    budget={"max_trials": 6, "min_gain": 0, "parallel_trials": 2},
    runner=QUIET | {"noise": 0.02, "capacity": 16, "seed": 1},
)
"""a study whose searcher learns, with two trials at a time"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores with one study each: one with a retry, refusals, a reference, finals and two pauses,
    and a noisy one."""
    folder = tmp_path_factory.mktemp("told")
    story = next(s for s in stories() if s.name == "paused")
    with closing(open_store(folder / "paused.db")) as store:
        tell(store, begin(store, story), story, set())
    with closing(open_store(folder / "noisy.db")) as store:
        api.tune(NOISY, store=store)
    return {name: folder / f"{name}.db" for name in ("paused", "noisy")}


def of_purpose(forger: Forger, purpose: TrialPurpose) -> list[dict[str, Any]]:
    return [row for row in forger.trials if row["purpose"] == purpose]


def config_exchanged(forger: Forger) -> None:
    first, second = (row["number"] for row in of_purpose(forger, TrialPurpose.SEARCH)[-2:])
    ours, theirs = (dict(forger.trials[n]["document"]) for n in (first, second))
    forger.put_config(first, theirs["config"], theirs["estimate"])
    forger.put_config(second, ours["config"], ours["estimate"])


def best_exchanged(forger: Forger) -> None:
    forger.study["best"] = next(n for n in (1, 3) if n != forger.study["best"])


def refusal_removed(forger: Forger) -> None:
    reason = next(reason for reason in forger.result["infeasible"] if "more ranks" in reason)
    del forger.result["infeasible"][reason]


def final_round_shortened(forger: Forger) -> None:
    """The last final was never asked for; the study ended instead."""
    last = of_purpose(forger, TrialPurpose.FINAL)[-1]["number"]
    asked = next(
        i for i, (k, d) in enumerate(forger.lines) if k == "trial.asked" and d["number"] == last
    )
    end = next(i for i, (kind, _) in enumerate(forger.lines) if kind == "study.completed")
    forger.lines[asked:end] = []
    forger.trials = forger.trials[:last]


def stop_reason_changed(forger: Forger) -> None:
    forger.line("study.completed")["message"] = forger.study["message"] = forger.result[
        "stop_reason"
    ] = "enough"


def pause_dropped(forger: Forger) -> None:
    at = next(
        i for i, (k, d) in enumerate(forger.lines) if k == "study.wanted" and d["wanted"] == "pause"
    )
    del forger.lines[at]


def hearing_of_a_pause_dropped(forger: Forger) -> None:
    at = next(
        i
        for i, (k, d) in enumerate(forger.lines)
        if k == "study.decided" and d["cause"]["event"] == "PauseAsked"
    )
    assert forger.lines[at + 1][0] == "study.decided", "it had no other consequence at once"
    del forger.lines[at]


def failure_exchanged(forger: Forger) -> None:
    forger.line("attempt.ended")["failure"]["kind"] = "ERROR"


def seed_changed(forger: Forger) -> None:
    of_purpose(forger, TrialPurpose.SEARCH)[0]["seed"] += 1


def estimate_changed(forger: Forger) -> None:
    of_purpose(forger, TrialPurpose.SEARCH)[0]["document"]["estimate"]["step_time_s"] *= 1.01


def reason_changed(forger: Forger) -> None:
    number = of_purpose(forger, TrialPurpose.SEARCH)[0]["number"]
    forger.line("trial.asked", number=number)["reason"] = "I like it"


def capacity_changed(forger: Forger) -> None:
    forger.line("controller.began")["capacity"] = 8


def times_changed(forger: Forger) -> None:
    """The study is said to have used up its wall time when it was still searching."""
    for kind, data in forger.lines:
        if kind == "study.decided" and "elapsed_s" in data["cause"]:
            data["cause"]["elapsed_s"] *= 1e6


def measurement_changed(forger: Forger) -> None:
    """Faster steps; the rest is left as it was."""
    row = of_purpose(forger, TrialPurpose.SEARCH)[1]
    speed_up(forger, row)


def speed_up(forger: Forger, row: dict[str, Any]) -> None:
    measurement = row["document"]["measurement"]
    measurement["step_times_s"] = [t / 1.3 for t in measurement["step_times_s"]]
    row["throughput"] *= 1.3
    forger.line("trial.ended", number=row["number"])["tokens_per_s_per_gpu"] = row["throughput"]


def measurement_and_reward_changed(forger: Forger) -> None:
    """Faster steps with the reward that belongs to them: only what was decided afterwards can
    tell."""
    row = of_purpose(forger, TrialPurpose.SEARCH)[1]
    speed_up(forger, row)
    forger.save()
    record, trials = forger.store.studies()[0], forger.store.trials(forger.study["id"])
    baseline = next(t for t in trials if t.purpose is TrialPurpose.BASELINE)
    trial = trials[row["number"]]
    found = score(
        replace(trial, reward=None),
        reference=baseline.measurement,
        objective=record.study.objective,
        workload=record.study.workload,
    )
    row["document"]["reward"], row["reward"] = found.to_dict(), found.total
    forger.line("trial.ended", number=row["number"])["reward"] = found.total


def ends_exchanged(forger: Forger) -> None:
    """Two trials that ran at the same time ended in the other order."""
    blocks = forger.decisions()
    for (a, b), (c, d) in itertools.pairwise(blocks):
        first, second = forger.lines[a + 1 : b], forger.lines[c + 1 : d]
        ended = [
            lines[0][1]["number"]
            for lines in (first, second)
            if lines and lines[0][0] == "trial.ended"
        ]
        asked = [data["number"] for kind, data in first if kind == "trial.asked"]
        if (
            len(ended) == 2
            and ended[1] not in asked
            and forger.trials[ended[1]]["purpose"] == "search"
        ):
            forger.lines[a + 1], forger.lines[c + 1] = forger.lines[c + 1], forger.lines[a + 1]
            ours, theirs = forger.lines[a][1]["cause"], forger.lines[c][1]["cause"]
            for name in ("number", "attempt"):
                ours[name], theirs[name] = theirs[name], ours[name]
            return
    raise AssertionError("no two trials ended one after the other")


FORGERIES: dict[str, tuple[str, Callable[[Forger], None], str]] = {
    "configs of two trials exchanged": ("paused", config_exchanged, "trial.asked of trial"),
    "another best": ("paused", best_exchanged, "best"),
    "a refusal removed": ("paused", refusal_removed, "infeasible"),
    "a final round shortened": ("paused", final_round_shortened, "expected trial.asked of trial"),
    "another stop reason": ("paused", stop_reason_changed, "enough"),
    "a wish to pause dropped": ("paused", pause_dropped, "recorded is PauseAsked"),
    "the hearing of a pause dropped": ("paused", hearing_of_a_pause_dropped, "does not follow"),
    "another failure of an attempt": ("paused", failure_exchanged, "recorded is attempt.ended"),
    "another seed": ("paused", seed_changed, "seed"),
    "another estimate": ("paused", estimate_changed, "estimate.step_time_s"),
    "another reason of a trial": ("paused", reason_changed, "I like it"),
    "another capacity": ("paused", capacity_changed, "does not follow"),
    "other times": ("paused", times_changed, "does not follow"),
    "a changed measurement": ("noisy", measurement_changed, "reward"),
    "a changed measurement with its reward": (
        "noisy",
        measurement_and_reward_changed,
        "does not follow",
    ),
    "the order of two ends exchanged": ("noisy", ends_exchanged, "does not follow"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["paused", "noisy"])
def test_what_nobody_forged_follows(told: dict[str, Path], tmp_path: Path, name: str) -> None:
    path = Path(shutil.copy(told[name], tmp_path / "store.db"))
    with closing(open_store(path)) as store:
        Forger(store).save()  # the forger itself changes nothing
        found = replay_of(store, store.studies()[0].id)
        assert faults_of(store) == []
    assert found.followed == found.decisions > 10


@pytest.mark.thorough
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_with_valid_checksums_is_found(
    told: dict[str, Path], tmp_path: Path, forgery: str
) -> None:
    name, forge, sentence = FORGERIES[forgery]
    with closing(open_store(shutil.copy(told[name], tmp_path / "store.db"))) as store:
        forger = Forger(store)
        forge(forger)
        forger.save()
        assert maintenance.check(store) == [], "checksums and laws do not see it"
        (fault,) = faults_of(store)
        assert "does not follow" in fault
        assert sentence in fault


RANKED: dict[str, str] = {
    "UPDATE trials SET throughput = throughput * 1.3 WHERE number = 3": "trial 3: it is ranked with the throughput",
    "UPDATE trials SET reward = reward + 1 WHERE number = 3": "trial 3: it is ranked with the reward",
    "UPDATE trials SET failure = 'HANG' WHERE number = 3": "trial 3: it is ranked with the failure HANG",
    "UPDATE records SET throughput = throughput / 2": "is ranked with the throughput",
    "UPDATE records SET standing = throughput * 1.1": "its config stands at",
    "DELETE FROM records": "represented",
}
"""figures that only queries read, and what is said of them"""


@pytest.mark.parametrize("statement", RANKED)
def test_a_figure_by_which_trials_are_ranked_is_that_of_the_trials_end(
    told: dict[str, Path], tmp_path: Path, statement: str
) -> None:
    with closing(open_store(shutil.copy(told["noisy"], tmp_path / "store.db"))) as store:
        forge(store, statement, seal_again=True)
        assert maintenance.check(store) == []
        faults = ranking_faults(store)
    assert any(RANKED[statement] in fault for fault in faults), faults
