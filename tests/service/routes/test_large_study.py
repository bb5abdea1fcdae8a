"""The page of a study with many trials: it is made without reading them, and after a change only
those that changed are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from autotune.ports import Lease
from autotune.report.figures import FIGURES
from autotune.results.answers import result_of
from autotune.service.pages import study_page
from autotune.service.pages.study_page import MAX_IMMEDIATE_TRIALS
from autotune.service.pages.trial_table import PAGE
from autotune.spec import Reward, Trial
from autotune.store.in_memory import MemoryStore
from autotune.testing.stores import a_study, measured, pending, run_trial, running_study
from tests.benchmarks.large_study import large_study
from tests.service.running import Service

SMALL = 12
"""trials up to which a page waits, in these tests"""


class CountedReads(MemoryStore):
    """Notes which trials are read, and counts statements."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []
        self.statements = 0
        event.listen(self.database.engine, "before_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        self.statements += 1

    def trials(self, study_id: str, *, numbers: Collection[int] | None = None) -> list[Trial]:
        found = super().trials(study_id, numbers=numbers)
        self.read += [t.number for t in found]
        return found

    def since(self) -> tuple[list[int], int]:
        """(trials read, statements) since the last call."""
        seen, self.read = (self.read, self.statements), []
        self.statements = 0
        return seen


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service on a store that counts, for which `SMALL` trials are many."""
    monkeypatch.setattr(study_page, "MAX_IMMEDIATE_TRIALS", SMALL)
    with Service(tmp_path, store=CountedReads()) as running:
        yield running


def study_of(store: MemoryStore, num_trials: int, name: str) -> Lease:
    """A running study with so many trials."""
    lease = running_study(store, a_study(name))
    for number in range(num_trials):
        run_trial(store, lease, measured(pending(number), step_time_s=1.0 / (1 + number)))
    return lease


@pytest.mark.thorough
def test_a_large_page_reads_no_trials_and_later_only_changed_ones(counted: Service) -> None:
    store, http = counted.store, counted.http
    lease, larger = study_of(store, SMALL + 1, "many"), study_of(store, 3 * SMALL, "more")
    page, results = f"/studies/{lease.study}", f"/studies/{lease.study}/results"
    store.since()
    text = http.get(f"{page}?sort=-measured&page=2").text
    trials, statements = store.since()
    assert trials == []
    assert f'data-from="{results}?sort=-measured&amp;page=2"' in text
    assert "/static/live.js" in text
    assert "<svg" not in text
    assert http.get(f"/studies/{larger.study}").status_code == 200
    assert store.since() == ([], statements), "the statements of a page do not grow with its study"
    part = http.get(results).text
    assert store.since()[0] == list(range(SMALL + 1)), "each trial once"
    assert f'data-from="{page}/figures"' in part
    assert "<svg" not in part
    assert http.get(f"/api/v1{page}/figures/best_so_far.csv").text.startswith("trial,")
    assert not counted.service.views.has_figures(counted.service.views.result(lease.study)), (
        "one is drawn alone"
    )
    assert http.get(f"{page}/figures").text.count("<figure") >= 5
    assert store.since()[0] == []
    whole = http.get(page).text  # all is at hand now
    assert f"{results}" not in whole
    assert "<figure" in whole
    assert part.split("<table>")[1].split("</table>")[0] in whole
    assert store.since()[0] == []
    won = Reward(total=9.0, throughput=9.0, stability=1.0)
    run_trial(store, lease, replace(measured(pending(SMALL + 1), step_time_s=1e-3), reward=won))
    assert results in http.get(page).text
    assert store.since()[0] == []
    assert (
        f'<tr class="won">\n  <td class="n"><a href="{page}/trials/{SMALL + 1}">'
        in http.get(results).text
    )
    for path in (
        "/ranking",
        "/compare?trial=0+3",
        "/trials/3",
        "/export?trainer=torchtitan",
        "/report",
    ):
        http.get(f"{page}{path}")
    http.get(f"/api/v1{page}")
    http.get(f"/api/v1{page}/best")
    assert store.since()[0] == [SMALL + 1]
    assert repr(counted.service.views.result(lease.study)) == repr(result_of(store, lease.study))
    known, stored = counted.service.views.result(lease.study).trials, store.trials(lease.study)
    assert repr(known) == repr(tuple(stored))


@pytest.mark.thorough
def test_the_report_reuses_drawn_figures(counted: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    study, drawn = study_of(counted.store, SMALL + 1, "reported").study, list[str]()
    for name, draw in list(FIGURES.items()):
        monkeypatch.setitem(
            FIGURES, name, lambda source, name=name, draw=draw: drawn.append(name) or draw(source)
        )  # type: ignore[arg-type]
    page = counted.http.get(f"/studies/{study}/figures").text
    assert drawn == list(FIGURES)
    assert counted.http.get(f"/studies/{study}/report").text.count("<svg") == page.count("<svg")
    assert drawn == list(FIGURES), "each once"


def test_a_browser_without_scripts_gets_the_whole_page(counted: Service) -> None:
    lease = study_of(counted.store, SMALL + 1, "plain")
    page = f"/studies/{lease.study}"
    assert (
        '<a href="?sort=-measured&amp;whole=1">' in counted.http.get(f"{page}?sort=-measured").text
    )
    whole = counted.http.get(f"{page}?sort=-measured&whole=1").text
    assert f'<a href="{page}/trials/0">' in whole
    assert 'aria-sort="descending"' in whole


@pytest.mark.slow
def test_the_page_of_a_large_study_fetches_its_parts(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        study = large_study(service.store, MAX_IMMEDIATE_TRIALS + 100)
        assert f'data-from="/studies/{study}/results?' in service.http.get(f"/studies/{study}").text
        assert (
            service.http.get(f"/studies/{study}/results").text.count(
                f'<a href="/studies/{study}/trials/'
            )
            == PAGE
        )
        figures = service.http.get(f"/studies/{study}/figures").text
        assert figures.count("<figure") >= 10
        again = service.http.get(f"/studies/{study}").text  # they are drawn now
        assert again.count("<figure") == figures.count("<figure")
        assert "data-from" not in again
