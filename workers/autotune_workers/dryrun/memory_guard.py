"""The memory limit of a dry run's process, by two means of the kernel.

RLIMIT_DATA    private memory beyond the limit is refused at once, however much is asked for
VmHWM          the high-water mark of resident memory, which counts libraries and shared memory too (proc(5)); a thread reads it twice a second

The mark misses no peak between two readings. It is read once more before an answer is given, so no
run that went beyond its limit gives one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import final

from autotune.errors import DryRunError
from autotune_workers.process.machine import memory_limit, status_bytes

LOOK_EVERY_S = 0.5
"""seldom, as each look takes the interpreter from the run for a moment, which is long on a busy
machine"""
REFUSED = (
    "raised memoryerror",
    "defaultcpuallocator",
    "can't allocate memory",
    "cannot allocate memory",
    "std::bad_alloc",
    "failed to map segment",
)
"""what Python, torch, C, C++ and the loader of libraries say when the kernel gives them no memory;
in small letters"""


def was_refused_memory(text: str) -> bool:
    """Whether this is what an error or a dying process says of memory that it was not given."""
    return any(words in text.lower() for words in REFUSED)


def beyond_memory(limit_bytes: float, where: str = "") -> DryRunError:
    """What is told of a run that needed more. `where`: in words, how far it came."""
    return DryRunError(
        f"the dry run needed more memory than the limit of {limit_bytes / 2**30:.3g} GiB{where}",
        remedy="build the model without real weights (on the device that the builder receives), or raise the limit (`--max-memory-gib` of `autotune fit`)",
    )


@final
class MemoryGuard:
    """Keeps this process within its limit."""

    def __init__(self, limit_bytes: float, stop: Callable[[], None]) -> None:
        """`stop`: ends this process; called by a thread once the limit is passed."""
        self._limit_bytes, self._stop = limit_bytes, stop
        self._done = threading.Event()

    @property
    def is_passed(self) -> bool:
        """Whether more than the limit has ever been resident."""
        return (status_bytes("VmHWM") or 0) > self._limit_bytes

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """The block in which the limit holds."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            # what is reserved and not yet filled, such as stacks of threads, may be filled without
            # counting
            with memory_limit(max(0.0, self._limit_bytes - (status_bytes("RssAnon") or 0))):
                yield
        finally:
            self._done.set()
            thread.join()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_EVERY_S):
            if self.is_passed:
                self._stop()
                return
