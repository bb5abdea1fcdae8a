"""Every page of the service: no finding of axe-core in light and dark, no overflow at 390 px, every
control reached by the Tab key with a visible focus.

axe-core (Deque Systems, Mozilla Public License 2.0) comes with the package axe-playwright-python
(MIT), of which only its script is used. The test puts it into the page; the service serves none of
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.ports import KeepTrial
from autotune.service.options import ServiceOptions
from autotune.spec import StudyStatus
from autotune.testing.stores import decide, failed, launch, measured, pending, reported, run_trial
from tests.browser.chromium import Visit, go
from tests.browser.test_buttons import check_quiet, logged_in
from tests.service.running import Service, spec, until

AXE = Path(
    pytest.importorskip(
        "axe_playwright_python", reason="axe-core is not installed; install the dev extra"
    ).__file__
).with_name("axe.min.js")
ALL_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
COLORS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
"""the rules whose answer depends on light and dark"""
STATES: Mapping[StudyStatus, tuple[StudyStatus, ...]] = {
    StudyStatus.QUEUED: (),
    StudyStatus.RUNNING: (),
    StudyStatus.PAUSED: (StudyStatus.PAUSED,),
    StudyStatus.STOPPING: (StudyStatus.STOPPING,),
    StudyStatus.COMPLETED: (StudyStatus.COMPLETED,),
    StudyStatus.FAILED: (StudyStatus.FAILED,),
    StudyStatus.CANCELLED: (StudyStatus.CANCELLED,),
}
"""what a study goes through after it has begun to run"""
PAGES: Mapping[str, str] = {
    "login": "/login",
    "studies": "/studies",
    "none found": "/studies?tag=nothing",
    "ended": "/studies/{ended}",
    **{status.lower(): f"/studies/{{{status.lower()}}}" for status in STATES},
    "report": "/studies/{ended}/report",
    "trial": "/studies/{ended}/trials/1",
    "failed trial": "/studies/{running}/trials/1",
    "compare": "/compare?study={ended}&study={running}",
    "compare nothing": "/compare",
    "compare trials": "/studies/{ended}/compare?trial=0+1+2",
    "ranking": "/studies/{ended}/ranking",
    "front": "/studies/{ended}/ranking?pareto=1",
    "export": "/studies/{ended}/export?trainer=megatron&on=slurm",
    "export refused": "/studies/{running}/export?trial=1",
    "delete": "/studies/{ended}/delete",
    "plan": "/plan?model=qwen3-8b&cluster=h200-sxm-4x8&seq_len=8192&batch=512&trainer=",
    "best": "/best?runner=simulated",
    "best predicted": "/best?model=gpt2-small&cluster=h100-sxm-1x4",
    "submit": "/submit",
    "copy": "/submit?from={queued}",
    "error": "/studies/absent",
}
"""addresses by the name of what they show"""
ALIKE = {
    *(
        "none found",
        "paused",
        "stopping",
        "completed",
        "failed",
        "cancelled",
        "trial",
        "compare nothing",
        "front",
    ),
    *("export refused", "best predicted", "copy"),
}
"""pages that another one of the same template nearly covers"""
ALWAYS = ("ended", "submit")
"""the page of a study, and its form"""
STILL = """
    const really = window.fetch;
    window.fetch = (...asked) => document.querySelector("main[data-events], main[data-every]") ? new Promise(() => {}) : really(...asked);
