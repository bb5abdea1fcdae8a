"""A result in Python: what it prints, what a notebook shows, its figures and its data frame."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from autotune.errors import MissingExtraError, NotFoundError, SpecError
from autotune.results.answers import result_from
from autotune.results.result import Result
from autotune.spec.runs.trial_row import TRIAL_COLUMNS
from tests.report.worlds import record, trials


@pytest.fixture(scope="module")
def result() -> Result:
    return result_from(record(), trials())


@pytest.fixture(scope="module")
def empty() -> Result:
    return result_from(record(), ())


def test_its_repr_is_one_short_line(result: Result, empty: Result) -> None:
    assert repr(result).startswith(
        f"Result({result.record.study.name!r}, COMPLETED, {len(result.shown)} runs, best tp="
    )
    assert f"{result.speedup:.2f}x" in repr(result)
    assert len(repr(result)) < 250
    assert "best" not in repr(empty)


def test_a_notebook_shows_the_winner_next_to_the_baseline(result: Result, empty: Result) -> None:
    page = result._repr_html_()
    ET.fromstring(page)
    assert str(result.best.config) in page
    assert "<td>baseline</td>" in page
    assert "<table>" not in ET.tostring(ET.fromstring(empty._repr_html_()), encoding="unicode")


def test_text_of_a_study_is_escaped(result: Result) -> None:
    from dataclasses import replace

    study = replace(result.record.study, name="<script>alert(1)</script>")
    assert (
        "<script>" not in replace(result, record=replace(result.record, study=study))._repr_html_()
    )


def test_its_figures_are_named_and_completed(result: Result, empty: Result) -> None:
    names = list(result.plot)
    assert {"best_so_far", "predicted_measured", "step_parts", "memory_parts"} <= set(names)
    assert set(names) <= set(dir(result.plot))
    assert list(empty.plot) == ["budget", "feasible_map", "knob_importance"]
    for name in names:
        assert getattr(result.plot, name)()._repr_html_() == result.plot(name)._repr_html_()
        assert repr(result.plot(name)) == f"Figure({result.plot(name).title!r})"


def test_the_error_for_an_unknown_figure_suggests_the_nearest_name(
    result: Result, empty: Result
) -> None:
    with pytest.raises(NotFoundError, match="memory_parts"):
        result.plot("memory_part")
    with pytest.raises(NotFoundError, match="no data for the figure 'memory_parts'"):
        empty.plot("memory_parts")
    with pytest.raises(AttributeError, match="best_so_far"):
        result.plot.memory_part  # noqa: B018


def test_a_plot_is_saved_as_self_contained_svg_and_html(result: Result, tmp_path: Path) -> None:
    plot = result.plot.memory_parts()
    drawing = plot.save(tmp_path / "memory.svg")
    root = ET.parse(drawing).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    style = root.find("{http://www.w3.org/2000/svg}style")
    rules = re.sub(r"/\*.*?\*/", "", style.text, flags=re.DOTALL)
    selectors = [
        s for rule in rules.split("}") if "{" in rule for s in rule.split("{")[0].split(",")
    ]
    assert all(s.strip().startswith((".autotune", "@media")) for s in selectors), (
        "no rule reaches marks outside the figure"
    )
    assert "var(" not in style.text or "--ink:" in style.text
    assert plot.how_to_read in plot.save(tmp_path / "memory.html").read_text(encoding="utf-8")
    assert plot.svg in plot._repr_html_()
    assert (
        plot.save(tmp_path / "memory.csv")
        .read_text(encoding="utf-8")
        .startswith("role,trial,config,")
    )
    with pytest.raises(SpecError, match=r"memory\.svg"):
        plot.save(tmp_path / "memory.png")


def test_a_data_frame_has_a_row_for_each_trial(result: Result, empty: Result) -> None:
    frame = result.to_dataframe()
    assert list(frame.index) == [t.number for t in result.shown]
    assert frame.index.name == "number"
    assert list(frame.columns) == [name for name in TRIAL_COLUMNS if name != "number"]
    assert frame.loc[result.best.number, "tokens_per_s"] == result.best.measurement.tokens_per_s
    assert str(frame["ended_at"].dtype).startswith("datetime64")
    assert len(empty.to_dataframe()) == 0


def test_without_pandas_the_remedy_says_how_to_install_it(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        result.to_dataframe()
