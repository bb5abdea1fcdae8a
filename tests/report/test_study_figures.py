"""The figures of a study: complete, in words where they cannot be drawn, and true to the trials."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autotune.report.figures import FIGURES, FigureSource, figures_of
from autotune.report.figures.feasible_map import feasible_map
from autotune.report.figures.figure_html import MISSING
from autotune.report.figures.running_steps import running_steps, steps_left
from autotune.report.page import html_report
from autotune.report.svg.axes import Axis, Point, plot
from autotune.report.svg.bars import Bar, stacked_bars
from autotune.report.svg.canvas import WIDTH, byte_ticks
from autotune.report.terminal import format_bytes
from autotune.results.answers import result_from
from autotune.results.figure import Figure
from autotune.reward import tokens_per_s
from autotune.spec import MeasureSpec, SpaceSpec, StudyStatus, Trial, TrialPurpose, TrialStatus
from tests.report.test_page import read
from tests.report.worlds import record, trial, trials

RULES = MeasureSpec(warmup_steps=2, min_steps=5, max_steps=30)


def running(number: int, **changes: object) -> Trial:
    """A trial that has started."""
    values = {
        "status": TrialStatus.RUNNING,
        "measurement": None,
        "reward": None,
        "ended_at": None,
        **changes,
    }
    return replace(trial(number), **values)  # type: ignore[arg-type]


def source(times_s: list[float], one: Trial) -> FigureSource:
    """Of a study whose only running trial has made steps of these times."""
    study = replace(record().study, measure=RULES)
    found = result_from(
        record(study=study, status=StudyStatus.RUNNING, ended_at=None), [*trials(), one]
    )
    steps = {"step": [float(i) for i in range(len(times_s))], "step_time_s": times_s}
    return FigureSource(result=found, steps={one.number: steps})


def test_each_figure_is_drawn_or_states_what_it_needs() -> None:
    assert set(MISSING) | {"running_steps"} == set(FIGURES)
    for figure in figures_of(result_from(record(), trials())):
        assert MISSING[figure.name][0] == figure.title
    empty = read(html_report(record(), []))
    drawn = {attrs["id"] for tag, attrs in empty.tags if tag == "figure"}
    for name, (title, needs) in MISSING.items():
        assert (f"{title} (needs {needs})" in empty.text) != (name in drawn)
    assert "Not drawn:" in empty.text
    assert "Not drawn yet:" in read(html_report(record(status=StudyStatus.RUNNING), [])).text


def test_the_time_left_of_a_running_trial() -> None:
    (left,) = steps_left(source([9.0, 9.0, 2.0, 2.0, 2.0], running(5)))
    # 7 and 32 steps of 2 s, less 5
    assert (left.done, left.most, left.least_s, left.most_s) == (
        5,
        32,
        4.0,
        54.0,
    )
    assert str(left) == "trial 5: 5 of at most 32 steps; 4 s to 54 s left"
    (first,) = steps_left(source([9.0], running(5)))
    assert first.most_s == 31 * 9.0
    (before,) = steps_left(source([], running(5)))
    assert "starting" in str(before)
    (reference,) = steps_left(source([2.0] * 4, running(5, purpose=TrialPurpose.REFERENCE)))
    assert reference.least_s == reference.most_s == 56.0


def test_the_steps_of_running_trials_are_a_figure_with_data() -> None:
    figure = running_steps(source([9.0, 9.0, 2.0], running(5)))
    steps = [(number, step, time_s) for number, _, step, time_s in figure.table.rows]
    assert steps == [(5, 0, 9.0), (5, 1, 9.0), (5, 2, 2.0)]
    assert figure.svg.count("<circle") == 3
    assert running_steps(source([], running(5))) is None


def test_final_runs_are_not_counted_as_configs() -> None:
    """A config that was re-measured has one figure, wherever it is shown; a lucky round is not the
    best."""
    lucky = replace(
        trial(5, step_time_s=0.1, micro_batch_size=4, accumulation_steps=2),
        purpose=TrialPurpose.FINAL,
    )
    found = result_from(record(), [*trials(), lucky])
    figures = {figure.name: figure for figure in figures_of(found)}
    assert found.best is not None
    most = max(tokens_per_s(t) for t in found.measured if t.purpose is not TrialPurpose.FINAL)
    assert most < tokens_per_s(lucky)
    levels = [row[-1] for row in figures["best_so_far"].table.rows]
    assert max(level for level in levels if level is not None) == most
    names = [column.name for column in figures["feasible_map"].table.columns]
    at = names.index("measured_tokens_per_s")
    assert max(row[at] for row in figures["feasible_map"].table.rows if row[at]) == most


def test_a_config_proposed_twice_counts_once() -> None:
    """The machine changed, and the search measured a fast config again: the later run holds its
    figure in every drawing."""
    early, late = (
        trial(n, step_time_s=s, micro_batch_size=4, accumulation_steps=2)
        for n, s in ((7, 0.1), (8, 0.9))
    )
    found = result_from(record(), [*trials(), early, late])
    figures = {figure.name: figure for figure in figures_of(found)}
    for name in ("predicted_measured", "parallel_coordinates"):
        numbers = [row[0] for row in figures[name].table.rows]
        assert 8 in numbers
        assert 7 not in numbers
    levels = [row[-1] for row in figures["best_so_far"].table.rows]
    assert max(level for level in levels if level is not None) < tokens_per_s(early)


def test_proxies_use_the_budget_but_their_speeds_are_not_shown() -> None:
    """A proxy runs a smaller job on the cluster at hand."""
    study = record().study
    small = replace(study.workload.cluster, name="h100-1x2", gpus_per_node=2)
    proxies = [replace(trial(n, dp=2), purpose=TrialPurpose.PROXY) for n in range(3)]
    found = result_from(record(study=replace(study, at_hand=small)), proxies)
    figures = {figure.name: figure for figure in figures_of(found)}
    assert not {
        "best_so_far",
        "best_so_far_over_time",
        "parallel_coordinates",
        "pareto_front",
    } & set(figures)
    spent = {row[0]: row[1] for row in figures["budget"].table.rows}
    assert spent["trials"] == 3
    assert all(row[4] is None for row in figures["feasible_map"].table.rows)
    assert len(figures["predicted_measured"].table.rows) == 3
    for name in ("predicted_measured", "predicted_measured_memory"):
        reported = figures[name].how_to_read
        assert "proxy" in reported
        assert not any(word in reported for word in ("best trial", "baseline"))
    assert "of the 2 ranks" in figures["timeline"].shows


def test_the_budget_is_shown_with_units_and_stored_in_seconds() -> None:
    table = {f.name: f for f in figures_of(result_from(record(elapsed_s=1234.5678), trials()))}[
        "budget"
    ].table
    shown = {row[0]: row for row in table.shown_rows(9)}
    assert shown["wall time, s"][1] == "1,235"
    assert shown["search trials"][1] == "4"
    assert {row[0]: row[1] for row in table.rows}["wall_s"] == 1234.5678
    assert not any("." in cell for row in shown.values() for cell in row[1:4])


def test_the_map_of_a_space_with_one_knob_shows_it_once() -> None:
    """A single config beside which its fp32 reference ran."""
    study = record().study
    space = SpaceSpec(knobs={"precision": ("bf16",), "tp": (1,), "pp": (1,)}, world_sizes=(8,))
    pair = [trial(0), replace(trial(1, precision="fp32"), purpose=TrialPurpose.REFERENCE)]
    found = result_from(record(study=replace(study, space=space)), pair)
    figure = {f.name: f for f in figures_of(found)}["feasible_map"]
    assert "by pp and precision" in figure.shows
    assert [column.name for column in figure.table.columns][:2] == ["pp", "precision"]


def best_so_far(found: list[Trial], **changes: object) -> Figure:
    """The figure of a study with these trials, at the speeds that a plan predicts for them."""
    return {f.name: f for f in figures_of(result_from(record(**changes), found))}["best_so_far"]


def slowed(factor: float) -> list[Trial]:
    """Two trials that take so many times as long as the other trials of these tests."""
    return [trial(0, step_time_s=factor), trial(1, step_time_s=0.9 * factor, zero_stage=1)]


def test_a_prediction_far_above_all_trials_does_not_stretch_the_axis() -> None:
    above, within = best_so_far(slowed(10.0)), best_so_far(slowed(0.01))
    optimum = re.search(r"The predicted speed of a plan's top config, (\S+) tokens/s, lies above", above.how_to_read)  # fmt: skip
    assert optimum
    assert 'class="dotted"' not in above.svg
    assert "Dotted line" not in above.how_to_read
    heights = [float(y) for y in re.findall(r'<(?:circle|rect)[^>]* c?y="([\d.]+)"', above.svg)]
    assert min(heights) < 80, "the data fill the figure"
    assert "lies above the figure" not in within.how_to_read


def test_the_caption_explains_only_marks_that_are_drawn() -> None:
    words = {
        "Pale dots": '<circle class="soft"',
        "The large dot": '<circle class="best"',
        "The square": '<rect class="base"',
        "Crosses": '<path class="fail"',
        "Solid line": '<path class="line"',
        "Dashed line": '<path class="dashed"',
        "Dotted line": '<path class="dotted"',
    }
    stopped = replace(trial(5, step_time_s=3.0, zero_stage=2), status=TrialStatus.STOPPED)
    drawn = set()
    for found in (slowed(0.01), slowed(10.0), trials(), trials()[:1], [*trials(), stopped]):
        figure = best_so_far(found)
        for word, mark in words.items():
            assert (word in figure.how_to_read) is (mark in figure.svg), word
            drawn |= {word} if mark in figure.svg else set()
    assert {"Pale dots", "The square", "Crosses"} <= drawn


def test_only_stopped_trials_are_pale() -> None:
    superseded = trial(5, step_time_s=0.9, zero_stage=1)
    stopped = replace(trial(6, step_time_s=3.0, zero_stage=3), status=TrialStatus.STOPPED)
    figure = best_so_far([*trials(), superseded, stopped])
    assert re.findall(r'<circle class="soft"[^>]*><title>trial (\d+)', figure.svg) == ["6"]


@pytest.mark.parametrize("measured", [[], trials()], ids=["plan", "study"])
def test_the_map_labels_predictions_only_if_something_was_measured(
    measured: list[Trial],
) -> None:
    figure = feasible_map(FigureSource(result=result_from(record(), measured)))
    assert figure is not None
    assert ("Dashed frame" in figure.how_to_read) is bool(measured)
    assert ('class="tile predicted' in figure.svg) is bool(measured)
    assert ('class="tile plain' in figure.svg) is not bool(measured)
    for word, kind in (("Solid frame", "measured"), ("Hatched", "refused")):
        assert (word in figure.how_to_read) is (f'class="tile {kind}' in figure.svg)


def words_of(svg: str, width_of_letter: float) -> list[tuple[float, float, float, str]]:
    """(left end, right end, y, words) of the texts of a drawing."""
    found = []
    for x, y, anchor, words in re.findall(
        r'<text class="[\w ]+" x="([^"]+)" y="([^"]+)" text-anchor="(\w+)">([^<]*)', svg
    ):
        wide = width_of_letter * len(words)
        left = float(x) - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        found.append((left, left + wide, float(y), words))
    return found


def test_names_of_knobs_do_not_overlap_the_values_of_a_map() -> None:
    figure = feasible_map(FigureSource(result=result_from(record(), trials())))
    assert figure is not None
    words = words_of(figure.svg, 8.0)  # at the type of a phone
    assert {"accumulation_steps", "micro_batch_size"} <= {word[3] for word in words}
    rows = [(a, b) for a in words for b in words if abs(a[2] - b[2]) < 8 and a[0] < b[0]]
    assert rows
    assert all(a[1] <= b[0] for a, b in rows)


def test_labels_of_bars_stay_inside_and_do_not_overlap() -> None:
    svg = stacked_bars(
        [
            Bar(label="accumulation_steps", parts={"a": 0.2, "b": 0.8}, note="59 min 31 s left"),
            Bar(label="tp", parts={"a": 1.0}, note="0 left"),
        ],
        names={"a": "predicted, all configs", "b": "measured trials"},
        number=lambda share: f"{share:.0%}",
        x_label="share",
        description="bars",
    )
    words = words_of(svg, 8.0)  # at the type of a phone
    assert all(left >= 0 and right <= WIDTH for left, right, _, _ in words)
    rows = [(a, b) for a in words for b in words if a[2] == b[2] and a[0] < b[0]]
    assert rows
    assert all(a[1] <= b[0] for a, b in rows)


def test_tick_labels_below_bars_do_not_overlap() -> None:
    svg = stacked_bars(
        [Bar(label="winner #3", parts={"a": 379.0 * 2**20}, note="379 MiB measured")],
        names={"a": "weights"},
        number=format_bytes,
        tick_values=byte_ticks,
        x_label="memory",
        description="bars",
    )
    found = [word for word in words_of(svg, 8.0) if word[3].endswith(" MiB")]
    assert [word[3] for word in found] == ["200 MiB"]


def drawn(values: list[float]) -> str:
    """A plot of these values."""
    points = [Point(x=float(i), y=value, title=str(value)) for i, value in enumerate(values)]
    return plot(
        points,
        x=Axis(label="step", format=str),
        y=Axis(label="seconds", format=lambda v: f"{v:.2g}"),
        description="",
    )


def test_a_compiling_step_does_not_compress_the_axis_and_shows_its_value() -> None:
    figure = drawn([45.0, *[0.40 + 0.01 * i for i in range(12)]])
    heights = [float(y) for y in re.findall(r'<circle[^>]* cy="([\d.]+)"', figure)]
    assert len(heights) == 12
    assert max(heights) - min(heights) > 20
    for words in ('<path class="over"', "<title>45.0</title>", ">45</text>"):
        assert words in figure


@pytest.mark.parametrize(
    "values", [[1.0, 9.0], [1.0, 2.0, 3.0, 9.0, 10.0, 11.0], [3.0] * 8], ids=str
)
def test_values_that_are_not_outliers_stay_in_the_figure(values: list[float]) -> None:
    assert '<path class="over"' not in drawn(values)


@pytest.mark.parametrize("top", [0.012, 1.003, 7.0, 1.0e6])
def test_tick_labels_are_unique(top: float) -> None:
    axis = Axis(
        label="tokens per second", format=lambda value: f"{value:.1g}", low=0.97 * top, high=top
    )
    words = [said for _, said in axis.shown_ticks(axis.low or 0.0, top)]
    assert words
    assert len(words) == len(set(words))
