"""A new study typed in, its trials looked at and compared, its tags and notes, and its end, all
clicked by two people of whom one may only read."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import follow, go
from tests.browser.test_buttons import buttons_of, check_quiet, logged_in, status_of, submitted
from tests.service.running import Service, spec, until

TYPED = """\
name: typed
model: gpt2-medium
cluster: h100-sxm-1x8
workload: {seq_len: 1024, global_batch_size: 64}
space: {tp: [1, 2], micro_batch_size: [1, 2, 4], precision: [bf16]}
budget: {max_trials: 2, min_gain: 0}
objective: {stability_weight: 0}
measure: {finalists: 0}
searcher: cost_ranked
runner: simulated
"""
SIDEWAYS = """() => {
  document.querySelectorAll("main > details").forEach((it) => { it.open = true; });
  return [...document.querySelectorAll("main .scroll")]
    .filter((it) => !it.closest("figure") && it.scrollWidth > it.clientWidth)
    .map((it) => it.innerText.slice(0, 80));
}"""
"""tables that do not fit the window"""
SMALL = """() => [...document.querySelectorAll("svg text")].filter((it) => {
  const figure = it.ownerSVGElement;
  const scale = figure.getBoundingClientRect().width / figure.viewBox.baseVal.width;
  return scale && parseFloat(getComputedStyle(it).fontSize) * scale < 11;
}).map((it) => it.textContent)"""
"""texts of figures below 11 pixels"""


@pytest.fixture(scope="module")
def finished(tuning: Service) -> str:
    """A study of ann's that has ended."""
    study = submitted(tuning, tuning.token("submit"), spec(name="finished"))
    until(lambda: status_of(tuning, study) == "COMPLETED")
    return study


def test_a_new_study_is_checked_while_it_is_typed_and_followed_to_its_launch(
    browser: Any, tuning: Service
) -> None:
    with logged_in(browser, tuning, tuning.token("submit")) as (seen, page):
        page.locator("#content").get_by_role("link", name="New study").click()
        spec_field = page.get_by_label("Spec, in YAML")
        spec_field.fill(TYPED.replace("tp: [1, 2]", "tpp: [1, 2]"))
        place = page.get_by_role("link", name="Line 5, column 9")
        place.click()
        assert (
            spec_field.evaluate("area => area.value.slice(area.selectionStart).split(':')[0]")
            == "tpp"
        )
        spec_field.fill(TYPED)
        page.get_by_text("valid configs").wait_for()
        page.get_by_role("button", name="Check").click()
        page.get_by_text("valid configs").wait_for()
        assert spec_field.input_value() == TYPED
        page.get_by_role("button", name="Submit").click()
        page.wait_for_url("**/studies/*?done=submit")
        assert "The study is submitted." in page.inner_text("[role=status]")
        study = urlsplit(page.url).path.rsplit("/", 1)[1]
        until(lambda: status_of(tuning, study) == "COMPLETED")
        go(page, f"/studies/{study}")

        page.get_by_role("link", name="1", exact=True).click()
        page.wait_for_url(f"**/studies/{study}/trials/1")
        assert page.locator("figure svg").count() >= 4
        page.get_by_text("Data of this figure").first.click()
        with page.expect_download() as got:
            page.get_by_role("link", name="All rows as CSV").first.click()
        assert got.value.suggested_filename == "step_times.csv"
        follow(page, page.get_by_role("link", name="Compare with the baseline"))
        assert "micro_batch_size" in page.locator("table.compared").first.inner_text()
        page.get_by_text("Identical").click()
        page.get_by_label("Trials, by number").fill("1 2")
        page.keyboard.press("Enter")
        page.wait_for_url("**trial=1+2")
        page.get_by_role("link", name="trial 2").click()
        page.get_by_role("link", name="Files, other trainers, schedulers").click()
        page.get_by_label("Trainer").select_option("megatron")
        page.get_by_label("Started by").select_option("slurm")
        page.get_by_role("button", name="Show").click()
        page.get_by_text("sbatch job.sbatch", exact=True).wait_for()
        with page.expect_download() as got:
            page.get_by_role("link", name="Download all files (.zip)").click()
        assert got.value.suggested_filename == f"launch-{study}.zip"
        check_quiet(seen, tuning)


