"""Time of the web pages with a large store: `python -m tests.benchmarks.page_speed [STUDIES [TRIALS]]`, by default 1,000 studies and one of 10,000 trials.

    first      the first request after the service has started: everything is read and made
    changed    after an event was added to the study, so that no view that was made before is right; median
    again      nothing has changed; median
    paint      first contentful paint in Chromium, where it is installed, of a page that is asked for again; median
    figures    from the start of the navigation until the figures are on the page, in Chromium, after an event was added; median

The service is a process of its own. Wall times of a request are from its start to its last byte, and CPU times are those of the service.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from autotune.spec import StudyStatus
from autotune.store import SqlStore, open_store
from tests.benchmarks import large_store
from tests.benchmarks.large_study import large_study
from tests.benchmarks.service_load import cpu_s, served
from tests.browser.chromium import chromium, find_chromium, visit

REPEATS = 5
TRIALS_EACH = 10
"""trials of each of the small studies"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def requests(url: str, pid: int, path: str, before: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """Medians of wall and CPU seconds of a request; `before` is called before each."""
    walls, cpus = [], []
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as http:
        for _ in range(REPEATS):
            before()
            wall, cpu = time.perf_counter(), cpu_s(pid)
            http.get(path).raise_for_status()
            walls.append(time.perf_counter() - wall)
            cpus.append(cpu_s(pid) - cpu)
    return statistics.median(walls), statistics.median(cpus)


def first(url: str, pid: int, path: str) -> tuple[float, float, int]:
    """Wall and CPU seconds of one request, and the size of the answer in bytes."""
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as http:
        wall, cpu = time.perf_counter(), cpu_s(pid)
        answer = http.get(path).raise_for_status()
        return time.perf_counter() - wall, cpu_s(pid) - cpu, len(answer.content)


def painted(page: Any, path: str) -> float:
    """Seconds until something is painted."""
    page.goto(path)
    page.wait_for_function(f"{PAINT} > 0")
    return 1e-3 * float(page.evaluate(PAINT))


def drawn(page: Any, path: str) -> float:
    """Seconds until the figures are there."""
    began = time.perf_counter()
    page.goto(path)
    page.wait_for_selector("#figures figure svg")
    return time.perf_counter() - began


def show(store: SqlStore, url: str, pid: int, study: str) -> None:
    """The tables."""

    def change() -> None:
        store.record_event(study, "study.note", {"message": "changed"})

    pages = {
        "studies": "/studies",
        "studies, page 15": "/studies?page=15",
        "large study": f"/studies/{study}",
        "its figures": f"/studies/{study}/figures",
        "its trials, sorted and filtered": f"/studies/{study}?sort=-measured&where=tp%3D2&page=3",
        "one of its trials": f"/studies/{study}/trials/77",
    }
    print("| page | first, wall (CPU) | changed, wall (CPU) | again, wall (CPU) | size |\n|---|---|---|---|---|")
    for name, path in pages.items():
        wall, cpu, size = first(url, pid, path)
        changed, again = requests(url, pid, path, change), requests(url, pid, path)
        cells = [f"{a:.2f} s ({b:.2f} s)" for a, b in ((wall, cpu), changed, again)]
        print(f"| {name} | {' | '.join(cells)} | {size / 1024:.0f} KiB |", flush=True)
    if find_chromium() is None:
        return
    print("| page in Chromium | first paint | figures |\n|---|---|---|")
    with chromium() as browser, visit(browser, url) as seen:
        for name in ("studies", "large study"):
            times_s = statistics.median(painted(seen.page, pages[name]) for _ in range(REPEATS))
            print(f"| {name} | {times_s:.2f} s |", end="")
            if name == "studies":
                print(" |")
        times = []
        for _ in range(3):
            change()
            times.append(drawn(seen.page, pages["large study"]))
        print(f" {statistics.median(times):.2f} s |")


def main(num_studies: str = "1000", num_trials: str = "10000") -> None:
    """Fills a store and prints the tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.db"
        store = open_store(path)
        assert isinstance(store, SqlStore)
        large_store.fill(store, int(num_studies) - 1, TRIALS_EACH)
        for record in store.claimable(limit=int(num_studies)):  # this service would run them
            store.set_status(record.id, StudyStatus.CANCELLED, expect=[StudyStatus.QUEUED])
        study = large_study(store, int(num_trials))
        trials = sum(store.study(study).trial_counts.values())
        print(f"{num_studies} studies, one of {trials:,} trials; load {os.getloadavg()[0]:.1f}")
        with served(Path(folder), str(path), 1) as (url, pid):
            show(store, url, pid, study)
        print(f"load {os.getloadavg()[0]:.1f}")
        store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
