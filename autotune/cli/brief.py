"""Commands that answer at once and end, and what their process leaves out so that most of their
time is not spent on starting.

    garbage collection    of objects that all live until the command ends; imports alone make it look through them ten times
    plugins of pydantic   are looked for in the metadata of every package of the environment
    threads of OpenBLAS   are started when NumPy is imported, one per core, and wait for large matrices; here there are none

The environment is the user's again afterwards.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

COMMANDS = frozenset({"review", "plan", "estimate"})
_VARIABLES = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def brief() -> Iterator[None]:
    """Runs a command in this way. What the user has set stays as it is."""
    added = {name: value for name, value in _VARIABLES.items() if name not in os.environ}
    os.environ.update(added)
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        if collects:
            gc.enable()
