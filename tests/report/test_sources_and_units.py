"""A figure says one kind of thing: parts of a step that have one source, and ticks that have one
unit, which is on the ticks and not in the axis's title."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autotune.report.figures import figures_of
from autotune.report.figures.one_trial import TrialSource, trial_figures
from autotune.report.findings import winner_sentences
from autotune.report.svg.canvas import tick_labels
from autotune.report.terminal import format_bytes, format_count, format_duration
from autotune.results.answers import result_from
from autotune.spec import Trial
from tests.report.worlds import GIB, record, trial, trials

PROFILE = {"compute": 0.3, "communication": 0.1, "communication_overlapped": 0.2}


def profiled(one: Trial) -> Trial:
    """The trial with a profile."""
    assert one.measurement is not None
    return replace(one, measurement=replace(one.measurement, breakdown_s=PROFILE))


@pytest.mark.parametrize(
    ("with_profile", "source"),
    [
        ((), "predicted"),
        ((3,), "predicted"),
        ((0, 3), "predicted"),
        ((0, 1, 3, 4), "profiled"),
    ],
    ids=str,
)
def test_the_parts_of_all_bars_have_one_source(with_profile: tuple[int, ...], source: str) -> None:
    found = [profiled(t) if t.number in with_profile else t for t in trials()]
    figure = {f.name: f for f in figures_of(result_from(record(), found))}["step_parts"]
    assert figure.shows.startswith(
        f"{source.capitalize()} time in one optimizer step by cause, for"
    )
    columns = [column.name for column in figure.table.columns]
    for row in figure.table.rows:
        parts = sum(row[columns.index(name)] for name in columns if name.endswith("_s"))
        parts -= row[columns.index("measured_step_time_s")]
        (one,) = (t for t in found if t.number == row[1])
        assert one.estimate is not None
        predicted_s = float(one.estimate.time_parts_s.total)
        assert parts == pytest.approx(0.4 if source == "profiled" else predicted_s)


def test_sentences_only_compare_profiles_with_profiles() -> None:
    both = [profiled(t) if t.number in (0, 3) else t for t in trials()]
    one = [profiled(t) if t.number == 3 else t for t in trials()]
    assert not any("predicted" in said for said in winner_sentences(result_from(record(), both)))
    of_one, of_none = (winner_sentences(result_from(record(), found)) for found in (one, trials()))
    assert of_one == of_none
    assert any("(predicted)" in said for said in of_one)


def test_the_measured_step_of_a_trial_is_a_labeled_bar() -> None:
    source = TrialSource(
        trial=trial(1, step_time_s=0.4),
        steps={"step": [], "step_time_s": [], "loss": [], "grad_norm": []},
        warmup_steps=0,
        capacity_bytes=80.0 * GIB,
    )
    (figure,) = (f for f in trial_figures(source) if f.name == "time_by_parts")
    for row in ("predicted", "measured"):
        assert f">{row}</text>" in figure.svg
    assert 'class="mark"' not in figure.svg
    assert {row[0]: row[-1] for row in figure.table.rows}["measured step"] == 0.4


@pytest.mark.parametrize("step_s", [2.3e-4, 0.018, 0.37, 0.61, 1.4, 7.0, 48.0])
def test_the_ticks_of_an_axis_have_one_unit_and_its_title_has_none(step_s: float) -> None:
    ended = [trial(n, step_time_s=step_s * (1 + n / 9), zero_stage=n) for n in range(4)]
    steps = {
        "step": [0.0, 1.0, 2.0, 3.0],
        "step_time_s": [step_s * (1 + n / 9) for n in range(4)],
        "loss": [3.0, 2.0, 1.5, 1.25],
        "grad_norm": [1.0, 1.0, 1.0, 1.0],
    }
    one = replace(ended[0], measurement=replace(ended[0].measurement, step_peak_memory_bytes=(1.0 * GIB,) * 3))  # fmt: skip
    of_trial = trial_figures(
        TrialSource(trial=one, steps=steps, warmup_steps=1, capacity_bytes=80.0 * GIB)
    )
    for figure in (*figures_of(result_from(record(), ended)), *of_trial):
        titles = re.findall(r'<text class="name"[^>]*>([^<]*)', figure.svg)
        assert not [t for t in titles if re.search(r"\b(seconds|bytes|ms)\b", t)], figure.name
        assert not re.search(r"\bin (seconds|bytes)\b", figure.shows), figure.name
        for side in ("middle", "end"):
            ticks = re.findall(rf'<text class="tick"[^>]*text-anchor="{side}">([^<]*)', figure.svg)
            units = re.findall(r"[\d.]+ (us|ms|s|[KMGT]iB|B)(?=;|$)", ";".join(ticks), re.MULTILINE)
            assert len(set(units)) <= 1, (figure.name, ticks)


@pytest.mark.parametrize(
    ("values", "number", "words"),
    [
        ([0.0, 0.5, 1.0, 1.5], format_duration, ["0", "0.5 s", "1 s", "1.5 s"]),
        ([0.0, 0.2, 0.4], format_duration, ["0", "200 ms", "400 ms"]),
        ([0.0, 60.0, 120.0], format_duration, ["0", "1m 00s", "2m 00s"]),
        ([0.5 * GIB, 1.0 * GIB], format_bytes, ["0.5 GiB", "1 GiB"]),
        ([0.0, 5e5, 1e6], format_count, ["0", "0.5M", "1M"]),
        ([0.0], format_duration, ["0"]),
        ([], format_duration, []),
    ],
)
def test_tick_labels(values: list[float], number, words: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert tick_labels(values, number) == words
