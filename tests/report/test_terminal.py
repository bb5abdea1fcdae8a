"""Labels, sizes, times, tables and bars of the terminal."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import autotune
from autotune.cli.study_text import configs_table
from autotune.report.terminal import (
    Palette,
    by_config,
    format_bytes,
    format_count,
    format_duration,
    plain_table,
    plan_table,
    study_configs_table,
    time_bar,
    time_legend,
)
from autotune.spec import Failure, FailureKind, ParallelConfig, TrialStatus, config_label
from autotune.spec.texts.as_text import bytes_cell, count_cell, duration_cell, format_span
from tests.report.worlds import estimate, trial

ASCII = Palette(unicode=False)


def shown(renderable: Any, width: int = 160) -> str:
    """What a terminal without colors prints."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=True).print(renderable)
    return stream.getvalue()


def test_a_summary_has_no_footnote_for_reasons_that_its_rows_do_not_show() -> None:
    found = [
        replace(trial(n), reason="expected gain 0.6% over the best so far, 99% likely to run")
        for n in range(4)
    ]
    assert "expected gain" not in shown(study_configs_table(by_config(found)), width=200)


def test_labels_omit_knobs_without_effect() -> None:
    assert config_label(ParallelConfig(tp=2, dp=4)) == "tp2 pp1 dp4 mb1 acc1 bf16"
    config = ParallelConfig(
        tp=2,
        pp=4,
        cp=2,
        micro_batch_size=3,
        accumulation_steps=8,
        precision="fp16",
        recompute="full",
        zero_stage=1,
        sequence_parallel=True,
        pp_schedule="interleaved_1f1b",
        virtual_stages=2,
        compile=True,
    )
    assert (
        config_label(config)
        == "tp2 pp4 dp1 cp2 mb3 acc8 fp16 full-recompute zero1 sp i-1f1b v2 compile"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (80 * 2**30, "80 GiB"),
        (-(2**20), "-1 MiB"),
        (None, "-"),
        (math.nan, "-"),
        (2.0**60, "1048576 TiB"),
    ],
)
def test_bytes(value: float | None, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (4.2e-8, "0.042 us"),
        (8.5e-4, "850 us"),
        (9.997e-4, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (4.21, "4.21 s"),
        (59.97, "1m 00s"),
        (185, "3m 05s"),
        (7800, "2h 10m"),
        (-2, "-2 s"),
        (None, "-"),
        (math.inf, "-"),
    ],
)
def test_durations(value: float | None, text: str) -> None:
    assert format_duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.4, "<1 s"),
        (12.6, "13 s"),
        (59.7, "1m 00s"),
        (67.2, "1m 07s"),
        (7800, "2h 10m"),
        (None, "-"),
        (math.nan, "-"),
    ],
)
def test_time_spans_are_rounded_to_seconds(value: float | None, text: str) -> None:
    assert format_span(value) == text


def test_seconds_and_unknown_values_have_one_format() -> None:
    """By `format_duration`, `format_span` and `UNKNOWN`."""
    root = Path(autotune.__file__).parents[1]
    sources = [*root.glob("autotune/**/*.py"), *root.glob("workers/**/*.py")]
    assert len(sources) > 100
    by_hand = re.compile(r":\.?\d*[fg]\} m?s\b")
    for path in (*sources, *root.glob("dashboards/web/*.html")):
        text = path.read_text()
        assert "–" not in text, path
        if path.name not in (
            "as_text.py",
            "cluster.py",
        ):  # whose latency_s is shown as it was given
            assert not by_hand.search(text), path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999.4, "999"),
        (999.9, "1k"),
        (1234, "1.23k"),
        (4.56e7, "45.6M"),
        (None, "-"),
        (-2e3, "-2k"),
    ],
)
def test_counts(value: float | None, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (count_cell(2000), "2.00k"),
        (count_cell(1990), "1.99k"),
        (count_cell(64), "64.0"),
        (count_cell(0.5), "0.500"),
        (count_cell(146_000), "146k"),
        (count_cell(-1.1e6), "-1.10M"),
        (count_cell(None), "-"),
        (bytes_cell(10 * 2**30), "10.0 GiB"),
        (bytes_cell(1000 * 2**20), "1000 MiB"),
        (duration_cell(5.4), "5.40 s"),
        (duration_cell(0.043), "43.0 ms"),
        (duration_cell(0), "0 s"),
        (duration_cell(67), "1m 07s"),
    ],
)
def test_numbers_in_a_column_have_three_digits(cell: str, text: str) -> None:
    assert cell == text


