"""Studies on a machine that becomes slower or faster while they run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autotune.ports import AttemptEnded
from autotune.reward import MachineLevels
from autotune.spec import Estimate, FailureKind, ParallelConfig, TrialPurpose, TrialStatus
from autotune.stopping import trial_decision
from autotune.study.controller import NoteMachineChange, change_in_words, decide, plan_in_words
from tests.benchmarks.drift import prediction
from tests.matrix import sampled
from tests.shortcuts import present
from tests.study.controller.world import BASELINE, CONFIGS, World, measured, study

OTHERS = [c for c in CONFIGS if c != BASELINE]
SPEEDS = {BASELINE: 1.0, **{c: 0.9 + 0.3 * ((7 * i) % 15) / 14 for i, c in enumerate(OTHERS)}}
BEST = max(SPEEDS, key=lambda c: SPEEDS[c])


class Runs:
    """Measures every config at its own speed, times what the machine is slower by in the n-th
    run."""

    def __init__(
        self, slowness: Callable[[int], float], *, predicted: bool = True, **budget: Any
    ) -> None:
        self.slowness = slowness
        self.measure_s = 0.1
        options: dict[str, Any] = {"predict": self.predict} if predicted else {}
        self.world = World(study(**{"max_trials": 25} | budget), configs=OTHERS, **options)
        self.world.tick()

    def predict(self, config: ParallelConfig) -> Estimate:
        return prediction(0.1 / SPEEDS[config], 0.05)

    def one(self) -> None:
        """The next run ends."""
        world = self.world
        request = world.request(min(r.number for r in world.running.values()))
        time_s = 0.1 / SPEEDS[request.config] * self.slowness(len(world.order))
        times, stopped = [time_s], ""
        while not (
            decision := trial_decision(times, request.measure, request.beat_step_time_s)
        ).stop:
            times.append(time_s)
        stopped = decision.reason if decision.stopped_early else ""
        found = replace(measured(request.config), step_times_s=tuple(times), setup_s=1.0)
        world.tick(sum(times))
        world.report(AttemptEnded(id=request.id, measurement=found, stopped=stopped))
        world.tick()

    def all(self) -> World:
        """To the end."""
        while not self.world.ends:
            self.one()
        return self.world


@pytest.fixture(scope="module")
def quiet() -> World:
    """A study on a machine that keeps its speed."""
    return Runs(lambda n: 1.0).all()


@pytest.fixture(scope="module")
def slow_midway() -> World:
    """A study on a machine that is 3.9 times slower from the fifth run to the twelfth."""
    return Runs(slower_between(5, 13, 3.9)).all()


def asked(world: World, purpose: TrialPurpose) -> list[int]:
    return [n for n, t in sorted(world.trials.items()) if t.purpose is purpose]


def seen_speeds(world: World) -> dict[ParallelConfig, float]:
    """Of each config that counts, relative to the default one."""
    index = world.controller.index
    first = [index.seen(t) for t in world.trials.values() if t.purpose is TrialPurpose.SEARCH]
    base = present(index.baseline)
    return {
        t.config: t.measurement.tokens_per_s / present(base.measurement).tokens_per_s
        for t in first
        if t.measurement
    }


def notes_of(world: World) -> list[NoteMachineChange]:
    return [c for c in world.commands if isinstance(c, NoteMachineChange)]


def slower_between(first: int, last: int, times: float) -> Callable[[int], float]:
    return lambda n: times if first <= n < last else 1.0


def test_a_quiet_short_study_measures_the_default_config_once() -> None:
    world = Runs(lambda n: 1.0, max_trials=9).all()
    assert len(asked(world, TrialPurpose.BASELINE)) == 1
    assert len(asked(world, TrialPurpose.SEARCH)) == 9
    assert not notes_of(world)


def test_a_quiet_long_study_spends_a_tenth_of_its_time_on_the_default_config_and_none_of_its_trials(
    quiet: World,
) -> None:
    assert 1 <= len(asked(quiet, TrialPurpose.BASELINE)) - 1 <= len(OTHERS) / 10
    assert len(asked(quiet, TrialPurpose.SEARCH)) == len(OTHERS)
    assert all(quiet.controller.index.seen(t) is t for t in quiet.trials.values())


def test_a_machine_that_slows_down_midway_and_comes_back_changes_no_winner(
    slow_midway: World,
) -> None:
    world = slow_midway
    assert world.winner == BEST
    assert world.end.speedup == pytest.approx(SPEEDS[BEST], rel=0.01)
    slower, faster = notes_of(world)
    assert slower.change.speedup == pytest.approx(1 / 3.9)
    assert faster.change.speedup == pytest.approx(3.9)


def test_every_speed_is_relative_to_the_default_config_of_its_time(slow_midway: World) -> None:
    for config, speed in seen_speeds(slow_midway).items():
        assert speed == pytest.approx(SPEEDS[config], rel=0.01)


def test_the_searcher_is_told_figures_of_one_level(slow_midway: World) -> None:
    world = slow_midway
    told = {t.number: t for _, t in world.searcher.trials}
    base = present(world.trials[0].measurement)
    for trial in told.values():
        assert present(trial.measurement).tokens_per_s / base.tokens_per_s == pytest.approx(
            SPEEDS[trial.config], rel=0.01
        )
    assert len({t.config for t in told.values()}) == len(told), (
        "a config that was re-measured counts once"
    )


def test_configs_that_were_stopped_in_a_slow_time_and_may_win_are_asked_for_again_within_the_budget() -> (
    None
):
    world = Runs(slower_between(5, 10, 3.9), max_trials=20).all()
    (first, *_) = notes_of(world)
    searched = [world.trials[n] for n in asked(world, TrialPurpose.SEARCH)]
    twice = [t for t in searched if sum(o.config == t.config for o in searched) == 2]
    assert first.again
    assert {t.number for t in twice} >= set(first.again)
    assert all(world.trials[n].status is TrialStatus.STOPPED for n in first.again)
    assert len(searched) <= 20


def test_a_slow_ramp_changes_no_winner() -> None:
    world = Runs(lambda n: 1.0 + 0.05 * n).all()
    assert SPEEDS[world.winner] >= 0.97 * SPEEDS[BEST]
    assert notes_of(world)


@pytest.mark.parametrize("begin", sampled(range(2, 9), [5]))
def test_a_burst_that_is_over_before_it_is_confirmed_drops_nobody(begin: int) -> None:
    """It slows down two trials and the first of the two runs of the baseline that follow."""
    world = Runs(slower_between(begin, begin + 3, 4.0)).all()
    assert world.winner == BEST
    assert not notes_of(world)
    for config, speed in seen_speeds(world).items():
        assert speed == pytest.approx(SPEEDS[config], rel=0.01)


@pytest.mark.parametrize("into", sampled(range(6), [2]))
def test_a_change_within_the_finals_costs_rounds_and_no_claim(quiet: World, into: int) -> None:
    begin = min(asked(quiet, TrialPurpose.FINAL)) + into
    world = Runs(slower_between(begin, 999, 3.9)).all()
    assert world.winner == BEST
    assert world.end.speedup == pytest.approx(SPEEDS[BEST], rel=0.01)


def test_a_surprise_just_before_the_finals_asks_for_the_default_config() -> None:
    world = Runs(slower_between(8, 999, 0.5), max_trials=8).all()
    (again,) = asked(world, TrialPurpose.BASELINE)[1:2]
    assert again == 9
    assert world.end.speedup == pytest.approx(
        max(SPEEDS[world.trials[n].config] for n in range(9)), rel=0.01
    )


def test_one_wild_trial_is_no_change_of_the_machine() -> None:
    quiet, wild = (Runs(slower_between(6, last, 4.0)).all() for last in (6, 7))
    assert not notes_of(wild)
    assert asked(quiet, TrialPurpose.BASELINE) == asked(wild, TrialPurpose.BASELINE)


def test_one_wild_run_of_the_default_config_is_no_change_of_the_machine(quiet: World) -> None:
    at = asked(quiet, TrialPurpose.BASELINE)[1]
    world = Runs(slower_between(at, at + 1, 4.0)).all()
    assert not notes_of(world)
    assert asked(world, TrialPurpose.BASELINE)[1:3] == [at, at + 1], (
        "it is measured once more at once"
    )
    assert world.controller.index.levels.at(at + 2).slow == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    "slowness",
    [
        slower_between(5, 13, 3.9),
        pytest.param(lambda n: 1.0 + 0.05 * n, marks=pytest.mark.thorough),
    ],
)
def test_a_restart_at_any_time_decides_the_same(slowness: Callable[[int], float]) -> None:
    def story(world: World) -> list[Any]:
        return [(t.config, t.purpose, t.status, t.reason) for _, t in sorted(world.trials.items())]

    whole = Runs(slowness).all()
    for at in range(3, len(whole.order), 12):
        runs = Runs(slowness)
        for _ in range(at):
            runs.one()
        runs.world.resume()
        assert story(runs.all()) == story(whole), f"after {at} runs"
        assert {n: t.measurement for _, t in runs.world.searcher.trials for n in [t.number]} == {
            n: t.measurement for _, t in whole.searcher.trials for n in [t.number]
        }


@pytest.mark.thorough
def test_no_more_than_three_runs_of_the_default_config_follow_each_other() -> None:
    runs = Runs(lambda n: 1.0 if n < 5 else 1.3 ** (n % 7) * 3)
    world = runs.all()
    numbers = asked(world, TrialPurpose.BASELINE)
    assert not any({n, n + 1, n + 2, n + 3} <= set(numbers) for n in numbers)


def test_a_default_config_that_fails_when_it_is_measured_again_does_not_hold_the_search_up() -> (
    None
):
    runs = Runs(slower_between(5, 99, 3.9))
    while not runs.world.ends:
        request = runs.world.request(runs.world.only)
        trial = runs.world.trials[request.number]
        if trial.purpose is TrialPurpose.BASELINE and trial.number:
            runs.world.fail(request.number, FailureKind.ERROR)
            runs.world.tick()
        else:
            runs.one()
    assert len(asked(runs.world, TrialPurpose.SEARCH)) == len(OTHERS)
    assert runs.world.end.best is not None


def test_the_change_and_the_plan_are_said_in_words() -> None:
    world = Runs(slower_between(5, 10, 3.9), max_trials=20).all()
    began = datetime(2026, 5, 4, 14, 0, tzinfo=UTC)
    timed = {n: replace(t, ended_at=began + timedelta(minutes=n)) for n, t in world.trials.items()}
    note = notes_of(world)[0]
    a, b = note.change.before.runs[-1], note.change.after.runs[0]
    said = change_in_words(note.change, timed)
    assert said == (
        f"The machine became 3.9 times slower between 14:{a:02d} and 14:{b:02d} UTC (baseline: 2,560 -> 656 tokens/s at its median step)."
    )
    assert f"between trials {a} and {b}" in change_in_words(note.change, world.trials)
    assert "will be re-measured" in plan_in_words(note.again)
    assert "re-measured" not in plan_in_words(())
    found = decide(list(timed.values()), world.study)
    assert found.notes[0] == said
    corrected = "Speeds are corrected to the machine's speed at the start of the study (baseline: "
    assert f"{corrected}2,560 tokens/s)." in found.notes
    early = [t for t in timed.values() if t.purpose is not TrialPurpose.FINAL]
    assert any(f"{corrected}2,560" in n for n in decide(early, world.study).notes)


def test_where_nothing_tells_when_it_changed_the_lower_speed_counts() -> None:
    runs = Runs(slower_between(5, 99, 2.0), predicted=False)
    world = runs.all()
    levels = MachineLevels(world.trials.values())
    (change,) = levels.changes
    between = range(change.before.runs[-1] + 1, change.after.runs[0])
    assert between
    for number in between:
        assert levels.at(number).slow == pytest.approx(-math.log(2.0))
        assert levels.at(number).fast == 0.0


def test_a_short_study_without_predictions_measures_the_default_config_again_and_says_that_the_machine_changed() -> (
    None
):
    world = Runs(slower_between(3, 999, 1.25), predicted=False, max_trials=6).all()
    again = [t for t in world.trials.values() if t.config == BASELINE]
    assert len(again) > 2
    (said,) = (note for note in world.end.result["notes"] if "The machine changed" in note)
    assert said.startswith(
        "The baseline's median step ran at about 2,048 tokens/s in the final rounds and at 2,560 in the search"
    )
    assert said.endswith("Speeds are corrected to the machine's speed at the start of the study.")
    # history has the figures of the tables: at the machine's speed in the search
    finals = {f["number"]: f["tokens_per_s"] for f in world.end.result["finals"]}
    assert finals[0] == pytest.approx(2560, rel=0.01)
    best = max(SPEEDS[t.config] for t in world.trials.values())
    assert finals[world.end.best] == pytest.approx(2560 * best, rel=0.01)
    assert world.end.speedup == pytest.approx(best, rel=0.01)
