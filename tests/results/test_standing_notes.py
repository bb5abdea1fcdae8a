"""A study whose table has a config, measured once, above the winner: every place that shows it says
why it is not the winner."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.cli.live import LiveView
from autotune.cli.study_text import configs_table, noisy_line
from autotune.mcp.tool_answers import TrialRow
from autotune.ports import StudyRecord
from autotune.report.figures import figures_of
from autotune.report.markdown_page import markdown_report
from autotune.report.page import html_report
from autotune.report.terminal import by_config, format_count, study_configs_table
from autotune.results import rankings
from autotune.results.answers import document, ranked_documents, result_from, standings_of
from autotune.results.rankings import front_documents, ranking_document
from autotune.results.result import Result
from autotune.reward import score
from autotune.service.pages.rendering import render
from autotune.service.pages.trial_table import TrialQuery, trial_table
from autotune.spec import MeasureSpec, StudyStatus, Trial, TrialPurpose
from autotune.study.progress import StudyOpened, TrialEnded
from tests.report.worlds import record, trial

WHY = "measured once: the study ended first"
WINNER, LUCKY = 1, 2


def scored(
    number: int, step_time_s: float, purpose: TrialPurpose = TrialPurpose.SEARCH, **knobs: int
) -> Trial:
    found = replace(trial(number, step_time_s=step_time_s, **knobs), purpose=purpose)
    study = record().study
    reward = score(
        found, reference=trial(0).measurement, objective=study.objective, workload=study.workload
    )
    return replace(found, reward=reward)


A: dict[str, int] = {"micro_batch_size": 2, "accumulation_steps": 4}
B: dict[str, int] = {"micro_batch_size": 4, "accumulation_steps": 2}
FINALS = [(0, 1.0, {}), (1, 0.7, A), (1, 0.7, A), (0, 1.0, {})]
TRIALS = [
    scored(0, 1.0, TrialPurpose.BASELINE),
    scored(1, 0.5, **A),
    scored(2, 0.55, **B),
    *(
        scored(3 + i, time_s, TrialPurpose.FINAL, **knobs)
        for i, (_, time_s, knobs) in enumerate(FINALS)
    ),
]
"""The winner looked twice as fast as the baseline and is 1.43 times as fast; another was seen once
at 1.82 times."""


def studied(trials: list[Trial], **changes: object) -> tuple[StudyRecord, list[Trial]]:
    base = record()
    study = replace(base.study, measure=MeasureSpec(finalists=1, final_rounds=2))
    raced = [{"config": t.config.to_dict()} for t in trials if t.purpose is TrialPurpose.FINAL]
    return record(
        **{"study": study, "best": WINNER, "result": {"finals": raced}, **changes}
    ), trials


def found(**changes: object) -> Result:
    return result_from(*studied(TRIALS, **changes))


@pytest.fixture(scope="module")
def result() -> Result:
    return found()


def shown_in_a_terminal(renderable: object) -> str:
    console = terminal()
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def terminal() -> Console:
    return Console(file=io.StringIO(), width=250, height=60, color_system=None, force_terminal=True)


def live(result: Result) -> str:
    """The live view after the last trial."""
    console = terminal()
    console.print(view_with(result.trials, result.record, console))
    return console.file.getvalue()  # type: ignore[attr-defined]


def page_table(result: Result) -> str:
    table = trial_table(result, TrialQuery(sort="measured", descending=True))
    study = {"id": result.record.id}
    return render("trial_table.html", table=table, study=study, infeasible="").body.decode()


PLACES: dict[str, Callable[[Result], str]] = {
    "the end of tune, status, watch": lambda r: shown_in_a_terminal(
        study_configs_table(by_config(r.shown), best=r.best.config)
    ),
    "best --top": lambda r: shown_in_a_terminal(configs_table(document(r, top=5)["configs"])),
    "best --pareto": lambda r: str(front_documents(r)),
    "the page": page_table,
    "the report": lambda r: html_report(r.record, r.trials),
    "the report in Markdown": lambda r: markdown_report(r.record, r.trials),
    "figures": lambda r: next(f.svg for f in figures_of(r) if f.name == "best_so_far"),
    "explain": lambda r: str(rankings.explained(r, LUCKY)["text"]),
    "tools for agents": lambda r: str([TrialRow.of(t) for t in r.shown]),
    "a data frame": lambda r: str(r.shown[LUCKY].reason),
}


@pytest.mark.parametrize("place", PLACES)
def test_all_views_say_why_a_faster_trial_is_not_the_winner(result: Result, place: str) -> None:
    assert result.best.number == WINNER
    lucky = next(t for t in result.shown if t.number == LUCKY)
    assert lucky.measurement.tokens_per_s > result.best.measurement.tokens_per_s, (
        "or the test shows nothing"
    )
    assert WHY in re.sub(r"\s+", " ", PLACES[place](result)), place


def test_the_winner_is_first_in_every_ranking(result: Result) -> None:
    rows = ranked_documents(result, 5)
    assert [row["number"] for row in rows] == [t.number for t in standings_of(result)]
    assert rows[0]["number"] == WINNER
    assert rows[0]["reward"]["total"] < rows[1]["reward"]["total"], "or the note explains nothing"
    assert [row["note"] for row in rows] == ["", WHY, ""]
    assert ranking_document(result, top=2)["configs"] == rows[:2]
    markdown = markdown_report(result.record, result.trials)
    table = [
        line
        for line in markdown[markdown.index("Runs before the finals (") :].splitlines()
        if line.startswith("|")
    ]
    assert [re.split(r"\W+", row)[1] for row in table[2:5]] == ["1", "2", "0"]


def test_the_best_so_far_ends_with_the_winner(result: Result) -> None:
    (figure,) = (f for f in figures_of(result) if f.name == "best_so_far")
    assert figure.table.rows[-1][-1] == pytest.approx(result.best.measurement.tokens_per_s)
    assert "Other dots above the best do not rank above it" in figure.how_to_read
    assert 'class="soft"' not in figure.svg, "pale dots are those that were stopped"


def test_reasons_of_a_running_study_say_so_far_and_re_measured_trials_have_none() -> None:
    assert found(status=StudyStatus.RUNNING, ended_at=None).below == {LUCKY: "measured once so far"}
    late = [scored(0, 1.0, TrialPurpose.FINAL), scored(2, 0.75, TrialPurpose.FINAL, **B)]
    played = [*TRIALS, late[0], late[1], late[1], late[0]]
    trials = [replace(t, number=i) for i, t in enumerate(played)]
    assert result_from(*studied(trials)).below == {}, (
        "once it is re-measured it stands where it belongs"
    )


def test_the_live_view_shows_first_runs_and_marks_the_best_config(result: Result) -> None:
    text = live(result)
    assert re.search(rf"^\W*{WINNER}★", text, re.M)
    for t in result.trials[:3]:
        row = re.search(rf"^\W*{t.number}\W.*$", text, re.M)
        assert row is not None
        assert format_count(t.measurement.tokens_per_s) in row[0]
    assert "best so far: trial 1 (~" in text
    assert "(95% CI" not in text


def test_the_live_view_says_that_the_machine_is_too_noisy() -> None:
    """With what to do; and no best figure, which would be a claim."""
    runs = [
        (1.0, TrialPurpose.BASELINE),
        (2.1, TrialPurpose.BASELINE),
        (0.6, TrialPurpose.BASELINE),
    ]
    noisy = [
        replace(scored(0, time_s, purpose), number=n) for n, (time_s, purpose) in enumerate(runs)
    ]
    base, _ = studied(noisy, status=StudyStatus.RUNNING, ended_at=None)
    console = terminal()
    plain = Console(file=io.StringIO(), width=250, color_system=None)
    for out in (console, plain):
        view = LiveView(base.study, console=out)
        view.on_event(StudyOpened(record=base, past=tuple(noisy[:1])))
        assert not view.noisy
        for t in noisy[1:]:
            view.on_event(TrialEnded(trial=t))
        assert view.noisy.startswith("too noisy to tell: the baseline ran between ")
    console.print(view_with(noisy, base, console))
    for out in (console, plain):
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert "too noisy to tell: the baseline ran between " in text
        assert "stop other jobs" in text
    answer = document(result_from(base, noisy))
    assert answer["study"]["too_noisy"] == answer["too_noisy"]
    assert noisy_line(answer["too_noisy"]) in console.file.getvalue()  # type: ignore[attr-defined]


def card(result: Result) -> str:
    """The card "Best" of a study's page."""
    page = render(
        "study_results.html",
        document=document(result),
        refresh=0 if result.record.status.is_terminal else 5,
        study={"id": "s1", "ended_at": result.record.ended_at, "trainer": "native"},
        target_rows=[],
        running=[],
        figures=None,
        infeasible="",
        table=trial_table(result, TrialQuery()),
    )
    return page.body.decode().partition('<section class="answer">')[2].partition("</section>")[0]


