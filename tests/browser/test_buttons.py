"""Every button and link of the web pages, clicked in a real browser, which adds headers of its own
to forms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from autotune.spec import Wanted
from tests.browser.chromium import Visit, follow, go, refuse_once, visit
from tests.service.running import Service, bearer, slow_spec, spec, until


def log_in(seen: Visit, token: str) -> None:
    """Fills in the login form and sends it."""
    go(seen.page, "/login")
    seen.page.get_by_label("Token").fill(token)
    seen.page.get_by_role("button", name="Log in").click()
    seen.page.wait_for_url("**/studies")


@contextlib.contextmanager
def logged_in(
    browser: Any, service: Service, token: str, **options: Any
) -> Iterator[tuple[Visit, Any]]:
    """A visit of the token's owner, and its page. `options`: of Playwright's context."""
    with visit(browser, service.url, **options) as seen:
        log_in(seen, token)
        yield seen, seen.page


def check_quiet(seen: Visit, service: Service) -> None:
    """No error on the console, and no request that left the service."""
    assert seen.complaints == []
    assert {urlsplit(address).netloc for address in seen.requests} == {urlsplit(service.url).netloc}


def submitted(service: Service, token: str, document: dict[str, Any]) -> str:
    """The id of a study that the token's owner has submitted."""
    answer = service.http.post("/api/v1/studies", json=document, headers=bearer(token))
    return str(answer.json()["study"]["id"])


def status_of(service: Service, study: str) -> str:
    return str(service.store.study(study).status)


def buttons_of(page: Any) -> set[str]:
    """The names of all buttons that the page shows."""
    return set(
        page.get_by_role("button").all_inner_texts()
    )  # in one step: a page that follows a study changes meanwhile


def actions_of(page: Any) -> set[str]:
    """The names of the buttons that act on the study that the page shows."""
    return set(page.locator("form.actions button").all_inner_texts())


def is_silent(seen: Visit, time_ms: float) -> bool:
    """Whether the page asks for nothing in so long."""
    asked = len(seen.requests)
    seen.page.wait_for_timeout(time_ms)
    return len(seen.requests) == asked


@pytest.mark.thorough
def test_the_buttons_of_a_study_act_and_say_what_happened(browser: Any, tuning: Service) -> None:
    token = tuning.token("submit")
    study = submitted(tuning, token, slow_spec())
    with visit(browser, tuning.url) as seen:
        page = seen.page
        go(page, "/best")
        assert page.url.endswith("/login?next=/best")  # nobody has logged in yet
        log_in(seen, token)
        until(lambda: status_of(tuning, study) == "RUNNING")
        follow(page, page.get_by_role("link", name="slow"))
        assert actions_of(page) == {"Pause", "Stop", "Cancel"}

        for button, wanted in (
            ("Pause", Wanted.PAUSE),
            ("Resume", Wanted.RUN),
            ("Stop", Wanted.STOP),
            ("Cancel", Wanted.CANCEL),
        ):
            follow(page, page.get_by_role("button", name=button, exact=True))
            assert "failed" not in page.inner_text("h1"), page.inner_text("main")
            assert tuning.store.study(study).wanted is wanted
            page.reload()
        until(lambda: status_of(tuning, study) == "CANCELLED")
        page.reload()
        assert actions_of(page) == set()

        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login")
        go(page, "/studies")
        assert "/login" in page.url
        check_quiet(seen, tuning)


@pytest.mark.thorough
def test_the_page_of_a_running_study_follows_it_without_a_reload(
    browser: Any, tuning: Service
) -> None:
    token = tuning.token("submit")
    study = submitted(tuning, token, slow_spec())
    with logged_in(browser, tuning, token) as (seen, page):
        go(page, f"/studies/{study}")
        page.get_by_text("History: the newest events").click()
        page.evaluate("window.kept = true")
        page.get_by_text("running", exact=True).first.wait_for()
        tuning.http.post(f"/api/v1/studies/{study}/cancel", headers=bearer(token))
        page.locator("h1 .status.CANCELLED").wait_for()
        until(lambda: actions_of(page) == set())
        assert page.evaluate("window.kept")
        assert page.locator("details[open]").count() == 1
        until(lambda: tuning.service.streams == 0)
        until(lambda: is_silent(seen, 3500))  # once the last events have come: the study has ended
        assert seen.complaints == []


