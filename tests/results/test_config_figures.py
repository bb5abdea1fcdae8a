"""One figure per config: a machine that becomes slower between search and finals changes no order
and no ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from autotune import api
from autotune.ports import StudyRecord
from autotune.report.page import html_report
from autotune.results.answers import document, result_from
from autotune.results.rankings import explained, front_documents, pareto
from autotune.results.result import Result
from autotune.reward import score, tokens_per_s
from autotune.spec import (
    Failure,
    FailureKind,
    Measurement,
    MeasureSpec,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.spec.runs.measurement import at_highest_peak
from tests.report import worlds

SPEEDS: Mapping[int, float] = {0: 1.0, 1: 1.25, 2: 1.2, 3: 1.1}
"""of configs, relative to the default one, by the number of their first trial"""


def record() -> StudyRecord:
    finals = [{"config": worlds.trial(n, zero_stage=n).config.to_dict()} for n in (0, 1, 2)]
    found = worlds.record(best=None, baseline=None, speedup=None, result={"finals": finals})
    return replace(
        found, study=replace(found.study, measure=MeasureSpec(finalists=2, final_rounds=2))
    )


def measured(
    number: int, config: int, slowness: float, purpose: TrialPurpose, default_slowness: float
) -> Trial:
    """A trial on a machine that is so many times slower than at first; its reward is relative to a
    baseline at `default_slowness`."""
    trial = replace(
        worlds.trial(number), config=worlds.trial(config, zero_stage=config).config, purpose=purpose
    )
    times = tuple(slowness / SPEEDS[config] * t for t in (1.0, 1.01, 0.99))
    trial = replace(trial, measurement=replace(trial.measurement, step_times_s=times))
    default = replace(
        trial.measurement, step_times_s=tuple(default_slowness * t for t in (1.0, 1.01, 0.99))
    )
    study = record().study
    return replace(
        trial,
        reward=score(trial, reference=default, objective=study.objective, workload=study.workload),
    )


def study_on_a_machine_that_slows_down(finals: float = 3.0) -> list[Trial]:
    """The baseline and three others are measured once; two of them and the default twice more, when
    the machine is `finals` times slower and slows on."""
    first = [TrialPurpose.BASELINE, *[TrialPurpose.SEARCH] * 3]
    found = [measured(n, n, 1.0, purpose, 1.0) for n, purpose in enumerate(first)]
    for r in range(2):
        for config in (0, 1, 2):
            found.append(
                measured(len(found), config, finals * (1 + 0.05 * r), TrialPurpose.FINAL, 1.0)
            )
    return found


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return study_on_a_machine_that_slows_down()


@pytest.fixture(scope="module")
def result(trials: list[Trial]) -> Result:
    return result_from(record(), trials)


def test_a_configs_ratio_to_the_baseline_does_not_depend_on_the_time_of_its_measurement(
    result: Result,
) -> None:
    default = tokens_per_s(result.baseline)
    for trial in result.shown:
        config = next(n for n in SPEEDS if result.shown[n].config == trial.config)
        assert tokens_per_s(trial) / default == pytest.approx(SPEEDS[config])
    # as it was measured, on the machine of that time
    assert tokens_per_s(result.trials[3]) == tokens_per_s(result.shown[3])
    assert tokens_per_s(result.trials[4]) < default / 2.9


def test_the_figure_of_a_config_that_ran_once_does_not_change(
    trials: list[Trial],
) -> None:
    """However fast the machine is in the finals: what changes is the level of the finals."""
    running = replace(record(), status=StudyStatus.RUNNING)
    before = result_from(running, trials[:4]).shown
    for factor in (0.5, 1.0, 1.1, 3.0):
        ended = result_from(record(), study_on_a_machine_that_slows_down(factor)).shown
        assert tokens_per_s(ended[3]) == tokens_per_s(before[3])
        assert [tokens_per_s(t) for t in ended[:3]] == pytest.approx(
            [tokens_per_s(t) for t in before[:3]]
        )


def test_a_final_run_without_a_baseline_run_is_compared_with_the_previous_one(
    trials: list[Trial],
) -> None:
    lost = replace(trials[7], status=TrialStatus.CANCELLED, measurement=None, reward=None)
    found = result_from(record(), [*trials[:7], lost, *trials[8:]])
    for number, config in ((8, 1), (9, 2)):
        ratio = tokens_per_s(found.shown[number]) / tokens_per_s(found.baseline)
        # the machine slowed on by 5% in between
        assert ratio == pytest.approx(SPEEDS[config] * 3.0 / 3.15)


def test_the_winner_has_the_same_speed_in_all_places(result: Result) -> None:
    row = result.shown[result.best.number]
    assert (
        tokens_per_s(row)
        == tokens_per_s(result.best)
        == pytest.approx(
            result.speedup * tokens_per_s(result.baseline)  # type: ignore[operator]
        )
    )
    document = api.document(result, top=4)
    speeds = [row["measurement"]["tokens_per_s"] for row in document["configs"]]
    assert speeds[0] == document["best"]["measurement"]["tokens_per_s"]
    assert speeds == sorted(speeds, reverse=True)
    assert front_documents(result)[0]["merits"]["tokens_per_s"] == pytest.approx(speeds[0])
    page = html_report(result.record, result.trials)
    assert page.count(f">{api_count(tokens_per_s(result.best))}<") >= 2  # the card and the row


def api_count(value: float) -> str:
    from autotune.report.terminal import format_count

    return format_count(value)


def test_a_config_measured_at_a_faster_time_does_not_dominate(result: Result) -> None:
    assert [t.number for t in pareto(result)] == [1]


def test_a_config_measured_once_does_not_rank_above_a_re_measured_one(
    trials: list[Trial],
) -> None:
    lucky = replace(trials[3], reward=replace(trials[3].reward, total=9.0))  # type: ignore[type-var]
    found = result_from(record(), [*trials[:3], lucky, *trials[4:]])
    assert [row["number"] for row in api.document(found, top=3)["configs"]] == [1, 2, 3]
    assert explained(found)["against"]["runner-up"]["number"] == 2


def test_a_slow_baseline_step_in_the_search_does_not_shift_figures_relative_to_the_finals(
    trials: list[Trial],
) -> None:
    bumpy = replace(trials[0].measurement, step_times_s=(1.0, 1.01, 0.99, 1.0, 4.0))
    asked = record().study
    first = [
        replace(
            t,
            reward=score(t, reference=bumpy, objective=asked.objective, workload=asked.workload),
        )
        for t in [replace(trials[0], measurement=bumpy), *trials[1:4]]
    ]
    found = result_from(record(), [*first, *trials[4:]])
    shown = found.shown[3]
    assert tokens_per_s(shown) / tokens_per_s(found.baseline) == pytest.approx(SPEEDS[3])
    assert shown.reward.parts["tokens_per_s_ratio"] == pytest.approx(SPEEDS[3])


def test_a_slow_baseline_step_in_a_final_round_does_not_shift_the_runs_of_that_round(
    trials: list[Trial],
) -> None:
    times = trials[4].measurement.step_times_s
    bumpy = replace(trials[4].measurement, step_times_s=(*times, times[0], 3 * times[0]))
    found = result_from(record(), [*trials[:4], replace(trials[4], measurement=bumpy), *trials[5:]])
    first, second = (tokens_per_s(found.shown[number]) for number in (5, 8))
    assert first == pytest.approx(second, rel=0.01)


def test_if_the_baseline_failed_in_the_finals_the_search_ratios_are_used(
    trials: list[Trial],
) -> None:
    gone = Failure(
        kind=FailureKind.OUT_OF_MEMORY, message="rank 0 ran out of memory", rank=0, step=1
    )
    finals = [
        replace(t, status=TrialStatus.FAILED, measurement=None, failure=gone)
        if t.config == trials[0].config
        else t
        for t in trials[4:]
    ]
    found = result_from(record(), [*trials[:4], *finals])
    assert found.speedup == pytest.approx(SPEEDS[found.best.number])
    assert tokens_per_s(found.best) == pytest.approx(found.speedup * tokens_per_s(found.baseline))


def test_without_a_measured_baseline_speeds_are_not_corrected() -> None:
    trials = [t for t in study_on_a_machine_that_slows_down() if t.config.zero_stage != 0]
    assert [tokens_per_s(t) for t in result_from(record(), trials[:3]).shown] == [
        tokens_per_s(t) for t in trials[:3]
    ]


def test_an_explanation_says_that_winner_and_runner_up_are_tied(result: Result) -> None:
    assert (
        "trial 1 and trial 2 are statistically tied"
        in explained(replace(result, tied_with=(2,)))["text"][-1]
    )
    assert "tied" not in " ".join(explained(replace(result, tied_with=()))["text"])


def test_correcting_a_measurement_does_not_change_memory_and_losses(result: Result) -> None:
    def rest(m: Measurement | None) -> tuple[object, ...]:
        return m.peak_memory_bytes, m.losses, m.tokens_per_step, m.num_ranks

    assert [rest(t.measurement) for t in result.shown] == [
        rest(t.measurement) for t in result.trials
    ]


def test_the_peak_memory_of_a_config_is_the_highest_of_its_runs(trials: list[Trial]) -> None:
    """Also where the last final round, whose measurement stands for the finals, had less."""
    peaks = {1: 9.03e9, 5: 9.87e9, 8: 8.8e9}  # of one config: the search, and two final rounds
    runs = []
    for t in trials:
        peak = peaks.get(t.number, 1e9)
        seen = replace(t.measurement, peak_memory_bytes=peak, memory_capacity_bytes=1.07e10)
        runs.append(replace(t, measurement=seen))
    found = result_from(record(), runs)
    assert found.best.number == 1
    assert found.best.peak_memory_bytes == found.shown[1].peak_memory_bytes == 9.87e9
    assert document(found, top=1)["configs"][0]["measurement"]["peak_memory_bytes"] == 9.87e9
    assert [found.shown[n].peak_memory_bytes for n in (5, 8, 0)] == [9.87e9, 8.8e9, 1e9]
    assert found.trials[1].peak_memory_bytes == 9.03e9
    assert found.best.reward.parts["headroom"] == pytest.approx((1 - 9.87 / 10.7) / 0.08)


def test_the_highest_peak_includes_reserved_memory() -> None:
    runs = [
        Measurement(step_times_s=(1.0,), peak_memory_bytes=peak, utilization=readings)
        for peak, readings in (
            (5e9, {"sm": 0.5}),
            (7e9, {"reserved_memory_bytes": 8e9}),
            (6e9, {"reserved_memory_bytes": 9e9}),
        )
    ]
    highest = at_highest_peak(runs[0], runs[1:])
    assert (highest.peak_memory_bytes, highest.occupied_memory_bytes) == (7e9, 9e9)
    assert highest.utilization["sm"] == 0.5
    assert at_highest_peak(replace(runs[0], peak_memory_bytes=None), ()).peak_memory_bytes is None
