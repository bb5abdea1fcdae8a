"""The page of a large study in a real browser: its parts come after it, and new ones take the place
of the old without a reload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.service.pages import study_page
from autotune.spec import Reward
from autotune.testing.stores import measured, pending, run_trial, running_study
from tests.browser.chromium import go, refuse_once, visit
from tests.service.running import Service

pytestmark = pytest.mark.thorough

MOVED = """new Promise((done) => {
  let moved = 0;
  new PerformanceObserver((list) => list.getEntries().forEach((one) => (moved += one.value))).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(moved), 300);
})"""
"""what moved on the screen while the page was loaded, as Chromium scores it: under 0.1 is good
(Cumulative Layout Shift, web.dev)"""


def test_the_parts_of_a_large_study_come_and_are_replaced(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_page, "MAX_IMMEDIATE_TRIALS", 12)
    with Service(tmp_path) as service, visit(browser, service.url) as seen:
        page, store = seen.page, service.store
        lease = running_study(store)
        for number in range(19):
            run_trial(store, lease, measured(pending(number), step_time_s=1.0 / (1 + number)))
        go(page, f"/studies/{lease.study}")
        page.locator("#figures figure svg").first.wait_for()
        assert page.evaluate(MOVED) < 0.1, "the parts that come push nothing on the screen away"
        # nothing is at hand any more
        run_trial(store, lease, measured(pending(19), step_time_s=1 / 20))
        go(page, f"/studies/{lease.study}?sort=-measured#trials")
        page.locator("#figures figure svg").first.wait_for()
        assert page.locator("#trials tbody tr").count() == 20
        assert page.evaluate("scrollY") > 500, (
            "the part that the address names is shown when it has come"
        )
        page.evaluate("window.kept = true")
        page.locator("#best_so_far summary").click()
        page.locator("#trials thead a").first.focus()
        won = Reward(total=9.0, throughput=9.0, stability=1.0)
        run_trial(store, lease, replace(measured(pending(20), step_time_s=1e-3), reward=won))
        page.locator("#trials tr.won a", has_text="20").wait_for()
        page.locator("#best_so_far td", has_text="20").first.wait_for()
        assert page.evaluate("window.kept"), "nothing was loaded again"
        assert page.locator("#best_so_far details[open]").count() == 1
        assert page.evaluate("document.activeElement.textContent") == "#"
        assert seen.complaints == []
        page.get_by_role("textbox", name="Knobs").fill("mb3")
        page.get_by_role("button", name="Show").click()
        page.get_by_text("1 to 1 of 1 config that match, 21 in all").wait_for()

        go(page, f"/studies/{lease.study}")
        page.locator("#figures figure svg").first.wait_for()
        refused = refuse_once(page, f"**/studies/{lease.study}/results*", status=429)
        best = Reward(total=10.0, throughput=10.0, stability=1.0)
        run_trial(store, lease, replace(measured(pending(21), step_time_s=5e-4), reward=best))
        # no later event asks for the part that was refused
        page.locator("#trials tr.won a", has_text="21").wait_for()
        assert refused