def test_a_column_of_a_table_has_numbers_of_equal_precision() -> None:
    even, odd = trial(1, step_time_s=1.0, micro_batch_size=2), trial(2, step_time_s=1.01)
    for table in (study_configs_table(by_config([even, odd])), configs_table([even.to_dict()])):
        assert {"65.5k", "1.00 s"} <= set(re.split(r"\s{2,}", shown(table, width=250)))


def test_the_heading_of_step_times_is_median_step() -> None:
    """Its tokens/s are those of all steps, so both figures together are no contradiction."""
    steady = trial(1, step_time_s=0.5)
    stalled = replace(steady.measurement, step_times_s=(0.5,) * 9 + (5.5,))
    row = replace(steady, measurement=stalled)
    for table in (study_configs_table(by_config([row])), configs_table([row.to_dict()])):
        text = shown(table, width=250)
        assert "median step" in text
        assert {"65.5k", "500 ms"} <= set(re.split(r"\s{2,}", text)), "131k at the median step"
    assert "count all steps" in shown(study_configs_table(by_config([row])), width=250)


@settings(deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.sampled_from(["compute", "bubble", "tp_comm", "optimizer"]),
        st.floats(0, 1e6),
        min_size=1,
    ),
    st.integers(1, 200),
)
def test_a_plain_bar_fills_its_width(parts: dict[str, float], width: int) -> None:
    assert len(time_bar(parts, width=width, palette=ASCII)) == width


def test_a_plain_bar_is_ascii_and_in_proportion() -> None:
    assert time_bar({"compute": 3.0, "bubble": 1.0}, width=8, palette=ASCII) == "CCCCCCBB"
    assert (
        time_legend({"compute": 3.0, "bubble": 1.0}, palette=ASCII) == "C=compute 75%  B=bubble 25%"
    )


def test_the_palette_follows_the_encoding() -> None:
    utf8 = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    assert Palette.of(utf8).unicode
    assert not Palette.of(latin).unicode


def test_the_plain_trials_table_is_ascii_and_keeps_foreign_text_harmless() -> None:
    failed = replace(
        trial(2),
        status=TrialStatus.FAILED,
        measurement=None,
        failure=Failure(
            kind=FailureKind.OUT_OF_MEMORY, message="[red]rank 3\x1b[31m ran out – of memory"
        ),
    )
    other = trial(1, micro_batch_size=2)
    text = shown(
        study_configs_table(by_config([trial(0), other, failed]), best=other.config, palette=ASCII),
        width=220,
    )
    assert text.isascii()
    assert "1*" in text
    assert "[red]rank 3" in text
    assert "\x1b" not in text


def test_a_plan_is_ranked_rows() -> None:
    rows = [SimpleNamespace(rank=1, config=ParallelConfig(dp=8), estimate=estimate(1.5))]
    text = shown(plan_table(SimpleNamespace(rows=rows), palette=ASCII), width=200)
    assert "1.50 s" in text
    assert "tp1 pp1 dp8" in text
    assert text.isascii()


LONG = ParallelConfig(
    tp=2,
    pp=4,
    cp=2,
    micro_batch_size=3,
    accumulation_steps=8,
    precision="fp16",
    recompute="full",
    compile=True,
)


