"""Views of studies: their results and figures, made once for each revision of a study and shared by
all who look at it.

A view is kept until newer ones need its place. When its study has changed, only the trials are read
again that the events since then name. Requests that come while a view is being made wait for it.
Threads may share it.

Revisions of the studies that event streams follow. All streams of a study share one reading of the
store for each interval.
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

MOST_TRIALS = 50_000
"""trials of all views together, about 10 KB each; the view that was asked for longest ago is
dropped first"""
MOST_VIEWS = 500
"""views of studies"""
RUNNING = "running_steps"
"""the figure of the running trials, which changes without a revision"""
MOST_EVENTS = 1000
"""events since a view was made; after more of them all trials are read again"""


@dataclass(slots=True)
class _View:
    """What is known of a study at one revision."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """held while it is made"""
    revision: Revision | None = None
    result: Result | None = None
    source: FigureSource | None = None
    """what its figures are drawn from"""
    figures: dict[str, Figure | None] = field(default_factory=dict)
    """those that were drawn, by name; None: there is nothing to show"""


class StudyViews:
    """The views of one service."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._views: OrderedDict[str, _View] = OrderedDict()

    def result(self, study_id: str) -> Result:
        """What the store knows of the study now. Raises `NotFoundError`."""

        result, _ = self._seen(study_id)
        # a lease runs out without a revision
        return replace(result, is_left=is_left(self._store, result.record))

    def is_at_hand(self, study_id: str) -> bool:
        """Whether the result is known as of the study's present revision, so that nothing has to be
        read for it. Raises `NotFoundError`."""
        revision = self._store.revision(study_id)
        view = self._views.get(revision.id)
        return view is not None and view.result is not None and view.revision == revision

    def figures(self, study_id: str) -> tuple[Figure, ...]:
        """The study's figures as of its revision. Raises `NotFoundError`."""
        result, view = self._seen(study_id)
        return tuple(
            figure for name in FIGURES if (figure := self._drawn(result, view, name)) is not None
        )

    def figure(self, study_id: str, name: str) -> Figure | None:
        """One figure of the study, drawn without the others; None where there is nothing to show.
        Raises `NotFoundError`."""
        result, view = self._seen(study_id)
        if name == RUNNING:
            return running_steps(self.running(result))
        return self._drawn(result, view, name) if name in FIGURES else None

    def has_figures(self, result: Result) -> bool:
        """Whether the figures of this result are drawn already."""
        view = self._views.get(result.record.id)
        known = view.result if view is not None else None
        return (
            view is not None
            and known is not None
            and known.trials is result.trials
            and len(view.figures) == len(FIGURES)
        )

    def figures_now(self, study_id: str) -> tuple[Figure, ...]:
        """The study's figures, first that of its running trials where it has any. Raises
        `NotFoundError`."""
        figure = self.figure(study_id, RUNNING)
        return (() if figure is None else (figure,)) + self.figures(study_id)

    def running(self, result: Result) -> FigureSource:
        """The source of the figure of the running trials: their steps as they are now, which are no
        part of a revision."""
        study = result.record.id
        numbers = [t.number for t in result.shown if t.status is TrialStatus.RUNNING]
        return FigureSource(
            result=result, steps={number: self._store.steps(study, number) for number in numbers}
        )

    def _drawn(self, result: Result, view: _View, name: str) -> Figure | None:
        """The figure of the result, kept as long as the view is that of the result."""
        with view.lock:
            if view.result is not result or view.source is None:
                return FIGURES[name](FigureSource(result=result))
            if name not in view.figures:
                view.figures[name] = FIGURES[name](view.source)
            return view.figures[name]

    def _seen(self, study_id: str) -> tuple[Result, _View]:
        # read before the trials: a view is never taken for newer than it is
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
        """The study's trials as of that revision or later. Those that did not change since the view
        was made are taken from it."""
        study, known, before = revision.id, view.result, view.revision
        if (
            known is None
            or before is None
            or not 0 <= revision.events - before.events <= MOST_EVENTS
        ):
            return self._store.trials(study)
        events = self._store.events(study, after=before.events, limit=MOST_EVENTS)
        changed = {
            e.data["number"]
            for e in events
            if e.kind.startswith(("trial.", "attempt.")) and "number" in e.data
        }
        read = self._store.trials(study, numbers=changed) if changed else []
        return {t.number: t for t in (*known.trials, *read)}.values()

    def _drop_old(self, newest: str) -> None:
        """Drops the views that were asked for longest ago while there are too many trials."""
        with self._lock:
            sizes = {
                name: len(view.result.trials) if view.result else 0
                for name, view in self._views.items()
            }
            total = sum(sizes.values())
            for name in list(self._views):
                if (total <= MOST_TRIALS and len(self._views) <= MOST_VIEWS) or name == newest:
                    return
                total -= sizes[name]
                del self._views[name]


FORGET_S = 60.0
"""time after which the reading of a study that nobody follows is dropped"""


class RevisionWatch:
    """The last reading of each study. Used from the event loop's thread only."""

    def __init__(self, store: ServiceStore, *, interval_s: float) -> None:
        self._store, self._interval_s = store, interval_s
        self._readings: dict[str, tuple[asyncio.Future[Revision], float]] = {}

    async def read(self, study: str) -> Revision:
        """The study's revision, at most an interval old. Raises `StoreError` when the store cannot
        be read."""
        now_s = time.monotonic()
        reading, at_s = self._readings.get(study, (None, 0.0))
        if reading is None or now_s - at_s >= self._interval_s:
            self._readings = {s: r for s, r in self._readings.items() if now_s - r[1] < FORGET_S}
            reading = asyncio.ensure_future(run_in_threadpool(self._store.revision, study))
            self._readings[study] = reading, now_s
        return await asyncio.shield(reading)
