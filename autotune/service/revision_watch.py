"""Revisions of the studies that event streams follow. All streams of a study share one reading of the store for each interval."""

from __future__ import annotations

import asyncio
import time

from starlette.concurrency import run_in_threadpool

from autotune.ports import Revision, ServiceStore

FORGET_S = 60.0
"""time after which the reading of a study that nobody follows is dropped"""


class RevisionWatch:
    """The last reading of each study. Used from the event loop's thread only."""

    def __init__(self, store: ServiceStore, *, interval_s: float) -> None:
        self._store, self._interval_s = store, interval_s
        self._readings: dict[str, tuple[asyncio.Future[Revision], float]] = {}

    async def read(self, study: str) -> Revision:
        """The study's revision, at most an interval old. Raises `StoreError` when the store cannot be read."""
        now_s = time.monotonic()
        reading, at_s = self._readings.get(study, (None, 0.0))
        if reading is None or now_s - at_s >= self._interval_s:
            self._readings = {s: r for s, r in self._readings.items() if now_s - r[1] < FORGET_S}
            reading = asyncio.ensure_future(run_in_threadpool(self._store.revision, study))
            self._readings[study] = reading, now_s
        return await asyncio.shield(reading)
