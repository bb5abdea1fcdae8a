"""The Markdown report, read as GitHub reads it: tables whole, nothing foreign becomes markup, short
enough for a comment."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from autotune.report.figures import figures_of
from autotune.report.figures.figure_markdown import MAX_ROWS, figure_markdown
from autotune.report.markdown_page import MAX_CHARACTERS, markdown_report
from autotune.report.markdown_text import BAR_LENGTH, bar, block, code, table, text
from autotune.results.answers import result_from
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import ParallelConfig, StudyStatus, Trial
from tests.report.worlds import out_of_memory, record, trial, trials

FOREIGN = '@ann #12 <b>x</b> a|b **c** _d_ `e` [f](http://g.example) $1 and $2 ~~h~~ \\ 1. & "'


class Reader(HTMLParser):
    """Tags and text of rendered Markdown."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(markdown: str) -> Reader:
    """CommonMark with GitHub's tables and strikethrough, and with HTML let through."""
    reader = Reader()
    reader.feed(
        MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)
    )
    return reader


def test_the_report_of_a_finished_study_starts_with_the_answer() -> None:
    page = markdown_report(record(), trials())
    read = rendered(page)
    first = read.text[: read.text.index("Runs before the finals (5)")]
    assert "2.00× (95% CI 1.73-2.31) over the baseline" in first
    assert "mb 1 -> 4" in first
    assert (
        read.text.count("tp=1,pp=1,dp=8,micro_batch_size=4,accumulation_steps=2,precision=bf16")
        == 1
    )
    assert "rank 3 ran out of memory: OutOfMemoryError: <b>tried</b> to allocate 2 GiB" in read.text
    assert "autotune export s1 --to native" in read.text
    assert set(read.tags) <= {
        *("h3", "h4", "p", "ul", "li", "strong", "code", "pre", "details", "summary"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    assert read.links == []


def test_figures_are_tables_with_bars_once_each() -> None:
    drawn = figures_of(result_from(record(), trials()))
    page = markdown_report(record(), trials())
    titles = re.findall("<summary>(.*?)</summary>", page)
    assert {figure.title for figure in drawn} - set(titles) == {
        "Best so far over time"
    }  # the same rows in another order
    assert "| 20% | ██▍ |" in page
    # the answer's, and one in each part but the last
    assert rendered(page).tags.count("table") == len(titles)


def test_the_report_links_to_the_service() -> None:
    links = rendered(markdown_report(record(), trials(), service="http://tuner:8600/")).links
    assert links[0] == "http://tuner:8600/studies/s1"
    assert set(links[1:]) == {f"http://tuner:8600/studies/s1/trials/{n}" for n in range(5)}


@pytest.mark.parametrize(
    "shown", [text(FOREIGN), table([("a", False)], [[text(FOREIGN)]])], ids=["line", "cell"]
)
def test_foreign_text_does_not_become_markup(shown: str) -> None:
    read = rendered(shown)
    assert set(read.tags) <= {"p", "span", "table", "thead", "tbody", "tr", "th", "td"}
    assert read.text.replace("\u200b", "").strip().removeprefix("a").strip() == FOREIGN
    # GitHub would call a person, link an issue or an address
    assert not re.search(r"@\w|#\d|https?:", read.text)


def test_code_keeps_special_characters() -> None:
    assert rendered(code("a`b``c <i>|").replace("\\|", "|")).text.strip() == "a`b``c <i>|"
    assert rendered(table([("a", False)], [[code("x|y")]])).text.split() == ["a", "x|y"]
    assert rendered(block("```\nnot the end\n```")).text.strip() == "```\nnot the end\n```"


def test_bars_are_in_proportion() -> None:
    assert [len(bar(share)) for share in (0.0, 1e-9, 0.5, 1.0, 7.0)] == [
        0,
        1,
        BAR_LENGTH // 2,
        BAR_LENGTH,
        BAR_LENGTH,
    ]


def test_long_tables_show_evenly_spread_rows() -> None:
    figure = Figure(
        name="loss",
        title="Loss",
        shows="Loss.",
        how_to_read="",
        svg="",
        table=table_of(
            [Column(name="step", head="step"), Column(name="loss", head="loss", bar_of=0.0)],
            [(i, i) for i in range(1000)],
        ),
    )
    shown = [
        line.split(" | ")[0]
        for line in figure_markdown(figure).splitlines()
        if line.startswith("| ")
    ][2:]
    assert len(shown) == MAX_ROWS
    assert (shown[0], shown[-1]) == ("| 0", "| 999")
    assert f"{MAX_ROWS} of 1,000 rows" in figure_markdown(figure)


@pytest.mark.parametrize(
    "some",
    [
        [],
        [trial(0)],
        [out_of_memory(0), out_of_memory(1)],
        [replace(trial(0), estimate=None)],
        [Trial(config=trial(0).config)],
    ],
    ids=["none", "one", "failures", "no-estimate", "pending"],
)
def test_unfinished_and_failed_studies_have_a_report(some: list[Trial]) -> None:
    study = record(
        best=None,
        baseline=None,
        speedup=None,
        status=StudyStatus.RUNNING,
        started_at=None,
        ended_at=None,
    )
    assert "How to reproduce the study" in rendered(markdown_report(study, some)).text


@pytest.mark.parametrize("sign", ["@a", "$"])
def test_the_report_of_a_long_study_fits_into_a_comment(sign: str) -> None:
    long = [sign * 3000] * 2
    many = [
        replace(
            trial(n, step_time_s=1 + n / 1000),
            reason=f"{long[0]} {n}",
            config=ParallelConfig(dp=8, accumulation_steps=n + 1),
        )
        for n in range(400)
    ]
    many += [
        replace(one, failure=replace(one.failure, message=long[0], exception=long[1]))
        for one in map(out_of_memory, range(400, 440))
        if one.failure
    ]
    page = markdown_report(
        record(message=long[0], spec={"name": "x" * 100_000}), many, service="http://tuner:8600"
    )
    assert len(page) <= MAX_CHARACTERS
    for words in (
        "416 more runs are not shown",
        "32 earlier failures are not shown",
        "... (cut)",
    ):
        assert words in page