"""
"""pages that follow a study stay as they are, so that their controls can be counted"""
CONTROLS = """() => [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
    .filter((it) => it.type !== "hidden" && !it.disabled && it.checkVisibility({visibilityProperty: true}))"""
LISTEN = """(controls) => {
    window.focused = [];
    document.addEventListener("focusin", ({target}) => {
        const look = getComputedStyle(target), place = target.getBoundingClientRect();
        const seen = look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2 && place.width > 1 && place.height > 1;
        window.focused.push([controls.indexOf(target), seen, target.outerHTML.slice(0, 160)]);
    });
}"""
"""notes each control that gets the focus, and whether that is seen"""


HEIGHTS = """() => [...new Set([...document.querySelectorAll("form.filters :is(input:not([type=checkbox], [type=hidden]), select, button)")]
    .map((it) => it.offsetHeight))]"""
"""heights of the controls of forms in a row"""


def put_into(service: Service, status: StudyStatus) -> str:
    """A study of ann's with that status; those that ran have a measured trial and a failed one, and
    the running one a trial that runs."""
    study = service.submitted(spec(name=f"{status.lower()}-study"), service.token("submit"))
    if status is StudyStatus.QUEUED:
        return study
    store = service.store
    lease = store.claim(study, "tester:1:1", lease_s=600)
    store.set_status(study, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    run_trial(store, lease, measured(pending(0)))
    run_trial(store, lease, failed(pending(1)))
    if status is StudyStatus.RUNNING:
        decide(store, lease, KeepTrial(trial=pending(2)), launch(lease, 2, 1))
        store.add_steps(lease, [reported((study, 2, 1), 0, [0.9, 0.5, 0.55, 0.45])])
    for then in STATES[status]:
        store.set_status(study, then, expect=[StudyStatus.RUNNING], lease=lease)
    return study


@pytest.fixture(scope="module")
def kept(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that starts nothing; everybody needs a token."""
    with Service(
        tmp_path_factory.mktemp("kept"), options=ServiceOptions(port=0, require_token=True)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def studies(kept: Service) -> dict[str, str]:
    """Ids: `ended`, a study that was run, and one for each status."""
    found = {status.lower(): put_into(kept, status) for status in STATES}
    study = api.load_study(spec(name="ended", budget={"max_trials": 4, "min_gain": 0}))
    found["ended"] = api.tune(study, store=kept.store).record.id
    with kept.client(kept.token("admin", "root")) as client:
        client.tag(found["ended"], add=["night"])
        client.add_note(found["ended"], "an idle machine")
    return found


@pytest.fixture(scope="module")
def seen(browser: Any, kept: Service) -> Iterator[Visit]:
    """A page of an admin's, who is shown every button."""
    with logged_in(browser, kept, kept.token("admin", "root")) as (found, page):
        page.add_init_script(STILL)
        yield found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[]
            if name in ALWAYS
            else pytest.mark.slow
            if name in ALIKE
            else pytest.mark.thorough,
        )
        for name in PAGES
    ],
)
def test_a_page_is_accessible(
    seen: Visit, kept: Service, studies: dict[str, str], name: str
) -> None:
    page = seen.page
    page.emulate_media(color_scheme="light")
    go(page, PAGES[name].format(**studies))
    if name == "copy":
        page.locator(".preview table").wait_for()
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, (
            f"{name} overflows {width} px"
        )
    assert page.evaluate(HEIGHTS) in ([], [34]), "controls of a form in a row"
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert findings(page, ALL_RULES) == []
    page.emulate_media(color_scheme="dark")
    assert findings(page, COLORS) == []
    check_keyboard(page)
    # the pages of errors
    seen.complaints = [line for line in seen.complaints if "with a status of 4" not in line]
    check_quiet(seen, kept)


def findings(page: Any, rules: Mapping[str, Any]) -> list[str]:
    """What axe-core finds by these rules, in words."""
    found = page.evaluate(
        "(rules) => axe.run(document, rules)", {**rules, "resultTypes": ["violations"]}
    )["violations"]
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes']][:4]}"
        for one in found
    ]


def check_keyboard(page: Any) -> None:
    """The Tab key leads to every control, and each shows that it has the focus."""
    controls = page.evaluate_handle(CONTROLS)
    page.evaluate(LISTEN, controls)
    count = controls.evaluate("(controls) => controls.length")
    for _ in range(count + 2):
        page.keyboard.press("Tab")
    focused = page.evaluate("window.focused")
    unseen = [html for place, is_seen, html in focused if place >= 0 and not is_seen]
    assert not unseen, unseen
    missed = sorted(set(range(count)) - {place for place, _, _ in focused})
    told = controls.evaluate(
        "(controls, missed) => missed.map((i) => controls[i].outerHTML.slice(0, 160))", missed
    )
    assert not told, told


@pytest.mark.thorough
def test_the_plan_of_a_phone_keeps_mfu_memory_and_its_risk(seen: Visit) -> None:
    page = seen.page
    page.set_viewport_size({"width": 390, "height": 900})
    go(page, PAGES["plan"])
    region = page.get_by_role("region", name="Ranked configs")
    assert region.evaluate("(it) => it.scrollWidth <= it.clientWidth")
    head = region.locator("thead").inner_text()
    cells = region.locator("tbody tr").first.inner_text()
    for word in ("Tokens/s", "MFU", "OOM risk", "memory"):
        assert word in head
    assert re.search(r"\d+\.\d%", cells), "MFU"
    assert re.search(r"\b\d+%", cells), "risk"
    assert "GiB" in cells


@pytest.mark.thorough
def test_the_first_tab_leads_past_the_navigation(seen: Visit, studies: dict[str, str]) -> None:
    page = seen.page
    go(page, "/studies")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


@pytest.mark.thorough
def test_a_page_that_follows_a_study_keeps_the_focus(browser: Any, kept: Service) -> None:
    study = put_into(kept, StudyStatus.RUNNING)
    token = kept.token("admin", "root")
    with logged_in(browser, kept, token) as (_, page), kept.client(token) as client:
        go(page, f"/studies/{study}")
        page.get_by_role("link", name="Compare trials").focus()
        page.evaluate("document.querySelector('h1').isOld = true")
        client.pause(study)
        until(lambda: not page.evaluate("document.querySelector('h1').isOld"))
        assert page.evaluate("document.activeElement.innerText") == "Compare trials"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == "Compare with another study"
