"""Rate limits: one token bucket per caller. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from autotune.service.options import Rate

MOST_CALLERS = 10_000
"""most buckets in memory; the one that was used longest ago is dropped first"""


class Limiter:
    """A token bucket for each caller."""

    def __init__(self, rate: Rate, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._monotonic = rate, monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, caller: str, *, take: bool = True) -> float:
        """Seconds until the caller may send a request; 0: now. Unless `take` is False, 0 also takes one token from the bucket."""
        now = self._monotonic()
        with self._lock:
            left, at = self._buckets.pop(caller, (float(self._rate.burst), now))
            left = min(float(self._rate.burst), left + (now - at) * self._rate.per_s)
            wait = 0.0 if left >= 1 else (1 - left) / self._rate.per_s
            self._buckets[caller] = (left - 1 if take and not wait else left, now)
            if len(self._buckets) > MOST_CALLERS:
                self._buckets.popitem(last=False)
        return wait
