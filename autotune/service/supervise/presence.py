"""The stores that services of this machine and user serve, so that `submit` can tell if none would
run the study.

Each service has a file in the folder `services` of the user's data, named by its process id. It
contains the store's address without the password, and the process's identity, which shows whether a
killed service left the file behind.
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
def announce_service(store: str) -> Iterator[None]:
    """Announce that a service in this process runs the studies of `store` (a path or URL), while
    the context is open."""
    path = own_folder(FOLDER) / f"{os.getpid()}.json"
    path.write_text(json.dumps({"store": _address(store), "process": this_process()}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def is_served(store: str) -> bool:
    """Return whether a service on this machine runs the studies of `store`. Deletes the files of
    dead services."""
    address = _address(store)
    for path in sorted((data_folder() / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            service = json.loads(path.read_text())
            if is_gone(service["process"]):
                path.unlink(missing_ok=True)
            elif service["store"] == address:
                return True
    return False


def _address(store: str) -> str:
    """Return a store's address in a unique form."""
    location = find_location(store)
    return str(location.path.resolve() if location.path else location)
