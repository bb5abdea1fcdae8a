"""The HTML report: whole, self-contained, escaped, and right about the numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from autotune import api
from autotune.cli.study_text import speedup_line
from autotune.report.comparison import compare
from autotune.report.figures import figures_of
from autotune.report.figures.figure_html import FIRST_FIGURES
from autotune.report.findings import prediction_errors, winner_sentences
from autotune.report.page import html_report
from autotune.report.svg.axes import Axis, Point, plot
from autotune.report.svg.canvas import ticks
from autotune.report.terminal import Palette
from autotune.results.answers import result_from
from autotune.spec import Reward, StudyStatus, Trial, TrialPurpose, TrialStatus
from tests.report.test_terminal import shown
from tests.report.worlds import out_of_memory, record, trial, trials

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """Checks that tags nest, and collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_a_finished_study() -> None:
    page = read(html_report(record(), trials()))
    for words in (
        "2.00×",
        "mb 1 -> 4",
        "step shrank (",
        "rank 3 ran out of memory",
        "autotune export s1 --to native",
        "median step",
        "runs: ",
    ):
        assert words in page.text
    shown = [attrs["id"] for tag, attrs in page.tags if tag == "figure"]
    drawn = [figure.name for figure in figures_of(result_from(record(), trials()))]
    assert shown == sorted(drawn, key=lambda name: (*FIRST_FIGURES, *drawn).index(name))
    assert shown[: len(FIRST_FIGURES)] == [*FIRST_FIGURES]
    assert len(shown) >= 10
    assert sum(tag == "tr" and attrs.get("class") == "won" for tag, attrs in page.tags) == 1


def test_the_page_has_no_external_resources_and_no_scripts() -> None:
    page = html_report(record(), trials())
    reader = read(page)
    assert not {"script", "link", "img", "iframe", "object", "base"} & {
        tag for tag, _ in reader.tags
    }
    names = [(name, value or "") for _, attrs in reader.tags for name, value in attrs.items()]
    assert not any(name.startswith("on") or name == "src" for name, _ in names)
    assert all(value.startswith("data:") for name, value in names if name == "href")
    assert not re.search(r"https?://|url\(|@import", page)


def test_foreign_text_is_escaped() -> None:
    page = html_report(record(message="<img src=x onerror=alert(1)>"), trials())
    for words in ("<script>alert", "<b>tried</b>", "<img"):
        assert words not in page
    assert "demo &quot;&lt;script&gt;" in page


@pytest.mark.parametrize(
    "some",
    [
        [],
        [trial(0)],
        [out_of_memory(0), out_of_memory(1)],
        [replace(trial(0), estimate=None), replace(trial(1), reward=None)],
        [Trial(config=trial(0).config)],
        [replace(trial(0), status=TrialStatus.CANCELLED, measurement=None)],
    ],
    ids=["none", "one", "failures", "no-estimate", "pending", "cancelled"],
)
def test_unfinished_and_failed_studies_have_a_page(some: list[Trial]) -> None:
    study = record(
        best=None,
        baseline=None,
        speedup=None,
        status=StudyStatus.RUNNING,
        started_at=None,
        ended_at=None,
    )
    assert "How to reproduce the study" in read(html_report(study, some)).text
    shown(compare((study, some), (record(), trials()), palette=Palette(unicode=False)))


def test_best_so_far_never_decreases() -> None:
    figure = next(f for f in figures_of(result_from(record(), trials())) if f.name == "best_so_far")
    at = [column.name for column in figure.table.columns].index("best_tokens_per_s")
    values = [row[at] for row in figure.table.rows]
    assert values == sorted(values)
    assert len(values) == 5


def test_winner_and_speedup_are_computed_if_not_stored() -> None:
    found = result_from(record(best=None, baseline=None, speedup=None), trials())
    assert found.best.number == 3
    assert found.speedup == pytest.approx(2.0)
    assert prediction_errors(found.trials)["step_time"] == pytest.approx(0.1)


def test_sentences_and_figures_use_the_final_runs() -> None:
    """Not of the search, whose numbers the speedup does not follow from, but at the machine's speed
    in the search."""
    slow, fast = (
        trial(0, step_time_s=2.0),
        trial(1, step_time_s=1.6, micro_batch_size=2, accumulation_steps=4),
    )
    finals = [
        replace(trial(n, step_time_s=s), config=t.config, purpose=TrialPurpose.FINAL)
        for n, t, s in ((2, slow, 4.0), (3, fast, 2.0), (4, fast, 2.0), (5, slow, 4.0))
    ]
    listed = {"finals": [{"config": t.config.to_dict()} for t in (slow, fast)]}
    found = result_from(record(best=1, speedup=2.0, result=listed), [slow, fast, *finals])
    assert (
        "65.5k against 32.8k tokens per second: 2.00 times (95% CI " in winner_sentences(found)[0]
    )
    assert (
        winner_sentences(replace(found, tied_with=(4, 6, 7)))[1]
        == "Trial 1 is statistically tied with trials 4, 6 and 7."
    )


