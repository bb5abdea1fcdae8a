from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.reward import score
from autotune.spec import (
    Failure,
    FailureKind,
    MeasureSpec,
    ParallelConfig,
    Reward,
    SpaceSpec,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.study.controller.finals.finalists import (
    contenders,
    first_finalists,
    most_runs,
    next_final,
    participants,
)
from autotune.study.controller.finals.winner import decide
from autotune.study.controller.trial_index import TrialIndex
from tests.shortcuts import present
from tests.study.controller.world import BASELINE, CONFIGS, measured, study

A, B, C = CONFIGS[:3]


def run(number: int, config: ParallelConfig, step_time_s: float, **fields: object) -> Trial:
    trial = Trial(
        config=config,
        number=number,
        status=TrialStatus.COMPLETED,
        measurement=measured(config, step_time_s),
        reward=Reward(total=-step_time_s, throughput=-step_time_s, stability=1.0),
    )
    return replace(trial, **fields)


def final(number: int, config: ParallelConfig, step_time_s: float) -> Trial:
    return run(number, config, step_time_s, purpose=TrialPurpose.FINAL)


def failed(trial: Trial) -> Trial:
    failure = Failure(kind=FailureKind.ERROR, message="broke")
    return replace(trial, status=TrialStatus.FAILED, measurement=None, reward=None, failure=failure)


STUDY = study(measure=MeasureSpec(finalists=2, final_rounds=2))


def scored(
    number: int, config: ParallelConfig, step_time_s: float, default_s: float = 0.3
) -> Trial:
    """A measured trial with the reward of its speed against the baseline's."""
    found = run(number, config, step_time_s)
    reward = score(
        found,
        reference=measured(BASELINE, default_s),
        objective=STUDY.objective,
        workload=STUDY.workload,
    )
    return replace(found, reward=reward)


DEFAULT = replace(scored(0, BASELINE, 0.3), purpose=TrialPurpose.BASELINE)
FIRST = [
    run(0, BASELINE, 0.3, purpose=TrialPurpose.BASELINE),
    run(1, A, 0.1),
    run(2, B, 0.2, status=TrialStatus.STOPPED),
    run(3, C, 0.15),
]
ONE = study(measure=MeasureSpec(finalists=1, final_rounds=2))


def test_the_best_others_that_ran_to_their_end_meet_the_baseline() -> None:
    assert participants(FIRST, STUDY) == (BASELINE, A, C)
    assert [t.config for t in contenders(FIRST, STUDY)] == [A, C, BASELINE]


def test_what_was_stopped_is_re_measured_only_where_nothing_else_ran_to_its_end() -> None:
    default, a, b, c = FIRST
    assert participants([default, a, b], STUDY) == (BASELINE, A)
    assert participants([default, a, replace(c, status=TrialStatus.STOPPED)], STUDY) == (
        BASELINE,
        A,
    )
    stopped = [replace(t, status=TrialStatus.STOPPED) for t in (a, b, c)]
    assert participants([default, *stopped], STUDY) == (BASELINE, A, C)


def test_a_stopped_one_comes_back_where_the_finals_show_that_it_stands_above() -> None:
    """A lucky measurement of A had stopped B."""
    stopped = replace(scored(2, B, 0.15), status=TrialStatus.STOPPED)
    _, order = played_out({BASELINE: 0.3, A: 0.3, B: 0.2}, [DEFAULT, scored(1, A, 0.1), stopped])
    assert order[:4] == [BASELINE, A, A, BASELINE]
    assert B in order[4:]


def test_a_reference_competes_only_where_the_space_has_it() -> None:
    fp32 = replace(BASELINE, accumulation_steps=1, micro_batch_size=2)
    reference = run(4, fp32, 0.05, purpose=TrialPurpose.REFERENCE)
    low, both = (
        {"precision": words, "micro_batch_size": (1, 2)} for words in (("bf16",), ("bf16", "fp32"))
    )
    outside, inside = (replace(STUDY, space=SpaceSpec(knobs=knobs)) for knobs in (low, both))
    trials = [*FIRST, reference]
    assert participants(trials, outside) == (BASELINE, A, C)
    assert contenders(trials, outside) == contenders(FIRST, outside)
    assert decide(trials, outside).best == FIRST[1]
    assert participants(trials, inside) == (BASELINE, fp32, A)
    assert decide(trials, inside).best == reference
    assert decide(trials, replace(outside, enqueue=(fp32,))).best == reference
    best = TrialIndex(outside)
    for trial in trials:
        best.put(trial)
    assert best.best == FIRST[1]


def test_there_are_no_finals_without_two() -> None:
    assert participants(FIRST[:1], STUDY) == ()
    assert participants(FIRST[1:2], STUDY) == ()
    assert participants(FIRST, study(measure=MeasureSpec(finalists=0))) == ()
    assert participants(FIRST[1:3], STUDY) == (A, B)


def test_one_measurement_each_is_told_where_there_is_more_than_one_config() -> None:
    assert "one measurement of each config" in "".join(decide(FIRST, STUDY).notes)
    assert decide(FIRST[:1], STUDY).notes == ()
    assert decide(FIRST[1:2], STUDY).notes == ()


def test_rounds_are_played_to_and_fro() -> None:
    who, played = (BASELINE, A, B), list[Trial]()
    three = study(measure=MeasureSpec(finalists=2, final_rounds=3))
    while len(played) < 9 and (upcoming := next_final(who, [*FIRST, *played], three)) is not None:
        played.append(final(len(played), upcoming.config, 0.1))
    assert [t.config for t in played] == [BASELINE, A, B, B, A, BASELINE, BASELINE, A, B]


def test_a_cancelled_measurement_is_made_again() -> None:
    upcoming = present(
        next_final((BASELINE, A), [*FIRST, cancelled(final(4, BASELINE, 0.1))], STUDY)
    )
    assert (upcoming.round, upcoming.config) == (0, BASELINE)


def cancelled(trial: Trial) -> Trial:
    return replace(trial, status=TrialStatus.CANCELLED, measurement=None, reward=None)


ONCE = [final(4, BASELINE, 0.3), final(5, A, 0.2), final(6, C, 0.1)]
TWICE = [*ONCE, final(7, BASELINE, 0.3), final(8, A, 0.2), final(9, C, 0.1)]


@pytest.mark.parametrize(
    ("again", "best", "speedup", "rounds", "note"),
    [
        pytest.param(TWICE, C, 3.0, 2, "", id="two rounds"),
        pytest.param(
            [*ONCE, final(7, C, 9.0)],
            C,
            3.0,
            1,
            "",
            id="a round that not everyone finished counts nothing",
        ),
        pytest.param(
            [*ONCE[:2], cancelled(ONCE[2])],
            A,
            1.5,
            1,
            f"{C} was not re-measured before the end",
            id="a round that the end of the study cut: what was measured side by side outweighs single runs",
        ),
        pytest.param(
            [*ONCE[:2], failed(ONCE[2]), final(7, A, 0.2), final(8, BASELINE, 0.3)],
            A,
            1.5,
            2,
            "failed when it was re-measured",
            id="who fails again is out and the others' rounds count",
        ),
    ],
)
def test_the_finals_decide_and_not_the_search(
    again: list[Trial], best: ParallelConfig, speedup: float, rounds: int, note: str
) -> None:
    winner = decide([*FIRST, *again], STUDY)
    assert (present(winner.best).config, winner.rounds) == (best, rounds)
    assert winner.speedup == pytest.approx(speedup)
    assert note in "".join(winner.notes)
    assert bool(winner.notes) == bool(note)


def test_who_won_has_its_trial_of_the_search_with_the_times_of_the_finals() -> None:
    winner = decide([*FIRST, *TWICE], STUDY)
    assert present(winner.best).number == 3
    assert present(present(winner.best).measurement).step_time_s == pytest.approx(0.1)
    assert [t.config for t in winner.confirmed] == [C, A, BASELINE]
    assert decide([*FIRST, *ONCE[1:]], STUDY).rounds == 0, "the baseline ran in none"


def test_without_the_baseline_in_the_finals_first_measurements_are_compared() -> None:
    again = [
        failed(final(4, BASELINE, 0.3)),
        *(final(n, c, 0.1) for n, c in enumerate([A, C, C, A], start=5)),
    ]
    winner = decide([*FIRST, *again], STUDY)
    assert winner.rounds == 2
    assert winner.speedup is not None
    assert winner.speedup == pytest.approx(0.3 / {A: 0.1, C: 0.15}[present(winner.best).config])
    assert "the baseline was not re-measured" in winner.notes[1]


def test_each_round_gives_equally_many_steps() -> None:
    long = replace(measured(A, 0.2), step_times_s=(0.2,) * 50)
    again = [
        final(4, BASELINE, 0.3),
        final(5, A, 0.1),
        replace(final(6, A, 0.2), measurement=long),
        final(7, BASELINE, 0.3),
    ]
    winner = decide([*FIRST[:2], *again], STUDY)
    assert present(present(winner.best).measurement).step_time_s == pytest.approx(0.15)


@pytest.mark.parametrize("times_s", [(0.1, 0.2, 0.3), (0.3, 0.2, 0.1)])
def test_a_machine_that_changes_between_rounds_makes_no_config_unstable(
    times_s: tuple[float, ...],
) -> None:
    rounds = [
        final(10 + 2 * r + n, c, f * t)
        for r, t in enumerate(times_s)
        for n, (c, f) in enumerate([(BASELINE, 1.0), (A, 0.9)])
    ]
    winner = decide(
        [*FIRST, *rounds], study(measure=MeasureSpec(finalists=1, final_rounds=3)), (BASELINE, A)
    )
    assert winner.too_noisy is not None, "no two runs of the baseline agree"
    assert len(winner.confirmed) == 2
    for trial in winner.confirmed:
        assert present(trial.reward).parts["slowing"] == 1.0


def test_a_machine_that_changes_between_pairs_of_rounds_costs_neither_stability_nor_a_figure() -> (
    None
):
    rounds = [
        final(10 + 2 * r + n, c, f * t)
        for r, t in enumerate((0.1, 0.1, 0.25, 0.25))
        for n, (c, f) in enumerate([(BASELINE, 1.0), (A, 0.8)])
    ]
    winner = decide(
        [*FIRST, *rounds], study(measure=MeasureSpec(finalists=1, final_rounds=4)), (BASELINE, A)
    )
    assert winner.rounds == 4
    assert winner.speedup == pytest.approx(1.25)
    for trial in winner.confirmed:
        assert present(trial.measurement).step_time_spread == pytest.approx(0.0, abs=1e-9)
        assert present(trial.reward).stability == 1.0


def test_without_finals_the_interval_reaches_over_the_levels_that_the_machine_may_have_had() -> (
    None
):
    """The baseline became twice as slow before or after the only other trial: that is 2 or 4 times
    as fast."""
    default = [
        run(n, BASELINE, t, purpose=TrialPurpose.BASELINE)
        for n, t in ((0, 0.1), (2, 0.2), (3, 0.2))
    ]
    other = run(1, A, 0.05, reward=Reward(total=0.7, throughput=0.7, stability=1.0))
    once = study(measure=MeasureSpec(finalists=0, final_rounds=0))
    winner, steady = (
        decide([default[0], other, *default[1:]], once),
        decide([default[0], other], once),
    )
    assert winner.speedup == steady.speedup == pytest.approx(2.0)
    assert winner.speedup_low is not None
    assert winner.speedup_high is not None
    assert winner.speedup_low < 2
    assert winner.speedup_high > 4
    assert steady.speedup_high is not None
    assert steady.speedup_high < 3


def test_who_took_part_may_be_told() -> None:
    again = [final(4, BASELINE, 0.3), final(5, A, 0.2)]
    assert decide([*FIRST, *again], STUDY, (BASELINE, A)).rounds == 1


def test_nothing_measured_has_no_winner() -> None:
    winner = decide([failed(FIRST[0])], STUDY)
    assert (winner.best, winner.baseline, winner.speedup) == (None, None, None)


def test_the_claim_has_an_interval_and_names_who_cannot_be_told_from_the_winner() -> None:
    again = [
        final(n, c, t)
        for n, (c, t) in enumerate([(BASELINE, 0.3), (A, 0.2), (C, 0.2004)] * 2, start=4)
    ]
    winner = decide([*FIRST, *again], STUDY)
    assert present(winner.best).config == A
    assert winner.tied_with == (3,)
    low, high = winner.speedup_low, winner.speedup_high
    assert low is not None
    assert high is not None
    assert 1.4 < low < 1.5 < high < 1.6


def test_nothing_is_claimed_that_the_noise_between_runs_explains() -> None:
    again = [
        final(n, c, t)
        for n, (c, t) in enumerate([(BASELINE, 0.3), (A, 0.299), (C, 0.4)] * 2, start=4)
    ]
    winner = decide([*FIRST, *again], STUDY)
    assert present(winner.best).config == BASELINE
    assert (winner.speedup_low, winner.speedup, winner.speedup_high) == (1.0, 1.0, 1.0)
    assert winner.tied_with == (1,)
    assert "faster than the baseline by more than the noise between runs" in winner.notes[-1]


SLOW = 3.0
"""times that one step in twenty takes on a machine that is busy now and then"""


def busy(number: int, config: ParallelConfig, step_time_s: float, slow: int) -> Trial:
    """A final run of nine steps, so many of which are slow."""
    trial = final(number, config, step_time_s)
    assert trial.measurement is not None
    times = tuple(step_time_s * (SLOW if k < slow else 1 + 0.002 * (k % 3)) for k in range(9))
    return replace(trial, measurement=replace(trial.measurement, step_times_s=times))


def test_where_no_round_is_undisturbed_for_both_each_has_its_own_undisturbed_runs() -> None:
    played = [
        (BASELINE, 0.4, 2),
        (A, 0.1, 1),
        (A, 0.1, 1),
        (BASELINE, 0.4, 0),
        (BASELINE, 0.4, 1),
        (A, 0.1, 0),
    ]
    trials = [*FIRST[:2], *(busy(n, *what) for n, what in enumerate(played, start=4))]
    winner = decide(trials, study(measure=MeasureSpec(finalists=1, final_rounds=3)), (BASELINE, A))
    assert present(winner.best).config == A
    assert winner.speedup == pytest.approx(4.0, rel=0.01)


def test_slow_steps_of_the_default_config_alone_widen_the_interval() -> None:
    order = [(BASELINE, 0.4, 1), (A, 0.1, 0), (B, 0.2, 0)]
    played = [*order, *order[::-1], *order]
    trials = [*FIRST[:3], *(busy(n, *what) for n, what in enumerate(played, start=4))]
    winner = decide(
        trials, study(measure=MeasureSpec(finalists=2, final_rounds=3)), (BASELINE, A, B)
    )
    assert winner.speedup is not None
    assert winner.speedup_low is not None
    assert winner.speedup > 4.5
    assert winner.speedup_low < 4.0


def test_one_quiet_run_among_busy_ones_has_an_interval_that_knows_of_the_others() -> None:
    """Every second step of the busy runs is slow, so only the quiet run of each config counts: of A
    the fast one, of the baseline another."""

    def shared(number: int, config: ParallelConfig, step_time_s: float, *, is_quiet: bool) -> Trial:
        trial = final(number, config, step_time_s)
        assert trial.measurement is not None
        times = tuple(step_time_s * (1 + (0.002 if is_quiet else 0.3) * (k % 2)) for k in range(9))
        return replace(trial, measurement=replace(trial.measurement, step_times_s=times))

    played = [
        *((BASELINE, 0.4, False), (A, 0.4, False)),
        *((A, 0.39, False), (BASELINE, 0.4, True)),
        *((BASELINE, 0.4, True), (A, 0.22, True)),
    ]
    trials = [
        *FIRST[:2],
        *(
            shared(n, config, step_time_s, is_quiet=quiet)
            for n, (config, step_time_s, quiet) in enumerate(played, start=4)
        ),
    ]
    winner = decide(trials, study(measure=MeasureSpec(finalists=1, final_rounds=3)), (BASELINE, A))
    assert winner.speedup == pytest.approx(0.4 / 0.22, rel=0.01)
    assert winner.speedup_low is not None
    assert winner.speedup_low < 1.1


@pytest.mark.parametrize("last", [0.3, 1.0])
def test_a_round_that_the_default_config_opened_in_a_burst_and_did_not_close_counts_for_nothing(
    last: float,
) -> None:
    """The burst began in the second round and ended after the baseline's run of the third: A, its
    equal, would look 3.3 times as fast."""
    played = [(BASELINE, 0.3), (A, 0.3), (A, 0.3), (BASELINE, 1.0), (BASELINE, 1.0), (A, 0.3)]
    trials = [
        DEFAULT,
        scored(1, A, last),
        *(final(n, *what) for n, what in enumerate(played, start=2)),
    ]
    winner = decide(trials, ONE, (BASELINE, A))
    assert winner.too_noisy is None, "or the test shows nothing"
    assert present(winner.best).config == BASELINE
    assert winner.speedup == 1.0


def played_out(
    true_s: dict[ParallelConfig, float],
    searched: list[Trial],
    slowness: float = 1.0,
    finalists: int = 1,
) -> tuple[list[Trial], list[ParallelConfig]]:
    """The finals of configs with these true step times, on a machine that is so many times slower
    than in the search; and who ran, in order."""
    asked = study(measure=MeasureSpec(finalists=finalists, final_rounds=2))
    trials, order = list(searched), list[ParallelConfig]()
    while (upcoming := next_final(first_finalists(trials, asked), trials, asked)) is not None:
        order.append(upcoming.config)
        trials.append(final(len(trials), upcoming.config, slowness * true_s[upcoming.config]))
        assert len(order) < 40
    return trials, order


def test_who_stands_above_the_finalists_once_they_raced_is_measured_again() -> None:
    """A looked best because it was lucky; in truth it is the baseline's equal, so B and C stand
    above it."""
    searched = [DEFAULT, scored(1, A, 0.1), scored(2, B, 0.15), scored(3, C, 0.2)]
    trials, order = played_out({BASELINE: 0.3, A: 0.3, B: 0.25, C: 0.2}, searched)
    assert order[:4] == [BASELINE, A, A, BASELINE]
    late = order.index(B)
    assert order[late - 1] == BASELINE, "the baseline opens the rounds of late comers"
    assert {B, C} <= set(order[late:]) <= {BASELINE, B, C}
    winner = decide(trials, ONE)
    assert present(winner.best).config == C
    assert winner.speedup == pytest.approx(1.5)
    assert {t.config for t in winner.confirmed} == {BASELINE, A, B, C}


def test_the_finals_are_bounded_however_many_stand_above() -> None:
    """All looked twice as fast as the baseline and none is: each race shows that others stand
    above."""
    searched = [
        DEFAULT,
        *(scored(n, c, 0.15 + 0.001 * n) for n, c in enumerate(CONFIGS[:14], start=1)),
    ]
    trials, order = played_out(dict.fromkeys((BASELINE, *CONFIGS), 0.3), searched)
    repeated = 2 * len(first_finalists(searched, ONE))
    assert most_runs(ONE) < len(order) <= 2 * most_runs(ONE) + repeated
    assert [t.config for t in trials[: len(searched)]] == [t.config for t in searched]
    winner = decide(trials, ONE)
    assert present(winner.best).config == BASELINE


def test_a_machine_that_became_slower_brings_no_late_comers() -> None:
    searched = [DEFAULT, scored(1, A, 0.15), scored(2, B, 0.2), scored(3, C, 0.25)]
    _, order = played_out({BASELINE: 0.3, A: 0.15, B: 0.2, C: 0.25}, searched, slowness=2.5)
    assert order == [BASELINE, A, A, BASELINE]


def test_late_comers_begin_only_with_the_runs_for_all_rounds_that_are_asked_for() -> None:
    """The baseline closes the first race, which leaves one run: too few for another config beside
    it."""
    asked = study(measure=MeasureSpec(finalists=1, final_rounds=1), max_trials=2)
    trials = [DEFAULT, scored(1, A, 0.1), scored(2, B, 0.29)]
    true_s = {BASELINE: 0.3, A: 0.3, B: 0.29}
    while (upcoming := next_final(first_finalists(trials, asked), trials, asked)) is not None:
        trials.append(final(len(trials), upcoming.config, true_s[upcoming.config]))
    raced = [t.config for t in trials if t.purpose is TrialPurpose.FINAL]
    assert raced == [BASELINE, A]


def test_late_comers_that_could_not_be_measured_leave_the_claim_of_the_first_finalists() -> None:
    searched = [DEFAULT, scored(1, A, 0.1), scored(2, B, 0.15)]
    trials, order = played_out({BASELINE: 0.3, A: 0.2, B: 0.25}, searched)
    assert B in order
    interrupted = trials[: len(searched) + order.index(B)]
    winner = decide(interrupted, ONE)
    assert present(winner.best).config == A
    assert winner.speedup == pytest.approx(1.5)
