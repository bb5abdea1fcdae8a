"""A supervisor process: the service's own `Supervisor`, with its own fork server and workers.
Studies outlive it, as they outlive a service."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

from autotune.service.supervise.launcher import ProcessLauncher
from autotune.service.supervise.supervisor import Supervisor
from autotune.store import open_store
from autotune_workers.process.machine import die_with_parent
from tests.chaos.controller import patiently

ROOT = Path(__file__).parents[2]
PLACES = 4


def main(address: str, logs: str, lease_s: float, journals: str = "") -> None:
    """Keeps studies running until it is killed, as soon as its database is there. `journals`: where
    their controllers keep them, if they shall."""
    die_with_parent(os.getppid())
    if journals:
        path = (Path(__file__).with_name("journalled"), ROOT, ROOT / "workers")
        os.environ.update(PYTHONPATH=os.pathsep.join(map(str, path)), CHAOS_FOLDER=journals)
    Path(logs).mkdir(exist_ok=True)
    logging.basicConfig(filename=Path(logs) / "supervisors.log")
    launcher = ProcessLauncher(Path(logs), store_url=address, lease_s=lease_s)
    store = patiently(lambda: open_store(address), lambda: False)
    Supervisor(store, launcher, max_studies=PLACES, poll_s=0.05).start()
    while True:
        signal.pause()
