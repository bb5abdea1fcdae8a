"""Debian's Chromium, driven by Playwright, for tests of the web pages.

Nothing is downloaded: the browser is the system's package. Every request that leaves the page is
recorded, so that a test can say that none left the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

HOW = "Chromium is not installed; run `bash .ci/install-services` (as root) to run these tests"
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
DEADLINE_MS = 600_000


@dataclass
class Visit:
    """A page with what the browser reported while it was open."""

    page: Any
    """Playwright's page"""
    requests: list[str] = field(default_factory=list)
    """addresses of all requests"""
    complaints: list[str] = field(default_factory=list)
    """errors of the console and exceptions of scripts"""


def find_chromium() -> str | None:
    """The browser's program; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A running browser; the test is skipped, saying how to install one, where there is none."""
    program = find_chromium()
    if program is None:
        pytest.skip(HOW)
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; install the dev extra"
    )
    sandbox = [] if os.getuid() else ["--no-sandbox"]  # as root it has none
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=[*sandbox, "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def visit(browser: Any, url: str, **options: Any) -> Iterator[Visit]:
    """A page of a new profile, without cookies. `options`: of Playwright's context."""
    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(DEADLINE_MS)
    found = Visit(page=context.new_page())
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.on(
        "console", lambda line: found.complaints.append(line.text) if line.type == "error" else None
    )
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    try:
        yield found
    finally:
        context.close()


def go(page: Any, address: str) -> None:
    """Opens the address.

    When an address of this machine comes or goes, as with the bridge of a network of nodes that
    another test makes, Chromium gives up what it loads (ERR_NETWORK_CHANGED) and loads it again by
    itself, which interrupts whoever asks in between: then once more.
    """
    from playwright.sync_api import Error

    for _ in range(20):
        try:
            page.goto(address)
            return
        except Error as error:
            if not any(
                sign in str(error)
                for sign in ("ERR_NETWORK_CHANGED", "is interrupted by another navigation")
            ):
                raise
            page.wait_for_timeout(100)
    raise RuntimeError(
        f"the network of this machine changed twenty times while {address} was loaded"
    )


def follow(page: Any, link: Any) -> None:
    """Clicks what leads to another page, a link or a button, and waits until all of that page is
    there: a click alone returns when its first bytes are."""
    page.wait_for_load_state()  # or the load of the page that is left would be taken for it
    with page.expect_event("load"):
        link.click()


def refuse_once(page: Any, addresses: str, *, status: int) -> list[str]:
    """Answers the page's next request of such an address itself, with that status; the list holds
    the address once it has."""
    refused: list[str] = []

    def answer(route: Any) -> None:
        if refused:
            route.continue_()
        else:
            refused.append(route.request.url)
            route.fulfill(status=status, body="")

    page.route(addresses, answer)
    return refused