def test_a_speedup_without_finals_is_unconfirmed(result: Result) -> None:
    before = result_from(
        *studied(TRIALS[:3], status=StudyStatus.RUNNING, ended_at=None, best=None, speedup=None)
    )
    free = replace(before, tied_with=(2,))
    assert f"<dd>{free.speedup:.2f}× (not confirmed yet)</dd>" in card(free)
    assert "Statistically tied with trial 2." in card(free)
    for text in (html_report(free.record, free.trials), repr(free), free._repr_html_()):
        assert "(not confirmed yet)" in text
    assert "not confirmed yet" not in card(result)
    first = result_from(
        *studied(TRIALS[:1], status=StudyStatus.RUNNING, ended_at=None, best=None, speedup=None)
    )
    assert "<dd>no speedup; the baseline is the best so far</dd>" in card(first)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [((2, 0), "the baseline and trial 2"), ((0,), "the baseline")],
    ids=["with another", "alone"],
)
def test_a_speedup_that_is_tied_with_the_baseline_is_not_bold(
    result: Result, numbers: tuple[int, ...], words: str
) -> None:
    tied = card(replace(result, tied_with=numbers))
    assert re.search(r'<dt>Speedup over the baseline</dt><dd class="small">1\.\d+×', tied)
    assert f"Statistically tied with {words}." in tied
    assert '<dd class="small">' not in card(result)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "No speedup is claimed: "),
        (
            {"status": StudyStatus.RUNNING, "ended_at": None},
            "Unless later runs agree, no speedup will be claimed: ",
        ),
    ],
    ids=["ended", "running"],
)
def test_the_card_explains_that_the_machine_is_too_noisy(
    changes: dict[str, object], words: str
) -> None:
    times_s = ((0, 1.0), (1, 2.1), (2, 0.6))
    runs = [replace(scored(0, s, TrialPurpose.BASELINE), number=n) for n, s in times_s]
    noisy = result_from(*studied(runs, best=0, **changes))
    assert noisy.too_noisy is not None
    seen = card(noisy).partition("<details>")[0]
    assert "too noisy to tell" in seen
    assert f"Too noisy to tell: {str(noisy.too_noisy).partition(': ')[2]}. {words}" in seen
    assert str(noisy.too_noisy.to_dict()["remedy"]) in seen


def view_with(trials: Sequence[Trial], base: StudyRecord, console: Console) -> LiveView:
    view = LiveView(base.study, console=console)
    view.on_event(StudyOpened(record=base, past=tuple(trials[:-1])))
    view.on_event(TrialEnded(trial=trials[-1]))
    return view


def test_no_view_shows_an_interval_before_the_finals_end() -> None:
    before = result_from(
        *studied(TRIALS[:3], status=StudyStatus.RUNNING, ended_at=None, best=None, speedup=None)
    )
    assert before.speedup is not None
    answer = ranking_document(before, top=3)
    assert (answer["speedup_low"], answer["speedup_high"]) == (None, None)
    for text in (
        html_report(before.record, before.trials),
        markdown_report(before.record, before.trials),
        live(before),
        repr(before),
        before._repr_html_(),
    ):
        assert "(95% CI" not in text