def test_a_study_on_a_machine_that_is_too_noisy_claims_nothing() -> None:
    default, other = (
        trial(0, step_time_s=1.0),
        trial(1, step_time_s=0.4, micro_batch_size=2, accumulation_steps=4),
    )
    again = [
        replace(trial(n, step_time_s=s), purpose=TrialPurpose.BASELINE)
        for n, s in ((2, 2.0), (3, 2.6))
    ]
    found = result_from(record(best=None, baseline=None, speedup=None), [default, other, *again])
    expected = "too noisy to tell: the baseline ran between"
    assert expected.capitalize() in winner_sentences(found)[0]
    page = html_report(found.record, found.trials)
    assert "too noisy to tell</b>" in page
    assert "95% CI" not in page
    document = api.document(found)
    assert document["speedup"] is document["speedup_low"] is document["speedup_high"] is None
    assert document["too_noisy"]["factor"] == pytest.approx(2.6)
    assert any(expected in note for note in document["notes"])
    assert speedup_line(document).startswith(expected)
    assert expected in repr(found)


def test_no_interval_is_shown_before_the_finals() -> None:
    default, other = (
        trial(0, step_time_s=1.0),
        trial(1, step_time_s=0.4, micro_batch_size=2, accumulation_steps=4),
    )
    ended = record(best=None, baseline=None, speedup=None)
    running = replace(ended, status=StudyStatus.RUNNING)
    assert "95% CI" in html_report(ended, [default, other])
    found = result_from(running, [default, other])
    assert found.speedup == pytest.approx(2.5)
    assert (found.speedup_low, found.speedup_high) == (None, None)
    assert "95% CI" not in html_report(running, [default, other])


def test_reasons_compare_steps_at_equal_tokens() -> None:
    slow, fast = trial(0, step_time_s=1.0), trial(1, step_time_s=2.0)
    doubled = replace(fast, measurement=replace(fast.measurement, tokens_per_step=2 * 64 * 1024))  # type: ignore[type-var]
    best = replace(
        doubled,
        config=replace(fast.config, dp=4),
        reward=Reward(total=1.0, throughput=1.0, stability=1.0),
    )
    sentences = winner_sentences(result_from(record(best=1, speedup=None), [slow, best]))
    assert any("dp 8 -> 4" in sentence for sentence in sentences)
    assert not any("shrank" in sentence or "grew" in sentence for sentence in sentences)


def test_comparison_names_the_difference() -> None:
    without_the_best = [t for t in trials() if t.number != 3]
    text = shown(
        compare((record(), trials()), (record(id="s2", best=1, speedup=1.25), without_the_best))
    )
    for words in ("mb 4 -> 2", "2.00", "1.25"):
        assert words in text


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 1.0), (0.0, 7e9), (-0.2, 5.2), (3.0, 3.0), (0.0, 1e-9), (0.0, float("nan"))],
)
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 12
    if high > low:
        assert all(low - 1e-9 * high <= tick <= high * (1 + 1e-9) for tick in found)


def test_a_figure_of_one_point_is_finite() -> None:
    svg = plot(
        [Point(x=0, y=0, title="<t>")],
        x=Axis(label="x", format=str),
        y=Axis(label="y", format=str),
        description="d",
    )
    assert "nan" not in svg
    assert "inf" not in svg
    assert "&lt;t&gt;" in svg


def test_the_report_of_a_study_without_measurements_gives_reasons_and_has_no_empty_cards() -> None:
    failed = [replace(out_of_memory(n), config=trial(n, zero_stage=n).config) for n in range(3)]
    changes = {"status": StudyStatus.FAILED, "best": None, "baseline": None, "speedup": None}
    text = html_report(record(message="no trial was measured", **changes), failed)
    page = read(text)
    assert "3 trials failed: 3 out of memory." in page.text
    assert "No trial was measured." in page.text
    assert "<b>-</b>" not in text
    assert "More figures" not in page.text, "nothing is above it, so nothing is folded"
    assert any(tag == "figure" for tag, _ in page.tags)