@pytest.mark.thorough
def test_the_owner_tags_notes_ranks_copies_and_deletes(
    browser: Any, tuning: Service, finished: str
) -> None:
    study = submitted(tuning, tuning.token("submit"), spec(name="short-lived"))
    until(lambda: status_of(tuning, study) == "COMPLETED")
    with logged_in(browser, tuning, tuning.token("submit")) as (seen, page):
        go(page, f"/studies/{study}")
        page.get_by_label("Tags to add, separated by spaces").fill("night h100")
        page.keyboard.press("Enter")
        page.get_by_text("The tags are changed.").wait_for()
        follow(page, page.get_by_role("button", name="Remove the tag h100"))
        assert tuning.store.study(study).tags == ("night",)
        page.get_by_text("Notes", exact=True).click()
        page.get_by_label("New note").fill("slower than last week")
        page.get_by_role("button", name="Add note").click()
        page.get_by_text("slower than last week").wait_for()
        page.get_by_role("button", name="Remove this note").click()
        page.get_by_text("The note is removed.").wait_for()

        page.get_by_role("link", name="Rank again").click()
        page.get_by_label("Metric").select_option("cost")
        page.get_by_role("button", name="Rank").click()
        page.get_by_label("only configs that no other config beats").check()
        page.get_by_role("button", name="Rank").click()
        page.get_by_text("Per million tokens").wait_for()
        page.get_by_role("link", name="short-lived").click()
        page.get_by_role("link", name="Compare with another study").click()
        page.get_by_label("Study 2").select_option(finished)
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("heading", name="What differs").wait_for()
        page.get_by_role("link", name="short-lived").click()
        follow(page, page.get_by_role("link", name="night"))
        assert page.locator("tbody tr").count() == 1
        page.get_by_role("link", name="short-lived").click()
        follow(page, page.get_by_role("link", name="Copy into a new study"))
        assert "name: short-lived" in page.get_by_label("Spec, in YAML").input_value()
        page.get_by_text("valid configs").wait_for()
        page.go_back()
        page.get_by_role("link", name="Delete").click()
        page.get_by_role("link", name="Keep the study").click()
        page.get_by_role("link", name="Delete").click()
        page.get_by_role("button", name="Delete permanently").click()
        page.get_by_text("The study is deleted, with its trials and its history.").wait_for()
        assert study not in page.inner_text("main")
        check_quiet(seen, tuning)


def assert_two_rows(page: Any) -> None:
    """The header has the user beside the brand, and below them all links in one row."""
    rows = {
        what: page.locator(f"header {what}").evaluate_all(
            "found => found.map(it => Math.round(it.getBoundingClientRect().top))"
        )
        for what in (".brand", ".who", "nav a")
    }
    (brand,), (who,), links = rows.values()
    assert abs(brand - who) < 20, rows
    assert len(set(links)) == 1, rows
    assert links[0] > max(brand, who), rows


def assert_whole(page: Any, table: str) -> None:
    """All columns of the table are seen at once: nothing is cut, nothing has to be scrolled to."""
    shown = page.get_by_role("region", name=table)
    assert shown.evaluate("(it) => it.scrollWidth <= it.clientWidth"), table


@pytest.mark.thorough
def test_a_reader_sees_all_pages_and_no_button_that_changes_anything(
    browser: Any, tuning: Service, finished: str
) -> None:
    with logged_in(
        browser,
        tuning,
        tuning.token("read", "bob"),
        viewport={"width": 390, "height": 800},
        color_scheme="dark",
    ) as (seen, page):
        own = f"/studies/{finished}"
        for path in (
            own,
            f"{own}/trials/1",
            f"{own}/compare",
            f"{own}/compare?trial=0+1+2",
            f"{own}/export?trainer=megatron&on=slurm",
            f"{own}/ranking?pareto=1",
            f"/compare?study={finished}&study={finished}",
            "/best?runner=simulated&num_gpus=8&days=7",
        ):
            go(page, path)
            assert page.locator("[role=alert]").count() == 0, path
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert page.evaluate(SIDEWAYS) == [], path
            assert page.evaluate(SMALL) == [], path
            assert buttons_of(page) <= {"Log out", "Show", "Rank", "Compare"}, path
            if path == own:
                assert_whole(page, "Table of trials")
            assert page.get_by_role("link", name="Delete").count() == 0
        check_quiet(seen, tuning)
        go(page, "/plan?model=gpt2-medium&cluster=h200-sxm-1x8&seq_len=1024&batch=512&trainer=")
        assert_whole(page, "Ranked configs")
        first = page.get_by_role("region", name="Ranked configs").locator("tbody tr").first
        assert "GiB" in first.inner_text(), "a phone shows the memory too"
        assert_two_rows(page)
        go(page, "/submit")
        assert "scope submit" in page.inner_text("main")
        assert "New study" not in page.inner_text("header")
        assert "bob (read)" in page.inner_text("header")


@pytest.mark.thorough
def test_without_scripts_the_button_checks_the_spec(browser: Any, tuning: Service) -> None:
    with logged_in(
        browser,
        tuning,
        tuning.token("submit"),
        java_script_enabled=False,
        viewport={"width": 390, "height": 800},
    ) as (_, page):
        go(page, "/submit")
        assert_two_rows(page)
        page.get_by_label("Spec, in YAML").fill(TYPED.replace("gpt2-medium", "gpt2-medum"))
        follow(page, page.get_by_role("button", name="Check"))
        assert "Line 2, column 1" in page.inner_text("main")
        assert "gpt2-medium" in page.locator(".problems").inner_text()
        page.get_by_label("Spec, in YAML").fill(TYPED)
        page.get_by_role("button", name="Check").click()
        page.get_by_text("valid configs").wait_for()
