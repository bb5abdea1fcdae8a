"""What is said of a study whose baseline could not be measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from markupsafe import escape

from autotune.cli.study_text import answer_lines, print_study
from autotune.report.findings import winner_sentences
from autotune.report.markdown_page import markdown_report
from autotune.report.page import html_report
from autotune.results.answers import document, result_from
from autotune.results.result import Result
from autotune.results.without_baseline import why_unmeasured
from autotune.service.pages.rendering import render
from autotune.service.pages.trial_table import TrialQuery, trial_table
from autotune.spec import FailureKind, Trial, TrialPurpose, TrialStatus
from tests.report.worlds import out_of_memory, record, trial
from tests.study.controller.world import BASELINE, World, study

DEFAULT = replace(out_of_memory(0), purpose=TrialPurpose.BASELINE)
OTHERS = (
    trial(1, step_time_s=0.8, micro_batch_size=2, accumulation_steps=4),
    trial(2, step_time_s=0.5, micro_batch_size=4, accumulation_steps=2),
)
REFUSED = replace(
    DEFAULT,
    status=TrialStatus.INFEASIBLE,
    failure=None,
    reason="more ranks than the runner's 4",
    attempts=0,
)


def studied(baseline: Trial) -> Result:
    """A study with that baseline, which failed or is refused."""
    is_refused = baseline.status is TrialStatus.INFEASIBLE
    kept = {"refused_baseline": baseline.to_dict()} if is_refused else {}
    found = record(best=2, baseline=None, speedup=None, result=kept)
    return result_from(found, OTHERS if is_refused else (baseline, *OTHERS))


WORDS = {
    "out of memory": (DEFAULT, "the baseline ran out of memory (trial 0)"),
    "refused": (REFUSED, "the baseline cannot run here (more ranks than the runner's 4)"),
}


@pytest.mark.parametrize(("baseline", "words"), WORDS.values(), ids=WORDS)
def test_the_summary_shows_the_predicted_baseline(baseline: Trial, words: str) -> None:
    found = studied(baseline)
    lines = dict(answer_lines(document(found), found.shown))
    assert list(lines)[:3] == ["change", "speedup", "stability"]
    assert lines["change"] == "mb 8 -> 4, acc 1 -> 2 (the baseline was not measured)"
    assert lines["speedup"] == (
        f"none, because {words}; the best config has 131k tokens/s; 93.6k are predicted for the baseline"
    )
    assert lines["stability"].startswith("1.00; memory 38.0 GiB (predicted for the baseline: ")
    assert words not in lines["note"], "the reason is said once"


@pytest.mark.parametrize(("baseline", "words"), WORDS.values(), ids=WORDS)
def test_all_views_say_why_there_is_no_speedup(
    baseline: Trial, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = studied(baseline)
    print_study(document(found), [t.to_dict() for t in found.shown])
    table, _, _ = capsys.readouterr().out.partition("change  ")
    assert (
        f"as measured, because {words}; drift is not corrected, and no speedup is reported" in table
    )
    assert f"no speedup is reported, because {words}" in found.notes
    assert words in winner_sentences(found)[0]
    assert winner_sentences(found)[1].startswith("The best config differs from the baseline in ")
    page = render(
        "study_results.html",
        document=document(found),
        refresh=0,
        study={"id": "s1", "ended_at": "x", "trainer": "native"},
        target_rows=[],
        running=[],
        figures="",
        infeasible="",
        table=trial_table(found, TrialQuery()),
    )
    assert f'<dd>none</dd><dd class="soft small">{escape(words)}</dd>' in page.body.decode()
    for report in (html_report, markdown_report):
        assert "no speedup" in report(found.record, found.trials)


def test_a_measured_or_running_baseline_is_not_missing() -> None:
    running = replace(trial(0), status=TrialStatus.RUNNING, measurement=None, reward=None)
    for default in (trial(0), running):
        assert result_from(record(), (default, *OTHERS)).unmeasured_baseline is None


@pytest.mark.parametrize("kind", FailureKind)
def test_each_kind_of_failure_has_a_message(kind: FailureKind) -> None:
    said = why_unmeasured(replace(DEFAULT, failure=replace(DEFAULT.failure, kind=kind)))
    assert said.startswith("the baseline ")
    assert said.endswith(" (trial 0)")
    assert "_" not in said


@pytest.mark.parametrize(
    "refusal", ["more ranks than there are", "the baseline is predicted to run out of memory"]
)
def test_a_study_stores_a_baseline_that_cannot_run_with_the_reason(refusal: str) -> None:
    world = World(study(max_trials=2), refuse=lambda c: refusal if c == BASELINE else "")
    world.tick()
    while not world.ends:
        world.finish(min(r.number for r in world.running.values()))
        world.tick()
    kept: Mapping[str, Any] = world.end.result["refused_baseline"]
    found = Trial.from_dict(dict(kept))
    assert (found.config, found.reason) == (BASELINE, refusal)
    assert why_unmeasured(found).count("the baseline") == 1
    assert world.end.baseline is None
