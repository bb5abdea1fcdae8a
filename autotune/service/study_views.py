"""Views of studies: their results and figures, computed once per revision of a study and shared by
all requests.

Views are cached, and the least recently used are dropped. After a change, only the trials named by
the new events are read again. Requests that arrive while a view is being computed wait for it.
Thread-safe.

`RevisionWatch` reads the revisions of studies for event streams: all streams of a study share one
reading of the store per interval.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from starlette.concurrency import run_in_threadpool

from autotune.ports import Revision, ServiceStore
from autotune.report.figures import FIGURES
from autotune.report.figures.running_steps import running_steps
from autotune.report.figures.source import FigureSource
from autotune.results.answers import is_left, result_from
from autotune.results.figure import Figure
from autotune.results.masking import masked_record, masked_trials
from autotune.results.result import Result
from autotune.spec import Trial, TrialStatus

MAX_TRIALS = 50_000
"""maximum number of trials of all views together, about 10 KB each; the least recently used view is
dropped first"""
MAX_VIEWS = 500
"""maximum number of views"""
RUNNING = "running_steps"
"""name of the figure of the running trials, which changes without a new revision"""
MAX_EVENTS = 1000
"""maximum number of events since a view was computed; after more events, all trials are read
again"""


@dataclass(slots=True)
class _View:
    """A study at one revision."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """held while the view is computed"""
    revision: Revision | None = None
    result: Result | None = None
    source: FigureSource | None = None
    """data for its figures"""
    figures: dict[str, Figure | None] = field(default_factory=dict)
    """drawn figures by name; None: there is no data"""


class StudyViews:
    """The views of one service."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._views: OrderedDict[str, _View] = OrderedDict()

    def result(self, study_id: str) -> Result:
        """Return the study's current result. Raises `NotFoundError`."""

        result, _ = self._updated_view(study_id)
        # read the lease again, because a lease expires without a new revision
        return replace(result, is_left=is_left(self._store, result.record))

    def is_current(self, study_id: str) -> bool:
        """Return whether the result is in memory for the study's current revision. Raises
        `NotFoundError`."""
        revision = self._store.revision(study_id)
        view = self._views.get(revision.id)
        return view is not None and view.result is not None and view.revision == revision

    def figures(self, study_id: str) -> tuple[Figure, ...]:
        """Return the study's figures for its current revision. Raises `NotFoundError`."""
        result, view = self._updated_view(study_id)
        return tuple(
            figure for name in FIGURES if (figure := self._figure(result, view, name)) is not None
        )

    def figure(self, study_id: str, name: str) -> Figure | None:
        """Return one figure of the study, drawn without the others; None if there is no data.
        Raises `NotFoundError`."""
        result, view = self._updated_view(study_id)
        if name == RUNNING:
            return running_steps(self.running(result))
        return self._figure(result, view, name) if name in FIGURES else None

    def has_figures(self, result: Result) -> bool:
        """Return whether all figures of this result are drawn."""
        view = self._views.get(result.record.id)
        result_in_view = view.result if view is not None else None
        return (
            view is not None
            and result_in_view is not None
            and result_in_view.trials is result.trials
            and len(view.figures) == len(FIGURES)
        )

    def current_figures(self, study_id: str) -> tuple[Figure, ...]:
        """Return the study's figures, starting with the figure of its running trials if there is
        one. Raises `NotFoundError`."""
        figure = self.figure(study_id, RUNNING)
        return (() if figure is None else (figure,)) + self.figures(study_id)

    def running(self, result: Result) -> FigureSource:
        """Return the data for the figure of the running trials, with their current steps, which are
        not part of a revision."""
        study = result.record.id
        numbers = [t.number for t in result.shown if t.status is TrialStatus.RUNNING]
        return FigureSource(
            result=result, steps={number: self._store.steps(study, number) for number in numbers}
        )

    def _figure(self, result: Result, view: _View, name: str) -> Figure | None:
        """Return a figure of the result, cached while the view has this result."""
        with view.lock:
            if view.result is not result or view.source is None:
                return FIGURES[name](FigureSource(result=result))
            if name not in view.figures:
                view.figures[name] = FIGURES[name](view.source)
            return view.figures[name]

    def _updated_view(self, study_id: str) -> tuple[Result, _View]:
        """Return the study's current result and its view, computed again if the study changed."""
        # read the revision before the trials, so that a view is never considered newer than it is
        revision = self._store.revision(study_id)
        with self._lock:
            view = self._views.setdefault(revision.id, _View())
            self._views.move_to_end(revision.id)
        with view.lock:
            if view.result is None or view.revision != revision:
                record = self._store.study(revision.id)
                view.result = result_from(
                    masked_record(record), masked_trials(record, self._trials(view, revision))
                )
                view.source, view.figures = FigureSource(result=view.result), {}
                view.revision = revision
            result = view.result
        self._drop_old(revision.id)
        return result, view

    def _trials(self, view: _View, revision: Revision) -> Collection[Trial]:
        """Return the study's trials at that revision or later. Unchanged trials are taken from the
        view."""
        study, result, previous = revision.id, view.result, view.revision
        if (
            result is None
            or previous is None
            or not 0 <= revision.events - previous.events <= MAX_EVENTS
        ):
            return self._store.trials(study)
        events = self._store.events(study, after=previous.events, limit=MAX_EVENTS)
        changed = {
            e.data["number"]
            for e in events
            if e.kind.startswith(("trial.", "attempt.")) and "number" in e.data
        }
        read = self._store.trials(study, numbers=changed) if changed else []
        return {t.number: t for t in (*result.trials, *read)}.values()

    def _drop_old(self, newest: str) -> None:
        """Drop the least recently used views while there are too many trials or views."""
        with self._lock:
            sizes = {
                name: len(view.result.trials) if view.result else 0
                for name, view in self._views.items()
            }
            total = sum(sizes.values())
            for name in list(self._views):
                if (total <= MAX_TRIALS and len(self._views) <= MAX_VIEWS) or name == newest:
                    return
                total -= sizes[name]
                del self._views[name]


DROP_AFTER_S = 60.0
"""time after which the reading of a study without event streams is dropped, seconds"""


class RevisionWatch:
    """The last reading of each study's revision. Use it only in the event loop's thread."""

    def __init__(self, store: ServiceStore, *, interval_s: float) -> None:
        self._store, self._interval_s = store, interval_s
        self._readings: dict[str, tuple[asyncio.Future[Revision], float]] = {}

    async def read(self, study: str) -> Revision:
        """Return the study's revision, at most an interval old. Raises `StoreError` if the store
        cannot be read."""
        now_s = time.monotonic()
        reading, at_s = self._readings.get(study, (None, 0.0))
        if reading is None or now_s - at_s >= self._interval_s:
            self._readings = {
                s: r for s, r in self._readings.items() if now_s - r[1] < DROP_AFTER_S
            }
            reading = asyncio.ensure_future(run_in_threadpool(self._store.revision, study))
            self._readings[study] = reading, now_s
        return await asyncio.shield(reading)
