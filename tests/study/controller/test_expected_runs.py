"""How many runs a study says that it takes, and how many it takes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from autotune.spec import MeasureSpec, Objective, TrialPurpose
from autotune.study.controller.finals.finalists import (
    expected_runs,
    first_finalists,
    least_runs,
    longest_finals,
    next_final,
)
from tests.matrix import sampled
from tests.study.controller.test_changing_machine import Runs, slower_between
from tests.study.controller.test_finals import DEFAULT, final, scored
from tests.study.controller.world import BASELINE, CONFIGS, World, study

OTHERS = [c for c in CONFIGS if c != BASELINE]


@pytest.mark.parametrize(
    ("max_trials", "measure", "said"),
    [
        (20, MeasureSpec(), "expect up to 27 runs, or up to 46 if configs are close: the baseline, up to 20 search trials (fewer"),
        (20, MeasureSpec(), "up to 6 finals that re-measure the best 2 and the baseline side by side, and up to 19 more finals"),
        (1, MeasureSpec(), "the baseline, 1 search trial, up to 4 finals that re-measure the best and"),
        (3, MeasureSpec(finalists=0), "expect up to 4 runs: the baseline and up to 3 search trials"),
        (20, MeasureSpec(), "Not counted: fp32 references for losses, one per global batch size, and repeats if a worker is lost or the machine's speed changes"),
    ],
)  # fmt: skip
def test_a_study_says_how_many_runs_it_takes_and_what_for(
    max_trials: int, measure: MeasureSpec, said: str
) -> None:
    assert said in expected_runs(study(max_trials=max_trials, measure=measure))


def test_references_are_named_only_where_losses_are_compared() -> None:
    asked = replace(study(), objective=Objective(stability_weight=0.0))
    assert "fp32" not in expected_runs(asked)
    assert "fp32" not in expected_runs(replace(study(), same_data=False))
    assert "Not counted: repeats" in expected_runs(asked)


def keeps_what_was_said(world: World) -> dict[TrialPurpose, int]:
    """Trials by purpose, of which those that the sentence counts are no more than it says."""
    said = expected_runs(world.study)
    ran = {p: sum(t.purpose is p for t in world.trials.values()) for p in TrialPurpose}
    most = max(int(n) for n in re.findall(r"up to (\d+) (?:runs|if)", said))
    counted = ran[TrialPurpose.SEARCH] + ran[TrialPurpose.FINAL] + 1
    assert counted <= most
    assert ran[TrialPurpose.REFERENCE] == 0 or "fp32 references" in said
    assert ran[TrialPurpose.BASELINE] <= 1 or "the machine's speed changes" in said
    return ran


def test_a_study_with_an_fp32_reference_keeps_the_number() -> None:
    low = replace(BASELINE, precision="bf16")
    configs = [replace(c, precision="bf16") for c in OTHERS[:2]]
    world = World(
        study(max_trials=2), configs=[low, *configs], baseline=low, references={8: BASELINE}
    )
    world.tick()
    while not world.ends:
        world.finish(min(r.number for r in world.running.values()), losses=(2.0, 1.9))
        world.tick()
    assert keeps_what_was_said(world)[TrialPurpose.REFERENCE] == 1


@pytest.mark.parametrize("changes", [False, True])
def test_a_study_keeps_the_number_also_where_the_machine_changes(changes: bool) -> None:
    slowness = slower_between(5, 13, 3.9) if changes else lambda n: 1.0
    ran = keeps_what_was_said(Runs(slowness, max_trials=15 if changes else 9).all())
    assert (ran[TrialPurpose.BASELINE] > 1) is changes


@pytest.mark.parametrize(
    ("finalists", "rounds", "max_trials"),
    sampled(
        [(f, r, n) for f in (1, 2, 3) for r in (1, 2, 3) for n in (1, 3, 6, 20)],
        [(1, 1, 3), (1, 3, 6), (2, 2, 6)],
    ),
)
def test_the_finals_are_never_more_than_was_said(
    finalists: int, rounds: int, max_trials: int
) -> None:
    """Whatever the search showed, and however the finals contradict it: on a machine that keeps its
    speed, so that no round is repeated."""
    rng = np.random.default_rng([finalists, rounds, max_trials])
    asked = study(
        measure=MeasureSpec(finalists=finalists, final_rounds=rounds), max_trials=max_trials
    )
    for noise in (0.0, 0.02):
        configs = OTHERS[:max_trials]
        true_s = {c: 0.3 * float(np.exp(rng.normal(0, 0.02))) for c in (BASELINE, *configs)}
        seen_s = [true_s[c] * float(rng.choice([1.0, 0.7])) for c in configs]
        trials = [DEFAULT, *map(scored, range(1, 1 + len(configs)), configs, seen_s)]
        who, searched = first_finalists(trials, asked), len(trials)
        while (upcoming := next_final(who, trials, asked)) is not None:
            spread = 0.0 if upcoming.config == BASELINE else noise
            step_time_s = true_s[upcoming.config] * float(np.exp(rng.normal(0, spread)))
            trials.append(final(len(trials), upcoming.config, step_time_s))
        finals = len(trials) - searched
        assert least_runs(asked, who) <= finals <= longest_finals(asked)