@pytest.mark.thorough
def test_the_end_of_a_study_is_shown_though_the_service_was_away_and_someone_was_typing(
    browser: Any, tuning: Service
) -> None:
    token = tuning.token("submit")
    study = submitted(tuning, token, slow_spec())
    with logged_in(browser, tuning, token) as (_, page):
        go(page, f"/studies/{study}")
        page.get_by_text("History: the newest events").click()
        page.get_by_text("running", exact=True).first.wait_for()
        page.get_by_text("Notes", exact=True).click()
        page.get_by_label("New note").fill("half a note")
        refused = refuse_once(page, f"**/studies/{study}", status=503)
        tuning.http.post(f"/api/v1/studies/{study}/cancel", headers=bearer(token))
        until(lambda: tuning.service.streams == 0)  # the last event was sent
        page.wait_for_timeout(1000)
        assert page.get_by_label("New note").input_value() == "half a note"
        page.get_by_label("New note").blur()
        page.locator("h1 .status.CANCELLED").wait_for()
        assert refused


@pytest.mark.thorough
def test_filters_pages_and_links_lead_where_they_say(browser: Any, tuning: Service) -> None:
    token = tuning.token("submit")
    study = submitted(tuning, token, spec(name="seen"))
    until(lambda: status_of(tuning, study) == "COMPLETED")
    with logged_in(browser, tuning, token) as (seen, page):
        page.get_by_text("Filter", exact=True).click()
        page.get_by_label("Status").select_option("COMPLETED")
        page.get_by_label("Model").fill("gpt2-medium")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("link", name="seen").first.click()
        follow(page, page.get_by_role("link", name="Report with figures"))
        assert page.locator("svg").count() > 0
        page.go_back()
        page.get_by_text("History: the newest events").click()
        assert page.get_by_role("region", name="History").get_by_role("row").nth(1).is_visible()
        page.get_by_role("link", name="Best configs").click()
        page.get_by_label("Runner").fill("simulated")
        page.get_by_role("button", name="Show").click()
        page.locator("main").get_by_role("link", name="seen").first.click()
        page.wait_for_url(f"**/studies/{study}")
        check_quiet(seen, tuning)


def test_a_wrong_token_is_refused_in_words(browser: Any, tuning: Service) -> None:
    with visit(browser, tuning.url) as seen:
        go(seen.page, "/login")
        seen.page.get_by_label("Token").fill("at_000000000000_wrong")
        follow(seen.page, seen.page.get_by_role("button", name="Log in"))
        assert "unknown, expired or revoked" in seen.page.get_by_role("alert").inner_text()


def test_a_reader_sees_no_buttons_that_would_be_refused(browser: Any, tuning: Service) -> None:
    study = submitted(tuning, tuning.token("submit"), slow_spec())
    with logged_in(browser, tuning, tuning.token("read", "bob")) as (_, page):
        go(page, f"/studies/{study}")
        # `Show` filters the trials, once there are some
        assert buttons_of(page) - {"Show"} == {"Log out"}
        assert "bob (read)" in page.inner_text("header")
    tuning.http.post(
        f"/api/v1/studies/{study}/cancel", headers=bearer(tuning.token("admin", "root"))
    )


def test_the_form_of_another_site_is_refused(browser: Any, tuning: Service) -> None:
    """The browser sends this form with `Origin: null`, as it would from a sandboxed frame of
    another site."""
    token = tuning.token("submit")
    study = submitted(tuning, token, slow_spec())
    with logged_in(browser, tuning, token) as (_, page):
        evil = f'<form method="post" action="{tuning.url}/studies/{study}/act"><button name="action" value="cancel">Win</button></form>'
        go(page, f"data:text/html,{evil}")
        follow(page, page.get_by_role("button", name="Win"))
        assert "The request failed" in page.content() or "Log in" in page.content()
    assert status_of(tuning, study) != "CANCELLED"
    tuning.http.post(f"/api/v1/studies/{study}/cancel", headers=bearer(token))
