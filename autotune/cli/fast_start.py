"""Fast start of short commands, whose time is mostly startup.

    garbage collection    off: all objects live until the command ends, and imports alone trigger it ten times
    plugins of pydantic   off: finding them reads the metadata of every installed package
    threads of OpenBLAS   one: NumPy's import would start one per core, which only large matrices use

The environment is restored afterwards.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_COMMANDS = frozenset({"review", "plan", "estimate"})
_VARIABLES = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def fast_start() -> Iterator[None]:
    """Run the block with fast startup. Variables that the user has set are unchanged."""
    added = {name: value for name, value in _VARIABLES.items() if name not in os.environ}
    os.environ.update(added)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        if was_enabled:
            gc.enable()