@pytest.mark.parametrize("palette", [Palette(), ASCII])
@pytest.mark.parametrize("width", [80, 100, 120, 160, 200])
def test_a_plan_shows_rank_and_config_on_narrow_terminals(width: int, palette: Palette) -> None:
    rows = [
        SimpleNamespace(rank=n, config=config, estimate=estimate(1.5))
        for n, config in ((7, trial(1).config), (8, LONG))
    ]
    text = shown(plan_table(rows, palette=palette), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    words = text.replace("|", " ").split()
    for word in (
        "rank",
        "config",
        "7",
        "8",
        *config_label(LONG).split(),
        "43.7k",
        "40.0",
        "40.0%",
        "1%",
    ):
        assert word in words, word


def test_a_plan_explains_why_it_shows_no_gain() -> None:
    rows = [SimpleNamespace(rank=1, config=trial(1).config, estimate=estimate(1.5))]
    fits = SimpleNamespace(rank=0, config=LONG, estimate=estimate(2.0))
    too_large = replace(fits.estimate, oom_probability=0.97)
    baseline = SimpleNamespace(rank=0, config=LONG, estimate=too_large)
    text = shown(plan_table(SimpleNamespace(rows=rows, baseline=baseline)))
    assert "no gain is shown, because the baseline is not expected to fit (OOM risk 97%)" in text
    text = shown(plan_table(SimpleNamespace(rows=rows, baseline=fits)))
    assert "no gain" not in text
    assert "1.33x" in text


def test_a_narrow_plan_omits_the_parts_then_the_step() -> None:
    rows = [SimpleNamespace(rank=1, config=trial(1).config, estimate=estimate(1.5))]
    assert "step by parts" in shown(plan_table(rows), width=120)
    middle = shown(plan_table(rows), width=80)
    assert "step by parts" not in middle
    assert "1.50 s" in middle
    narrow = shown(plan_table(rows), width=70)
    assert "1.50 s" not in narrow
    assert "MFU" in narrow
    assert "OOM risk" in narrow


def test_trials_on_narrow_terminals_keep_configs_and_numbers_whole() -> None:
    stopped = replace(
        trial(7, micro_batch_size=2),
        status=TrialStatus.STOPPED,
        reason="cannot win: median 0.5 s after 8 steps is above what may still win, 0.4 s",
    )
    again = replace(trial(9, micro_batch_size=4), reason="re-measured")
    found = [trial(0), stopped, replace(trial(8), config=LONG), again]
    wide, narrow = (
        shown(study_configs_table(by_config(found)), width=width) for width in (170, 80)
    )
    assert "cannot win: median 0.5 s" in wide
    assert "predicted" in wide
    assert "cannot win" in narrow
    for words in ("median 0.5 s", "re-measured", "…"):
        assert words not in narrow
    for word in ("completed", "65.5k", "GiB", *config_label(LONG).split()):
        assert word in narrow.split(), word


@pytest.mark.parametrize("width", [60, 80, 120])
def test_each_trial_is_one_line(width: int) -> None:
    found = [trial(0), replace(trial(8), config=LONG)]
    lines = shown(study_configs_table(by_config(found), steps={}), width=width).splitlines()
    assert [line.split()[0] for line in lines if line.strip()][2:] == ["0", "8"]


def test_a_row_has_a_cell_for_each_column() -> None:
    table = plan_table([])
    with pytest.raises(ValueError, match="9 cells"):
        table.add_row("1")


FOREIGN = "pip install 'autotune-parallel[ray]' [/tmp/x] [bold]b[/bold] \\[a]"
"""text in which rich's markup would see colors, and the end of one that never began"""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_text_in_tables_is_not_interpreted_as_markup(is_terminal: bool) -> None:
    stream, table = io.StringIO(), plain_table(ASCII, title=FOREIGN)
    table.add_column(FOREIGN)
    table.add_column("note")
    table.add_row("a", FOREIGN)
    table.caption = FOREIGN
    Console(file=stream, width=300, color_system=None, force_terminal=is_terminal).print(table)
    assert stream.getvalue().count(FOREIGN) == 3 + is_terminal  # a title is for people


def test_the_width_of_text_in_a_fitted_table_includes_brackets() -> None:
    failed = replace(
        trial(3),
        status=TrialStatus.FAILED,
        failure=Failure(kind=FailureKind.ERROR, message="[rank0] [/x]"),
    )
    assert "[rank0] [/x]" in shown(
        study_configs_table(by_config([failed]), palette=ASCII), width=200
    )
    own = replace(trial(4), config=ParallelConfig(extra={"layout": "[data]", "mount": "[/x]"}))
    assert "layout=[data] mount=[/x]" in shown(
        study_configs_table(by_config([own]), palette=ASCII), width=200
    )


def test_parts_and_statuses_have_their_colors() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=200, color_system="truecolor", force_terminal=True)
    console.print(
        plan_table([SimpleNamespace(rank=1, config=ParallelConfig(), estimate=estimate(1.0))])
    )
    console.print(study_configs_table(by_config([trial(0)])))
    blue, green = "38;2;76;120;168", "\x1b[32m"  # of PART_COLORS and STATUS_COLORS
    assert stream.getvalue().count(blue) >= 2, "in the bar and in the legend"
    assert green in stream.getvalue()
