"""Presence: of which stores services of this machine and user run the studies, so that `submit` can
say when none does.

Each service keeps one file in the folder `services` of the user's data, named by its process
number: its store's address without the password, and the id of its process, by which a file that a
killed service left behind is known.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from autotune.settings import data_folder, own_folder
from autotune.store.connection.location import find_location
from autotune.study.process_id import is_gone, this_process

FOLDER = "services"


@contextlib.contextmanager
def announced(store: str) -> Iterator[None]:
    """Announces that a service of this process runs the studies of `store` (a path or URL), as long
    as the context lasts."""
    path = own_folder(FOLDER) / f"{os.getpid()}.json"
    path.write_text(json.dumps({"store": _address(store), "process": this_process()}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def is_served(store: str) -> bool:
    """Whether a service of this machine runs the studies of `store`. Files of dead services are
    removed."""
    address = _address(store)
    for path in sorted((data_folder() / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads(path.read_text())
            if is_gone(found["process"]):
                path.unlink(missing_ok=True)
            elif found["store"] == address:
                return True
    return False


def _address(store: str) -> str:
    """One text for all ways to write the address of a store."""
    location = find_location(store)
    return str(location.path.resolve() if location.path else location)
