"""The memory limit of a dry run's process, enforced in two ways.

RLIMIT_DATA    the kernel refuses allocations of private memory beyond the limit
VmHWM          high-water mark of resident memory, libraries and shared memory included (proc(5)); a thread reads it twice a second

The mark includes peaks between two readings. It is read again before the result is written, so that
a run that exceeded its limit has no result.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import final

from autotune.errors import DryRunError
from autotune_workers.process.machine import memory_limit, status_bytes

CHECK_EVERY_S = 0.5
"""interval of the checks; long, because each one takes the interpreter lock from the run"""
REFUSED = (
    "raised memoryerror",
    "defaultcpuallocator",
    "can't allocate memory",
    "cannot allocate memory",
    "std::bad_alloc",
    "failed to map segment",
)
"""messages of Python, torch, C, C++ and the dynamic linker about failed allocations; in lower
case"""


def was_refused_memory(text: str) -> bool:
    """Whether an error message or the output of a process reports a failed allocation."""
    return any(words in text.lower() for words in REFUSED)


def beyond_memory(limit_bytes: float, where: str = "") -> DryRunError:
    """The error for a run that exceeded the limit. `where`: appended to the message."""
    return DryRunError(
        f"the dry run needed more memory than the limit of {limit_bytes / 2**30:.3g} GiB{where}",
        remedy="build the model without real weights (on the device that the builder receives), or raise the limit (`--max-memory-gib` of `autotune fit`)",
    )


@final
class MemoryGuard:
    """Enforces the memory limit in this process."""

    def __init__(self, limit_bytes: float, stop: Callable[[], None]) -> None:
        """`stop`: must end this process; called from a thread when the limit is exceeded."""
        self._limit_bytes, self._stop = limit_bytes, stop
        self._done = threading.Event()

    @property
    def is_passed(self) -> bool:
        """Whether resident memory has ever exceeded the limit."""
        return (status_bytes("VmHWM") or 0) > self._limit_bytes

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Within the block, the limit is enforced."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            # memory reserved before but not yet touched, such as thread stacks, is not counted
            with memory_limit(max(0.0, self._limit_bytes - (status_bytes("RssAnon") or 0))):
                yield
        finally:
            self._done.set()
            thread.join()

    def _watch(self) -> None:
        while not self._done.wait(CHECK_EVERY_S):
            if self.is_passed:
                self._stop()
                return
