"""Time of the web pages with a large store: `python -m tests.benchmarks.page_speed [STUDIES
[TRIALS]]`, by default 1,000 studies and one of 10,000 trials.

    first      the first request of its kind after the service has started, in the order of the table
    changed    after a trial has ended, so that no view that was made before is right; median
    again      nothing has changed; median
    paint      first contentful paint in Chromium, where it is installed
    results    from the start of the navigation until best config and trials are on the page, by the browser's clock; figures: until the figures are

Chromium sees a service that has just started, then one that has made all before, after a trial has
ended, and when nothing has changed. The services are processes of their own. Wall times of a
request are from its start to its last byte, and CPU times are those of the service; those of
commands are of their process.
"""

from __future__ import annotations

import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from autotune.spec import StudyStatus
from autotune.store import SqlStore, open_store
from autotune.testing.stores import measured, pending, run_trial
from tests.benchmarks import large_store
from tests.benchmarks.large_study import large_study
from tests.benchmarks.service_load import cpu_s, served
from tests.browser.chromium import chromium, find_chromium, go, visit

REPEATS = 5
TRIALS_EACH = 10
"""trials of each of the small studies"""
RESULTS, FIGURES = "#trials table", "#figures figure svg"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def requests(
    url: str, pid: int, path: str, before: Callable[[], object] = lambda: None
) -> tuple[float, float]:
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


def seen(page: Any, path: str) -> tuple[float, float, float]:
    """Seconds until something is painted, until the results are there, and until the figures
    are."""
    go(page, path)
    times_s = [_now_s(page, selector) for selector in (RESULTS, FIGURES)]
    return 1e-3 * float(page.evaluate(PAINT)), times_s[0], times_s[1]


def _now_s(page: Any, selector: str) -> float:
    """Seconds since the start of the navigation, once there is such an element."""
    page.wait_for_selector(selector, state="attached")
    return 1e-3 * float(page.evaluate("performance.now()"))


def command(*words: str) -> tuple[float, float]:
    """Wall and CPU seconds of a command in a process of its own."""
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "from autotune.cli import main; main()", *words],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.perf_counter() - wall,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


class Changes:
    """Ends one more trial of the study at a time, as a controller would."""

    def __init__(self, store: SqlStore, study: str) -> None:
        self._store, self._numbers = store, itertools.count(len(store.trials(study)))
        self._lease = store.claim(study, "benchmark:1:1", lease_s=3600.0)

    def __call__(self) -> None:
        assert self._lease is not None
        run_trial(
            self._store, self._lease, measured(pending(next(self._numbers)), step_time_s=100.0)
        )


def show_requests(url: str, pid: int, study: str, change: Changes) -> None:
    """The table of requests."""
    at = f"/studies/{study}"
    pages = {
        "studies": "/studies",
        "studies, page 15": "/studies?page=15",
        "the large study": at,
        "its results": f"{at}/results",
        "its figures": f"{at}/figures",
        "its trials, sorted and filtered": f"{at}/results?sort=-measured&where=tp%3D2&page=3",
        "one figure as CSV": f"/api/v1{at}/figures/best_so_far.csv",
        "one of its trials": f"{at}/trials/77",
        "its trials compared": f"{at}/compare?trial=0+77",
        "its ranking": f"{at}/ranking?metric=cost",
        "compared with another": f"/compare?study={study}&study=study-7",
        "its report": f"{at}/report",
        "status as JSON": f"/api/v1{at}",
        "trials as JSON": f"/api/v1{at}/trials",
    }
    print(
        "| page | first, wall (CPU) | changed, wall (CPU) | again, wall (CPU) | size |\n|---|---|---|---|---|"
    )
    for name, path in pages.items():
        wall, cpu, size = first(url, pid, path)
        changed, again = requests(url, pid, path, change), requests(url, pid, path)
        cells = [f"{a:.2f} s ({b:.2f} s)" for a, b in ((wall, cpu), changed, again)]
        print(f"| {name} | {' | '.join(cells)} | {size / 1024:,.0f} KiB |", flush=True)


def show_browser(url: str, study: str, change: Changes) -> None:
    """The table of the browser."""
    path = f"/studies/{study}"
    print("| the large study in Chromium | first paint | results | figures |\n|---|---|---|---|")
    with chromium() as browser:
        for name, before, times in (("first", None, 1), ("changed", change, 3), ("again", None, 3)):
            found = []
            for _ in range(times):
                if before is not None:
                    before()
                with visit(browser, url) as visited:
                    found.append(seen(visited.page, path))
            cells = [f"{statistics.median(column):.2f} s" for column in zip(*found, strict=True)]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main(num_studies: str = "1000", num_trials: str = "10000") -> None:
    """Fills a store and prints the tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.db"
        store = open_store(path)
        assert isinstance(store, SqlStore)
        large_store.fill(store, int(num_studies) - 1, TRIALS_EACH)
        for record in store.claimable(limit=int(num_studies)):  # this service would run them
            store.set_status(record.id, StudyStatus.CANCELLED, expect=[StudyStatus.QUEUED])
        study = large_study(store, int(num_trials), status=StudyStatus.RUNNING)
        trials = sum(store.study(study).trial_counts.values())
        print(f"{num_studies} studies, one of {trials:,} trials; load {os.getloadavg()[0]:.1f}")
        change = Changes(store, study)
        if find_chromium() is not None:
            with served(Path(folder), str(path), 1) as (url, _):
                show_browser(url, study, change)
        with served(Path(folder), str(path), 1) as (url, pid):
            show_requests(url, pid, study, change)
        print("| command | wall (CPU) |\n|---|---|")
        for words in (
            ("status", study),
            ("report", study, "-o", str(Path(folder) / "report.html")),
            ("best", study),
        ):
            wall, cpu = command(*words, "--store", str(path))
            print(f"| `autotune {words[0]} ID` | {wall:.1f} s ({cpu:.1f} s) |", flush=True)
        print(f"load {os.getloadavg()[0]:.1f}")
        store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
